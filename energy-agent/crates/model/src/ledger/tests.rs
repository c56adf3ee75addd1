//! Rules of the ledger by hand-worked examples, and its laws on random histories.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::attribution::{Idle, Interval, ZoneReading, attribute};
use crate::cpu::Domain;
use crate::cpu::DomainLoad;
use crate::snapshot::Snapshot;
use crate::units::Watts;
use crate::workload::Runtime;
use crate::workload::names::{Pod, PodContainer, Pods};
use crate::workload::sandbox::Sandboxes;
use crate::zone::{Source, Zone, ZoneEnergy, ZoneKind};

const RETENTION: Duration = Duration::from_secs(120);
const PACKAGE: EnergyKey = EnergyKey { zone: ZoneKind::Package, source: Source::Rapl };

/// A node of one busy socket whose whole energy is active, driven one second at a time.
struct Node {
    ledger: Ledger,
    names: Names,
    now_s: u64,
}

fn zone(kind: ZoneKind, socket: u32) -> Arc<Zone> {
    Arc::new(Zone { kind, socket: Some(socket), die: None, source: Source::Rapl, path: format!("{kind:?}-{socket}") })
}

fn package(energy: u64) -> ZoneEnergy {
    ZoneEnergy { zone: zone(ZoneKind::Package, 0), energy: Microjoules(energy), gap: false }
}

fn unit(name: &str) -> Arc<Workload> {
    Arc::new(Workload::Unit { unit: name.into() })
}

fn container(uid: &str, id: &str) -> Arc<Workload> {
    Arc::new(Workload::PodContainer { uid: uid.into(), id: id.into(), runtime: Runtime::Containerd })
}

fn alive(workloads: &[&Arc<Workload>]) -> BTreeSet<Arc<Workload>> {
    workloads.iter().map(|workload| Arc::clone(workload)).collect()
}

impl Node {
    fn new() -> Self {
        Self::with_max(1_000)
    }

    fn with_max(terminated_max: usize) -> Self {
        Self {
            ledger: Ledger::new(Retention { time: RETENTION, max: terminated_max }),
            names: Names::default(),
            now_s: 0,
        }
    }

    /// One second in which each of `work` ran for as many milliseconds; checks the identities and returns the snapshot.
    fn tick(
        &mut self,
        zones: &[ZoneEnergy],
        work: &[(&Arc<Workload>, u64)],
        alive: &BTreeSet<Arc<Workload>>,
    ) -> Snapshot {
        let share = |(workload, ms): &(&Arc<Workload>, u64)| CpuShare {
            workload: Arc::clone(workload),
            domain: None,
            runtime_ns: ms * 1_000_000,
            cycles: 0,
            switches: u64::from(*ms > 0),
        };
        let elapsed = Duration::from_secs(1);
        let interval = Interval {
            elapsed,
            zones: ZoneReading::of_cpus(zones, elapsed).collect(),
            domains: &[Domain { socket: Some(0), die: None }],
            loads: &[DomainLoad { cpus: 1, busy_ns: 0, dropped_ns: 0, cycles: false }],
            shares: work.iter().map(share).collect(),
        };
        self.now_s += 1;
        self.ledger.apply(&attribute(interval, Idle::None), alive, &self.names, Duration::from_secs(self.now_s));
        self.snapshot()
    }

    /// `seconds` in which nothing was measured and nobody worked.
    fn wait(&mut self, seconds: u64, alive: &BTreeSet<Arc<Workload>>) -> Snapshot {
        self.now_s += seconds - 1;
        self.tick(&[], &[], alive)
    }

    fn snapshot(&self) -> Snapshot {
        let snapshot = shown(&self.ledger);
        check_identities(&snapshot);
        snapshot
    }
}

fn shown(ledger: &Ledger) -> Snapshot {
    let gpus = GpuPowers::default();
    let (zones, rows) = (ledger.zone_totals(&gpus), ledger.row_totals(&gpus));
    Snapshot { zones, rows, retired: ledger.retired(), ..Snapshot::empty("node") }
}

