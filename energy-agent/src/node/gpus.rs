//! The node's GPUs from tick to tick: whose their processes are, what was divided, and the power of each GPU's last
//! interval, which is its own and not the tick's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_cluster::pod_resources::PodResources;
use energy_cluster::resource_slices::ResourceSlices;
use energy_host::workload::owners::Owners;
use energy_host::workload::pids::Pids;
use energy_model::attribution::gpu::{self, Allocation, GpuDivision, GpuUse};
use energy_model::attribution::idle::IdleModel;
use energy_model::attribution::method::IdleMethod;
use energy_model::attribution::usage::{Share, Usage};
use energy_model::attribution::{Division, Idle, Weight, ZoneAttribution};
use energy_model::capping::observation::{ClockLook, GpuDevice, GpuUser};
use energy_model::gpu::{Gpu, GpuEnergy, GpuProcess, GpuReading};
use energy_model::meter_state::MeterState;
use energy_model::snapshot::{EnergyKey, GpuNow, ProcessKind, ProcessRow, Snapshot, State, WorkloadEnergy};
use energy_model::units::{Microjoules, Watts, ratio};
use energy_model::workload::Workload;
use energy_model::workload::allocation::Allocations;
use energy_model::workload::device_id::DeviceId;
use energy_model::workload::names::Pods;
use energy_model::zone::{Source, Zone, ZoneKind};

use crate::config::Config;

/// Time between two questions to the kubelet while all is known, and while a process or a busy GPU has no owner.
const ASK_EVERY: Duration = Duration::from_secs(30);
const ASK_UNKNOWN_EVERY: Duration = Duration::from_secs(5);

/// Everything about GPUs that a tick changes.
pub struct Gpus {
    pids: Pids,
    resources: PodResources,
    slices: ResourceSlices,
    allocations: Allocations,
    asked: Option<Instant>,
    /// Some energy or process of the last tick had no owner.
    unknown: bool,
    idle_method: IdleMethod,
    dcgm_names: bool,
    /// How long a GPU that is not read keeps its gauges: one tick may pass without a reading.
    hold: Duration,
    /// By UUID; all that were ever read, because their totals stay.
    seen: BTreeMap<Arc<str>, Seen>,
}

struct Seen {
    now: GpuNow,
    zone: Option<Arc<Zone>>,
    /// Pods with a process on it or to which the kubelet gave it, by what their cgroups are named by.
    users: BTreeSet<Arc<str>>,
    /// Something outside pods, or nobody knows where, uses it.
    foreign: bool,
    read: Instant,
    taken: Instant,
    power: Option<Powers>,
}

/// Mean power of the GPU's last interval.
struct Powers {
    measured: Watts,
    active: Watts,
    idle: Watts,
    shares: Vec<(Arc<Workload>, Watts)>,
    processes: Vec<(u32, Watts)>,
}

/// What a process used of one GPU in the last interval, as far as that can be told by process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuProcessEnergy {
    pub pid: u32,
    /// Clock ticks since boot at its start; `None` where the process was never seen.
    pub start: Option<u64>,
    pub source: Source,
    pub energy: Microjoules,
}

/// What workloads were charged of all GPUs in the interval, and what of it can be told by process.
#[derive(Clone, Debug, Default)]
pub struct GpuCharges {
    pub shares: BTreeMap<Source, Microjoules>,
    pub processes: Vec<GpuProcessEnergy>,
}

/// One GPU's energy of the interval, divided.
pub struct Charge {
    zone: Arc<Zone>,
    energy: GpuEnergy,
    division: GpuDivision,
    processes: Vec<GpuProcessEnergy>,
}

impl Gpus {
    /// Must be called within a runtime.
    pub fn open(config: &Config, node: &str, now: Instant) -> Self {
        Self {
            pids: Pids::new(&config.host.procfs, now),
            resources: PodResources::start(&config.cluster.pods_resources_socket),
            slices: ResourceSlices::start(&config.cluster, node),
            allocations: Allocations::default(),
            asked: None,
            unknown: false,
            idle_method: config.idle,
            dcgm_names: config.gpu_dcgm_names,
            hold: config.host.interval * 5 / 2,
            seen: BTreeMap::new(),
        }
    }

    /// Divides what was read of each GPU, and learns idle power from it.
    pub fn divide(
        &mut self,
        readings: &[GpuReading],
        owners: Option<&Owners>,
        pods: &Arc<Pods>,
        model: &mut IdleModel,
        now: Instant,
    ) -> Vec<Charge> {
        self.pids.begin(now);
        if !readings.is_empty() {
            self.ask_now_and_then(now);
            let nobody = BTreeSet::new();
            let alive = owners.map_or(&nobody, Owners::alive);
            let resources = self.resources.told().resources;
            if resources.has_claims() {
                self.slices.want();
            }
            self.allocations.refresh(&resources, &self.slices.told().uuids, pods, alive, now);
        }
        self.unknown = false;
        readings.iter().filter_map(|reading| self.divide_one(reading, owners, pods, model, now)).collect()
    }

