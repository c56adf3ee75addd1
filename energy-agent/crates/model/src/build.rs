//! What the running program was built from.

/// `unknown` stands for what the build could not find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    pub version: &'static str,
    /// The commit, by its whole hash.
    pub revision: &'static str,
    pub branch: &'static str,
    /// Day of the commit, as in 2026-11-29.
    pub date: &'static str,
    /// Version of the compiler.
    pub rustc: &'static str,
    /// SHA-256 of the eBPF object, in hexadecimal digits.
    pub ebpf: &'static str,
}

impl Build {
    /// Of a program that does not know.
    pub(crate) const UNKNOWN: Self = Self {
        version: "unknown",
        revision: "unknown",
        branch: "unknown",
        date: "unknown",
        rustc: "unknown",
        ebpf: "unknown",
    };
}
