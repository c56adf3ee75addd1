//! Rules of attribution by hand-worked examples.

use usage::CpuShare;

use super::*;
use crate::workload::Workload;
use crate::zone::{Source, ZoneKind};

const SECOND_NS: u64 = 1_000_000_000;

fn zone(kind: ZoneKind, socket: Option<u32>, energy: u64) -> ZoneEnergy {
    let zone = Arc::new(Zone { kind, socket, die: None, source: Source::Rapl, path: format!("{kind:?}{socket:?}") });
    ZoneEnergy { zone, energy: Microjoules(energy), gap: false }
}

fn socket(number: u32) -> Domain {
    Domain { socket: Some(number), die: None }
}

fn load(cpus: u32, busy_ns: u64) -> DomainLoad {
    DomainLoad { cpus, busy_ns, dropped_ns: 0, cycles: false }
}

fn share(name: &str, domain: Option<u32>, runtime_ns: u64, cycles: u64) -> CpuShare {
    let workload = match name {
        "kernel" => Workload::Kernel,
        unit => Workload::Unit { unit: unit.into() },
    };
    CpuShare { workload: Arc::new(workload), domain, runtime_ns, cycles, switches: 1 }
}

/// One second.
fn interval<'a>(
    zones: &'a [ZoneEnergy],
    domains: &'a [Domain],
    loads: &'a [DomainLoad],
    shares: Vec<CpuShare>,
) -> Interval<'a> {
    let elapsed = Duration::from_secs(1);
    Interval { elapsed, zones: ZoneReading::of_cpus(zones, elapsed).collect(), domains, loads, shares }
}

/// Attributes one second (or what `elapsed` says) and returns each zone's division.
fn divisions(
    zones: &[ZoneEnergy],
    domains: &[Domain],
    loads: &[DomainLoad],
    shares: Vec<CpuShare>,
    idle: Idle<'_>,
) -> Vec<Division> {
    attribute(interval(zones, domains, loads, shares), idle)
        .zones
        .into_iter()
        .map(|zone| zone.division.unwrap())
        .collect()
}

fn parts(division: &Division) -> Vec<(usize, u64)> {
    division.shares.iter().map(|&(index, part)| (index, part.0)).collect()
}

#[test]
fn active_energy_is_divided_by_cycles_where_every_cpu_counts_them() {
    let package = [zone(ZoneKind::Package, Some(0), 1_000)];
    let shares = vec![share("a", Some(0), SECOND_NS / 2, 300), share("b", Some(0), SECOND_NS / 2, 100)];
    let counted = DomainLoad { cycles: true, ..load(1, SECOND_NS) };
    let by_cycles = &divisions(&package, &[socket(0)], &[counted], shares.clone(), Idle::None)[0];
    assert_eq!((by_cycles.method, parts(by_cycles)), (Method::Cpu(Weight::Cycles), vec![(0, 750), (1, 250)]));

    let by_time = &divisions(&package, &[socket(0)], &[load(1, SECOND_NS)], shares, Idle::None)[0];
    assert_eq!((by_time.method, parts(by_time)), (Method::Cpu(Weight::Runtime), vec![(0, 500), (1, 500)]));
}

#[test]
fn a_zone_over_two_domains_never_mixes_units() {
    let node = [zone(ZoneKind::Package, None, 1_000)];
    let shares = vec![share("a", Some(0), SECOND_NS / 4, 900), share("b", Some(1), SECOND_NS / 4 * 3, 0)];
    let loads = [DomainLoad { cycles: true, ..load(1, SECOND_NS / 4) }, load(1, SECOND_NS / 4 * 3)];
    let division = &divisions(&node, &[socket(0), socket(1)], &loads, shares, Idle::None)[0];
    assert_eq!((division.method, parts(division)), (Method::Cpu(Weight::Runtime), vec![(0, 250), (1, 750)]));
}

#[test]
fn the_weight_is_cycles_only_if_no_zone_had_to_do_without() {
    let zones = [0, 1].map(|number| zone(ZoneKind::Package, Some(number), 100));
    let shares = vec![share("a", Some(0), SECOND_NS, 5), share("a", Some(1), SECOND_NS, 5)];
    let counted = DomainLoad { cycles: true, ..load(1, SECOND_NS) };
    let weight = |loads: &[DomainLoad]| {
        let domains = &[socket(0), socket(1)];
        attribute(interval(&zones, domains, loads, shares.clone()), Idle::None).weight()
    };
    assert_eq!(weight(&[counted, counted]), Weight::Cycles);
    assert_eq!(weight(&[counted, load(1, SECOND_NS)]), Weight::Runtime);
}