    fn ask_now_and_then(&mut self, now: Instant) {
        let every = if self.unknown { ASK_UNKNOWN_EVERY } else { ASK_EVERY };
        if self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= every) {
            self.asked = Some(now);
            self.resources.ask();
        }
    }

    fn divide_one(
        &mut self,
        reading: &GpuReading,
        owners: Option<&Owners>,
        pods: &Pods,
        model: &mut IdleModel,
        now: Instant,
    ) -> Option<Charge> {
        let owner = |process: &GpuProcess| self.pids.owner(process.pid, owners, pods);
        let placed: Vec<_> = reading.processes.iter().map(owner).collect();
        self.unknown |= placed.contains(&None);
        let gpu = &reading.gpu;
        let instances = reading.instances.iter().flat_map(|instance| {
            let workloads = self.allocations.of(&DeviceId::of_instance(gpu, instance));
            workloads.into_iter().map(|workload| (instance.id, workload))
        });
        let names = DeviceId::of_gpu(gpu);
        let allocation = Allocation { device: self.allocations.of(&names), instances: instances.collect() };
        let holder = self.allocations.holder(&names).cloned();

        let seen = self.seen.entry(Arc::clone(&gpu.uuid)).or_insert_with(|| Seen {
            now: GpuNow::new(Arc::clone(gpu)),
            zone: None,
            users: BTreeSet::new(),
            foreign: false,
            read: now,
            taken: reading.taken,
            power: None,
        });
        seen.now = GpuNow { state: reading.state, holder, ..GpuNow::new(Arc::clone(gpu)) };
        (seen.read, seen.taken, seen.power) = (now, reading.taken, None);
        let given = allocation.device.iter().chain(allocation.instances.iter().map(|(_, workload)| workload));
        let users = || placed.iter().flatten().chain(given);
        seen.foreign = placed.contains(&None) || placed.iter().flatten().any(|workload| workload.pod_uid().is_none());
        seen.users = users().filter_map(|workload| workload.pod_uid().cloned()).collect();
        let energy = reading.energy?;
        let zone = match &seen.zone {
            Some(zone) if zone.source == energy.source => Arc::clone(zone),
            _ => Arc::new(zone_of(gpu, energy.source)),
        };
        seen.zone = Some(Arc::clone(&zone));
        let used = GpuUse { reading, owners: &placed, allocation: &allocation };
        if self.idle_method == IdleMethod::Learned {
            gpu::learn(model, &used, energy, &zone);
        }
        let division = gpu::attribute(&used, energy.energy, &zone, Idle::new(self.idle_method, model));
        self.unknown |= division.unattributed.0 > 0;
        seen.now.method = Some(division.method.as_str());
        seen.now.idle = match self.idle_method {
            IdleMethod::Learned => model.method_in_force([&*zone]),
            IdleMethod::Ratio => "ratio",
            IdleMethod::None => "none",
        };
        let elapsed = reading.elapsed;
        seen.power = (!energy.gap && !elapsed.is_zero()).then(|| Powers {
            measured: energy.energy.over(elapsed),
            active: division.active.over(elapsed),
            idle: division.idle.over(elapsed),
            shares: division.shares.iter().map(|(owner, part)| (Arc::clone(owner), part.over(elapsed))).collect(),
            processes: division.processes.iter().map(|&(pid, part)| (pid, part.over(elapsed))).collect(),
        });
        let process = |&(pid, part): &(u32, Microjoules)| GpuProcessEnergy {
            pid,
            start: self.pids.start(pid),
            source: energy.source,
            energy: part,
        };
        let processes = division.processes.iter().map(process).collect();
        Some(Charge { zone, energy, division, processes })
    }

    /// Puts power into the GPU energies of processes: of the GPUs' intervals, not the tick's.
    pub fn fill_processes(&self, snapshot: &mut Snapshot, now: Instant) {
        let mut watts: BTreeMap<(Source, u32), Watts> = BTreeMap::new();
        let mut charged: BTreeMap<Source, Watts> = BTreeMap::new();
        for seen in self.seen.values().filter(|seen| now.saturating_duration_since(seen.read) < self.hold) {
            let (Some(power), Some(zone)) = (&seen.power, &seen.zone) else { continue };
            charged.entry(zone.source).or_default().0 += power.shares.iter().map(|(_, part)| part.0).sum::<f64>();
            for (pid, part) in &power.processes {
                watts.entry((zone.source, *pid)).or_default().0 += part.0;
            }
        }
        put_power(&mut snapshot.processes, watts, charged);
    }

    /// Copies what is known of each GPU into `snapshot`, and power into its zones and rows.
    pub fn fill(&self, snapshot: &mut Snapshot, now: Instant) {
        let current = |seen: &Seen| now.saturating_duration_since(seen.read) < self.hold;
        snapshot.gpus = self.seen.values().map(|seen| GpuNow { current: current(seen), ..seen.now.clone() }).collect();
        snapshot.dcgm_names = self.dcgm_names;
        snapshot.meters.extend(self.states());
        let mut shares: BTreeMap<(Source, &Workload), Watts> = BTreeMap::new();
        let mut powered = BTreeSet::new();
        for seen in self.seen.values().filter(|seen| current(seen)) {
            let (Some(power), Some(zone)) = (&seen.power, &seen.zone) else { continue };
            powered.insert(zone.source);
            for (owner, watts) in &power.shares {
                shares.entry((zone.source, &**owner)).or_default().0 += watts.0;
            }
            if let Some(totals) = snapshot.zones.iter_mut().find(|totals| totals.zone == *zone) {
                totals.power = Some(power.measured);
                if let Some(parts) = &mut totals.parts {
                    (parts.active_power, parts.idle_power) = (Some(power.active), Some(power.idle));
                }
            }
        }
        for row in snapshot.rows.iter_mut().filter(|row| row.state == State::Running) {
            let gpus = row.energy.iter_mut().filter(|energy| energy.key.zone == ZoneKind::Gpu);
            for energy in gpus {
                let EnergyKey { zone: _, source } = energy.key;
                let watts = shares.get(&(source, &*row.workload)).copied();
                energy.power = powered.contains(&source).then(|| watts.unwrap_or_default());
            }
        }
    }

    /// The GPUs as capping sees them at the tick of [`Self::divide`]. What was read at an earlier one has been acted on.
    pub fn observe(&self, now: Instant, model: &IdleModel) -> Vec<GpuDevice> {
        self.seen
            .iter()
            .map(|(uuid, seen)| {
                let current = now.saturating_duration_since(seen.read) < self.hold;
                let power = seen.power.as_ref().filter(|_| seen.read == now);
                GpuDevice {
                    uuid: Arc::clone(uuid),
                    power: power.map(|power| power.measured),
                    age: now.saturating_duration_since(seen.taken),
                    users: users(&seen.users, power),
                    foreign: seen.foreign,
                    idle: seen
                        .zone
                        .as_ref()
                        .and_then(|zone| model.baseline_uw(zone))
                        .map(|uw| Watts(ratio(uw, 1_000_000))),
                    clock_mhz: seen
                        .now
                        .state
                        .sm_clock_hertz
                        .filter(|_| current)
                        .and_then(|hertz| u32::try_from(hertz / 1_000_000).ok()),
                    look: (seen.read == now).then(|| ClockLook::of(&seen.now.state)).flatten(),
                }
            })
            .collect()
    }

    fn states(&self) -> impl Iterator<Item = MeterState> {
        [self.resources.told().state, self.slices.told().state].into_iter().flatten()
    }
}

