//! All meters of the node, read together: energy, busy time and usage become one [`Sample`].

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use energy_model::cpu::{Domain, DomainLoad};
use energy_model::gpu::{GpuEnergy, GpuHealth, GpuReading};
use energy_model::meter_state::{MeterName, MeterState, Reason, UsageMeter, WeightUnit};
use energy_model::process::Process;
use energy_model::sample::{CgroupId, Sample};
use energy_model::snapshot::Health;
use energy_model::zone::{Source, Zone, ZoneEnergy, ZoneKind};
use tracing::{info, warn};

use super::cgroupfs::CgroupFiles;
use super::cpu::{CpuModel, CpuStat, Topology};
use super::deadline::PATIENCE;
use super::ebpf::{self, Ebpf};
use super::energy::{self, EnergyMeter};
use super::gpu::{self, GpuMeter};
use super::interrupts::Interrupts;
use super::sockets::Numbering;
use super::state_log::StateLog;
use crate::advice::advice_of;
use crate::clock::{boottime_ns, monotonic_ns};
use crate::config::{EbpfMode, GpuMode, HostConfig};
use crate::workload::tree;

/// The fewest entries of the usage map; room for a small node's churn between two ticks.
const MIN_MAP_ENTRIES: usize = 8192;
/// Entries of the usage map per cgroup and package found at start.
const MAP_HEADROOM: usize = 4;

/// Two clocks are not read at once; a suspension is longer than what lies between them.
const SUSPENDED_MIN_NS: u64 = 100_000_000;

/// Where usage comes from.
enum UsageSource {
    Ebpf(Box<Ebpf>),
    Files(CgroupFiles),
    None,
}

/// The meters that were chosen at the start, and when they were last read.
pub struct Sampler {
    pub topology: Topology,
    /// The domains with sockets as the energy meter numbers them.
    pub metered_domains: Vec<Domain>,
    /// Sockets that it has shown energy of, and what that means.
    metered: BTreeSet<u32>,
    numbering: Numbering,
    stat: Option<CpuStat>,
    stat_told: StateLog<bool>,
    energy: EnergyMeter,
    usage: UsageSource,
    processes_wanted: bool,
    pub gpus: GpuMeter,
    /// Why the last reading of usage failed.
    usage_error: Option<String>,
    usage_told: StateLog<bool>,
    /// Where cgroup v2 is; `None` where there is none.
    pub v2_root: Option<PathBuf>,
    states: Vec<MeterState>,
    last: Instant,
    /// How long the machine had been suspended since it booted; nanoseconds.
    suspended_ns: u64,
    online: Vec<u32>,
    /// Idle time of each CPU in the last interval, by CPU number; empty where that is not known.
    idle_ns: Vec<u64>,
    /// Time on interrupts in the last interval, by domain; empty where that is not known.
    interrupt_ns: Vec<u64>,
    interrupts: Interrupts,
    health: Health,
    cpu_usage_ratio: Option<f64>,
}

impl Sampler {
    /// Opens what the machine offers.
    ///
    /// # Errors
    /// When eBPF is demanded (`--ebpf=on`) and refused, or the file of estimate coefficients is unusable.
    pub fn open(config: &HostConfig) -> Result<Self> {
        for (flag, root) in [("--path.sysfs", &config.sysfs), ("--path.procfs", &config.procfs)] {
            if !root.is_dir() {
                warn!(
                    "{flag}={} is not a folder: nothing is read from there; in a container, mount the host's",
                    root.display()
                );
            }
        }
        let topology = Topology::read(&config.sysfs, &config.procfs);
        let energy = EnergyMeter::open(&energy::EnergyOptions {
            sysfs: &config.sysfs,
            procfs: &config.procfs,
            meter: config.meter_cpu,
            trust_guest: config.trust_guest,
            coefficients: config.estimate_coefficients.as_deref(),
            patience: PATIENCE.min(config.interval / 4),
        })?;
        let mut states = Vec::new();
        let v2_root = match tree::v2_root(&config.cgroupfs) {
            Ok(root) => Some(root),
            Err(error) => {
                warn!(error = format!("{error:#}"), "no cgroup v2, workloads have no names");
                None
            }
        };
        if let Some(root) = v2_root.as_deref().filter(|root| tree::is_partial(root)) {
            warn!(
                root = %root.display(),
                "only a part of the cgroup hierarchy is visible, work outside it is unknown; in a container, mount the \
                 host's /sys/fs/cgroup and name it with --path.cgroupfs"
            );
        }
        let usage = open_usage(config, &topology, v2_root.as_deref(), &mut states)?;
        let gpus = GpuMeter::open((config.gpu == GpuMode::Auto).then(|| gpu::GpuOptions {
            library: config.nvml_library.clone(),
            procfs: config.procfs.clone(),
            interval: config.interval,
            stated: config.gpu_clock_before.clone().unwrap_or_default(),
        }));
        let stat = CpuStat::open(&config.procfs);
        if let Err(error) = &stat {
            warn!(error = format!("{error:#}"), "CPU busy time cannot be read");
        }
        let sampler = Self {
            online: topology.online().to_vec(),
            metered_domains: topology.domains.clone(),
            metered: BTreeSet::new(),
            numbering: Numbering::Same,
            topology,
            stat: stat.ok(),
            stat_told: StateLog::default(),
            energy,
            usage,
            processes_wanted: false,
            gpus,
            usage_error: None,
            usage_told: StateLog::default(),
            v2_root,
            states,
            last: Instant::now(),
            suspended_ns: suspended_ns(),
            idle_ns: Vec::new(),
            interrupt_ns: Vec::new(),
            interrupts: Interrupts::default(),
            health: Health::default(),
            cpu_usage_ratio: None,
        };
        Ok(sampler)
    }

