//! Laws that hold for any GPU: random processes, kinds, samples, instances and allocations.

use std::time::Duration;

use proptest::prelude::*;

use super::tests::{GpuDivision, energy, zone};
use super::*;
use crate::attribution::idle::IdleModel;
use crate::attribution::{Idle, Interval, ZoneReading, ZoneUsers};
use crate::gpu::{Gpu, GpuInstance, GpuProcess, GpuProcessKind, GpuState};
use crate::workload::Runtime;

/// One random GPU; workloads are numbers.
#[derive(Clone, Debug)]
struct World {
    energy: u64,
    evidence: Evidence,
    utilization_ppm: Option<u32>,
    processes: Vec<(GpuProcess, Option<u8>)>,
    instances: Vec<GpuInstance>,
    device: Vec<u8>,
    inside: Vec<(u32, u8)>,
    idle_uw: Option<u64>,
}

/// Container `number`, of a pod that it shares with its neighbour.
fn workload(number: u8) -> Arc<Workload> {
    let (uid, id) = (format!("pod-{:03}", number / 2).into(), format!("{number:03}").into());
    Arc::new(Workload::PodContainer { uid, id, runtime: Runtime::Containerd })
}

impl World {
    fn divide(&self) -> GpuDivision {
        let reading = GpuReading {
            gpu: Arc::new(Gpu { uuid: "GPU-1".into(), index: 0, minor: Some(0), name: "gpu".into() }),
            taken: std::time::Instant::now(),
            module: None,
            energy: None,
            elapsed: Duration::from_secs(1),
            state: GpuState { utilization_ppm: self.utilization_ppm, ..GpuState::default() },
            processes: self.processes.iter().map(|(process, _)| process.clone()).collect(),
            evidence: self.evidence,
            instances: self.instances.clone(),
        };
        let owners: Vec<_> = self.processes.iter().map(|(_, owner)| owner.map(workload)).collect();
        let allocation = Allocation {
            device: self.device.iter().map(|&number| workload(number)).collect(),
            instances: self.inside.iter().map(|&(id, number)| (id, workload(number))).collect(),
        };
        let mut model = IdleModel::new("boot");
        self.idle_uw.iter().for_each(|&idle_uw| model.set_known(&zone(), idle_uw));
        let used = GpuUse { reading: &reading, owners: &owners, allocation: &allocation };
        let (energy, elapsed) = (energy(self.energy), reading.elapsed);
        let zones = vec![ZoneReading { energy: &energy, elapsed, users: ZoneUsers::Gpu(used) }];
        let interval = Interval { elapsed, zones, domains: &[], loads: &[], shares: Vec::new() };
        GpuDivision::of(interval, Idle::Learned(&model))
    }

    fn energy_of(&self, number: u8) -> u64 {
        let division = self.divide();
        division.shares.iter().find(|(owner, _)| *owner == workload(number)).map_or(0, |(_, energy)| energy.0)
    }
}

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..1_000_u64, 1..10_000_000_000_u64]
}

fn process() -> impl Strategy<Value = (GpuProcess, Option<u8>)> {
    let kind = prop_oneof![
        Just(GpuProcessKind::Compute),
        Just(GpuProcessKind::Graphics),
        Just(GpuProcessKind::Mps),
        Just(GpuProcessKind::MpsServer)
    ];
    let memory = prop::option::of(amount());
    (1..50_u32, amount(), memory, kind, prop::option::of(0..4_u32), prop::option::weighted(0.8, 0..8_u8)).prop_map(
        |(pid, work, memory_bytes, kind, instance, owner)| {
            (GpuProcess { pid, work, memory_bytes, kind, instance }, owner)
        },
    )
}

fn world() -> impl Strategy<Value = World> {
    let activity = prop::option::weighted(0.8, 0..1_000_001_u32);
    let instances = prop::collection::vec((1..8_u32, activity), 0..4).prop_map(|instances| {
        let instance = |(id, (slices, activity_ppm)): (u32, (u32, Option<u32>))| GpuInstance {
            id,
            uuid: format!("MIG-{id}").into(),
            index: id,
            slices,
            activity_ppm,
        };
        (0..).zip(instances).map(instance).collect()
    });
    (
        amount(),
        prop_oneof![Just(Evidence::Samples), Just(Evidence::None)],
        prop::option::of(0..1_000_001_u32),
        prop::collection::vec(process(), 0..12),
        prop_oneof![2 => Just(Vec::new()), 1 => instances],
        prop::collection::vec(0..8_u8, 0..3),
        prop::collection::vec((0..4_u32, 0..8_u8), 0..3),
        prop::option::of(amount()),
    )
        .prop_map(|(energy, evidence, utilization_ppm, processes, instances, device, inside, idle_uw)| World {
            energy,
            evidence,
            utilization_ppm,
            processes,
            instances,
            device,
            inside,
            idle_uw,
        })
}

proptest! {
    #[test]
    fn every_gpu_is_divided_exactly(world in world()) {
        let division = world.divide();
        prop_assert_eq!((division.active + division.idle).0, world.energy);
        let shares: Microjoules = division.shares.iter().map(|(_, energy)| *energy).sum();
        prop_assert_eq!(shares + division.unattributed, division.active);
        prop_assert!(division.shares.is_sorted_by(|a, b| a.0 < b.0));
        prop_assert!(division.processes.is_sorted_by(|a, b| a.0 < b.0));
        let processes: Microjoules = division.processes.iter().map(|(_, energy)| *energy).sum();
        prop_assert!(processes <= shares);
    }

    #[test]
    fn who_did_nothing_beside_others_who_worked_gets_nothing(mut world in world(), work in 1..1_000_000_u64) {
        world.instances.clear();
        let compute = |pid, work| {
            GpuProcess { pid, work, memory_bytes: Some(1), kind: GpuProcessKind::Compute, instance: None }
        };
        world.processes.extend([(compute(60, work), Some(0)), (compute(61, 0), Some(99))]);
        prop_assert_eq!(world.energy_of(99), 0);
    }

    #[test]
    fn equal_work_gets_equal_energy(mut world in world(), work in amount(), memory in amount(), mps: bool) {
        let kind = if mps { GpuProcessKind::Mps } else { GpuProcessKind::Compute };
        for (pid, owner) in [(61, 101), (62, 103)] {
            let process = GpuProcess { pid, work, memory_bytes: Some(memory), kind, instance: Some(1) };
            world.processes.push((process, Some(owner)));
        }
        // Each server's part is rounded on its own.
        let servers = world.processes.iter().filter(|(process, _)| process.kind == GpuProcessKind::MpsServer).count();
        let limit = 1 + u64::try_from(servers).unwrap();
        prop_assert!(world.energy_of(101).abs_diff(world.energy_of(103)) <= limit);
    }

    #[test]
    fn the_order_of_the_driver_does_not_matter(mut world in world()) {
        let mut seen = std::collections::BTreeSet::new();
        world.processes.retain(|(process, _)| seen.insert(process.pid));
        let before = world.divide();
        world.processes.reverse();
        prop_assert_eq!(before, world.divide());
    }
}
