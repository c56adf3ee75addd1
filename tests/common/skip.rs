//! Tests that cannot run here. Each says so past the capture of its output, and `cargo xtask test` lists them at its end.
//! Where CI is `true`, only what the machine itself lacks may be skipped.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread;

use super::say;

/// What a test needs and does not find.
pub struct Missing {
    what: &'static str,
    /// The machine, not its setup, is the reason: this may be skipped everywhere.
    is_the_machines: bool,
}

const fn machine(what: &'static str) -> Missing {
    Missing { what, is_the_machines: true }
}

const fn setup(what: &'static str) -> Missing {
    Missing { what, is_the_machines: false }
}

/// A kernel has a controller in cgroup v2 or in one hierarchy of v1, and some have none of the two.
pub const CPU_CONTROLLER: Missing =
    machine("neither cgroup v2 nor v1 has the cpu controller here; run it where one has");
/// A host that has booted with v2 alone has the controller there.
pub const CPU_CONTROLLER_V1: Missing =
    machine("the cpu controller is in cgroup v2 here; run it on a host with it in v1");
/// The same.
pub const CPUSET_V1: Missing = machine("cgroup v1 has no cpuset controller here; run it on a host with one");
/// A clock of a pod's own and one of another's need a CPU each.
pub const TWO_CPUS: Missing = machine("this machine has one CPU online; run it where there are two");
/// A host that has booted with v2 alone has no v1.
pub const HIERARCHY_V1: Missing = machine("no cgroup v1 below /sys/fs/cgroup; run it on a host with both versions");
/// Some kernels give no real-time share to the cgroup of the tests.
pub const REAL_TIME: Missing = machine("SCHED_FIFO is refused, or there is one CPU; run it as root of a host with two");
pub const API_SERVER: Missing =
    setup("no Kubernetes API server (TEST_KUBE_API, TEST_ETCD): `cargo xtask test` sets them");
pub const PYTHON: Missing =
    setup("no Python with the packages that check manifests (TEST_PYTHON): `cargo xtask test` sets it");
pub const GRAFANA: Missing =
    setup("no types of Grafana (TEST_GRAFANA_SCHEMA, TEST_NODE): `cargo xtask test` sets them");

/// Says and counts that this test does not run, or not in full.
///
/// # Panics
/// In CI, where the setup is the reason.
pub fn skip(missing: &Missing) {
    say("SKIPPED", missing.what);
    let Some(list) = env::var_os("TEST_SKIPPED") else { return };
    assert!(
        missing.is_the_machines || env::var("CI").as_deref() != Ok("true"),
        "skipped in CI, where it can run: {}",
        missing.what
    );
    let mut list = OpenOptions::new().create(true).append(true).open(list).unwrap();
    let test = thread::current();
    list.write_all(format!("{}: {}\n", test.name().unwrap_or("?"), missing.what).as_bytes()).unwrap();
}
