//! Laws that hold for any interval: random zones, topologies, loads and work.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::idle::IdleModel;
use super::usage::{CpuShare, CpuUsage};
use super::{Attribution, Idle, Interval, ZoneReading, attribute, learn};
use crate::cpu::Domain;
use crate::cpu::DomainLoad;
use crate::units::Microjoules;
use crate::workload::Workload;
use crate::zone::{Source, Zone, ZoneEnergy, ZoneKind};

/// One random interval; `shares` name workloads by number.
#[derive(Clone, Debug)]
struct World {
    zones: Vec<ZoneEnergy>,
    domains: Vec<Domain>,
    loads: Vec<DomainLoad>,
    shares: Vec<(u8, Option<u32>, u64, u64)>,
    idle_uw: Option<u64>,
}

fn workload(number: u8) -> Arc<Workload> {
    Arc::new(Workload::Unit { unit: format!("unit-{number:03}").into() })
}

impl World {
    fn shares(&self) -> Vec<CpuShare> {
        let share = |&(number, domain, runtime_ns, cycles): &(u8, Option<u32>, u64, u64)| CpuShare {
            workload: workload(number),
            domain,
            runtime_ns,
            cycles,
            switches: 1,
        };
        self.shares.iter().map(share).collect()
    }

    fn attribute(&self) -> Attribution {
        let elapsed = Duration::from_secs(1);
        let interval = Interval {
            elapsed,
            zones: ZoneReading::of_cpus(&self.zones, elapsed).collect(),
            domains: &self.domains,
            loads: &self.loads,
            shares: self.shares(),
        };
        let mut model = IdleModel::new("boot");
        learn(&mut model, &interval);
        for zone in &self.zones {
            self.idle_uw.iter().for_each(|&idle_uw| model.set_known(&zone.zone, idle_uw));
        }
        attribute(interval, Idle::Learned(&model))
    }

    /// What each zone gave to a workload.
    fn energy(&self, number: u8) -> Vec<u64> {
        let position =
            CpuUsage::group(self.shares()).workloads().position(|shares| shares[0].workload == workload(number));
        let part = |shares: &Vec<(usize, Microjoules)>| {
            shares.iter().find(|(index, _)| Some(*index) == position).map_or(0, |(_, part)| part.0)
        };
        let divisions = self.attribute().zones.into_iter().filter_map(|zone| zone.division);
        divisions.map(|division| part(&division.shares)).collect()
    }
}

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..1_000_u64, 1..10_000_000_000_u64]
}

fn world() -> impl Strategy<Value = World> {
    let zone = (0..3_u32, 0..4_u8, amount(), any::<bool>()).prop_map(|(socket, kind, energy, gap)| {
        let (kind, socket) = match kind {
            0 => (ZoneKind::Dram, Some(socket)),
            1 => (ZoneKind::Psys, None),
            2 => (ZoneKind::Package, None),
            _ => (ZoneKind::Package, Some(socket)),
        };
        let zone = Zone { kind, socket, die: None, source: Source::Rapl, path: format!("{kind:?}/{socket:?}") };
        ZoneEnergy { zone: Arc::new(zone), energy: Microjoules(energy), gap }
    });
    let load = (0..200_u32, amount(), prop_oneof![3 => Just(0), 1 => amount()], any::<bool>())
        .prop_map(|(cpus, busy_ns, dropped_ns, cycles)| DomainLoad { cpus, busy_ns, dropped_ns, cycles });
    let share = (0..12_u8, prop::option::weighted(0.9, 0..2_u32), amount(), amount());
    (
        prop::collection::vec(zone, 0..6),
        prop::collection::vec(load, 2),
        any::<bool>(),
        prop::collection::vec(share, 0..30),
        prop::option::of(amount()),
    )
        .prop_map(|(zones, loads, topology, shares, idle_uw)| {
            let domains = [0, 1].map(|number| Domain { socket: topology.then_some(number), die: None }).to_vec();
            World { zones, domains, loads, shares, idle_uw }
        })
}

/// A world in which nothing was missed: energy is shared by weight alone.
fn fully_charged() -> impl Strategy<Value = World> {
    world().prop_map(|mut world| {
        for load in &mut world.loads {
            (load.busy_ns, load.dropped_ns) = (0, 0);
        }
        world.idle_uw.get_or_insert(0);
        world
    })
}

proptest! {
    #[test]
    fn every_zone_is_divided_exactly(world in world()) {
        for (zone, read) in world.attribute().zones.iter().zip(&world.zones) {
            prop_assert_eq!(zone.measured, read.energy);
            prop_assert_eq!(zone.division.is_some(), zone.zone.kind.attributed());
            if let Some(division) = &zone.division {
                prop_assert_eq!(division.active + division.idle, zone.measured);
                let charged: Microjoules = division.shares.iter().map(|(_, part)| *part).sum();
                prop_assert_eq!(charged + division.unattributed, division.active);
                prop_assert!(division.shares.is_sorted_by(|a, b| a.0 < b.0));
            }
        }
    }

    #[test]
    fn who_did_nothing_gets_nothing(mut world in world(), domain in prop::option::of(0..2_u32)) {
        world.shares.push((99, domain, 0, 0));
        prop_assert!(world.energy(99).iter().all(|&energy| energy == 0));
    }

    #[test]
    fn equal_work_gets_equal_energy(mut world in world(), domain in 0..2_u32, ns in amount(), cycles in amount()) {
        world.shares.extend([(98, Some(domain), ns, cycles), (99, Some(domain), ns, cycles)]);
        for (a, b) in world.energy(98).iter().zip(world.energy(99)) {
            prop_assert!(a.abs_diff(b) <= 1);
        }
    }

    #[test]
    fn two_workloads_get_together_what_they_get_as_one(world in world()) {
        let mut merged = world.clone();
        merged.shares.iter_mut().filter(|share| share.0 == 1).for_each(|share| share.0 = 0);
        let apart = world.energy(0).into_iter().zip(world.energy(1)).map(|(a, b)| a + b);
        for (apart, together) in apart.zip(merged.energy(0)) {
            prop_assert!(apart.abs_diff(together) <= 1);
        }
    }

    #[test]
    fn the_scale_of_the_work_does_not_matter(world in fully_charged(), factor in 1..1_000_u64) {
        let mut scaled = world.clone();
        for (_, _, runtime_ns, cycles) in &mut scaled.shares {
            (*runtime_ns, *cycles) = (*runtime_ns * factor, *cycles * factor);
        }
        for number in 0..12 {
            for (a, b) in world.energy(number).iter().zip(scaled.energy(number)) {
                prop_assert!(a.abs_diff(b) <= 1);
            }
        }
    }

    #[test]
    fn work_on_another_socket_gets_nothing_of_this_one(mut world in world(), ns in 1..u64::MAX / 64, cycles: u64) {
        world.domains = [0, 1].map(|number| Domain { socket: Some(number), die: None }).to_vec();
        world.shares.push((99, Some(1), ns, cycles));
        let attributed = world.zones.iter().filter(|zone| zone.zone.kind.attributed());
        for (zone, energy) in attributed.zip(world.energy(99)) {
            prop_assert!(energy == 0 || zone.zone.socket.is_none_or(|socket| socket == 1));
        }
    }
}
