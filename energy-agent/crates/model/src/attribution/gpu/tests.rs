//! Rules of GPU attribution by hand-worked examples and field cases.

use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::attribution::idle::IdleModel;
use crate::attribution::{Attribution, Division, Idle, Interval, Method, ZoneReading, ZoneUsers, attribute, learn};
use crate::gpu::{Gpu, GpuInstance, GpuProcess, GpuProcessKind, GpuState};
use crate::workload::Runtime;
use crate::zone::{Source, Zone, ZoneEnergy, ZoneKind};

const JOULE: u64 = 1_000_000;

pub fn zone() -> Zone {
    Zone { kind: ZoneKind::Gpu, socket: None, die: None, source: Source::Nvml, path: "GPU-1".to_owned() }
}

pub fn energy(microjoules: u64) -> ZoneEnergy {
    ZoneEnergy { zone: Arc::new(zone()), energy: Microjoules(microjoules), gap: false }
}

/// How the energy of the only zone is divided, with the workloads in place of their positions.
#[derive(Debug, PartialEq, Eq)]
pub struct GpuDivision {
    pub active: Microjoules,
    pub idle: Microjoules,
    pub unattributed: Microjoules,
    pub method: GpuMethod,
    pub shares: Vec<(Arc<Workload>, Microjoules)>,
    pub processes: Vec<(u32, Microjoules)>,
}

impl GpuDivision {
    pub fn of(interval: Interval<'_>, idle: Idle<'_>) -> Self {
        let Attribution { usage, mut zones, .. } = attribute(interval, idle);
        let Division { active, idle, unattributed, method, shares, processes } = zones.remove(0).division.unwrap();
        let Method::Gpu(method) = method else { panic!("{method:?} is not a GPU's") };
        let shares = shares.into_iter().map(|(place, energy)| (Arc::clone(usage.workload(place)), energy)).collect();
        Self { active, idle, unattributed, method, shares, processes }
    }
}

fn pod(name: &str) -> Arc<Workload> {
    container(name, "c0")
}

fn container(pod: &str, id: &str) -> Arc<Workload> {
    Arc::new(Workload::PodContainer { uid: pod.into(), id: id.into(), runtime: Runtime::Containerd })
}

/// One GPU during one second.
struct World {
    reading: GpuReading,
    owners: Vec<Option<Arc<Workload>>>,
    allocation: Allocation,
}

impl World {
    fn new(evidence: Evidence, utilization_percent: Option<u32>) -> Self {
        let gpu = Gpu { uuid: "GPU-1".into(), index: 0, minor: Some(0), name: "Test GPU".into() };
        let state =
            GpuState { utilization_ppm: utilization_percent.map(|percent| percent * 10_000), ..Default::default() };
        Self {
            reading: GpuReading {
                gpu: Arc::new(gpu),
                taken: std::time::Instant::now(),
                module: None,
                energy: None,
                elapsed: Duration::from_secs(1),
                state,
                processes: Vec::new(),
                evidence,
                instances: Vec::new(),
            },
            owners: Vec::new(),
            allocation: Allocation::default(),
        }
    }

    /// A compute process that kept the SMs busy for so many percent of the second.
    fn process(self, pid: u32, percent: u64, owner: Option<Arc<Workload>>) -> Self {
        let kind = GpuProcessKind::Compute;
        self.with(GpuProcess { pid, work: percent * 1_000_000, memory_bytes: None, kind, instance: None }, owner)
    }

    fn with(mut self, process: GpuProcess, owner: Option<Arc<Workload>>) -> Self {
        self.reading.processes.push(process);
        self.owners.push(owner);
        self
    }

    fn allocated(mut self, device: &[Arc<Workload>]) -> Self {
        self.allocation.device = device.to_vec();
        self
    }

    fn divide(&self, joules: u64, idle: Idle<'_>) -> GpuDivision {
        let energy = energy(joules * JOULE);
        let division = GpuDivision::of(self.interval(&energy), idle);
        assert_eq!((division.active + division.idle).0, joules * JOULE);
        let shares: Microjoules = division.shares.iter().map(|(_, energy)| *energy).sum();
        assert_eq!(shares + division.unattributed, division.active);
        division
    }

    fn interval<'a>(&'a self, energy: &'a ZoneEnergy) -> Interval<'a> {
        let used = GpuUse { reading: &self.reading, owners: &self.owners, allocation: &self.allocation };
        let elapsed = self.reading.elapsed;
        let zones = vec![ZoneReading { energy, elapsed, users: ZoneUsers::Gpu(used) }];
        Interval { elapsed, zones, domains: &[], loads: &[], shares: Vec::new() }
    }
}

