//! Cgroups of the running kernel: the hierarchy, who owns what, and the usage meter that reads files. Needs root and a
//! cgroup v2 hierarchy below /sys/fs/cgroup; each test works in a cgroup of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics, in its helpers too")]

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use energy_host::meter::cgroupfs::CgroupFiles;
use energy_host::workload::owners::Owners;
use energy_host::workload::tree::{is_partial, v2_root, walk};
use energy_model::sample::{CgroupEvent, CgroupId, Work};
use energy_model::workload::Workload;

use crate::common::patience::Patience;

const UID: &str = "d1578427-1919-52ea-898e-2489f38c2504";
const ID: &str = "e163073df4c38b1df6bff3b06c1d62392a3fbf7592afe21e312a53ff0c532736";

/// A cgroup below the root of the hierarchy, with processes; both go when it is dropped.
struct Cgroup {
    path: PathBuf,
    busy: Vec<Child>,
}

impl Cgroup {
    fn new(name: &str) -> Self {
        let path = root().join(format!("energy-agent-test-{name}-{}", std::process::id()));
        Self::at(path)
    }

    fn at(path: PathBuf) -> Self {
        if let Err(error) = fs::create_dir(&path) {
            panic!("creating {}: {error}; these tests need root and a writable cgroup v2 hierarchy", path.display());
        }
        Self { path, busy: Vec::new() }
    }

    fn child(&self, name: &str) -> Self {
        Self::at(self.path.join(name))
    }