/// The GPU's power in parts for its users: by active energy, in equal parts where none of them was active. What others
/// than pods drew is nobody's here.
fn users(uids: &BTreeSet<Arc<str>>, power: Option<&Powers>) -> Vec<GpuUser> {
    let active = |uid: &str| -> f64 {
        let shares = power.iter().flat_map(|power| &power.shares);
        shares.filter(|(owner, _)| owner.pod_uid().is_some_and(|owner| **owner == *uid)).map(|(_, part)| part.0).sum()
    };
    let all: f64 = power.iter().flat_map(|power| &power.shares).map(|(_, part)| part.0).sum();
    let equal = 1.0 / ratio(u64::try_from(uids.len()).unwrap_or(u64::MAX), 1).max(1.0);
    let part = |uid: &str| if all > 0.0 { active(uid) / all } else { equal };
    let user = |uid: &Arc<str>| GpuUser {
        uid: Arc::clone(uid),
        power: power.map(|power| Watts(power.measured.0 * part(uid))),
    };
    uids.iter().map(user).collect()
}

/// Puts power into the GPU energies of processes: `watts` by source and pid; what of `charged` no row has is the row
/// `other`'s. A source that is in neither was not measured.
fn put_power(rows: &mut [ProcessRow], mut watts: BTreeMap<(Source, u32), Watts>, charged: BTreeMap<Source, Watts>) {
    let mut rest = charged;
    let gpu = |energy: &&mut WorkloadEnergy| energy.key.zone == ZoneKind::Gpu;
    // An ended process draws nothing, whoever has its pid now.
    for row in rows.iter_mut().filter(|row| row.state == State::Running) {
        let Some(pid) = row.pid else { continue };
        for energy in row.energy.iter_mut().filter(gpu) {
            let own = watts.remove(&(energy.key.source, pid)).unwrap_or_default();
            energy.power = rest.get_mut(&energy.key.source).map(|rest| {
                rest.0 -= own.0;
                own
            });
        }
    }
    for row in rows.iter_mut().filter(|row| row.kind == ProcessKind::Other) {
        for energy in row.energy.iter_mut().filter(gpu) {
            // A sum of differences may end a hair below zero.
            energy.power = rest.get(&energy.key.source).map(|rest| Watts(rest.0.max(0.0)));
        }
    }
}