fn joules(division: &GpuDivision) -> Vec<(Arc<Workload>, u64)> {
    division.shares.iter().map(|(owner, energy)| (Arc::clone(owner), energy.0 / JOULE)).collect()
}

/// A model whose idle power of the GPU is known.
fn known(watts: u64) -> IdleModel {
    let mut model = IdleModel::new("boot");
    model.set_known(&zone(), watts * JOULE);
    model
}

#[test]
fn active_energy_is_divided_by_sm_time() {
    let world = World::new(Evidence::Samples, Some(80)).process(1, 60, Some(pod("a"))).process(2, 20, Some(pod("b")));
    let division = world.divide(200, Idle::Ratio);
    assert_eq!(division.idle, Microjoules(40 * JOULE));
    assert_eq!(joules(&division), [(pod("a"), 120), (pod("b"), 40)]);
    assert_eq!(division.processes, [(1, Microjoules(120 * JOULE)), (2, Microjoules(40 * JOULE))]);
    assert_eq!(division.method, GpuMethod::Samples);
}

#[test]
fn idle_power_that_is_known_is_idle_whatever_the_load() {
    let world = World::new(Evidence::Samples, Some(100)).process(1, 100, Some(pod("a")));
    assert_eq!(world.divide(200, Idle::Learned(&known(50))).idle, Microjoules(50 * JOULE));
    assert_eq!(world.divide(30, Idle::Learned(&known(50))).idle, Microjoules(30 * JOULE), "never more than was used");
    assert_eq!(world.divide(200, Idle::None).idle, Microjoules::ZERO);
}

#[test]
fn fc_057_shares_are_per_gpu_and_a_sum_of_zero_is_nobodys() {
    let case: Value =
        serde_json::from_str(include_str!("../../../../../../tests/cases/FC-057-multi-gpu.json")).unwrap();
    let owner = |pid: u64| pod(case["pids"][pid.to_string()].as_str().unwrap());
    let mut found = Vec::new();
    for gpu in case["interval"].as_array().unwrap() {
        let samples = gpu["samples"].as_array().unwrap();
        let sum: u64 = samples.iter().map(|sample| sample["sm"].as_u64().unwrap()).sum();
        let mut world = World::new(Evidence::Samples, Some(u32::try_from(sum).unwrap()));
        for sample in samples {
            let pid = sample["pid"].as_u64().unwrap();
            world = world.process(u32::try_from(pid).unwrap(), sample["sm"].as_u64().unwrap(), Some(owner(pid)));
        }
        let whole: Value = gpu["joules"].clone();
        let whole = whole.to_string().trim_end_matches(".0").parse().unwrap();
        found.push((whole, world.divide(whole, Idle::Ratio)));
    }
    assert_eq!(found.iter().map(|(joules, _)| joules).sum::<u64>(), 420);
    // 80 % and 50 % of 200 and 100 J are active.
    assert_eq!(joules(&found[0].1), [(pod("a"), 120), (pod("b"), 40)]);
    assert_eq!(joules(&found[1].1), [(pod("a"), 50)]);
    for (joules, division) in &found[2..] {
        assert_eq!((division.idle.0, division.unattributed.0, division.shares.len()), (joules * JOULE, 0, 0));
    }
    // With a baseline, what an open context costs beyond it belongs to nobody.
    let world =
        World::new(Evidence::Samples, Some(0)).process(5001, 0, Some(pod("c"))).process(5002, 0, Some(pod("c")));
    let division = world.divide(90, Idle::Learned(&known(24)));
    assert_eq!((division.idle.0, division.unattributed.0), (24 * JOULE, 66 * JOULE));
}

#[test]
fn fc_051_and_fc_058_a_gpu_that_nobody_uses_is_all_idle() {
    let world = World::new(Evidence::Samples, Some(0));
    for idle in [Idle::Ratio, Idle::Learned(&known(20))] {
        let division = world.divide(24, idle);
        assert_eq!((division.idle.0, division.active.0), (24 * JOULE, 0));
    }
    let mut unsaid = World::new(Evidence::None, None);
    assert_eq!(unsaid.divide(24, Idle::Ratio).idle.0, 24 * JOULE);
    unsaid = unsaid.process(1, 0, Some(pod("a")));
    assert_eq!(unsaid.divide(24, Idle::Ratio).active.0, 24 * JOULE, "nothing tells how busy it was");
}

