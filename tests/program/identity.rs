//! What the program says it is, and where its build script finds that out.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::common::agent::{Agent, PROGRAM};

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn version_and_metric_name_the_compiler_and_the_ebpf_object() {
    let object = said(Command::new("sha256sum").arg(root().join("energy-ebpf/energy-ebpf.bpf.o")));
    let object = object.split_whitespace().next().unwrap();
    let compiler = said(Command::new("rustc").arg("--version").current_dir(root()));
    let compiler = compiler.split_whitespace().nth(1).unwrap();
    let version = said(Command::new(PROGRAM).arg("--version"));
    let lines: Vec<&str> = version.lines().collect();
    assert_eq!(lines[0], concat!("energy-agent ", env!("CARGO_PKG_VERSION")));
    for line in [format!("rustc: {compiler}"), format!("eBPF object: sha256:{object}")] {
        assert!(lines.contains(&line.as_str()), "{line} is not in: {version}");
    }
    let of = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
    assert_eq!(said(Command::new(PROGRAM).arg("-V")), lines[0]);

    let agent = Agent::start(&["--interval=200ms"]);
    let page = agent.scrape();
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", &of("revision: ")),
        ("branch", &of("branch: ")),
        ("rustversion", compiler),
        ("ebpf", &object[..12]),
    ];
    assert_eq!(page.one("energy_agent_build_info", &labels).value, "1");
    // Dashboards of Kepler show these two.
    assert_eq!(page.one("kepler_build_info", &[labels[0], labels[1]]).value, "1");
}

/// What the build script tells cargo, run in a folder by itself; without the lines of the compiler and of reruns.
fn found(script: &Path, folder: &Path, profile: &str, more: &[(&str, &str)]) -> Vec<String> {
    let mut run = Command::new(script);
    run.current_dir(folder)
        .env("PROFILE", profile)
        .env_remove("ENERGY_AGENT_REVISION")
        .env_remove("ENERGY_AGENT_BRANCH");
    run.env_remove("ENERGY_AGENT_DATE").envs(more.iter().copied());
    let lines = said(&mut run);
    let values = lines.lines().filter_map(|line| line.strip_prefix("cargo:rustc-env=ENERGY_AGENT_"));
    values.filter(|value| !value.starts_with("RUSTC=")).map(str::to_owned).collect()
}

#[test]
fn the_revision_comes_from_the_environment_git_or_the_archive_and_is_else_unknown() {
    let folder = TempDir::new().unwrap();
    let script = folder.path().join("script");
    let package = root().join("energy-agent");
    said(Command::new("rustc").args(["--edition=2024", "-o"]).arg(&script).arg(package.join("build.rs")));
    let unknown = ["REVISION=unknown", "BRANCH=unknown", "DATE=unknown"];

    // A clone with a commit of a day that is known.
    let clone = folder.path().join("clone");
    fs::create_dir(&clone).unwrap();
    for file in ["build.rs", "revision.txt"] {
        fs::copy(package.join(file), clone.join(file)).unwrap();
    }
    fs::write(clone.join(".gitattributes"), "revision.txt export-subst\n").unwrap();
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&clone).args(["-c", "user.name=a", "-c", "user.email=a@example.org"]).args(arguments);
        said(git.env("GIT_COMMITTER_DATE", "2026-01-02T03:04:05Z"))
    };
    git(&["init", "--quiet", "--initial-branch=trunk"]);
    assert_eq!(found(&script, &clone, "release", &[]), unknown, "somebody else's repository");
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message=a"]);
    let revision = format!("REVISION={}", git(&["rev-parse", "HEAD"]));
    assert_eq!(found(&script, &clone, "release", &[]), [&revision, "BRANCH=trunk", "DATE=2026-01-02"]);
    assert_eq!(found(&script, &clone, "debug", &[]), unknown);
    let given = [("ENERGY_AGENT_REVISION", "abc"), ("ENERGY_AGENT_DATE", "2026-05-06")];
    assert_eq!(found(&script, &clone, "debug", &given), ["REVISION=abc", "BRANCH=unknown", "DATE=2026-05-06"]);

    // An archive of it, without git.
    let archive = folder.path().join("archive");
    fs::create_dir(&archive).unwrap();
    git(&["archive", "--output=../archive.tar", "HEAD"]);
    said(Command::new("tar").arg("-xf").arg(folder.path().join("archive.tar")).arg("-C").arg(&archive));
    assert_eq!(found(&script, &archive, "release", &[]), [&revision, "BRANCH=unknown", "DATE=2026-01-02"]);
    fs::remove_file(archive.join("revision.txt")).unwrap();
    assert_eq!(found(&script, &archive, "release", &[]), unknown);
}
