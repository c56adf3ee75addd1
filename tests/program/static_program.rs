//! The static program, as `cargo xtask static` builds it in release, in folders without a C library. Needs root, and minutes:
//! `cargo xtask test --test program static_program -- --ignored`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::cgroup::{self, Pod};
use crate::common::kubernetes::cluster::{TOKEN, kubeconfig};
use crate::common::kubernetes::node::Node;
use crate::common::{one_of_three, shipped};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs the program of a root folder in it, with the kernel's file systems.
const IN_ROOT: &str = "root=$1; shift; mount --rbind /proc $root/proc && mount --rbind /sys $root/sys && exec chroot $root /energy-agent \"$@\"";

fn program() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("energy-agent-static");
        shipped::make("static", None, &file);
        file
    })
}

/// A root with the program and nothing else.
fn root() -> TempDir {
    let root = TempDir::new().unwrap();
    fs::copy(program(), root.path().join("energy-agent")).unwrap();
    for folder in ["etc", "proc", "sys", "state"] {
        fs::create_dir(root.path().join(folder)).unwrap();
    }
    root
}

fn start_in(root: &Path, flags: &[&str]) -> Agent {
    let command = ["unshare", "--mount", "sh", "-c", IN_ROOT, "sh", root.to_str().unwrap()];
    let agent = Agent::spawn(&command, &[flags, &["--state.directory=/state", "--interval=250ms"]].concat());
    agent.wait_until_ready();
    agent
}

#[test]
#[ignore = "the release build takes minutes"]
fn the_program_alone_loads_ebpf_and_conserves() {
    one_of_three(|| {
        let root = root();
        let mut agent = start_in(root.path(), &["--ebpf=on"]);
        let pod = Pod::systemd();
        pod.load(&["burn", "200000"]).wait();
        let labels = [("pod_id", pod.uid.as_str())];
        let truth_ns = cgroup::cpu_ns(&pod.cgroup.dir);
        let page = wait_for("the pod's CPU time", || {
            let charged =
                |page: &crate::common::page::Page| page.nanoseconds("energy_agent_pod_cpu_seconds_total", &labels);
            Some(agent.scrape()).filter(|page| charged(page) * 100 >= truth_ns * 95)
        });
        page.assert_conserved();
        assert_eq!(page.one("energy_agent_meter_up", &[("meter", "ebpf")]).value, "1");
        assert_eq!(page.one("energy_agent_meter_up", &[("meter", "nvml")]).label("reason"), "absent");
        agent.assert_well();
        assert!(agent.end("TERM").0.success());
    });
}

/// A module that the machine's nsswitch.conf names is of the machine's C library; this one ends whoever loads it.
#[test]
#[ignore = "the release build takes minutes"]
fn the_api_server_is_found_by_name_without_loading_the_machines_modules() {
    let (root, node) = (root(), Node::new());
    fs::write(root.path().join("etc/hosts"), "127.0.0.1 localhost\n").unwrap();
    fs::write(root.path().join("etc/nsswitch.conf"), "passwd: trap\nhosts: trap files\n").unwrap();
    let module = root.path().join("libnss_trap.so.2");
    let source = root.path().join("trap.c");
    fs::write(&source, "__attribute__((constructor)) static void trap(void) { __builtin_trap(); }\n").unwrap();
    let made = Command::new("cc").args(["-shared", "-nostdlib", "-o"]).args([&module, &source]).status().unwrap();
    assert!(made.success());
    for folder in ["lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
        fs::copy(&module, root.path().join(folder).join("libnss_trap.so.2")).unwrap();
    }
    let authority = root.path().join("authority.crt");
    fs::copy(&node.cluster.authority, &authority).unwrap();
    let server = node.cluster.url.replace("127.0.0.1", "localhost");
    kubeconfig(root.path(), &server, Some(Path::new("/authority.crt")), &json!({"token": TOKEN}));

    let name = format!("--node.name={}", node.name);
    let agent = start_in(root.path(), &["--pods.source=api", "--kubeconfig=/kubeconfig", &name]);
    let pod = node.pod("by-name", &["main"]);
    pod.burn("main", 100);
    pod.wait_for_name(&agent).assert_conserved();
}

#[test]
#[ignore = "the release build takes minutes"]
fn a_driver_that_is_loaded_is_missed_aloud_and_once() {
    // This machine's /proc, with a driver.
    let procfs = TempDir::new().unwrap();
    for entry in fs::read_dir("/proc").unwrap().flatten().filter(|entry| entry.file_name() != "driver") {
        symlink(entry.path(), procfs.path().join(entry.file_name())).unwrap();
    }
    fs::create_dir_all(procfs.path().join("driver/nvidia")).unwrap();
    fs::write(procfs.path().join("driver/nvidia/version"), "NVRM version: NVIDIA UNIX x86_64 570.124.06\n").unwrap();
    let flag = format!("--path.procfs={}", procfs.path().display());

    let agent = Agent::spawn(&[program().to_str().unwrap()], &[&flag, "--interval=100ms"]);
    // The library is looked for every ten ticks.
    let page = agent.after_ticks(25);
    let up = page.one("energy_agent_meter_up", &[("meter", "nvml")]);
    assert_eq!((up.value.as_str(), up.label("reason")), ("0", "static_build"));
    let lines = agent.assert_logged("this is the static build", 1);
    assert!(lines[0].contains(" WARN ") && lines[0].contains("run the package or the image"), "{lines:#?}");

    let doctor = Command::new(program()).args(["doctor", "--format=json", &flag]).output().unwrap();
    let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let row = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "nvml").unwrap();
    assert_eq!(row["status"], "missing");
    assert_eq!(row["remedy"], "on nodes with GPUs run the package or the image");
}

#[test]
#[ignore = "the release build takes minutes"]
fn a_library_that_is_named_is_refused_with_the_remedy() {
    for command in ["run", "doctor"] {
        let output =
            Command::new(program()).args([command, "--nvml.library=/usr/lib/libnvidia-ml.so.1"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("static build") && said.contains("run the package or the image"), "{said}");
    }
}

#[test]
fn a_program_that_needs_a_library_is_not_shipped_as_static() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("energy-agent");
    let output = shipped::xtask("static", Some(PROGRAM), &file);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && !file.exists(), "{said}");
    assert!(said.contains("is not static: INTERP"), "{said}");
}
