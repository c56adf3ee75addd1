//! CPU quotas of pods, over trees of plain files and with the running kernel.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use energy_host::capping::files::FileKnobs;
use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Knob, KnobValue};

use super::{contents, open, text};
use crate::common::quota::QuotaPod;
use crate::common::tree::Tree;
use crate::common::{alone, skip};

/// A cgroup v2 of plain files, with one pod.
fn cgroup_v2(cpu_max: &str) -> Tree {
    let mut tree = Tree::new();
    tree.apply("f sys/devices/system/cpu/online = 0-7");
    tree.apply("f cgroup/cgroup.controllers = cpuset cpu memory");
    tree.apply(&format!("f cgroup/kubepods/pod1/cpu.max = {cpu_max}"));
    tree
}

#[test]
fn a_quota_keeps_its_period_and_comes_back_as_it_was() {
    for (original, value, wanted, written) in [
        ("max 100000", None, 1500, "150000 100000"),
        ("400000 100000", Some(4000), 250, "25000 100000"),
        ("max 20000", None, 2340, "46800 20000"),
        // The kernel takes 1 ms at least: a tenth of a CPU in a period of 10 ms.
        ("30000 10000", Some(3000), 20, "1000 10000"),
        ("max 100000", None, 99_000, "800000 100000"),
    ] {
        let tree = cgroup_v2(original);
        let mut knobs = open(&tree);
        let (knob, found) = knobs.pod_quota("/kubepods/pod1").unwrap();
        assert_eq!(knob, Knob::CpuQuota("kubepods/pod1".into()));
        assert_eq!((found.value, found.raw.as_str(), found.max, found.step), (value, original, 8000, 10));
        assert_eq!(knobs.write(&knob, &KnobValue::Set(wanted)).unwrap().state, KnobState::Ok);
        assert_eq!(text(&tree, "cgroup/kubepods/pod1/cpu.max"), written);
        assert_eq!(knobs.write(&knob, &KnobValue::Restore(found.raw.clone())).unwrap(), found);
        assert_eq!(text(&tree, "cgroup/kubepods/pod1/cpu.max"), original);
    }
}

#[test]
fn a_quota_is_not_set_below_its_burst() {
    let mut tree = cgroup_v2("400000 100000");
    tree.apply("f cgroup/kubepods/pod1/cpu.max.burst = 50000");
    let mut knobs = open(&tree);
    let (knob, found) = knobs.pod_quota("kubepods/pod1").unwrap();
    assert_eq!(found.min, 500);
    assert_eq!(knobs.write(&knob, &KnobValue::Set(200)).unwrap().value, Some(500));
}

#[test]
fn a_pod_that_has_gone_is_quiet_and_one_that_is_made_anew_is_another() {
    let tree = cgroup_v2("max 100000");
    let mut knobs = open(&tree);
    let (knob, found) = knobs.pod_quota("kubepods/pod1").unwrap();
    fs::rename(tree.root().join("cgroup/kubepods/pod1"), tree.root().join("aside")).unwrap();
    assert_eq!(knobs.pod_quota("kubepods/pod1"), None);
    assert_eq!(knobs.write(&knob, &KnobValue::Restore(found.raw)).unwrap_err().state, KnobState::Unreachable);
    tree.write("cgroup/kubepods/pod1/cpu.max", "max 100000\n");
    assert_ne!(knobs.pod_quota("kubepods/pod1").unwrap().1.epoch, found.epoch);
}

#[test]
fn no_path_and_no_text_of_a_journal_leads_elsewhere() {
    let tree = cgroup_v2("max 100000");
    tree.write("cpu.max", "max 100000\n");
    let before = contents(tree.root());
    let mut knobs = open(&tree);
    for path in ["", "..", "kubepods/../..", "kubepods//pod1", "./kubepods/pod1"] {
        let error = knobs.write(&Knob::CpuQuota(path.into()), &KnobValue::Set(100)).unwrap_err();
        assert_eq!(error.state, KnobState::Rejected, "{path}");
    }
    for raw in ["", "max", "100000", "-1 100000", "100000 0", "max 100000 1", "a b"] {
        let knob = Knob::CpuQuota("kubepods/pod1".into());
        let error = knobs.write(&knob, &KnobValue::Restore(raw.to_owned())).unwrap_err();
        assert_eq!(error.state, KnobState::Rejected, "{raw}");
    }
    assert_eq!(contents(tree.root()), before);
}