    /// The first readings of energy and busy time, which show nothing by themselves: the first sample is what they grew by
    /// since. GPUs have been looked for since the start, and what was counted of usage meanwhile is the first sample's.
    pub fn begin(&mut self) {
        let elapsed = self.last.elapsed();
        self.last += elapsed;
        let loads = self.loads(elapsed);
        self.energy.read(elapsed, &loads, &self.topology.domains);
        if let UsageSource::Ebpf(ebpf) = &mut self.usage {
            ebpf.begin();
        }
    }

    /// Reads everything. A meter that fails is left out of this sample; what it counted meanwhile is in the next.
    pub fn read(&mut self) -> Sample {
        self.topology.refresh();
        if self.topology.online() != self.online {
            let before = std::mem::replace(&mut self.online, self.topology.online().to_vec());
            if let UsageSource::Ebpf(ebpf) = &mut self.usage {
                let came = self.online.iter().copied().filter(|cpu| !before.contains(cpu)).collect();
                ebpf.follow(&self.topology, came);
            }
        }
        let now = Instant::now();
        let late = self.gpus.ask(now);
        let elapsed = now.duration_since(self.last);
        self.last = now;
        let suspended_ns = suspended_ns().saturating_sub(self.suspended_ns);
        if suspended_ns >= SUSPENDED_MIN_NS {
            self.suspended_ns += suspended_ns;
            info!(seconds = suspended_ns / 1_000_000_000, "the machine was suspended; energy counters start again");
            self.energy.resume();
        }
        let mut sample = Sample { elapsed, ..Sample::default() };
        sample.domains = self.loads(elapsed);
        sample.zones = self.energy.read(elapsed, &sample.domains, &self.topology.domains);
        self.number_sockets(&sample.zones);
        let error = self.read_usage(&mut sample).err().map(|error| format!("{error:#}"));
        if let (Some(_), Some(error)) = (self.usage_told.due(error.is_some(), now), &error) {
            warn!(error, "usage cannot be read");
        }
        self.usage_error = error;
        sample.gpus = self.gpus.take(now, late);
        // A sensor of the module is better than what its GPU says of it.
        if !self.energy.has_board() {
            sample.zones.extend(sample.gpus.iter().filter_map(|reading| module(reading, elapsed)));
        }
        sample
    }

    /// Keeps [`Self::metered_domains`] up to date.
    fn number_sockets(&mut self, zones: &[ZoneEnergy]) {
        let known = self.metered.len();
        // An estimate takes its numbers from the topology.
        let divided =
            zones.iter().filter(|energy| energy.zone.kind.attributed() && energy.zone.source != Source::Estimate);
        self.metered.extend(divided.filter_map(|energy| energy.zone.socket));
        if self.metered.len() == known && self.metered_domains.len() == self.topology.domains.len() {
            return;
        }
        let numbering = Numbering::of(&self.metered, &self.topology.domains);
        self.metered_domains = numbering.renumber(&self.topology.domains);
        if numbering != self.numbering {
            numbering.log();
            self.numbering = numbering;
        }
    }

    fn loads(&mut self, elapsed: Duration) -> Vec<DomainLoad> {
        self.cpu_usage_ratio = None;
        self.idle_ns.clear();
        self.interrupt_ns.clear();
        let read = self.stat.as_mut().map(|stat| stat.read(elapsed, &self.topology));
        let changes = self.stat_told.due(matches!(read, Some(Err(_))), Instant::now());
        let load = match read {
            Some(Ok(load)) => load,
            Some(Err(error)) => {
                if changes.is_some() {
                    warn!(error = format!("{error:#}"), "CPU busy time cannot be read");
                }
                None
            }
            None => None,
        };
        let Some(load) = load else {
            return vec![DomainLoad { cpus: 0, busy_ns: 0, dropped_ns: 0, cycles: false }; self.topology.domains.len()];
        };
        self.cpu_usage_ratio = Some(load.usage_ratio);
        self.idle_ns = load.idle_ns;
        self.interrupt_ns = load.interrupt_ns;
        load.domains
    }

