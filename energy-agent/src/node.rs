//! One node's state and its tick: sample, owners, attribution, totals, snapshot, capping. Owned by one thread; nobody
//! else changes anything.

mod capper;
mod gpus;
mod observe;
mod processes;
mod recent;
mod state;
#[cfg(test)]
mod tests;
mod untold;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use anyhow::Result;
use energy_cluster::events::Outbox;
use energy_cluster::pods::KnownPods;
use energy_export::level::Level;
use energy_host::boot::boot_id;
use energy_host::container::in_cluster;
use energy_host::meter::cpu::cpu_info;
use energy_host::meter::sampler::Sampler;
use energy_host::workload::owners::Owners;
use energy_host::workload::pid_namespace;
use energy_model::attribution::idle::IdleModel;
use energy_model::attribution::method::IdleMethod;
use energy_model::attribution::usage::CpuShare;
use energy_model::attribution::{Attribution, Idle, Interval, Weight, ZoneReading, attribute, know_estimates, learn};
use energy_model::cpu::CpuInfo;
use energy_model::ledger::Ledger;
use energy_model::ledger::gpu_power::GpuPowers;
use energy_model::ledger::idle::IdleLedger;
use energy_model::ledger::retention::Retention;
use energy_model::meter_state::{MeterState, WeightUnit};
use energy_model::process_ledger::{RowLimits, TERMINATED_MAX};
use energy_model::sample::{Sample, Work};
use energy_model::snapshot::{AttributionInfo, Health, ProcessRow, Snapshot};
use energy_model::workload::Workload;
use energy_model::workload::cgroup::UNKNOWN_UNIT;
use energy_model::workload::labels::{PodLabel, exported};
use energy_model::workload::mirrors::Mirrors;
use energy_model::workload::names::{Names, Pods};
use energy_model::workload::sandbox::Sandboxes;
use energy_model::workload::units::Units;
use tracing::{info, warn};

pub use self::capper::Told;
use self::capper::{Capper, CapperTick};
use self::gpus::{Gpus, PlacedGpu};
use self::processes::ProcessLevel;
use self::state::StateFile;
use crate::config::Config;
use crate::identity;
use crate::logging;

/// A first tick that is shorter than this teaches no idle power.
const SHORT: Duration = Duration::from_millis(500);

/// Everything that a tick changes.
pub struct Node {
    name: Arc<str>,
    sampler: Sampler,
    owners: Option<Owners>,
    unknown: Arc<Workload>,
    idle: IdleModel,
    idle_method: IdleMethod,
    gpus: Gpus,
    ledger: Ledger,
    idle_ledger: IdleLedger,
    /// Charged while the level is off as well, all to `other`: so its energy is whole whenever the level comes.
    processes: ProcessLevel,
    cpu_info: Arc<[CpuInfo]>,
    started: Instant,
    ticks: u64,
    late_ticks: u64,
    dcgm_names: bool,
    /// The start by the clock on the wall, where it is to be shown when counters were created.
    counting_since: Option<SystemTime>,
    /// `None`: what is learned is not kept.
    state: Option<StateFile>,
    /// The host's processes are out of sight, which matters in a pod and beside a GPU.
    host_pid: Option<MeterState>,
    /// The same where it does not matter so far.
    unmissed: Option<MeterState>,
    mirrors: Mirrors,
    names: Arc<Names>,
    pod_labels: Arc<[PodLabel]>,
    /// `None` with `--capping=off`, once nothing of an earlier run is left.
    capper: Option<Capper>,
}

impl Node {
    /// Opens the meters and remembers what earlier runs learned. `policies`: `None` with `--capping=off`: what an earlier
    /// run left capped is given back all the same. `events`: where changes are sent.
    ///
    /// # Errors
    /// When a demanded meter is refused; see [`Sampler::open`].
    pub fn open(config: &Config, policies: Option<Told>, events: Option<Outbox>) -> Result<Self> {
        let node = Self::only_measuring(config)?;
        let capper = match policies {
            Some(policies) => Some(Capper::open(config, policies, events)),
            None => Capper::left_over(config),
        };
        let mut state = StateFile::new(&config.host.state_directory);
        if node.idle_method == IdleMethod::Learned {
            // A folder that cannot be written is said now, and not when there is something to lose.
            state.save(&node.idle);
        }
        Ok(Self { capper, state: Some(state), ..node })
    }

