//! CPU clocks, CPU quotas and power limits as files: what is found, what a write does, and that it comes back exactly;
//! over trees of field cases and with the running kernel.

#![expect(clippy::unwrap_used, reason = "a test panics, its helpers too")]

mod power_limits;
mod quotas;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use crate::common::kept::Kept;
use crate::common::skip;
use crate::common::tree::Tree;
use energy_host::capping::files::FileKnobs;
use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Found, Knob, KnobValue};

const CPUFREQ: &str = "sys/devices/system/cpu/cpufreq";

fn open(tree: &Tree) -> FileKnobs {
    FileKnobs::open(&tree.sysfs(), &tree.root().join("cgroup"))
}

fn clock(policy: u32) -> Knob {
    Knob::CpuFrequency(policy)
}

fn text(tree: &Tree, path: &str) -> String {
    fs::read_to_string(tree.root().join(path)).unwrap().trim().to_owned()
}

/// Every file of a tree with its content.
fn contents(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            all.extend(contents(&entry.path()));
        } else if kind.is_file() {
            all.insert(entry.path(), fs::read_to_string(entry.path()).unwrap());
        }
    }
    all
}

#[test]
fn looking_writes_nothing() {
    for case in ["FC-086", "FC-088-two-policies", "FC-015", "FC-002"] {
        let tree = Tree::case(case);
        let before = contents(tree.root());
        for path in before.keys() {
            File::options().append(true).open(path).unwrap().set_modified(UNIX_EPOCH).unwrap();
        }
        let mut knobs = open(&tree);
        let listed = knobs.list();
        for knob in listed.keys() {
            knobs.read(knob).unwrap();
        }
        assert_eq!(contents(tree.root()), before, "{case}");
        for path in before.keys() {
            assert_eq!(fs::metadata(path).unwrap().modified().unwrap(), UNIX_EPOCH, "{}", path.display());
        }
    }
}

#[test]
fn each_policy_is_written_once_within_its_own_range_fc_088() {
    let tree = Tree::case("FC-088-two-policies");
    let before = contents(tree.root());
    let mut knobs = open(&tree);
    let listed = knobs.list();
    assert_eq!(listed.keys().cloned().collect::<Vec<_>>(), [clock(0), clock(4)]);
    let Found { min, max, value, state, .. } = &listed[&clock(4)];
    assert_eq!((*min, *max, *value, *state), (800_000, 2_956_800, Some(2_956_800), KnobState::Ok));
    assert_eq!(knobs.cpus_of_policy(4), [4, 5, 6, 7]);

    let files = [0, 4].map(|policy| tree.root().join(format!("{CPUFREQ}/policy{policy}/scaling_max_freq")));
    let noted = Kept::noting(&files);
    for (wanted, shown) in [(1_000_000, [1_000_000, 1_000_000]), (500_000, [500_000, 800_000])] {
        for (policy, shown) in [0, 4].into_iter().zip(shown) {
            let found = knobs.write(&clock(policy), &KnobValue::Set(wanted)).unwrap();
            assert_eq!((found.value, found.state), (Some(shown), KnobState::Ok), "policy{policy} {wanted}");
        }
    }
    assert_eq!(noted.written(&files[0]), ["1000000", "500000"]);
    assert_eq!(noted.written(&files[1]), ["1000000", "800000"]);
    drop(noted);

    for (knob, found) in listed {
        let restored = knobs.write(&knob, &KnobValue::Restore(found.raw.clone())).unwrap();
        assert_eq!(restored, found);
    }
    assert_eq!(contents(tree.root()), before);
}

#[test]
fn a_node_without_cpufreq_and_powercap_has_no_such_knob_fc_088() {
    for case in ["FC-088-no-cpufreq", "FC-014", "FC-013"] {
        let tree = Tree::case(case);
        assert_eq!(open(&tree).list(), BTreeMap::new(), "{case}");
    }
    let tree = Tree::case("FC-088-no-cpufreq");
    let mut knobs = open(&tree);
    assert_eq!(knobs.write(&clock(0), &KnobValue::Set(1)).unwrap_err().state, KnobState::Unreachable);
    let zone = Knob::RaplLimit("intel-rapl:0".into());
    assert_eq!(knobs.write(&zone, &KnobValue::Set(1)).unwrap_err().state, KnobState::Unreachable);
    assert_eq!(knobs.exclusive_frequencies(["kubepods/pod1"]), BTreeMap::new());
}

