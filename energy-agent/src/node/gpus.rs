//! The node's GPUs from tick to tick: whose their processes are, what was divided, and the power of each GPU's last
//! interval, which is its own and not the tick's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_cluster::pod_resources::PodResources;
use energy_cluster::resource_slices::ResourceSlices;
use energy_host::workload::owners::Owners;
use energy_host::workload::pids::Pids;
use energy_model::attribution::gpu::{Allocation, GpuUse};
use energy_model::attribution::idle::IdleModel;
use energy_model::attribution::{Attribution, Division, Idle, Method, ZoneAttribution, ZoneReading, ZoneUsers};
use energy_model::capping::observation::{ClockLook, GpuDevice, GpuUser};
use energy_model::gpu::{Gpu, GpuEnergy, GpuProcess, GpuReading};
use energy_model::ledger::Ledger;
use energy_model::ledger::gpu_holders::GpuHolders;
use energy_model::ledger::gpu_power::{GpuPower, GpuPowers};
use energy_model::meter_state::MeterState;
use energy_model::snapshot::GpuNow;
use energy_model::units::{Microjoules, Watts, ratio};
use energy_model::workload::Workload;
use energy_model::workload::allocation::Allocations;
use energy_model::workload::device_id::DeviceId;
use energy_model::workload::names::Pods;
use energy_model::zone::{Source, Zone, ZoneEnergy, ZoneKind};

use crate::config::Config;

/// Time between two questions to the kubelet while all is known, and while a process or a busy GPU has no owner.
const ASK_EVERY: Duration = Duration::from_secs(30);
const ASK_UNKNOWN_EVERY: Duration = Duration::from_secs(5);

/// A GPU without a reading for so long is not waited for.
const GONE: Duration = Duration::from_secs(10);

/// Everything about GPUs that a tick changes.
pub struct Gpus {
    pids: Pids,
    resources: PodResources,
    slices: ResourceSlices,
    allocations: Allocations,
    asked: Option<Instant>,
    /// Some energy or process of the last tick had no owner.
    unknown: bool,
    /// How long a GPU that is not read keeps its gauges: one tick may pass without a reading.
    hold: Duration,
    /// By UUID; all that were ever read, because their totals stay.
    seen: BTreeMap<Arc<str>, SeenGpu>,
}

struct SeenGpu {
    now: GpuNow,
    zone: Option<Arc<Zone>>,
    /// Pods with a process on it or to which the kubelet gave it, by what their cgroups are named by.
    users: BTreeSet<Arc<str>>,
    /// Something outside pods, or nobody knows where, uses it.
    foreign: bool,
    read: Instant,
    taken: Instant,
    /// `None` where the last reading has none.
    power: Option<GpuPower>,
    holders: GpuHolders,
}

/// A GPU's reading, with processes turned into workloads.
pub struct PlacedGpu<'a> {
    reading: &'a GpuReading,
    /// `None` where it was not measured.
    energy: Option<ZoneEnergy>,
    /// Parallel to the processes.
    owners: Vec<Option<Arc<Workload>>>,
    allocation: Allocation,
}

