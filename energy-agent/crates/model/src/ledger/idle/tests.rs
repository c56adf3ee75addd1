//! Rules of the idle ledger by hand-worked examples, and its laws on random histories beside the ledger.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::attribution::usage::CpuShare;
use crate::attribution::{Idle, Interval, ZoneReading, attribute};
use crate::cpu::{Domain, DomainLoad};
use crate::ledger::Ledger;
use crate::ledger::gpu_power::GpuPowers;
use crate::ledger::retention::Retention;
use crate::meter_state::Reason;
use crate::snapshot::Snapshot;
use crate::workload::names::{Names, Pod};
use crate::workload::{Runtime, Workload};
use crate::zone::{Source, Zone, ZoneEnergy, ZoneKind};

const RETENTION: Duration = Duration::from_secs(120);

/// A node of two sockets of ten CPUs each, of which `busy` work: Kepler's split leaves the others' part of the energy idle.
struct Node {
    ledger: Ledger,
    idle: IdleLedger,
    pods: Arc<Pods>,
    now_s: u64,
}

fn container(uid: &str, id: &str) -> Arc<Workload> {
    Arc::new(Workload::PodContainer { uid: uid.into(), id: id.into(), runtime: Runtime::Containerd })
}

fn zone(kind: ZoneKind, socket: u32, energy: u64) -> ZoneEnergy {
    let zone = Zone { kind, socket: Some(socket), die: None, source: Source::Rapl, path: format!("{kind:?}-{socket}") };
    ZoneEnergy { zone: Arc::new(zone), energy: Microjoules(energy), gap: false }
}

fn told(pods: &[(&str, Option<&str>, u64)]) -> Arc<Pods> {
    let pod = |&(uid, hash, cpu_request_milli): &(&str, Option<&str>, u64)| {
        let config_hash = hash.map(Arc::from);
        (Arc::from(uid), Arc::new(Pod { uid: uid.into(), config_hash, cpu_request_milli, ..Pod::default() }))
    };
    Arc::new(Pods { by_uid: pods.iter().map(pod).collect(), ..Pods::default() })
}

impl Node {
    fn new(policy: IdlePolicy) -> Self {
        Self::with_max(policy, 1_000)
    }

    fn with_max(policy: IdlePolicy, max: usize) -> Self {
        let ledger = Ledger::new(Retention { time: RETENTION, max });
        Self { ledger, idle: IdleLedger::new(policy), pods: Arc::default(), now_s: 0 }
    }

    /// One second in which each of `work` ran for as many milliseconds, beside `busy` of the ten CPUs of each socket;
    /// checks the identity and returns the snapshot.
    fn tick(
        &mut self,
        zones: &[ZoneEnergy],
        busy: u64,
        work: &[(&Arc<Workload>, u64)],
        alive: &[&Arc<Workload>],
    ) -> Snapshot {
        let share = |&(workload, ms): &(&Arc<Workload>, u64)| CpuShare {
            workload: Arc::clone(workload),
            domain: Some(0),
            runtime_ns: ms * 1_000_000,
            cycles: 0,
            switches: u64::from(ms > 0),
        };
        let load = DomainLoad { cpus: 10, busy_ns: busy * 1_000_000_000, dropped_ns: 0, cycles: false };
        let elapsed = Duration::from_secs(1);
        let interval = Interval {
            elapsed,
            zones: ZoneReading::of_cpus(zones, elapsed).collect(),
            domains: &[0, 1].map(|socket| Domain { socket: Some(socket), die: None }),
            loads: &[load; 2],
            shares: work.iter().map(share).collect(),
        };
        self.now_s += 1;
        let attribution = attribute(interval, Idle::Ratio);
        let alive: BTreeSet<_> = alive.iter().map(|workload| Arc::clone(workload)).collect();
        self.ledger.apply(&attribution, &alive, &Names::default(), Duration::from_secs(self.now_s));
        self.idle.apply(&attribution, self.ledger.rows(), &self.pods);
        let gpus = GpuPowers::default();
        let (zones, rows) = (self.ledger.zone_totals(&gpus), self.ledger.row_totals(&gpus));
        let snapshot = Snapshot { zones, rows, idle: self.idle.shares(), ..Snapshot::empty("node") };
        check_identity(&snapshot);
        snapshot
    }

    fn wait(&mut self, seconds: u64, alive: &[&Arc<Workload>]) -> Snapshot {
        self.now_s += seconds - 1;
        self.tick(&[], 0, &[], alive)
    }
}