#[test]
fn cycles_that_stand_still_are_not_a_weight() {
    let package = [zone(ZoneKind::Package, Some(0), 10)];
    let counted = DomainLoad { cycles: true, ..load(1, SECOND_NS) };
    let shares = vec![share("a", Some(0), SECOND_NS, 0)];
    let division = &divisions(&package, &[socket(0)], &[counted], shares, Idle::None)[0];
    assert_eq!((division.method, parts(division)), (Method::Cpu(Weight::Runtime), vec![(0, 10)]));
}

#[test]
fn missed_time_takes_its_share_in_the_unit_of_the_weights() {
    // 1 CPU busy for 1 s, 0.47 s charged; 20 ms and 1 % are noise, so 0.5 s is missed.
    let package = [zone(ZoneKind::Package, Some(0), 9_700)];
    let shares = vec![share("a", Some(0), 470_000_000, 1_410_000_000)];
    for cycles in [false, true] {
        let busy = DomainLoad { cycles, ..load(1, SECOND_NS) };
        let division = &divisions(&package, &[socket(0)], &[busy], shares.clone(), Idle::None)[0];
        assert_eq!((parts(division), division.unattributed.0), (vec![(0, 4_700)], 5_000));
    }
}

#[test]
fn a_full_map_shows_as_unattributed_energy() {
    let package = [zone(ZoneKind::Package, Some(0), 400)];
    let busy = DomainLoad { dropped_ns: SECOND_NS / 4, ..load(1, SECOND_NS) };
    let shares = vec![share("a", Some(0), SECOND_NS / 4 * 3, 0)];
    let division = &divisions(&package, &[socket(0)], &[busy], shares, Idle::None)[0];
    assert_eq!((parts(division), division.unattributed.0), (vec![(0, 300)], 100));
}

#[test]
fn energy_without_work_is_unattributed() {
    let package = [zone(ZoneKind::Package, Some(0), 400)];
    let division = &divisions(&package, &[socket(0)], &[load(1, 0)], vec![], Idle::None)[0];
    assert_eq!((division.active.0, division.unattributed.0, parts(division)), (400, 400, vec![]));
}

#[test]
fn work_on_one_socket_gets_nothing_of_the_other() {
    let zones = [0, 1, 2].map(|number| zone(ZoneKind::Package, Some(number), 100));
    let loads = [load(2, SECOND_NS), load(2, SECOND_NS)];
    let shares = vec![share("a", Some(0), SECOND_NS, 0), share("b", Some(1), SECOND_NS, 0)];
    let divided = divisions(&zones, &[socket(0), socket(1)], &loads, shares, Idle::None);
    assert_eq!(parts(&divided[0]), [(0, 100)]);
    assert_eq!(parts(&divided[1]), [(1, 100)]);
    // A socket without CPUs has nobody to charge.
    assert_eq!((parts(&divided[2]), divided[2].unattributed.0), (vec![], 100));
}

#[test]
fn work_without_a_place_weighs_in_every_zone() {
    // Cgroup files do not distinguish sockets. 1.5 s of the node's 2 s are charged; 0.04 s and 1 % are noise, so
    // 0.44 s are missed: 44 of 194 parts.
    let zones = [0, 1].map(|number| zone(ZoneKind::Package, Some(number), 194));
    let loads = [load(1, SECOND_NS), load(1, SECOND_NS)];
    let shares = vec![share("a", None, SECOND_NS, 0), share("b", None, SECOND_NS / 2, 0)];
    for division in divisions(&zones, &[socket(0), socket(1)], &loads, shares, Idle::None) {
        assert_eq!((parts(&division), division.unattributed.0), (vec![(0, 100), (1, 50)], 44));
    }
}

#[test]
fn zones_that_contain_or_overlap_others_are_not_divided() {
    let zones =
        [ZoneKind::Psys, ZoneKind::Platform, ZoneKind::Core, ZoneKind::Uncore].map(|kind| zone(kind, Some(0), 5));
    let shares = vec![share("a", Some(0), SECOND_NS, 0)];
    let (domains, loads) = ([socket(0)], [load(1, SECOND_NS)]);
    for zone in attribute(interval(&zones, &domains, &loads, shares), Idle::Ratio).zones {
        assert_eq!((zone.measured.0, zone.division), (5, None));
    }
}