    /// A node that measures and leaves the machine as it is, beside an agent or without one: it restores nothing, and what it
    /// learns of idle power is not kept.
    ///
    /// # Errors
    /// When a demanded meter is refused; see [`Sampler::open`].
    pub fn only_measuring(config: &Config) -> Result<Self> {
        let mut sampler = Sampler::open(&config.host)?;
        sampler.account_processes(config.levels.contains(&Level::Process));
        let started = Instant::now();
        let owners = match sampler.v2_root.as_deref().map(|root| Owners::open(root, started)) {
            Some(Ok(owners)) => Some(owners),
            Some(Err(error)) => {
                warn!(error = format!("{error:#}"), "cgroups cannot be listed, workloads have no names");
                None
            }
            None => None,
        };
        let pod_labels = exported(&config.pod_labels);
        for PodLabel { key, name, .. } in pod_labels.iter().filter(|label| label.in_conflict) {
            info!(
                label = key,
                name, "another label of --pods.labels would have the same name, so this one gets a number"
            );
        }
        let retention = Retention { time: config.terminated_retention, max: config.terminated_max };
        let ended = Retention { max: TERMINATED_MAX, ..retention };
        let limits = RowLimits { living: config.host.process_max, ended };
        let processes = ProcessLevel::new(&config.host.procfs, limits);
        let learned = StateFile::new(&config.host.state_directory).load(&boot_id(&config.host.procfs));
        let mut node = Self {
            name: node_name(config),
            sampler,
            owners,
            unknown: Arc::new(Workload::Unit { unit: Arc::from(UNKNOWN_UNIT) }),
            idle: learned,
            idle_method: config.idle,
            gpus: Gpus::open(config, &node_name(config), started),
            ledger: Ledger::new(retention),
            idle_ledger: IdleLedger::new(config.idle_policy),
            processes,
            cpu_info: cpu_info(&config.host.procfs).into(),
            started,
            ticks: 0,
            late_ticks: 0,
            dcgm_names: config.gpu_dcgm_names,
            counting_since: config.export_created.then(SystemTime::now),
            state: None,
            host_pid: None,
            unmissed: pid_namespace::state(&config.host.procfs),
            mirrors: Mirrors::default(),
            names: Arc::default(),
            pod_labels: pod_labels.into(),
            capper: None,
        };
        node.miss_processes(in_cluster());
        Ok(node)
    }

    /// Says once that the agent cannot see the host's processes, where that `matters`.
    fn miss_processes(&mut self, matters: bool) {
        if let Some(state) = self.unmissed.take_if(|_| matters) {
            warn!(problem = %state.detail, "the agent cannot see the host's processes");
            self.host_pid = Some(state);
        }
    }

    /// Before the first tick, in its thread: gives back what an earlier run left capped, and takes the first readings.
    pub fn begin(&mut self) {
        if let Some(capper) = &mut self.capper {
            capper.begin(self.sampler.gpus());
        }
        self.capper.take_if(|capper| capper.is_done());
        self.sampler.begin();
    }

    /// The snapshot before the first tick.
    #[must_use]
    pub fn blank(&self) -> Snapshot {
        Snapshot {
            meters: self.meters(),
            cpu_info: Arc::clone(&self.cpu_info),
            build: identity::build(),
            ..Snapshot::empty(&self.name)
        }
    }

    fn meters(&self) -> Vec<MeterState> {
        let mut meters = self.sampler.states();
        meters.extend(self.idle_ledger.state());
        meters.extend(self.host_pid.clone());
        meters.extend(self.capper.iter().flat_map(Capper::states));
        meters
    }

    /// Begins or ends to account for processes; for the next tick.
    pub fn account_processes(&mut self, wanted: bool) {
        self.sampler.account_processes(wanted);
    }

    /// The units outside pods that have rows of their own from now on.
    pub fn choose_units(&mut self, units: &Units) {
        if let Some(owners) = &mut self.owners {
            owners.choose(units);
        }
    }

    /// Whether every GPU that is read has a reading that was taken at this moment or later.
    #[must_use]
    pub fn gpus_read_since(&self, moment: Instant) -> bool {
        self.gpus.read_since(moment)
    }

    /// Reads, divides and adds up. `late` says that this tick began more than half an interval late, `told` is what is
    /// known of the pods by now.
    pub fn tick(&mut self, late: bool, told: &KnownPods) -> Snapshot {
        let sample = self.sampler.read();
        self.late_ticks += u64::from(late);
        self.account_for(&sample, told, Instant::now())
    }