fn check_identity(snapshot: &Snapshot) {
    let Some(IdleShares { policy: _, pods, unassigned, retired }) = &snapshot.idle else { return };
    let mut idle: BTreeMap<EnergyKey, u64> = BTreeMap::new();
    for zone in &snapshot.zones {
        *idle.entry(key(&zone.zone)).or_default() += zone.parts.unwrap().idle.0;
    }
    let mut known: BTreeMap<EnergyKey, u64> = BTreeMap::new();
    for (key, total) in pods.iter().flat_map(|pod| &pod.energy).chain(unassigned).chain(retired) {
        *known.entry(*key).or_default() += total.0;
    }
    assert_eq!(idle, known);
    // A pod has idle series only beside its others, and in the same state.
    for pod in pods {
        let rows = snapshot.rows.iter().filter(|row| row.workload.pod_uid() == Some(&pod.uid));
        assert_eq!(rows.map(|row| row.state).min(), Some(pod.state));
    }
}

/// State and microjoules of all zones of a pod; what is unassigned; what is retired.
fn read<const N: usize>(snapshot: &Snapshot, uids: [&str; N]) -> ([Option<(WorkloadState, u64)>; N], u64, u64) {
    let idle = snapshot.idle.as_ref().unwrap();
    let sum = |totals: &[(EnergyKey, Microjoules)]| totals.iter().map(|(_, total)| total.0).sum();
    let pod = |uid: &str| idle.pods.iter().find(|pod| *pod.uid == *uid).map(|pod| (pod.state, sum(&pod.energy)));
    (uids.map(pod), sum(&idle.unassigned), sum(&idle.retired))
}

const fn running(total: u64) -> Option<(WorkloadState, u64)> {
    Some((WorkloadState::Running, total))
}

#[test]
fn without_a_policy_there_is_nothing() {
    let (mut node, a) = (Node::new(IdlePolicy::None), container("a", "1"));
    let snapshot = node.tick(&[zone(ZoneKind::Package, 0, 100)], 1, &[(&a, 1000)], &[&a]);
    assert_eq!((snapshot.idle, node.idle.state()), (None, None));
}

#[test]
fn each_zones_idle_energy_goes_to_those_who_used_it() {
    let (mut node, a, b) = (Node::new(IdlePolicy::Usage), container("a", "1"), container("b", "1"));
    // One of ten CPUs busy: 10 of 100 uJ are active, 3 : 1; the idle 90 go 67.5 : 22.5, the half to the first.
    let package = zone(ZoneKind::Package, 0, 100);
    let snapshot = node.tick(&[package], 1, &[(&a, 750), (&b, 250)], &[&a, &b]);
    let (given, unassigned, retired) = read(&snapshot, ["a", "b"]);
    let active: Vec<_> = snapshot.rows.iter().map(|row| row.energy[0].total.0).collect();
    // Active energy is whole microjoules, 7.5 : 2.5 became 8 : 2, and that is what weighs.
    assert_eq!(active, [8, 2]);
    assert_eq!((given, unassigned, retired), ([running(72), running(18)], 0, 0));
    // Nobody ran on the second socket: there the CPU time on the first decides, 40 of the 40 idle are 30 : 10.
    let other = zone(ZoneKind::Dram, 1, 40);
    let snapshot = node.tick(&[other], 0, &[(&a, 750), (&b, 250)], &[&a, &b]);
    assert_eq!(read(&snapshot, ["a", "b"]).0, [running(72 + 30), running(18 + 10)]);
}

#[test]
fn a_pod_that_ends_keeps_what_it_was_given_until_its_series_end_and_then_it_is_retired() {
    let (mut node, a, b) = (Node::new(IdlePolicy::Equal), container("a", "1"), container("b", "1"));
    let package = || [zone(ZoneKind::Package, 0, 100)];
    node.tick(&package(), 1, &[(&a, 1)], &[&a, &b]);
    // It worked in the interval in which it vanished, so it was there; and not in the next.
    let last = node.tick(&package(), 1, &[(&a, 1)], &[&b]);
    assert_eq!(read(&last, ["a", "b"]), ([Some((WorkloadState::Terminated, 90)), running(90)], 0, 0));
    let next = node.tick(&package(), 1, &[], &[&b]);
    assert_eq!(read(&next, ["a", "b"]), ([Some((WorkloadState::Terminated, 90)), running(180)], 0, 0));
    assert_eq!(read(&node.wait(118, &[&b]), ["a"]).0, [Some((WorkloadState::Terminated, 90))]);
    let gone = node.wait(1, &[&b]);
    assert_eq!(read(&gone, ["a", "b"]), ([None, running(180)], 0, 90));
    assert!(gone.rows.iter().all(|row| row.workload != a), "its other series end in the same tick");
}

#[test]
fn a_pod_whose_series_end_at_once_leaves_its_part_to_the_retired() {
    let (mut node, a) = (Node::with_max(IdlePolicy::Usage, 0), container("a", "1"));
    let snapshot = node.tick(&[zone(ZoneKind::Package, 0, 100)], 1, &[(&a, 1000)], &[]);
    assert_eq!(read(&snapshot, ["a"]), ([None], 0, 90));
}