#[test]
fn the_ratio_leaves_everything_idle_at_no_load_and_nothing_at_full_load() {
    let package = [zone(ZoneKind::Package, Some(0), 20_000_000)];
    // 4 CPUs for 1 s: 1 % is 40 ms.
    for (busy_ns, idle, active) in
        [(40_000_000, 19_800_000, 200_000), (4 * SECOND_NS, 0, 20_000_000), (0, 20_000_000, 0)]
    {
        let shares = vec![share("a", Some(0), busy_ns, 0)];
        let division = &divisions(&package, &[socket(0)], &[load(4, busy_ns)], shares, Idle::Ratio)[0];
        assert_eq!((division.idle.0, division.active.0), (idle, active));
    }
}

#[test]
fn faults_6_idle_power_stays_idle_power_at_full_load() {
    let package = zone(ZoneKind::Package, Some(0), 80_000_000);
    let mut model = IdleModel::new("boot");
    model.set_known(&package.zone, 20_000_000);
    let at = |energy: u64, busy_ns: u64| {
        let shares = vec![share("a", Some(0), busy_ns, 0)];
        let zones = [ZoneEnergy { energy: Microjoules(energy), ..package.clone() }];
        divisions(&zones, &[socket(0)], &[load(4, busy_ns)], shares, Idle::Learned(&model)).remove(0)
    };
    // 20 W of the 80 W at full load are idle power, where the ratio says none.
    let full = at(80_000_000, 4 * SECOND_NS);
    assert_eq!((full.idle.0, full.active.0), (20_000_000, 60_000_000));
    // At 1 % load 23 W were drawn: 3 W are active, where the ratio says 0.23 W.
    let little = at(23_000_000, 40_000_000);
    assert_eq!((little.idle.0, parts(&little)), (20_000_000, vec![(0, 3_000_000)]));
    // Less than the baseline is all idle.
    let none = at(19_000_000, 0);
    assert_eq!((none.idle.0, none.active.0), (19_000_000, 0));
}

#[test]
fn fc_041_the_idle_task_is_nobody_and_the_kernel_is_a_bucket_of_its_own() {
    let package = [zone(ZoneKind::Package, Some(0), 200_000_000)];
    let shares = vec![
        share("kernel", Some(0), 200_000_000, 0),
        share("kernel", Some(0), 300_000_000, 0),
        share("pod-a", Some(0), 1_500_000_000, 0),
    ];
    let elapsed = Duration::from_secs(10);
    let interval = Interval {
        elapsed,
        zones: ZoneReading::of_cpus(&package, elapsed).collect(),
        domains: &[socket(0)],
        loads: &[load(4, 2_000_000_000)],
        shares,
    };
    let mut attribution = attribute(interval, Idle::Ratio);
    assert_eq!(attribution.usage.workloads().next().unwrap()[0].runtime_ns, 500_000_000);
    let division = attribution.zones.remove(0).division.unwrap();
    // 2 of 40 CPU seconds were busy: 10 of 200 J are active, three quarters of them pod A's.
    assert_eq!((division.idle.0, division.active.0, division.unattributed.0), (190_000_000, 10_000_000, 0));
    assert_eq!(parts(&division), [(0, 2_500_000), (1, 7_500_000)]);
}

#[test]
fn fc_067_all_256_cpus_count() {
    let zones = [0, 1].map(|number| zone(ZoneKind::Package, Some(number), 300_000_000));
    let loads = [load(128, 128 * SECOND_NS); 2];
    let shares = vec![share("other", Some(0), 128 * SECOND_NS, 0), share("pod-a", Some(1), 128 * SECOND_NS, 0)];
    let divided = divisions(&zones, &[socket(0), socket(1)], &loads, shares, Idle::Ratio);
    assert_eq!(parts(&divided[0]), [(0, 300_000_000)]);
    assert_eq!(parts(&divided[1]), [(1, 300_000_000)]);
    assert!(divided.iter().all(|division| division.idle.0 == 0 && division.unattributed.0 == 0));
}

#[test]
fn without_busy_time_no_energy_is_idle_and_nothing_is_learned() {
    let package = [zone(ZoneKind::Package, Some(0), 1_000_000)];
    // What the sampler has while /proc/stat cannot be read.
    let loads = [load(0, 0)];
    let shares = vec![share("a", Some(0), SECOND_NS, 0)];
    let division = &divisions(&package, &[socket(0)], &loads, shares.clone(), Idle::Ratio)[0];
    assert_eq!((division.idle.0, parts(division)), (0, vec![(0, 1_000_000)]));

    let domains = [socket(0)];
    let interval = interval(&package, &domains, &loads, shares);
    let mut model = IdleModel::new("boot");
    for _ in 0..100 {
        learn(&mut model, &interval);
    }
    assert_eq!(model.baseline_uw(&package[0].zone), None);
}