/// What the GPUs' energy was charged to, for the process level.
#[must_use]
pub fn charges(charges: &[Charge]) -> GpuCharges {
    let mut all = GpuCharges::default();
    for Charge { zone: _, energy, division, processes } in charges {
        let sum = all.shares.entry(energy.source).or_default();
        division.shares.iter().for_each(|(_, part)| *sum += *part);
        all.processes.extend_from_slice(processes);
    }
    all
}

/// So that the workloads charged have a place in the usage, though they need not have run.
pub fn shares(charges: &[Charge]) -> impl Iterator<Item = Share> {
    charges.iter().flat_map(|charge| &charge.division.shares).map(|(owner, _)| Share::none(Arc::clone(owner)))
}

/// The charges in the ledger's terms.
pub fn zones(charges: Vec<Charge>, usage: &Usage) -> impl Iterator<Item = ZoneAttribution> {
    charges.into_iter().map(|Charge { zone, energy: GpuEnergy { energy, source: _, gap }, division, processes: _ }| {
        let GpuDivision { active, idle, unattributed, method: _, shares, processes: _ } = division;
        let place = |owner| usage.position(&owner).expect("each workload charged has a share");
        let shares = shares.into_iter().map(|(owner, part)| (place(owner), part)).collect();
        let division = Division { active, idle, unattributed, weight: Weight::Runtime, shares };
        ZoneAttribution { zone, measured: energy, gap, division: Some(division) }
    })
}

fn zone_of(gpu: &Gpu, source: Source) -> Zone {
    Zone { kind: ZoneKind::Gpu, socket: None, die: None, source, path: gpu.uuid.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use energy_model::snapshot::Energies;

    #[test]
    fn users_share_the_gpus_whole_power_by_their_active_energy() {
        let pod = |uid: &str| Arc::new(Workload::PodOverhead { uid: Arc::from(uid) });
        let uids = BTreeSet::from([Arc::from("a"), Arc::from("b")]);
        let mut power = Powers {
            measured: Watts(300.0),
            active: Watts(200.0),
            idle: Watts(100.0),
            shares: vec![(pod("a"), Watts(150.0)), (pod("b"), Watts(50.0))],
            processes: Vec::new(),
        };
        let watts = |power: &Powers| users(&uids, Some(power)).iter().map(|user| user.power).collect::<Vec<_>>();
        // Three quarters and one quarter of 300 W; nobody active: half each.
        assert_eq!(watts(&power), [Some(Watts(225.0)), Some(Watts(75.0))]);
        power.shares.clear();
        assert_eq!(watts(&power), [Some(Watts(150.0)), Some(Watts(150.0))]);
        assert!(users(&uids, None).iter().all(|user| user.power.is_none()));
    }

    const KEY: EnergyKey = EnergyKey { zone: ZoneKind::Gpu, source: Source::Nvml };

    fn row(pid: Option<u32>, kind: ProcessKind, state: State) -> ProcessRow {
        let energy = Energies::from_iter([WorkloadEnergy { key: KEY, total: Microjoules(1), power: None }]);
        ProcessRow { pid, kind, comm: Arc::from("job"), exe: Arc::from(""), state, energy, runtime_ns: 0 }
    }

    #[test]
    fn power_is_the_living_processs_of_that_pid_and_the_rest_is_other() {
        let mut rows = [
            row(None, ProcessKind::Other, State::Running),
            row(Some(7), ProcessKind::Regular, State::Terminated),
            row(Some(7), ProcessKind::Regular, State::Running),
        ];
        let watts = BTreeMap::from([((Source::Nvml, 7), Watts(30.0)), ((Source::Nvml, 8), Watts(5.0))]);
        put_power(&mut rows, watts, BTreeMap::from([(Source::Nvml, Watts(40.0))]));
        let power: Vec<_> = rows.iter().map(|row| row.energy[0].power).collect();
        assert_eq!(power, [Some(Watts(10.0)), None, Some(Watts(30.0))]);
    }

    #[test]
    fn without_a_measured_gpu_there_is_no_power() {
        let mut rows =
            [row(None, ProcessKind::Other, State::Running), row(Some(7), ProcessKind::Regular, State::Running)];
        put_power(&mut rows, BTreeMap::new(), BTreeMap::new());
        assert!(rows.iter().all(|row| row.energy[0].power.is_none()));
    }
}
