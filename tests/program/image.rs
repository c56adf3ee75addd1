//! The container image with the rights that the manifests give it, run by runc. Needs root and, from Debian, buildah,
//! skopeo, umoci and runc, which `cargo xtask test` installs.

#![expect(clippy::unwrap_used, reason = "tests panic")]

mod container;
mod runtime;

use std::collections::BTreeSet;
use std::fs;

use crate::common::agent::wait_for;
use crate::common::cgroup::{self, Pod};
use crate::common::manifests::{object, rendered};
use crate::common::one_of_three;
use container::Container;

const POD_SECONDS: &str = "energy_agent_pod_cpu_seconds_total";

/// CAP_PERFMON and CAP_BPF by their numbers.
const CAPABILITIES: u64 = 1 << 38 | 1 << 39;

#[test]
fn the_image_counts_and_conserves_with_the_rights_of_the_base() {
    one_of_three(|| {
        let manifests = rendered("base");
        let mut container = Container::start(object(&manifests, "DaemonSet", "energy-agent"));

        let pod = Pod::systemd();
        pod.load(&["burn", "200000"]).wait();
        let labels = [("pod_id", pod.uid.as_str())];
        let truth_ns = cgroup::cpu_ns(&pod.cgroup.dir);
        let page = wait_for("the pod's CPU time", || {
            Some(container.scrape()).filter(|page| page.nanoseconds(POD_SECONDS, &labels) * 100 >= truth_ns * 95)
        });
        page.assert_conserved();
        assert_eq!(page.one("energy_agent_meter_up", &[("meter", "ebpf")]).value, "1");
        assert!(page.microjoules("kepler_pod_cpu_joules_total", &labels) > 0);
        assert!(!page.has("energy_agent_meter_up", &[("meter", "host_pid")]), "the process ids are the host's");

        let status = container.proc("status");
        let field = |name: &str| {
            let line =
                status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name} {status}"));
            line.trim_start_matches(':').trim().to_owned()
        };
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), CAPABILITIES, "{set}");
        }
        assert_eq!(u64::from_str_radix(&field("CapInh"), 16).unwrap(), 0);
        assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str()), ("1", "2"), "seccomp by a filter");
        assert_eq!(container.writable(), BTreeSet::from(["/var/lib/energy-agent".to_owned()]));
        assert_eq!(fs::read_link(container.path("ns/pid")).unwrap(), fs::read_link("/proc/self/ns/pid").unwrap());
        assert_ne!(fs::read_link(container.path("ns/net")).unwrap(), fs::read_link("/proc/self/ns/net").unwrap());

        // Doctor and restore, run in the pod, read the node's files as the agent does.
        let report: serde_json::Value =
            serde_json::from_str(&container.exec(&["energy-agent", "doctor", "--format=json"])).unwrap();
        let row = |name: &str| report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap();
        assert!(row("cgroup")["detail"].as_str().unwrap().contains("v2 at /host/sys/fs/cgroup"), "{}", row("cgroup"));
        assert!(row("cpufreq")["detail"].as_str().unwrap().contains("/host/sys/"), "{}", row("cpufreq"));
        assert_eq!((&row("sched_switch")["status"], &row("pid_namespace")["status"]), (&"ok".into(), &"ok".into()));
        let address = row("listen_address")["detail"].as_str().unwrap();
        assert!(address.contains("an energy-agent answers there"), "{address}");
        container.exec(&["energy-agent", "restore", "--dry-run"]);

        container.end();
    });
}

/// What capping adds is that these files can be written, and no capability.
#[test]
fn the_image_may_write_what_the_capping_overlay_names() {
    let manifests = rendered("overlays/capping");
    let mut container = Container::start(object(&manifests, "DaemonSet", "energy-agent"));
    wait_for("a tick", || (container.scrape().ticks() > 0).then_some(()));
    let status = container.proc("status");
    assert!(status.contains(&format!("CapBnd:\t{CAPABILITIES:016x}")), "{status}");
    let wanted = ["/host/sys/devices/system/cpu", "/host/sys/devices/virtual", "/host/sys/fs/cgroup"];
    let mut writable = container.writable();
    // The hierarchies of cgroup v1 and a hybrid v2 are mounts of their own below it.
    writable.retain(|path| !path.starts_with("/host/sys/fs/cgroup/"));
    assert!(writable.remove("/var/lib/energy-agent"));
    assert!(writable.remove("/run/energy-agent"));
    assert_eq!(writable, wanted.map(str::to_owned).into());
    container.end();
}