    fn read_usage(&mut self, sample: &mut Sample) -> Result<()> {
        match &mut self.usage {
            UsageSource::Ebpf(ebpf) => {
                let reading = ebpf.read(&self.topology, &self.idle_ns)?;
                for (load, dropped_ns) in sample.domains.iter_mut().zip(reading.dropped_ns) {
                    load.dropped_ns = dropped_ns;
                }
                let whole = reading.cycles.iter().all(|complete| *complete);
                self.health.cycles_fallbacks += u64::from(ebpf.weight() != WeightUnit::Runtime && !whole);
                for (load, complete) in sample.domains.iter_mut().zip(reading.cycles) {
                    load.cycles = complete;
                }
                sample.work = reading.work;
                self.interrupts.charge(&sample.domains, &self.interrupt_ns, &mut sample.work);
                sample.events = reading.events;
                sample.processes = reading.processes;
                let drops = ebpf.drops();
                sample.events_complete = ebpf.has_events() && drops.events == self.health.event_drops;
                self.health.map_drops = drops.map;
                self.health.event_drops = drops.events;
                self.health.process_map_drops = drops.processes;
                self.health.process_event_drops = drops.process_events;
                self.health.missed_switches = drops.switches;
                self.health.ebpf_run_ns = ebpf.run_ns();
            }
            UsageSource::Files(files) => {
                let (work, events) = files.read();
                sample.work = work;
                sample.events = events;
                sample.events_complete = true;
            }
            UsageSource::None => {}
        }
        Ok(())
    }

    /// A cgroup is gone for good.
    pub fn forget(&mut self, cgroup: CgroupId) {
        if let UsageSource::Ebpf(ebpf) = &mut self.usage {
            ebpf.forget(cgroup);
        }
    }

    /// A process is gone for good.
    pub fn forget_process(&mut self, process: Process) {
        if let UsageSource::Ebpf(ebpf) = &mut self.usage {
            ebpf.forget_process(process);
        }
    }

    /// The GPUs, to write to.
    pub const fn gpus(&mut self) -> &mut GpuMeter {
        &mut self.gpus
    }

    /// Begins or ends to account for processes. An error is logged once, and the next request tries again
    /// anew.
    pub fn account_processes(&mut self, wanted: bool) {
        let UsageSource::Ebpf(ebpf) = &mut self.usage else {
            if wanted && !self.processes_wanted {
                self.processes_wanted = true;
                let why = "only eBPF accounts for processes, and it is not available";
                warn!(reason = why, "the level process is selected but has no series");
                let is_off = |state: &MeterState| state.meter == MeterName::Ebpf && state.reason == Reason::Off;
                let reason = if self.states.iter().any(is_off) { Reason::Off } else { Reason::Absent };
                self.states.push(MeterState::down(MeterName::Processes, reason, why));
            }
            return;
        };
        if wanted == self.processes_wanted {
            return;
        }
        self.processes_wanted = wanted;
        let outcome =
            if wanted { ebpf.start_processes(&self.topology).map(Some) } else { ebpf.stop_processes().map(|()| None) };
        self.states.retain(|state| !matches!(state.meter, MeterName::Processes | MeterName::ProcessEvents));
        match outcome {
            Ok(events) => {
                let up = MeterState::up(MeterName::Processes, "");
                self.states.extend(events.into_iter().flat_map(|events| [events, up.clone()]));
            }
            Err(error) => {
                let why = format!("{error:#}");
                let verb = if wanted { "started" } else { "stopped" };
                warn!(reason = why, "process accounting cannot be {verb}");
                self.states.push(MeterState::down(MeterName::Processes, Reason::Error, why));
            }
        }
    }

    /// Whether processes are accounted one by one.
    pub fn has_processes(&self) -> bool {
        matches!(&self.usage, UsageSource::Ebpf(ebpf) if ebpf.has_processes())
    }

    /// Share of the online CPUs' time that was busy in the last interval; `None` where that could not be read.
    pub fn cpu_usage_ratio(&self) -> Option<f64> {
        self.cpu_usage_ratio
    }

    /// Why usage could not be read the last time; `None` where it could.
    pub fn usage_error(&self) -> Option<&str> {
        self.usage_error.as_deref()
    }