#[test]
fn a_clock_is_written_in_kilohertz_fc_081() {
    let tree = Tree::case("FC-088-two-policies");
    open(&tree).write(&clock(0), &KnobValue::Set(1_200_000)).unwrap();
    assert_eq!(text(&tree, &format!("{CPUFREQ}/policy0/scaling_max_freq")), "1200000");
}

/// Mounted read-only over itself until dropped.
struct ReadOnly<'a>(&'a Path);

impl<'a> ReadOnly<'a> {
    fn new(path: &'a Path) -> Self {
        let mount = |arguments: &[&str]| {
            assert!(Command::new("mount").args(arguments).arg(path).status().unwrap().success(), "mount, as root");
        };
        mount(&["--bind", path.to_str().unwrap()]);
        let guard = Self(path);
        mount(&["-o", "remount,bind,ro"]);
        guard
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn files_that_may_not_be_written_say_so_before_anything_is_written() {
    let tree = Tree::case("FC-088-two-policies");
    let mut knobs = open(&tree);
    let read_only = ReadOnly::new(tree.root());
    let listed = knobs.list();
    assert_eq!(listed[&clock(0)].state, KnobState::NoPermission);
    assert_eq!(listed[&clock(0)].value, Some(1_766_400));
    let error = knobs.write(&clock(0), &KnobValue::Set(1_000_000)).unwrap_err();
    assert_eq!(error.state, KnobState::NoPermission);
    let file = tree.root().join(format!("{CPUFREQ}/policy0/scaling_max_freq"));
    assert!(error.detail.starts_with(&format!("writing 1000000 to {}: ", file.display())), "{}", error.detail);
    assert!(error.detail.contains("mount the host's /sys"), "{}", error.detail);
    drop(read_only);
    assert_eq!(knobs.list()[&clock(0)].state, KnobState::Ok);
}

#[test]
fn a_policy_that_cannot_be_read_takes_nothing_from_the_others() {
    let tree = Tree::case("FC-088-two-policies");
    tree.fail(&format!("{CPUFREQ}/policy0/cpuinfo_max_freq"), "EIO");
    let mut knobs = open(&tree);
    let states: Vec<_> = knobs.list().into_iter().map(|(knob, found)| (knob, found.state)).collect();
    assert_eq!(states, [(clock(0), KnobState::Error), (clock(4), KnobState::Ok)]);
    let error = knobs.write(&clock(0), &KnobValue::Set(1_000_000)).unwrap_err();
    assert!(error.detail.contains("policy0/cpuinfo_max_freq"), "{}", error.detail);
    assert_eq!(text(&tree, &format!("{CPUFREQ}/policy0/scaling_max_freq")), "1766400");
}

#[test]
fn a_policy_that_went_and_came_back_is_another_device() {
    let mut tree = Tree::case("FC-088-two-policies");
    let mut knobs = open(&tree);
    let epoch = knobs.list()[&clock(4)].epoch;
    let aside = tree.root().join("aside");
    fs::rename(tree.root().join(CPUFREQ).join("policy4"), &aside).unwrap();
    assert_eq!(knobs.list().into_keys().collect::<Vec<_>>(), [clock(0)]);
    assert_eq!(knobs.write(&clock(4), &KnobValue::Set(1_000_000)).unwrap_err().state, KnobState::Unreachable);
    for (file, khz) in [("cpuinfo_min_freq", 800_000), ("cpuinfo_max_freq", 2_956_800), ("scaling_max_freq", 2_956_800)]
    {
        tree.apply(&format!("f {CPUFREQ}/policy4/{file} = {khz}"));
    }
    assert_ne!(knobs.list()[&clock(4)].epoch, epoch);
}

#[test]
fn a_pod_owns_the_clocks_of_cpus_that_it_alone_was_given() {
    let mut tree = Tree::case("FC-088-two-policies");
    tree.apply("f cgroup/cgroup.controllers = cpuset cpu");
    for (cgroup, cpus) in
        [("a", ""), ("a/app", "4-7"), ("a/sandbox", ""), ("b", ""), ("b/app", "0-3"), ("c", ""), ("c/app", "0-3")]
    {
        tree.apply(&format!("f cgroup/kubepods/{cgroup}/cpuset.cpus = {cpus}"));
    }
    let knobs = open(&tree);
    let pods = ["kubepods/a", "kubepods/b", "kubepods/c"];
    let owned = BTreeMap::from([(Arc::from("kubepods/a"), vec![clock(4)])]);
    assert_eq!(knobs.exclusive_frequencies(pods), owned);
    tree.apply("f cgroup/kubepods/d/cpuset.cpus =");
    tree.apply("f cgroup/kubepods/d/app/cpuset.cpus =");
    assert_eq!(knobs.exclusive_frequencies(["kubepods/a", "kubepods/d"]), BTreeMap::new());
}

/// A folder of the running kernel's cpuset hierarchy, removed on drop.
struct CpusetFolder(PathBuf);

impl CpusetFolder {
    fn new() -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup/cpuset");
        if !root.join("cpuset.cpus").exists() {
            skip::skip(&skip::CPUSET_V1);
            return None;
        }
        let (name, _) = crate::common::cgroup::ids();
        let folder = Self(root.join(format!("energy-agent-test-{name}")));
        for file in ["cpuset.cpus", "cpuset.mems"] {
            folder.set("", file, fs::read_to_string(root.join(file)).unwrap().trim());
        }
        Some(folder)
    }

    fn set(&self, cgroup: &str, file: &str, text: &str) {
        let folder = self.0.join(cgroup);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(file), text).unwrap();
    }

