//! What this program is: its version, and what it was built from (`build.rs`).

use std::sync::LazyLock;

use energy_host::meter::ebpf::object_sha256;
use energy_model::build::Build;

/// Of this program.
pub(crate) fn build() -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION"),
        revision: env!("ENERGY_AGENT_REVISION"),
        branch: env!("ENERGY_AGENT_BRANCH"),
        date: env!("ENERGY_AGENT_DATE"),
        rustc: env!("ENERGY_AGENT_RUSTC"),
        ebpf: object_sha256(),
    }
}

/// For `--version`.
pub(crate) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let Build { version, revision, branch, date, rustc, ebpf } = build();
        format!(
            "{version}\nrevision: {revision}\nbranch: {branch}\ndate: {date}\nrustc: {rustc}\neBPF object: sha256:{ebpf}\n\
             platform: {}-{}",
            std::env::consts::OS,
            std::env::consts::ARCH
        )
    });
    &TEXT
}