    /// The tick after its readings: from who used the hardware to what is shown and what is capped.
    fn account_for(&mut self, sample: &Sample, told: &KnownPods, now: Instant) -> Snapshot {
        let pods = self.follow(sample, told, now);
        let attribution = self.attribute(sample, &pods, now);
        self.add_up(sample, &attribution, &pods, now);
        let snapshot = self.snapshot(sample, &attribution, told, now);
        self.cap(snapshot, &pods, now)
    }

    /// Follows cgroups and pods that came and went, so that what was used has an owner. Returns the pods.
    fn follow(&mut self, sample: &Sample, told: &KnownPods, now: Instant) -> Arc<Pods> {
        self.miss_processes(!sample.gpus.is_empty());
        if let Some(owners) = &mut self.owners {
            owners.apply(now, &sample.events, sample.events_complete);
        }
        let pods = self.pods(told);
        if let Some(owners) = &mut self.owners {
            owners.tell(&pods);
        }
        pods
    }

    /// The pods as they are known by now, static ones by what their cgroups are named by.
    fn pods(&mut self, told: &KnownPods) -> Arc<Pods> {
        let nobody = BTreeSet::new();
        self.mirrors.settle(&told.pods, self.owners.as_ref().map_or(&nobody, Owners::alive))
    }

    /// Divides the energy of all zones among those who used them, and learns idle power.
    fn attribute(&mut self, sample: &Sample, pods: &Arc<Pods>, now: Instant) -> Attribution {
        let gpus = self.gpus.place(&sample.gpus, self.owners.as_ref(), pods, now);
        let shares = self.shares(sample);
        self.forget_removed();
        let cpus = ZoneReading::of_cpus(&sample.zones, sample.elapsed);
        let interval = Interval {
            elapsed: sample.elapsed,
            zones: cpus.chain(gpus.iter().filter_map(PlacedGpu::zone)).collect(),
            domains: &self.sampler.metered_domains,
            loads: &sample.domains,
            shares,
        };
        if let Some(thread_uw) = self.sampler.estimated_idle_power_uw() {
            know_estimates(&mut self.idle, &interval, thread_uw);
        }
        // The first tick is short: a counter that moves seldom shows too little power in it, or too much.
        let is_short = self.ticks == 0 && sample.elapsed < SHORT;
        if self.idle_method == IdleMethod::Learned && !is_short {
            learn(&mut self.idle, &interval);
            if let Some(state) = &mut self.state {
                state.save_now_and_then(&self.idle, now);
            }
        }
        let idle = Idle::new(self.idle_method, &self.idle);
        let attribution = attribute(interval, idle);
        self.gpus.note(&attribution, idle);
        attribution
    }

    /// What workloads did on the CPUs.
    fn shares(&mut self, sample: &Sample) -> Vec<CpuShare> {
        let share = |work: &Work| CpuShare {
            workload: match &mut self.owners {
                Some(owners) => owners.owner(work.cgroup),
                None => Arc::clone(&self.unknown),
            },
            domain: work.domain,
            runtime_ns: work.runtime_ns,
            cycles: work.cycles,
            switches: work.switches,
        };
        sample.work.iter().map(share).collect()
    }

    /// Meters need not remember cgroups that are gone.
    fn forget_removed(&mut self) {
        for id in self.owners.as_mut().map(Owners::take_removed).unwrap_or_default() {
            self.sampler.forget(id);
        }
    }

    /// Adds the interval to the totals of workloads, pods' idle energy and processes.
    fn add_up(&mut self, sample: &Sample, attribution: &Attribution, pods: &Arc<Pods>, now: Instant) {
        let since_start = now.duration_since(self.started);
        self.place_names(pods);
        // Without a hierarchy all work is the unknown unit's, which never ends.
        let unowned = BTreeSet::from([Arc::clone(&self.unknown)]);
        let alive = self.owners.as_ref().map_or(&unowned, Owners::alive);
        self.ledger.apply(attribution, alive, &self.names, since_start);
        self.gpus.settle(alive, &self.ledger, now);
        self.idle_ledger.apply(attribution, self.ledger.rows(), pods);
        let owner = |cgroup| match &mut self.owners {
            Some(owners) => owners.owner(cgroup),
            None => Arc::clone(&self.unknown),
        };
        let domains = &self.sampler.metered_domains;
        let ended = self.processes.tick(sample, domains, attribution, &self.gpus, owner, since_start);
        for process in ended {
            self.sampler.forget_process(process);
        }
        self.ticks += 1;
    }

    /// Names pods and containers: before rows are folded by name, and after the readings that the names are for.
    fn place_names(&mut self, pods: &Arc<Pods>) {
        let nothing = Sandboxes::default();
        let firsts = self.owners.as_ref().map_or(&nothing, Owners::firsts);
        if let Some(names) = self.names.after(pods, firsts, self.ledger.workloads()) {
            self.names = Arc::new(names);
        }
    }