    /// Starts a process that never sleeps; it is in the cgroup before it becomes busy.
    fn spin(&mut self) {
        let mut busy = Command::new("sh")
            .args(["-c", "read go; while :; do :; done"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("starting sh");
        let joined = fs::write(self.path.join("cgroup.procs"), busy.id().to_string());
        if joined.is_ok() {
            drop(busy.stdin.take());
        }
        self.busy.push(busy);
        joined.unwrap_or_else(|error| panic!("moving a process to {}: {error}", self.path.display()));
    }

    fn stop(&mut self) {
        for mut busy in self.busy.drain(..) {
            busy.kill().ok();
            busy.wait().ok();
        }
    }

    fn id(&self) -> CgroupId {
        fs::metadata(&self.path).unwrap().ino()
    }

    /// Of it and all below it, since its creation; microseconds.
    fn usage_us(&self) -> u64 {
        let stat = fs::read_to_string(self.path.join("cpu.stat")).unwrap();
        stat.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap().parse().unwrap()
    }

    fn name(&self) -> String {
        format!("/{}", self.path.strip_prefix(root()).unwrap().display())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.stop();
        // A killed process leaves its cgroup a moment after it was waited for.
        let mut patience = Patience::new();
        while fs::remove_dir(&self.path).is_err() && self.path.exists() && !patience.is_over() {
            sleep(Duration::from_millis(5));
        }
    }
}

fn root() -> PathBuf {
    v2_root(Path::new("/sys/fs/cgroup")).expect("these tests need a cgroup v2 hierarchy")
}

fn by_id(work: &[Work]) -> HashMap<CgroupId, u64> {
    work.iter().map(|work| (work.cgroup, work.runtime_ns / 1000)).collect()
}

/// Waits until the cgroup and all below it have used this much more.
fn wait_for_usage(cgroup: &Cgroup, more_us: u64) {
    let (until_us, mut patience) = (cgroup.usage_us() + more_us, Patience::new());
    while cgroup.usage_us() < until_us {
        patience.check(&format!("{} to use {more_us} us of CPU time", cgroup.name()));
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_walk_finds_nested_cgroups_by_inode_number() {
    let parent = Cgroup::new("walk");
    let child = parent.child("child");
    let folders = walk(&root()).unwrap();
    let find = |cgroup: &Cgroup| folders.iter().position(|folder| folder.id == cgroup.id()).expect("in the walk");
    assert_eq!(folders[0].cgroup_path(), "/");
    assert_eq!(folders[find(&child)].cgroup_path(), child.name());
    assert_eq!(folders[find(&child)].parent, Some(find(&parent)));
    assert_eq!(folders[find(&parent)].parent, Some(0));
}

#[test]
fn a_walk_survives_folders_that_vanish() {
    let parent = Cgroup::new("vanish");
    let path = parent.path.clone();
    let churn = std::thread::spawn(move || {
        for round in 0..300 {
            let folder = path.join(round.to_string());
            fs::create_dir_all(folder.join("a/b")).unwrap();
            for folder in [folder.join("a/b"), folder.join("a"), folder] {
                fs::remove_dir(folder).unwrap();
            }
        }
    });
    while !churn.is_finished() {
        assert!(walk(&parent.path).unwrap().iter().any(|folder| folder.id == parent.id()));
    }
    churn.join().unwrap();
}

#[test]
fn cgroup_v1_alone_is_refused_with_the_remedy() {
    let v1 = tempfile::tempdir().unwrap();
    for controller in ["cpu", "memory"] {
        fs::create_dir(v1.path().join(controller)).unwrap();
    }
    let error = v2_root(v1.path()).unwrap_err().to_string();
    for part in [v1.path().to_str().unwrap(), "found cpu, memory (cgroup v1)", "systemd.unified_cgroup_hierarchy=1"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    let hybrid = v1.path().join("unified");
    fs::create_dir(&hybrid).unwrap();
    fs::write(hybrid.join("cgroup.controllers"), "").unwrap();
    assert_eq!(v2_root(v1.path()).unwrap(), hybrid);
    assert!(v2_root(Path::new("/nonexistent")).is_err());
}

#[test]
fn a_part_of_the_hierarchy_is_told_from_the_whole() {
    let part = Cgroup::new("part");
    assert!(is_partial(&part.path) && !is_partial(&root()));
}

#[test]
fn nested_cgroups_are_charged_their_own_time() {
    let mut parent = Cgroup::new("nested");
    let mut child = parent.child("child");
    let mut meter = CgroupFiles::open(&root()).unwrap();
    parent.spin();
    child.spin();
    let mut charged: HashMap<CgroupId, u64> = HashMap::new();
    for _ in 0..4 {
        wait_for_usage(&parent, 200_000);
        for (id, usage_us) in by_id(&meter.read().0) {
            *charged.entry(id).or_default() += usage_us;
        }
    }
    // Both began at zero. What runs after the last reading is seen by the next one.
    parent.stop();
    child.stop();
    // A process that was waited for may still be on its last steps.
    let (of_parent, of_child) = loop {
        let usage_us = (parent.usage_us(), child.usage_us());
        for (id, usage_us) in by_id(&meter.read().0) {
            *charged.entry(id).or_default() += usage_us;
        }
        if usage_us == (parent.usage_us(), child.usage_us()) {
            break usage_us;
        }
    };
    assert_eq!(charged[&child.id()], of_child);
    assert_eq!(charged[&parent.id()], of_parent - of_child);
    assert!(of_child > 50_000 && of_parent - of_child > 50_000, "both ran");
}

#[test]
fn no_reading_exceeds_the_growth_of_the_top_level() {
    let parent = Cgroup::new("total");
    let mut children = [parent.child("a"), parent.child("b"), parent.child("c")];
    let mut meter = CgroupFiles::open(&root()).unwrap();
    children.iter_mut().for_each(Cgroup::spin);
    let ids: Vec<CgroupId> = children.iter().map(Cgroup::id).chain([parent.id()]).collect();
    let mut charged_us = 0;
    for _ in 0..50 {
        charged_us += by_id(&meter.read().0).iter().filter(|(id, _)| ids.contains(id)).map(|(_, us)| us).sum::<u64>();
        // Read after the meter did: never less than what the meter saw.
        let usage_us = parent.usage_us();
        assert!(charged_us <= usage_us, "{charged_us} us charged, {usage_us} us used");
        sleep(Duration::from_millis(10));
    }
    assert!(charged_us > 50_000, "only {charged_us} us charged");
}

#[test]
fn a_cgroup_that_comes_and_goes_is_told_and_its_time_is_kept() {
    let parent = Cgroup::new("short");
    let mut meter = CgroupFiles::open(&root()).unwrap();
    let mut seen = parent.child("seen");
    seen.spin();
    wait_for_usage(&seen, 50_000);
    let (work, events) = meter.read();
    let id = seen.id();
    assert!(by_id(&work)[&id] >= 50_000);
    assert!(events.contains(&CgroupEvent::Created { id, path: seen.name() }), "{events:?}");

    wait_for_usage(&seen, 50_000);
    drop(seen);
    let mut unseen = parent.child("unseen");
    let unseen_id = unseen.id();
    unseen.spin();
    wait_for_usage(&unseen, 50_000);
    drop(unseen);
    let (work, events) = meter.read();
    assert!(events.contains(&CgroupEvent::Removed { id }), "{events:?}");
    assert!(!by_id(&work).contains_key(&id) && !by_id(&work).contains_key(&unseen_id));
    assert!(by_id(&work)[&parent.id()] >= 100_000, "the rest of both is the parent's");
}

#[test]
fn without_events_each_tick_finds_what_came_and_went() {
    let parent = Cgroup::new("owners");
    let start = Instant::now();
    let mut owners = Owners::open(&parent.path, start).unwrap();
    assert_eq!(*owners.owner(parent.id()), Workload::Unit { unit: Arc::from("/") });

    let kubepods = parent.child("kubepods");
    let pod = kubepods.child(&format!("pod{UID}"));
    let container = pod.child(ID);
    let nested = container.child("init");
    let id = container.id();
    owners.apply(start + Duration::from_secs(1), &[], false);
    let owner = owners.owner(id);
    assert_eq!(owner.to_string(), format!("pod {UID} container {ID}"));
    assert!(Arc::ptr_eq(&owner, &owners.owner(nested.id())));

    drop(nested);
    owners.apply(start + Duration::from_secs(2), &[], false);
    assert!(owners.is_alive(&owner));
    drop(container);
    owners.apply(start + Duration::from_secs(3), &[], false);
    assert!(!owners.is_alive(&owner));
    let overhead = owners.owner(pod.id());
    assert!(owners.is_alive(&overhead));
    assert_eq!(owners.owner(id), owner, "late work has its owner");
}

#[test]
fn an_id_without_an_event_is_found_by_one_walk() {
    let parent = Cgroup::new("unknown");
    let start = Instant::now();
    let mut owners = Owners::open(&parent.path, start).unwrap();
    let service = parent.child("late.service");
    owners.apply(start + Duration::from_secs(1), &[], true);
    assert_eq!(owners.walks(), 1);
    assert_eq!(owners.owner(service.id()).unit(), Some("late.service"));
    assert_eq!((owners.walks(), owners.unknown_cgroups()), (2, 0));
}