fn check_identities(snapshot: &Snapshot) {
    let mut balance: BTreeMap<EnergyKey, (u64, u64)> = BTreeMap::new();
    for zone in &snapshot.zones {
        if let Some(parts) = zone.parts {
            assert_eq!(parts.active + parts.idle, zone.measured);
            let (active, known) = balance.entry(key(&zone.zone)).or_default();
            (*active, *known) = (*active + parts.active.0, *known + parts.unattributed.0);
        }
    }
    for energy in snapshot.rows.iter().flat_map(|row| &row.energy) {
        balance.get_mut(&energy.key).unwrap().1 += energy.total.0;
    }
    for (key, retired) in &snapshot.retired {
        balance.get_mut(key).unwrap().1 += retired.0;
    }
    for (key, (active, known)) in balance {
        assert_eq!(active, known, "{key:?}");
    }
    assert!(snapshot.rows.is_sorted_by(|a, b| a.workload < b.workload));
}

fn row<'a>(snapshot: &'a Snapshot, workload: &Arc<Workload>) -> Option<&'a WorkloadRow> {
    snapshot.rows.iter().find(|row| row.workload == *workload)
}

/// State, microjoules and watts of a workload's package energy.
fn read(snapshot: &Snapshot, workload: &Arc<Workload>) -> Option<(WorkloadState, u64, Option<Watts>)> {
    let row = row(snapshot, workload)?;
    let energy = row.energy.iter().find(|energy| energy.key == PACKAGE)?;
    Some((row.state, energy.total.0, energy.power))
}

#[test]
fn a_pods_own_cgroup_has_no_row_before_it_did_something() {
    let mut node = Node::new();
    let overhead = Arc::new(Workload::PodOverhead { uid: "p".into() });
    let main = container("p", "a");
    let alive = alive(&[&overhead, &main]);
    let rows = |snapshot: Snapshot| snapshot.rows.into_iter().map(|row| row.workload).collect::<Vec<_>>();
    assert_eq!(rows(node.tick(&[package(100)], &[(&main, 5)], &alive)), [Arc::clone(&main)]);
    assert_eq!(rows(node.tick(&[package(100)], &[(&overhead, 5)], &alive)).len(), 2);
}

#[test]
fn totals_grow_by_each_interval() {
    let (mut node, a, b) = (Node::new(), unit("a"), unit("b"));
    let both = alive(&[&a, &b]);
    node.tick(&[package(4_000_000)], &[(&a, 750), (&b, 250)], &both);
    let snapshot = node.tick(&[package(2_000_000)], &[(&a, 500)], &both);
    assert_eq!(read(&snapshot, &a), Some((WorkloadState::Running, 5_000_000, Some(Watts(2.0)))));
    assert_eq!(read(&snapshot, &b), Some((WorkloadState::Running, 1_000_000, Some(Watts(0.0)))));
    let row = row(&snapshot, &a).unwrap();
    assert_eq!((row.runtime_ns, row.cycles, row.switches), (1_250_000_000, 0, 2));
    let zone = &snapshot.zones[0];
    assert_eq!((zone.measured.0, zone.power), (6_000_000, Some(Watts(2.0))));
}

#[test]
fn faults_2_a_zone_that_shows_no_energy_for_once_keeps_all_totals() {
    let (mut node, a) = (Node::new(), unit("a"));
    let running = alive(&[&a]);
    node.tick(&[package(138)], &[(&a, 1)], &running);
    // The counter stands still; then nobody runs; then the zone cannot be read.
    let still = node.tick(&[package(0)], &[(&a, 1)], &running);
    assert_eq!(read(&still, &a), Some((WorkloadState::Running, 138, Some(Watts(0.0)))));
    let nobody = node.tick(&[package(5)], &[], &running);
    assert_eq!(read(&nobody, &a).map(|(_, total, _)| total), Some(138));
    let unread = node.tick(&[], &[(&a, 1)], &running);
    assert_eq!(read(&unread, &a), Some((WorkloadState::Running, 138, None)));
    assert_eq!((unread.zones[0].measured.0, unread.zones[0].power), (143, None));
    let again = node.tick(&[package(82)], &[(&a, 1)], &running);
    assert_eq!(read(&again, &a).map(|(_, total, _)| total), Some(220));
}