#[test]
fn requests_join_static_pods_by_their_hash_and_follow_what_is_told() {
    let mut node = Node::new(IdlePolicy::Requests);
    // FC-026: the cgroup of a static pod is named by its config hash, the API server knows it by its mirror pod's uid.
    let [a, b, fixed] = [container("a", "1"), container("b", "1"), container("905322c7", "1")];
    let second = |node: &mut Node| node.tick(&[zone(ZoneKind::Package, 0, 100)], 0, &[], &[&a, &b, &fixed]);
    assert_eq!(read(&second(&mut node), ["a", "b", "905322c7"]), ([None; 3], 100, 0));
    assert_eq!(node.idle.state().map(|state| state.reason), Some(Reason::Absent));
    node.pods = told(&[("a", None, 250), ("mirror", Some("905322c7"), 750)]);
    let parts = read(&second(&mut node), ["a", "b", "905322c7"]);
    assert_eq!(parts, ([running(25), running(0), running(75)], 100, 0));
    assert_eq!(node.idle.state().map(|state| state.reason), Some(Reason::Ok));
    node.pods = told(&[("a", None, 0), ("b", None, 10)]);
    assert_eq!(read(&second(&mut node), ["a", "b", "905322c7"]).0, [running(25), running(100), running(75)]);
}

#[test]
fn a_pod_without_a_series_of_its_own_is_given_nothing() {
    // A pod's own cgroup that never ran anything has no row (a folder that somebody left behind).
    let (mut node, left) = (Node::new(IdlePolicy::Equal), Arc::new(Workload::PodOverhead { uid: "left".into() }));
    let snapshot = node.tick(&[zone(ZoneKind::Package, 0, 100)], 0, &[], &[&left]);
    assert_eq!(read(&snapshot, ["left"]), ([None], 100, 0));
}

/// What happens in one second: energy of three zones, busy CPUs, milliseconds of work and life of six workloads, which pods
/// are reported and how long it takes.
type Second = (Vec<Option<u64>>, u64, Vec<u64>, Vec<bool>, Vec<u64>, u64);

fn second() -> impl Strategy<Value = Second> {
    (
        prop::collection::vec(prop::option::weighted(0.8, 0..1_000_000_u64), 3),
        0..10_u64,
        prop::collection::vec(prop_oneof![Just(0), 0..1_000_u64], 6),
        prop::collection::vec(any::<bool>(), 6),
        prop::collection::vec(prop_oneof![Just(0), 0..4_000_u64], 0..3),
        prop_oneof![4 => Just(1_u64), 1 => 1..200_u64],
    )
}

/// Lives through `seconds`; the identity is checked in each tick, and that no total falls.
fn live(seconds: &[Second], policy: IdlePolicy, max: usize) {
    let mut node = Node::with_max(policy, max);
    let workloads = [
        Arc::new(Workload::Unit { unit: "u".into() }),
        Arc::new(Workload::PodOverhead { uid: "p".into() }),
        container("p", "1"),
        container("p", "2"),
        container("q", "1"),
        container("r", "1"),
    ];
    let mut before: Option<IdleShares> = None;
    for (energies, busy, work, lives, requests, seconds) in seconds {
        let kinds = [(ZoneKind::Package, 0), (ZoneKind::Package, 1), (ZoneKind::Dram, 0)].into_iter().zip(energies);
        let zones: Vec<_> =
            kinds.filter_map(|((kind, socket), energy)| energy.map(|energy| zone(kind, socket, energy))).collect();
        let work: Vec<_> = workloads.iter().zip(work.iter().copied()).collect();
        let alive: Vec<_> = workloads.iter().zip(lives).filter(|(_, lives)| **lives).map(|(alive, _)| alive).collect();
        let pods: Vec<_> = ["p", "q", "r"].into_iter().zip(requests).map(|(uid, milli)| (uid, None, *milli)).collect();
        node.pods = told(&pods);
        node.now_s += seconds - 1;
        let after = node.tick(&zones, *busy, &work, &alive).idle.unwrap();
        for old in before.iter().flat_map(|before| &before.pods) {
            if let Some(new) = after.pods.iter().find(|new| new.uid == old.uid) {
                assert!(grew(&old.energy, &new.energy));
            }
        }
        if let Some(before) = &before {
            assert!(grew(&before.unassigned, &after.unassigned) && grew(&before.retired, &after.retired));
        }
        before = Some(after);
    }
}

fn grew(old: &[(EnergyKey, Microjoules)], new: &[(EnergyKey, Microjoules)]) -> bool {
    old.iter().all(|(key, old)| new.iter().any(|(same, new)| same == key && new >= old))
}

proptest! {
    #[test]
    fn nothing_is_lost_under_any_policy_and_no_total_falls(
        seconds in prop::collection::vec(second(), 1..40), max in 0..6_usize,
    ) {
        for policy in [IdlePolicy::Usage, IdlePolicy::Requests, IdlePolicy::Equal] {
            live(&seconds, policy, max);
        }
    }
}