impl PlacedGpu<'_> {
    /// The GPU as a zone among others.
    pub fn zone(&self) -> Option<ZoneReading<'_>> {
        let Self { reading, energy, owners, allocation } = self;
        let users = ZoneUsers::Gpu(GpuUse { reading, owners, allocation });
        Some(ZoneReading { energy: energy.as_ref()?, elapsed: reading.elapsed, users })
    }
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
            hold: config.host.interval * 5 / 2,
            seen: BTreeMap::new(),
        }
    }

    /// Whether every GPU that was read a short time before this moment has a reading that was taken then or later.
    pub fn read_since(&self, moment: Instant) -> bool {
        let mut read = self.seen.values().filter(|seen| moment.saturating_duration_since(seen.taken) < GONE);
        read.all(|seen| seen.taken >= moment)
    }

    /// Finds out who uses each GPU that was read.
    pub fn place<'a>(
        &mut self,
        readings: &'a [GpuReading],
        owners: Option<&Owners>,
        pods: &Arc<Pods>,
        now: Instant,
    ) -> Vec<PlacedGpu<'a>> {
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
        readings.iter().map(|reading| self.place_one(reading, owners, pods, now)).collect()
    }

    fn ask_now_and_then(&mut self, now: Instant) {
        let every = if self.unknown { ASK_UNKNOWN_EVERY } else { ASK_EVERY };
        if self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= every) {
            self.asked = Some(now);
            self.resources.ask();
        }
    }

    fn place_one<'a>(
        &mut self,
        reading: &'a GpuReading,
        owners: Option<&Owners>,
        pods: &Pods,
        now: Instant,
    ) -> PlacedGpu<'a> {
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

        let seen = self.seen.entry(Arc::clone(&gpu.uuid)).or_insert_with(|| SeenGpu {
            now: GpuNow::new(Arc::clone(gpu)),
            zone: None,
            users: BTreeSet::new(),
            foreign: false,
            read: now,
            taken: reading.taken,
            power: None,
            holders: GpuHolders::default(),
        });
        seen.now = GpuNow { state: reading.state, holder, ..GpuNow::new(Arc::clone(gpu)) };
        (seen.read, seen.taken, seen.power) = (now, reading.taken, None);
        let given = allocation.device.iter().chain(allocation.instances.iter().map(|(_, workload)| workload));
        let users = || placed.iter().flatten().chain(given);
        seen.foreign = placed.contains(&None) || placed.iter().flatten().any(|workload| workload.pod_uid().is_none());
        seen.users = users().filter_map(|workload| workload.pod_uid().cloned()).collect();
        seen.holders.see(GpuUse { reading, owners: &placed, allocation: &allocation }.holders(), now);
        let energy = reading.energy.map(|GpuEnergy { energy, source, gap }| {
            let zone = match &seen.zone {
                Some(zone) if zone.source == source => Arc::clone(zone),
                _ => Arc::new(zone_of(gpu, source)),
            };
            seen.zone = Some(Arc::clone(&zone));
            ZoneEnergy { zone, energy, gap }
        });
        PlacedGpu { reading, energy, owners: placed, allocation }
    }

    /// Takes note of how the GPUs' energy was divided.
    pub fn note(&mut self, attribution: &Attribution, idle: Idle<'_>) {
        for ZoneAttribution { zone, measured, gap, elapsed, division } in &attribution.zones {
            let Some(Division { method: Method::Gpu(method), .. }) = division else { continue };
            let (Some(division), Some(seen)) = (division, self.seen.get_mut(zone.path.as_str())) else { continue };
            self.unknown |= division.unattributed.0 > 0;
            seen.now.method = Some(method.as_str());
            seen.now.idle = idle.in_force([&**zone]);
            let powered = !gap && !elapsed.is_zero();
            let share = |&(place, part): &(usize, Microjoules)| {
                (Arc::clone(attribution.usage.workload(place)), part.over(*elapsed))
            };
            for &(place, part) in &division.shares {
                seen.holders.charge(attribution.usage.workload(place), part, seen.read);
            }
            seen.power = powered.then(|| GpuPower {
                measured: measured.over(*elapsed),
                active: division.active.over(*elapsed),
                idle: division.idle.over(*elapsed),
                shares: division.shares.iter().map(share).collect(),
                processes: division.processes.iter().map(|&(pid, part)| (pid, part.over(*elapsed))).collect(),
            });
        }
    }

    /// After the tick's energy was added up: who holds a GPU no more, and who has no row.
    pub fn settle(&mut self, alive: &BTreeSet<Arc<Workload>>, ledger: &Ledger, now: Instant) {
        for seen in self.seen.values_mut() {
            seen.holders.settle(alive, |workload| ledger.has_row(workload), self.hold, now);
        }
    }

    /// When the process with this host PID began, in clock ticks since boot; `None` where it was never seen.
    pub fn start_of(&self, pid: u32) -> Option<u64> {
        self.pids.start(pid)
    }

    fn is_current(&self, seen: &SeenGpu, now: Instant) -> bool {
        now.saturating_duration_since(seen.read) < self.hold
    }

    /// The power of the GPUs that were read a short time ago.
    pub fn powers(&self, now: Instant) -> GpuPowers<'_> {
        let current = self.seen.values().filter(|seen| self.is_current(seen, now));
        current.filter_map(|seen| Some((&**seen.zone.as_ref()?, seen.power.as_ref()?))).collect()
    }

    /// All GPUs, as a snapshot shows them.
    pub fn all(&self, now: Instant) -> Vec<GpuNow> {
        let gpu = |seen: &SeenGpu| GpuNow {
            current: self.is_current(seen, now),
            holders: seen.holders.all().collect(),
            ..seen.now.clone()
        };
        self.seen.values().map(gpu).collect()
    }

    /// The GPUs as capping sees them at the tick of [`Self::place`]. What was read at an earlier one has been acted on.
    pub fn observe(&self, now: Instant, model: &IdleModel) -> Vec<GpuDevice> {
        self.seen
            .iter()
            .map(|(uuid, seen)| {
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
                        .filter(|_| self.is_current(seen, now))
                        .and_then(|hertz| u32::try_from(hertz / 1_000_000).ok()),
                    look: (seen.read == now).then(|| ClockLook::of(&seen.now.state)).flatten(),
                }
            })
            .collect()
    }

    /// Rows of `energy_agent_meter_up`.
    pub fn states(&self) -> impl Iterator<Item = MeterState> {
        [self.resources.told().state, self.slices.told().state].into_iter().flatten()
    }
}

/// The GPU's power in parts for its users: by active energy, in equal parts where none of them was active. What others
/// than pods drew is nobody's here.
fn users(uids: &BTreeSet<Arc<str>>, power: Option<&GpuPower>) -> Vec<GpuUser> {
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

fn zone_of(gpu: &Gpu, source: Source) -> Zone {
    Zone { kind: ZoneKind::Gpu, socket: None, die: None, source, path: gpu.uuid.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_share_the_gpus_whole_power_by_their_active_energy() {
        let pod = |uid: &str| Arc::new(Workload::PodOverhead { uid: Arc::from(uid) });
        let uids = BTreeSet::from([Arc::from("a"), Arc::from("b")]);
        let mut power = GpuPower {
            measured: Watts(300.0),
            active: Watts(200.0),
            idle: Watts(100.0),
            shares: vec![(pod("a"), Watts(150.0)), (pod("b"), Watts(50.0))],
            processes: Vec::new(),
        };
        let watts = |power: &GpuPower| users(&uids, Some(power)).iter().map(|user| user.power).collect::<Vec<_>>();
        // Three quarters and one quarter of 300 W; nobody active: half each.
        assert_eq!(watts(&power), [Some(Watts(225.0)), Some(Watts(75.0))]);
        power.shares.clear();
        assert_eq!(watts(&power), [Some(Watts(150.0)), Some(Watts(150.0))]);
        assert!(users(&uids, None).iter().all(|user| user.power.is_none()));
    }
}