#[test]
fn faults_4_node_totals_begin_at_zero_and_their_parts_sum_to_them() {
    let (mut node, a) = (Node::new(), unit("a"));
    // The meter gives differences, whatever the register stands at and also when it wraps at 262,143 J.
    assert!(node.snapshot().zones.is_empty());
    for _ in 0..3 {
        node.tick(&[package(200_000_000_000)], &[(&a, 1)], &alive(&[&a]));
    }
    let zone = &node.snapshot().zones[0];
    let parts = zone.parts.unwrap();
    assert_eq!((zone.measured.0, parts.active.0, parts.idle.0), (600_000_000_000, 600_000_000_000, 0));
}

#[test]
fn faults_11_a_workload_that_lived_within_one_interval_keeps_its_energy_for_the_retention() {
    let (mut node, a, pod) = (Node::new(), unit("a"), container("pod", "1"));
    let others = alive(&[&a]);
    let first = node.tick(&[package(100)], &[(&a, 700), (&pod, 300)], &others);
    let last = node.wait(119, &others);
    for snapshot in [first, last] {
        assert_eq!(read(&snapshot, &pod), Some((WorkloadState::Terminated, 30, None)));
        assert_eq!(snapshot.retired, [(PACKAGE, Microjoules(0))]);
    }
    let after = node.wait(1, &others);
    assert_eq!(read(&after, &pod), None);
    assert_eq!(after.retired, [(PACKAGE, Microjoules(30))]);
}

#[test]
fn the_last_work_of_a_vanished_workload_counts() {
    let (mut node, a) = (Node::new(), unit("a"));
    node.tick(&[package(10)], &[(&a, 1)], &alive(&[&a]));
    let last = node.tick(&[package(7)], &[(&a, 1)], &alive(&[]));
    assert_eq!(read(&last, &a), Some((WorkloadState::Terminated, 17, None)));
    let late = node.tick(&[package(2)], &[(&a, 1)], &alive(&[]));
    assert_eq!(read(&late, &a), Some((WorkloadState::Terminated, 19, None)));
    // Kept for the retention from its last work.
    assert!(read(&node.wait(119, &alive(&[])), &a).is_some());
    assert_eq!(node.wait(1, &alive(&[])).retired, [(PACKAGE, Microjoules(19))]);
}

#[test]
fn a_workload_whose_cgroup_returns_runs_again() {
    let (mut node, a) = (Node::new(), unit("a"));
    node.tick(&[package(10)], &[(&a, 1)], &alive(&[&a]));
    node.wait(60, &alive(&[]));
    node.wait(60, &alive(&[&a]));
    assert_eq!(read(&node.wait(200, &alive(&[&a])), &a), Some((WorkloadState::Running, 10, None)));
}

#[test]
fn an_idle_workload_has_a_row_from_its_first_moment_and_keeps_it() {
    let (mut node, a, b) = (Node::new(), unit("a"), unit("b"));
    let both = alive(&[&a, &b]);
    let first = node.tick(&[package(10)], &[(&a, 1)], &both);
    assert_eq!(read(&first, &b), Some((WorkloadState::Running, 0, Some(Watts(0.0)))));
    assert!(read(&node.wait(10_000, &both), &b).is_some());
}

#[test]
fn who_neither_lives_nor_works_has_no_row() {
    let (mut node, a) = (Node::new(), unit("a"));
    assert!(node.tick(&[package(10)], &[(&a, 0)], &alive(&[])).rows.is_empty());
}

#[test]
fn the_kernel_never_ends() {
    let (mut node, kernel) = (Node::new(), Arc::new(Workload::Kernel));
    node.tick(&[package(10)], &[(&kernel, 1)], &alive(&[]));
    assert_eq!(read(&node.wait(10_000, &alive(&[])), &kernel), Some((WorkloadState::Running, 10, None)));
}