    /// What usage is counted by, and the unit that work is weighed by, for `energy_agent_attribution_info`.
    pub fn usage_info(&self) -> (UsageMeter, WeightUnit) {
        match &self.usage {
            UsageSource::Ebpf(ebpf) => (UsageMeter::Ebpf(ebpf.program()), ebpf.weight()),
            UsageSource::Files(_) => (UsageMeter::Files, WeightUnit::Runtime),
            UsageSource::None => (UsageMeter::None, WeightUnit::Runtime),
        }
    }

    pub fn estimated_idle_power_uw(&self) -> Option<u64> {
        self.energy.estimated_idle_power_uw()
    }

    /// One state per meter and feature, for `energy_agent_meter_up`.
    pub fn states(&self) -> Vec<MeterState> {
        let mut states = self.energy.states();
        states.extend_from_slice(&self.states);
        states.push(self.gpus.state());
        states
    }

    /// Which GPUs are read, and what was noticed on them.
    pub fn gpu_health(&self) -> GpuHealth {
        self.gpus.health()
    }

    /// Counts of the meters; those of owners and of ticks are left at 0.
    pub fn health(&self) -> Health {
        let mut counts = self.energy.counts();
        counts += self.gpus.counts();
        Health {
            zone_wraps: counts.wraps,
            zone_resets: counts.resets,
            zone_gaps: counts.gaps,
            zone_read_errors: counts.read_errors,
            ..self.health
        }
    }
}

/// The module that a superchip's GPU is part of, as a zone.
fn module(reading: &GpuReading, elapsed: Duration) -> Option<ZoneEnergy> {
    let GpuEnergy { energy, source, gap } = reading.module?;
    // A reading that came late is of another interval than the tick's, which power is made of.
    let gap = gap || reading.elapsed.abs_diff(elapsed) > elapsed / 10;
    let path = format!("nvml/{}/module", reading.gpu.uuid);
    let zone = Zone { kind: ZoneKind::Platform, socket: None, die: None, source, path };
    Some(ZoneEnergy { zone: Arc::new(zone), energy, gap })
}

fn suspended_ns() -> u64 {
    boottime_ns().saturating_sub(monotonic_ns())
}

fn open_usage(
    config: &HostConfig,
    topology: &Topology,
    v2_root: Option<&std::path::Path>,
    states: &mut Vec<MeterState>,
) -> Result<UsageSource> {
    if config.ebpf != EbpfMode::Off {
        let options = ebpf::EbpfOptions {
            sysfs: &config.sysfs,
            cycles: config.cycles_event,
            intel_model: CpuModel::read(&config.procfs).intel_model(),
            map_entries: if config.map_entries == 0 { map_entries(topology, v2_root) } else { config.map_entries },
            process_entries: process_entries(config, topology),
        };
        match Ebpf::load(options, topology, &config.procfs) {
            Ok(ebpf) => {
                states.extend_from_slice(ebpf.states());
                states.push(MeterState::down(MeterName::Cgroupfs, Reason::Unused, "eBPF is used"));
                return Ok(UsageSource::Ebpf(Box::new(ebpf)));
            }
            Err(error) if config.ebpf == EbpfMode::On => return Err(error).context("eBPF (required by --ebpf=on)"),
            Err(error) => {
                let text = format!("{error:#}");
                warn!(error = text, "eBPF is not available, CPU time is read from cgroup files");
                states.push(MeterState::down(MeterName::Ebpf, ebpf::reason(&error), advice_of(&error)));
            }
        }
    } else {
        states.push(MeterState::down(MeterName::Ebpf, Reason::Off, "switched off by --ebpf=off"));
    }
    let opened = v2_root.context("no cgroup v2 below --path.cgroupfs").and_then(CgroupFiles::open);
    match opened {
        Ok(files) => {
            states.push(MeterState::up(MeterName::Cgroupfs, ""));
            Ok(UsageSource::Files(files))
        }
        Err(error) => {
            let text = format!("{error:#}");
            warn!(error = text, "no usage meter: all energy stays unattributed");
            states.push(MeterState::down(MeterName::Cgroupfs, Reason::Absent, text));
            Ok(UsageSource::None)
        }
    }
}

fn map_entries(topology: &Topology, v2_root: Option<&std::path::Path>) -> u32 {
    let cgroups = v2_root.and_then(|root| tree::walk(root).ok()).map_or(0, |folders| folders.len());
    let wanted = (cgroups * topology.domains.len() * MAP_HEADROOM).max(MIN_MAP_ENTRIES).next_power_of_two();
    u32::try_from(wanted).unwrap_or(1 << 22)
}

/// Room for the processes that may have a series, and as many that start and end between two ticks, in each domain.
fn process_entries(config: &HostConfig, topology: &Topology) -> u32 {
    let wanted = config.process_max.saturating_mul(topology.domains.len().max(1) * 2);
    u32::try_from(wanted.clamp(MIN_MAP_ENTRIES, 1 << 22).next_power_of_two()).unwrap_or(1 << 22)
}