#[test]
fn without_samples_the_only_container_takes_all_active_energy() {
    let one = World::new(Evidence::None, Some(50)).process(1, 0, Some(pod("a")));
    let division = one.divide(100, Idle::Ratio);
    assert_eq!((joules(&division), division.method), (vec![(pod("a"), 50)], GpuMethod::Context));
    assert_eq!(division.processes, [(1, Microjoules(50 * JOULE))]);

    // Two processes of one container: the container is certain, the process is not.
    let two = one.process(2, 0, Some(pod("a")));
    let division = two.divide(100, Idle::Ratio);
    assert_eq!((joules(&division), division.processes.len()), (vec![(pod("a"), 50)], 0));

    let overhead = Arc::new(Workload::PodOverhead { uid: "a".into() });
    let of_one_pod = two.process(3, 0, Some(container("a", "c1")));
    assert_eq!(joules(&of_one_pod.divide(100, Idle::Ratio)), [(overhead, 50)]);

    let of_two = of_one_pod.process(4, 0, Some(pod("b")));
    let division = of_two.divide(100, Idle::Ratio);
    assert_eq!((division.unattributed.0, division.method), (50 * JOULE, GpuMethod::None));
    let division = of_two.allocated(&[pod("b")]).divide(100, Idle::Ratio);
    assert_eq!((joules(&division), division.method), (vec![(pod("b"), 50)], GpuMethod::Allocation));
}

#[test]
fn a_process_that_cannot_be_placed_is_the_only_owners_or_nobodys() {
    let world = World::new(Evidence::Samples, Some(80)).process(1, 60, Some(pod("a"))).process(2, 20, None);
    let division = world.divide(200, Idle::Ratio);
    assert_eq!((joules(&division), division.unattributed.0), (vec![(pod("a"), 120)], 40 * JOULE));
    let world = world.allocated(&[pod("a")]);
    assert_eq!(joules(&world.divide(200, Idle::Ratio)), [(pod("a"), 160)]);
    let world = world.allocated(&[pod("a"), pod("b")]);
    assert_eq!(world.divide(200, Idle::Ratio).unattributed.0, 40 * JOULE);
    let unseen = World::new(Evidence::Samples, Some(50)).allocated(&[pod("b")]);
    assert_eq!(joules(&unseen.divide(100, Idle::Ratio)), [(pod("b"), 50)], "a virtual GPU shows no processes");
}

fn mps(pid: u32, kind: GpuProcessKind, percent: u64, mib: u64) -> GpuProcess {
    GpuProcess { pid, work: percent * 1_000_000, memory_bytes: Some(mib << 20), kind, instance: None }
}

#[test]
fn fc_056_the_mps_servers_work_is_its_clients() {
    let case: Value = serde_json::from_str(include_str!("../../../../../../tests/cases/FC-056-mps.json")).unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let mut world = World::new(Evidence::Samples, Some(80));
    let server = &case["process_utilization"][0];
    let pid = |value: &Value| u32::try_from(number(&value["pid"])).unwrap();
    world = world.with(mps(pid(server), GpuProcessKind::MpsServer, number(&server["sm"]), 30), Some(pod("mps-daemon")));
    for client in &case["compute_processes"].as_array().unwrap()[1..] {
        let owner = pod(client["pod"].as_str().unwrap());
        world = world.with(mps(pid(client), GpuProcessKind::Mps, 0, number(&client["mem"])), Some(owner));
    }
    // 80 % of 200 J are active, 4000 MiB to 2000 MiB: two thirds of 160 J are 106.666667 J.
    let division = world.divide(200, Idle::Ratio);
    assert_eq!(division.shares, [(pod("a"), Microjoules(106_666_667)), (pod("b"), Microjoules(53_333_333))]);
    assert_eq!(division.method, GpuMethod::Mps);
    // Where the clients' work is seen, it counts.
    world.reading.processes[2].work = 20_000_000;
    world.reading.processes[0].work = 60_000_000;
    assert_eq!(joules(&world.divide(200, Idle::Ratio)), [(pod("b"), 160)]);
}