#[test]
fn only_zones_that_are_divided_have_parts_and_keys() {
    let (mut node, a) = (Node::new(), unit("a"));
    let psys = ZoneEnergy { zone: zone(ZoneKind::Psys, 0), ..package(50) };
    let running = alive(&[&a]);
    let snapshot = node.tick(&[psys], &[(&a, 1)], &running);
    assert_eq!((snapshot.zones[0].measured.0, snapshot.zones[0].parts), (50, None));
    assert!(snapshot.rows[0].energy.is_empty() && snapshot.retired.is_empty());
    // A zone that comes later adds its key to rows in place.
    let dram = ZoneEnergy { zone: zone(ZoneKind::Dram, 0), ..package(3) };
    let keys: Vec<_> = node.tick(&[dram, package(5)], &[(&a, 1)], &running).rows[0]
        .energy
        .iter()
        .map(|e| (e.key.zone, e.total.0))
        .collect();
    assert_eq!(keys, [(ZoneKind::Package, 5), (ZoneKind::Dram, 3)]);
}

#[test]
fn sockets_are_added_up_and_one_without_a_reading_leaves_no_power() {
    let (mut node, a) = (Node::new(), unit("a"));
    let running = alive(&[&a]);
    // Without a socket both zones cover the node.
    let zone = |number: u32, energy: u64, gap: bool| {
        let zone = Zone { socket: None, ..(*zone(ZoneKind::Package, number)).clone() };
        ZoneEnergy { zone: Arc::new(zone), energy: Microjoules(energy), gap }
    };
    let work = [(&a, 1)];
    let mut power = |zones: &[ZoneEnergy]| read(&node.tick(zones, &work, &running), &a).unwrap();
    let (one, two) = (1_000_000, 2_000_000);
    assert_eq!(
        power(&[zone(0, one, false), zone(1, two, false)]),
        (WorkloadState::Running, 3_000_000, Some(Watts(3.0)))
    );
    assert_eq!(power(&[zone(0, one, false), zone(1, two, true)]), (WorkloadState::Running, 6_000_000, None));
    assert_eq!(power(&[zone(0, one, false)]), (WorkloadState::Running, 7_000_000, None));
    // It stays away: the power is that of the zones there are.
    assert_eq!(power(&[zone(0, one, false)]), (WorkloadState::Running, 8_000_000, Some(Watts(1.0))));
    let gone = &node.snapshot().zones[1];
    assert_eq!((gone.measured.0, gone.power), (4_000_000, None));
}

#[test]
fn the_oldest_go_first_when_too_many_ended() {
    let mut node = Node::with_max(2);
    let units = ["a", "b", "c"].map(unit);
    for unit in &units {
        node.tick(&[package(10)], &[(unit, 1)], &alive(&[]));
    }
    let snapshot = node.snapshot();
    assert_eq!(read(&snapshot, &units[0]), None);
    assert!(read(&snapshot, &units[1]).is_some() && read(&snapshot, &units[2]).is_some());
    assert_eq!(snapshot.retired, [(PACKAGE, Microjoules(10))]);
}

#[test]
fn of_what_is_outside_pods_five_hundred_stay_and_pods_are_not_counted_among_them() {
    let mut node = Node::new();
    let units = (0..300).map(|n| unit(&format!("{n}.service")));
    let containers = (0..300).map(|n| {
        let (unit, id) = (format!("docker-{n}.scope").into(), n.to_string().into());
        Arc::new(Workload::Container { unit, id, runtime: Runtime::Docker })
    });
    let pods: Vec<_> = (0..400).map(|n| container(&format!("pod {n}"), "main")).collect();
    let outside: Vec<_> = units.chain(containers).collect();
    let work: Vec<_> = outside.iter().chain(&pods).map(|workload| (workload, 1)).collect();
    // One microjoule each; all have ended within the tick.
    let snapshot = node.tick(&[package(1000)], &work, &alive(&[]));
    let kept = |workloads: &[Arc<Workload>]| workloads.iter().filter(|it| row(&snapshot, it).is_some()).count();
    assert_eq!((kept(&outside), kept(&pods)), (500, 400));
    assert_eq!(snapshot.retired, [(PACKAGE, Microjoules(100))]);
}

