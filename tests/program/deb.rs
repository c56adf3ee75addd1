//! The Debian package, as `cargo xtask deb` builds it: what is in it, and what it does to a machine with systemd from its
//! installation to its purge. Needs root, and from Debian systemd and lintian, which `cargo xtask test` installs.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod machine;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common::agent::{PROGRAM, wait_for};
use crate::common::page::Page;
use crate::common::shipped;
use machine::Machine;

const METRICS: &str = "http://127.0.0.1:9102/metrics";
const SETTINGS: &str = "etc/default/energy-agent";

/// The package of the program under test.
fn package() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("energy-agent.deb");
        shipped::make("deb", Some(PROGRAM), &file);
        file
    })
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).arg(package()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; `cargo xtask test` installs it"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{program}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_package_holds_these_files_with_these_modes() {
    let list = said("dpkg-deb", &["--contents"]);
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (mode, owner) = (words.next().unwrap(), words.next().unwrap());
        assert_eq!(owner, "root/root", "{line}");
        (line.split_once(" ./").unwrap().1.to_owned(), mode.to_owned())
    };
    let mut files: BTreeMap<String, String> = list.lines().map(line).collect();
    let (text, program) = ("-rw-r--r--", "-rwxr-xr-x");
    files.retain(|path, mode| {
        let is_folder = path.is_empty() || path.ends_with('/');
        assert!(!is_folder || mode == "drwxr-xr-x", "{path}: {mode}");
        !is_folder
    });
    let page = |name: &str| format!("usr/share/man/man1/{name}.1.gz");
    for name in ["energy-agent", "energy-agent-restore", "energy-agent-policy-check", "energy-agent-kubectl-top"] {
        assert!(files.contains_key(&page(name)), "{name}: {files:#?}");
    }
    files.retain(|path, mode| {
        let is_page = path.starts_with(&page("energy-agent").replace(".1.gz", ""));
        assert!(!is_page || mode == text, "{path}: {mode}");
        !is_page
    });
    let expected = [
        (SETTINGS, text),
        ("usr/bin/energy-agent", program),
        ("usr/bin/kubectl-energy -> energy-agent", "lrwxrwxrwx"),
        ("usr/lib/systemd/system/energy-agent.service", text),
        ("usr/share/bash-completion/completions/energy-agent", text),
        ("usr/share/doc/energy-agent/THIRD-PARTY.txt.gz", text),
        ("usr/share/doc/energy-agent/changelog.gz", text),
        ("usr/share/doc/energy-agent/copyright", text),
        ("usr/share/doc/energy-agent/energy-agent.cdx.json", text),
        ("usr/share/fish/vendor_completions.d/energy-agent.fish", text),
        ("usr/share/lintian/overrides/energy-agent", text),
        ("usr/share/man/man1/kubectl-energy.1.gz -> energy-agent-kubectl.1.gz", "lrwxrwxrwx"),
        ("usr/share/zsh/vendor-completions/_energy-agent", text),
    ];
    assert_eq!(files, expected.map(|(path, mode)| (path.to_owned(), mode.to_owned())).into());
}

#[test]
fn manual_pages_and_completions_say_what_the_program_does() {
    let folder = tempfile::tempdir().unwrap();
    let unpacked = Command::new("dpkg-deb").arg("--extract").args([package(), folder.path()]).status().unwrap();
    assert!(unpacked.success());
    let share = folder.path().join("usr/share");
    let page = Command::new("zcat").arg(share.join("man/man1/energy-agent-restore.1.gz")).output().unwrap();
    assert!(String::from_utf8(page.stdout).unwrap().contains("Only show what would be done"));
    for file in ["bash-completion/completions/energy-agent", "zsh/vendor-completions/_energy-agent"] {
        assert!(fs::read_to_string(share.join(file)).unwrap().contains("capping.policy"), "{file}");
    }
}

#[test]
fn lintian_finds_neither_an_error_nor_a_warning() {
    let found = said("lintian", &["--fail-on=error,warning", "--allow-root"]);
    assert_eq!(found, "");
}

#[test]
fn an_installed_package_meters_survives_a_crash_keeps_settings_and_goes_without_a_trace() {
    let machine = Machine::boot();
    let traces = || machine.ask(&["find", "/etc", "/usr", "/var", "/run", "-xdev", "-name", "*energy-agent*"]);
    let before = traces();
    fs::copy(package(), machine.path("energy-agent.deb")).unwrap();
    let install = || machine.ask(&["dpkg", "--install", "/energy-agent.deb"]);
    let show = |property: &str| machine.ask(&["systemctl", "show", "--value", "--property", property, "energy-agent"]);
    let page =
        |url: &str| wait_for("the agent's page", || machine.get(url).map(Page::parse).filter(|page| page.ticks() > 1));

    install();
    let first = page(METRICS);
    first.assert_conserved();
    assert_eq!(first.one("energy_agent_meter_up", &[("meter", "ebpf")]).value, "1", "the unit's rights suffice");
    assert_eq!(machine.ask(&["systemctl", "is-enabled", "energy-agent"]), "enabled");
    let state = fs::metadata(machine.path("var/lib/energy-agent")).unwrap();
    assert_eq!(state.permissions().mode() & 0o777, 0o700);
    let status = machine.ask(&["cat", &format!("/proc/{}/status", show("MainPID"))]);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    // CAP_PERFMON and CAP_BPF by their numbers.
    assert_eq!(u64::from_str_radix(&field("CapBnd:"), 16).unwrap(), 1 << 38 | 1 << 39);
    assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"), "seccomp by a filter");

    // A crash: limits are given back before it is started again.
    machine.ask(&["systemctl", "kill", "--signal=KILL", "energy-agent"]);
    wait_for("restore after the crash", || {
        let ran = show("ExecStopPost");
        (ran.contains("/usr/bin/energy-agent restore") && ran.contains("code=exited ; status=0")).then_some(())
    });
    wait_for("another start", || (show("NRestarts") == "1" && show("SubState") == "running").then_some(()));

    // Settings are the administrator's, and a new version takes them over.
    fs::write(machine.path(SETTINGS), "ENERGY_AGENT_WEB_LISTEN_ADDRESS=127.0.0.1:9199\n").unwrap();
    install();
    page("http://127.0.0.1:9199/metrics");
    machine.ask(&["systemctl", "disable", "energy-agent"]);
    install();
    assert_eq!(machine.run(&["systemctl", "is-enabled", "energy-agent"]).stdout, b"disabled\n");

    machine.ask(&["dpkg", "--remove", "energy-agent"]);
    assert_eq!(show("ActiveState"), "inactive");
    let left = [SETTINGS, "var/lib/energy-agent", "usr/bin/energy-agent"].map(|path| machine.path(path).exists());
    assert_eq!(left, [true, true, false]);
    machine.ask(&["dpkg", "--purge", "energy-agent"]);
    assert_eq!(traces(), before);
}