    fn path(&self, cgroup: &str) -> String {
        format!("{}/{cgroup}", self.0.file_name().unwrap().display())
    }
}

impl Drop for CpusetFolder {
    fn drop(&mut self) {
        crate::common::cgroup::remove_all(&self.0);
    }
}

#[test]
fn cpusets_of_the_kernel_tell_whose_a_clock_is() {
    let Some(folder) = CpusetFolder::new() else { return };
    let all = fs::read_to_string(folder.0.join("cpuset.cpus")).unwrap().trim().to_owned();
    let cpus = energy_host::meter::cpu::parse_list(&all).unwrap();
    let [first, second, ..] = cpus[..] else {
        return skip::skip(&skip::TWO_CPUS);
    };
    let mut tree = Tree::new();
    for cpu in &cpus {
        tree.apply(&format!("f {CPUFREQ}/policy{cpu}/affected_cpus = {cpu}"));
        tree.apply(&format!("f {CPUFREQ}/policy{cpu}/scaling_max_freq = 1000000"));
    }
    let rest = cpus[1..].iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let sets = [
        ("a", all.as_str()),
        ("a/app", &first.to_string()),
        ("a/sandbox", &all),
        ("b", &all),
        ("b/app", &rest),
        ("c", &all),
        ("c/app", &second.to_string()),
    ];
    for (cgroup, cpus) in sets {
        folder.set(cgroup, "cpuset.cpus", cpus);
    }
    let knobs = FileKnobs::open(&tree.sysfs(), Path::new("/sys/fs/cgroup"));
    let [a, b, c] = ["a", "b", "c"].map(|pod| folder.path(pod));
    let owned = knobs.exclusive_frequencies([a.as_str(), &b, &c]);
    assert_eq!(owned.get(&*a), Some(&vec![clock(first)]));
    assert_eq!(owned.get(&*c), None);
    // The kernel hands the pod's CPUs down to a container without a set of its own.
    folder.set("d", "cpuset.cpus", &all);
    folder.set("d/app", "cpuset.cpus", &all);
    let d = folder.path("d");
    assert_eq!(knobs.exclusive_frequencies([a.as_str(), &d]), BTreeMap::new());
}