#[test]
fn a_node_without_the_cpu_controller_has_no_quotas() {
    let tree = cgroup_v2("max 100000");
    tree.write("cgroup/cgroup.controllers", "cpuset memory\n");
    assert_eq!(open(&tree).pod_quota("kubepods/pod1"), None);
}

fn real() -> FileKnobs {
    FileKnobs::open(Path::new("/sys"), Path::new("/sys/fs/cgroup"))
}

/// CPUs that the pod used in the next `span`, by the kernel's own count.
fn cpus_used(pod: &QuotaPod, span: Duration) -> f64 {
    let (start, before) = (Instant::now(), pod.pod.cgroup.cpu_ns());
    thread::sleep(span);
    let used = Duration::from_nanos(pod.pod.cgroup.cpu_ns() - before);
    used.as_secs_f64() / start.elapsed().as_secs_f64()
}

#[test]
fn a_busy_pod_uses_the_quota_it_is_given_and_all_it_had_afterwards() {
    let _alone = alone();
    let Some(pod) = QuotaPod::new() else { return };
    let original = pod.quota();
    let _load = pod.load(&["spin", "0"]);
    let mut knobs = real();
    let (knob, found) = knobs.pod_quota(&pod.pod.cgroup.path).unwrap();
    assert_eq!((found.value, found.state), (None, KnobState::Ok));
    // What this machine gives to the load without a quota.
    let free = cpus_used(&pod, Duration::from_secs(1));
    for part in [0.2, 0.5] {
        // In hundredths of a CPU, as quotas are.
        let millicpus = 10 * u64::try_from(Duration::from_secs_f64(free * part).as_millis() / 10).unwrap();
        let set = knobs.write(&knob, &KnobValue::Set(millicpus)).unwrap();
        assert_eq!((set.value, set.state), (Some(millicpus), KnobState::Ok));
        // What was left of the period before.
        cpus_used(&pod, Duration::from_millis(200));
        // 40 periods, of which one may be counted at one end only.
        let used = cpus_used(&pod, Duration::from_secs(4));
        println!("quota {millicpus}: {used:.4} CPUs");
        let wanted = Duration::from_millis(millicpus).as_secs_f64();
        assert!((used / wanted - 1.0).abs() < 0.05, "{millicpus}: {used}");
    }
    assert_eq!(knobs.write(&knob, &KnobValue::Restore(found.raw.clone())).unwrap(), found);
    assert_eq!(pod.quota(), original);
    let used = cpus_used(&pod, Duration::from_secs(1));
    println!("open: {used:.4} CPUs, {free:.4} before");
    assert!(used > 0.8 * free, "{used} CPUs, {free} before");
}

#[test]
fn the_kernel_takes_every_value_of_the_range_and_what_it_refuses_is_rejected() {
    let Some(pod) = QuotaPod::new() else { return };
    let mut knobs = real();
    let (knob, found) = knobs.pod_quota(&pod.pod.cgroup.path).unwrap();
    for millicpus in [found.min, found.min + found.step, 330, found.max] {
        let set = knobs.write(&knob, &KnobValue::Set(millicpus)).unwrap();
        assert_eq!((set.value, set.state), (Some(millicpus), KnobState::Ok));
    }
    let before = pod.quota();
    let error = knobs.write(&knob, &KnobValue::Restore("999 100000".to_owned())).unwrap_err();
    assert_eq!(error.state, KnobState::Rejected, "{}", error.detail);
    assert_eq!(pod.quota(), before);
}

#[test]
fn in_v1_a_pod_keeps_the_quota_that_its_containers_need() {
    let Some(pod) = QuotaPod::new() else { return };
    if !pod.v1 {
        return skip::skip(&skip::CPU_CONTROLLER_V1);
    }
    fs::write(pod.container().join("cpu.cfs_quota_us"), "50000").unwrap();
    // What the kernel says to less.
    fs::write(pod.dir.join("cpu.cfs_quota_us"), "20000").unwrap_err();
    let mut knobs = real();
    let (knob, found) = knobs.pod_quota(&pod.pod.cgroup.path).unwrap();
    assert_eq!(found.min, 500);
    assert_eq!(knobs.write(&knob, &KnobValue::Set(200)).unwrap().value, Some(500));
    // While the container is being restarted its cgroup is not there, and will need its quota again.
    fs::remove_dir(pod.container()).unwrap();
    assert_eq!(knobs.pod_quota(&pod.pod.cgroup.path).unwrap().1.min, 500);
    assert_eq!(knobs.write(&knob, &KnobValue::Restore(found.raw.clone())).unwrap().raw, "max 100000");
}