#[test]
fn a_pod_total_does_not_fall_when_a_container_of_it_ends() {
    let mut node = Node::new();
    let (init, main) = (container("pod", "init"), container("pod", "main"));
    let ended = Arc::new(Workload::PodEnded { uid: "pod".into(), name: None });
    node.tick(&[package(10)], &[(&init, 1)], &alive(&[&init, &main]));
    node.tick(&[package(5)], &[(&main, 1)], &alive(&[&main]));
    let folded = node.wait(120, &alive(&[&main]));
    assert_eq!(read(&folded, &init), None);
    assert_eq!(read(&folded, &ended), Some((WorkloadState::Terminated, 10, None)));
    assert_eq!(row(&folded, &ended).unwrap().runtime_ns, 1_000_000);
    assert_eq!(folded.retired, [(PACKAGE, Microjoules(0))]);
    // The last container goes: the pod's whole total retires at once, after the retention.
    node.wait(1, &alive(&[]));
    assert!(read(&node.wait(119, &alive(&[])), &ended).is_some());
    let retired = node.wait(1, &alive(&[]));
    assert!(retired.rows.is_empty());
    assert_eq!(retired.retired, [(PACKAGE, Microjoules(15))]);
}

#[test]
fn ended_instances_are_kept_by_the_name_of_their_container() {
    let mut node = Node::new();
    let pod = Pod {
        uid: "pod".into(),
        containers: vec![PodContainer { name: "main".into(), id: Some("2".into()), past_ids: vec!["1".into()] }],
        ..Pod::default()
    };
    let told = Pods { by_uid: [("pod".into(), Arc::new(pod))].into(), ..Pods::default() };
    node.names = Names::default().after(&Arc::new(told), &Sandboxes::default(), [].into_iter()).unwrap();
    let [first, second, untold, third] = ["1", "2", "x", "3"].map(|id| container("pod", id));
    let third_lives = alive(&[&third]);
    node.tick(&[package(60)], &[(&first, 1), (&second, 2), (&untold, 3)], &third_lives);
    let folded = node.wait(120, &third_lives);
    let ended = |name: Option<&str>| Arc::new(Workload::PodEnded { uid: "pod".into(), name: name.map(Arc::from) });
    let total = |name| read(&folded, &ended(name)).map(|(_, total, _)| total);
    assert_eq!((total(Some("main")), total(None), total(Some("x"))), (Some(30), Some(30), None));
}

#[test]
fn a_total_was_zero_before_the_interval_in_which_its_first_part_came() {
    let (mut node, a, b) = (Node::new(), container("pod", "a"), container("pod", "b"));
    let created = |snapshot: &Snapshot| -> Vec<(String, u64)> {
        snapshot.rows.iter().map(|row| (row.workload.to_string(), row.created.as_secs())).collect()
    };
    node.tick(&[package(5)], &[(&a, 10)], &alive(&[&a]));
    let both = node.tick(&[package(5)], &[(&b, 10)], &alive(&[&b]));
    let (first, second) = ("pod pod container a".to_owned(), "pod pod container b".to_owned());
    assert_eq!(created(&both), [(first, 0), (second.clone(), 1)]);
    // What was a's is kept under the pod, and goes on from when a was made.
    let later = node.wait(200, &alive(&[&b]));
    assert_eq!(created(&later), [(second, 1), ("pod pod ended containers".to_owned(), 0)]);
}

#[test]
fn a_unit_total_does_not_fall_when_a_container_of_it_ends() {
    let mut node = Node::new();
    let id = |id: &str| {
        Arc::new(Workload::Container { unit: "docker.service".into(), id: id.into(), runtime: Runtime::Docker })
    };
    let (first, second) = (id("1"), id("2"));
    node.tick(&[package(10)], &[(&first, 1)], &alive(&[&second]));
    let folded = node.wait(120, &alive(&[&second]));
    assert_eq!(read(&folded, &first), None);
    assert_eq!(read(&folded, &unit("docker.service")), Some((WorkloadState::Terminated, 10, None)));
    node.wait(1, &alive(&[]));
    assert_eq!(node.wait(120, &alive(&[])).retired, [(PACKAGE, Microjoules(10))]);
}