    /// What a scrape shows, but for capping.
    fn snapshot(&self, sample: &Sample, attribution: &Attribution, told: &KnownPods, now: Instant) -> Snapshot {
        let gpus = self.gpus.powers(now);
        let mut meters = self.meters();
        meters.push(told.state.clone());
        meters.extend(self.gpus.states());
        Snapshot {
            build: identity::build(),
            node: Arc::clone(&self.name),
            taken: SystemTime::now(),
            elapsed: sample.elapsed,
            ticks: self.ticks,
            cpu_usage_ratio: self.sampler.cpu_usage_ratio(),
            zones: self.ledger.zone_totals(&gpus),
            rows: self.ledger.row_totals(&gpus),
            names: Arc::clone(&self.names),
            pod_labels: Arc::clone(&self.pod_labels),
            processes: if self.sampler.has_processes() { self.process_rows(sample.elapsed, &gpus) } else { Vec::new() },
            retired: self.ledger.retired(),
            idle: self.idle_ledger.shares(),
            cpu_info: Arc::clone(&self.cpu_info),
            gpus: self.gpus.all(now),
            dcgm_names: self.dcgm_names,
            counting_since: self.counting_since,
            meters,
            attribution: self.attribution_info(sample, attribution),
            health: self.health(),
            gpu_meter: self.sampler.gpu_health(),
            capping: None,
        }
    }

    fn process_rows(&self, elapsed: Duration, gpus: &GpuPowers<'_>) -> Vec<ProcessRow> {
        self.processes.ledger.rows(elapsed, |key| self.ledger.powered(key), gpus)
    }

    fn attribution_info(&self, sample: &Sample, attribution: &Attribution) -> AttributionInfo {
        let (usage_meter, weight) = self.sampler.usage_info();
        let zones = sample.zones.iter().map(|energy| &*energy.zone);
        AttributionInfo {
            usage: Some(usage_meter),
            weight: if attribution.weight() == Weight::Cycles { weight } else { WeightUnit::Runtime },
            idle: Idle::new(self.idle_method, &self.idle).in_force(zones.filter(|zone| zone.kind.attributed())),
        }
    }

    fn health(&self) -> Health {
        Health {
            unknown_cgroups: self.owners.as_ref().map_or(0, Owners::unknown_cgroups),
            late_ticks: self.late_ticks,
            log_lines_lost: logging::lost(),
            process_exe_errors: self.processes.exe_errors(),
            ..self.sampler.health()
        }
    }

    /// Holds pods to their budgets by what the snapshot shows, and shows how that stands.
    fn cap(&mut self, mut snapshot: Snapshot, pods: &Pods, now: Instant) -> Snapshot {
        if let Some(capper) = &mut self.capper {
            let gpus = self.gpus.observe(now, &self.idle);
            let tick = CapperTick { snapshot: &snapshot, pods, owners: self.owners.as_ref(), gpus };
            snapshot.capping = Some(Arc::new(capper.step(tick, self.sampler.gpus())));
        }
        self.capper.take_if(|capper| capper.is_done());
        snapshot
    }

    /// The pods that have a row, by what their cgroups are named by, and that no source has reported.
    pub fn unnamed_pods(&self) -> impl Iterator<Item = &Arc<str>> {
        self.ledger.workloads().filter_map(|workload| workload.pod_uid()).filter(|uid| !self.names.knows(uid))
    }

    /// Restores what is capped, and keeps what was learned for the next start. Returns whether all is restored.
    pub fn close(&mut self, told: &KnownPods) -> bool {
        let pods = self.pods(told);
        let gpus = self.sampler.gpus();
        let all = self.capper.as_mut().is_none_or(|capper| capper.close(&pods, gpus));
        if let Some(state) = self.state.as_mut().filter(|_| self.idle_method == IdleMethod::Learned) {
            state.save(&self.idle);
        }
        all
    }
}

/// What `--node.name` says, else `NODE_NAME`, by which manifests hand down the name of the Node object, else the host's
/// name.
#[must_use]
pub fn node_name(config: &Config) -> Arc<str> {
    let host = || {
        let name = fs::read_to_string(config.host.procfs.join("sys/kernel/hostname")).unwrap_or_default();
        name.trim().to_owned()
    };
    let given = config.node_name.clone().or_else(|| env::var("NODE_NAME").ok()).filter(|name| !name.is_empty());
    given.unwrap_or_else(host).into()
}