#[test]
fn an_mps_server_is_never_billed_itself() {
    let server = || mps(17, GpuProcessKind::MpsServer, 80, 30);
    let alone = World::new(Evidence::Samples, Some(80)).with(server(), Some(pod("mps-daemon")));
    assert_eq!(alone.divide(100, Idle::Ratio).unattributed.0, 80 * JOULE);
    let unsampled = World::new(Evidence::None, Some(80))
        .with(GpuProcess { work: 0, ..server() }, Some(pod("mps-daemon")))
        .with(mps(301, GpuProcessKind::Mps, 0, 0), Some(pod("a")));
    assert_eq!(joules(&unsampled.divide(100, Idle::Ratio)), [(pod("a"), 80)]);
}

/// FC-055: four instances of one slice; pods a and b in the first and third.
fn fc_055() -> (u64, World) {
    let case: Value = serde_json::from_str(include_str!("../../../../../../tests/cases/FC-055-mig.json")).unwrap();
    let number = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let mut world = World::new(Evidence::None, None);
    for instance in case["instances"].as_array().unwrap() {
        let slices = instance["profile"].as_str().unwrap().split_once('g').unwrap().0.parse().unwrap();
        let uuid = format!("MIG-{}", instance["gi"]).into();
        let (id, index) = (number(&instance["gi"]), world.reading.instances.len().try_into().unwrap());
        world.reading.instances.push(GpuInstance { id, uuid, index, slices, activity_ppm: None });
    }
    for process in case["compute_processes"].as_array().unwrap() {
        let kind = GpuProcessKind::Compute;
        let (pid, instance) = (number(&process["pid"]), Some(number(&process["gi"])));
        let owner = pod(process["pod"].as_str().unwrap());
        world = world.with(GpuProcess { pid, work: 0, memory_bytes: None, kind, instance }, Some(owner));
    }
    (100, world)
}

#[test]
fn fc_055_instances_in_use_weigh_their_slices_and_the_others_are_idle() {
    let (whole, world) = fc_055();
    let division = world.divide(whole, Idle::Ratio);
    assert_eq!((division.idle.0, division.method), (50 * JOULE, GpuMethod::MigSlices));
    assert_eq!(joules(&division), [(pod("a"), 25), (pod("b"), 25)]);
    let division = world.divide(whole, Idle::Learned(&known(20)));
    assert_eq!((division.idle.0, joules(&division)), (20 * JOULE, vec![(pod("a"), 40), (pod("b"), 40)]));
}

#[test]
fn mig_instances_weigh_slices_times_activity() {
    let (_, mut world) = fc_055();
    world.reading.instances[0].slices = 3;
    for (instance, percent) in world.reading.instances.iter_mut().zip([20, 0, 60, 0]) {
        instance.activity_ppm = Some(percent * 10_000);
    }
    // 3 x 20 % + 60 % of 6 slices are 20 % busy; halves.
    let division = world.divide(100, Idle::Ratio);
    assert_eq!((division.idle.0, joules(&division)), (80 * JOULE, vec![(pod("a"), 10), (pod("b"), 10)]));
    assert_eq!(division.method, GpuMethod::MigActivity);
    for instance in &mut world.reading.instances {
        instance.activity_ppm = Some(0);
    }
    assert_eq!(world.divide(100, Idle::Ratio).idle.0, 100 * JOULE);
    assert_eq!(world.divide(100, Idle::Learned(&known(30))).unattributed.0, 70 * JOULE);
}

#[test]
fn a_mig_instance_whose_processes_are_not_seen_belongs_to_its_pod() {
    let (_, mut world) = fc_055();
    world.owners[1] = None;
    let division = world.divide(100, Idle::Ratio);
    assert_eq!((joules(&division), division.unattributed.0), (vec![(pod("a"), 25)], 25 * JOULE));
    world.allocation.instances = vec![(5, pod("b")), (6, pod("d"))];
    let division = world.divide(100, Idle::Ratio);
    assert_eq!(joules(&division), [(pod("a"), 25), (pod("b"), 25), (pod("d"), 25)]);
}

#[test]
fn idle_power_is_learned_while_nobody_works() {
    let mut model = IdleModel::new("boot");
    let quiet = World::new(Evidence::Samples, Some(0)).process(1, 0, Some(pod("a")));
    let busy = World::new(Evidence::Samples, Some(90)).process(1, 90, Some(pod("a")));
    for second in 0..60_u64 {
        for (world, watts) in [(&quiet, 60 + second), (&busy, 300)] {
            learn(&mut model, &world.interval(&energy(watts * JOULE)));
            learn(&mut model, &world.interval(&ZoneEnergy { gap: true, ..energy(1) }));
        }
    }
    // The tenth percentile of 60..=119 W.
    assert_eq!(model.baseline_uw(&zone()), Some(65 * JOULE));
}