/// What happens in one second: energy of two zones (gap, absent), milliseconds of work and life of eight workloads.
type Second = (Vec<Option<(u64, bool)>>, Vec<u64>, Vec<bool>, u64);

fn second() -> impl Strategy<Value = Second> {
    (
        prop::collection::vec(prop::option::weighted(0.8, (0..1_000_000_u64, prop::bool::weighted(0.1))), 2),
        prop::collection::vec(prop_oneof![Just(0), 0..1_000_u64], 8),
        prop::collection::vec(any::<bool>(), 8),
        prop_oneof![4 => Just(1_u64), 1 => 1..200_u64],
    )
}

/// Lives through `seconds` and checks each against the one before; the identities are checked in each tick.
fn live(seconds: Vec<Second>, max: usize) {
    let mut node = Node::with_max(max);
    let workloads = [
        Arc::new(Workload::Kernel),
        unit("u"),
        unit("v"),
        Arc::new(Workload::Container { unit: "u".into(), id: "1".into(), runtime: Runtime::Docker }),
        Arc::new(Workload::PodOverhead { uid: "p".into() }),
        container("p", "1"),
        container("p", "2"),
        container("q", "1"),
    ];
    let mut before = node.snapshot();
    for (energies, work, lives, seconds) in seconds {
        let kinds = [ZoneKind::Package, ZoneKind::Dram].into_iter().zip(energies);
        let zones: Vec<ZoneEnergy> = kinds
            .filter_map(|(kind, energy)| energy.map(|(energy, gap)| (kind, Microjoules(energy), gap)))
            .map(|(kind, energy, gap)| ZoneEnergy { zone: zone(kind, 0), energy, gap })
            .collect();
        let work: Vec<_> = workloads.iter().zip(work).collect();
        let lives = workloads.iter().zip(lives).filter(|(_, lives)| *lives);
        let living: BTreeSet<_> = lives.map(|(workload, _)| Arc::clone(workload)).collect();
        node.now_s += seconds - 1;
        let after = node.tick(&zones, &work, &living);
        check_growth(&before, &after);
        for row in &after.rows {
            let lives = living.contains(&row.workload) || *row.workload == Workload::Kernel;
            assert_eq!(row.state == WorkloadState::Running, lives);
        }
        before = after;
    }
}

fn check_growth(before: &Snapshot, after: &Snapshot) {
    for old in &before.zones {
        assert!(after.zones.iter().any(|new| new.zone == old.zone && new.measured >= old.measured));
    }
    for old in &before.retired {
        assert!(after.retired.iter().any(|new| new.0 == old.0 && new.1 >= old.1));
    }
    for old in &before.rows {
        let Some(new) = row(after, &old.workload) else { continue };
        assert!(new.runtime_ns >= old.runtime_ns);
        for energy in &old.energy {
            assert!(new.energy.iter().any(|new| new.key == energy.key && new.total >= energy.total));
        }
    }
    // The total of a pod or unit is the sum of its rows, and does not fall while there is one.
    for belongs in [
        |workload: &Workload| workload.pod_uid().is_some_and(|uid| &**uid == "p"),
        |workload: &Workload| workload.unit() == Some("u"),
    ] {
        let total = |snapshot: &Snapshot| -> Option<u64> {
            let rows = || snapshot.rows.iter().filter(|row| belongs(&row.workload));
            rows().next().map(|_| rows().flat_map(|row| &row.energy).map(|energy| energy.total.0).sum())
        };
        assert!(total(after).is_none_or(|new| new >= total(before).unwrap_or(0)));
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_and_no_total_falls(seconds in prop::collection::vec(second(), 1..40), max in 0..6_usize) {
        live(seconds, max);
    }
}
