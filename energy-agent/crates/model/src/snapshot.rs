//! The immutable result of one tick, which scrapes, `top` and the landing page read: totals since the agent started,
//! and the power of the last interval.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use smallvec::SmallVec;

use crate::build::Build;
use crate::capping::status::CappingStatus;
use crate::cpu::CpuInfo;
use crate::gpu::{Gpu, GpuHealth, GpuState, HeldBy};
use crate::meter_state::{MeterState, UsageMeter, WeightUnit};
use crate::units::{Microjoules, Watts};
use crate::workload::Workload;
use crate::workload::holder::Holder;
use crate::workload::labels::PodLabel;
use crate::workload::names::Names;
use crate::zone::{Source, Zone, ZoneKind};

/// Totals of one zone since the agent started. For zones whose kind is not attributed, the parts stay `None`.
#[derive(Clone, Debug)]
pub struct ZoneTotals {
    pub zone: Arc<Zone>,
    pub measured: Microjoules,
    /// Mean power of the last interval; `None` when it was not measured (gap, zone unreadable).
    pub power: Option<Watts>,
    pub parts: Option<ZoneParts>,
}

/// How a zone's energy was divided; `active + idle == measured`, and `unattributed` is a part of `active`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ZoneParts {
    pub active: Microjoules,
    pub idle: Microjoules,
    pub unattributed: Microjoules,
    pub active_power: Option<Watts>,
    pub idle_power: Option<Watts>,
}

/// Zones are added up over sockets in the series of a workload; measured and estimated energy stay apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnergyKey {
    pub zone: ZoneKind,
    pub source: Source,
}

/// A workload's active energy in one [`EnergyKey`] since the agent started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkloadEnergy {
    pub key: EnergyKey,
    pub total: Microjoules,
    pub power: Option<Watts>,
}

/// What one workload used, ordered by key. Packages and their memory lie within the row: where no more is attributed, none
/// of the ten thousand rows that are copied at every tick takes a block of its own.
pub type Energies = SmallVec<[WorkloadEnergy; 2]>;

/// Whether a workload's cgroup still exists; the value of Kepler's label `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadState {
    Running,
    Terminated,
}

crate::as_str!(WorkloadState { Running => "running", Terminated => "terminated" });

/// One workload's totals since the agent started.
#[derive(Clone, Debug)]
pub struct WorkloadRow {
    pub workload: Arc<Workload>,
    /// When its totals were 0, counted from the agent's start.
    pub created: Duration,
    pub state: WorkloadState,
    pub energy: Energies,
    pub runtime_ns: u64,
    pub cycles: u64,
    pub switches: u64,
}

/// A GPU as it was read last. Its totals are those of the zone whose path is its UUID.
#[derive(Clone, Debug)]
pub struct GpuNow {
    pub gpu: Arc<Gpu>,
    /// It was read a short time ago; else only its totals are to be shown.
    pub current: bool,
    pub state: GpuState,
    /// What its active energy was divided by, and how idle energy was determined; `None` and empty where none was measured.
    pub method: Option<&'static str>,
    pub idle: &'static str,
    /// The only container that the kubelet gave it to.
    pub holder: Option<Holder>,
    /// The workloads with a row that hold it or did so once; ascending by workload.
    pub holders: Vec<GpuHolder>,
}

/// A workload that holds or held a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuHolder {
    pub workload: Arc<Workload>,
    pub evidence: HeldBy,
    /// It holds the GPU now, or did when it ended.
    pub holds: bool,
    /// Its active energy on this GPU.
    pub used: Microjoules,
}

impl GpuNow {
    /// Nothing is known but which it is.
    #[must_use]
    pub fn new(gpu: Arc<Gpu>) -> Self {
        Self {
            gpu,
            current: true,
            state: GpuState::default(),
            method: None,
            idle: "",
            holder: None,
            holders: Vec::new(),
        }
    }
}

/// Idle energy handed to pods since the agent started; per key, the pods' plus `unassigned` plus `retired` is the idle
/// energy of the zones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleShares {
    /// `usage`, `requests` or `equal`; the value of the label `policy`.
    pub policy: &'static str,
    /// Ascending by uid.
    pub pods: Vec<PodIdle>,
    /// What no pod weighed anything for. Ordered by key, as are the others.
    pub unassigned: Vec<(EnergyKey, Microjoules)>,
    /// What pods were given whose series have ended.
    pub retired: Vec<(EnergyKey, Microjoules)>,
}

/// One pod's part of the idle energy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdle {
    pub uid: Arc<str>,
    /// When its counters were 0, since the agent started.
    pub created: Duration,
    pub state: WorkloadState,
    pub energy: IdleEnergies,
}

/// Totals ordered by key, within the pod as [`Energies`] are within a row.
pub type IdleEnergies = SmallVec<[(EnergyKey, Microjoules); 2]>;

/// What a row of the process level stands for; the value of Kepler's label `type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessKind {
    /// A process outside containers.
    Regular,
    /// A process in a container, with its id.
    Container(Arc<str>),
    /// All kernel threads.
    Kernel,
    /// What has no row, or no longer has one.
    Other,
}

impl ProcessKind {
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Container(_) => "container",
            Self::Kernel => "kernel",
            Self::Other => "other",
        }
    }
}

/// One process's totals since the agent started, or since it got a row.
#[derive(Clone, Debug)]
pub struct ProcessRow {
    /// `None` for [`ProcessKind::Kernel`] and [`ProcessKind::Other`].
    pub pid: Option<u32>,
    pub kind: ProcessKind,
    /// Name of its thread-group leader.
    pub comm: Arc<str>,
    /// Its binary; empty where that is not known.
    pub exe: Arc<str>,
    /// When its counters were 0, since the agent started.
    pub created: Duration,
    pub state: WorkloadState,
    pub energy: Energies,
    pub runtime_ns: u64,
}

/// How energy is divided at present; the labels of `energy_agent_attribution_info`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributionInfo {
    /// `None` before the first tick.
    pub usage: Option<UsageMeter>,
    pub weight: WeightUnit,
    /// How idle energy is determined: `learned`, `ratio` or `none`.
    pub idle: &'static str,
}

/// Counts of what went wrong or was noticed since the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub zone_wraps: u64,
    pub zone_resets: u64,
    pub zone_gaps: u64,
    pub zone_read_errors: u64,
    /// Updates of the usage map that found it full.
    pub map_drops: u64,
    /// cgroup events that found the ring buffer full.
    pub event_drops: u64,
    /// Scheduler switches at which the kernel did not run the program, noticed at the next one.
    pub missed_switches: u64,
    /// Updates of the map of processes that found it full.
    pub process_map_drops: u64,
    /// Process events that found the ring buffer full.
    pub process_event_drops: u64,
    /// Living processes whose binary is not known.
    pub process_exe_errors: u64,
    /// Intervals in which a cycle counter was multiplexed or missing, so that run time was used.
    pub cycles_fallbacks: u64,
    /// Cgroup ids that were charged but never had a path.
    pub unknown_cgroups: u64,
    /// Time spent in the eBPF programs as the kernel counts it; `None` while `kernel.bpf_stats_enabled` is 0.
    pub ebpf_run_ns: Option<u64>,
    /// Ticks that began more than half an interval late.
    pub late_ticks: u64,
    /// Lines of the log that nobody read in time.
    pub log_lines_lost: u64,
}

/// Everything a scrape needs. Rows are ordered by workload, zones by zone.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub build: Build,
    pub node: Arc<str>,
    pub taken: SystemTime,
    pub elapsed: Duration,
    /// Ticks completed; 0 in the snapshot that exists before the first.
    pub ticks: u64,
    /// Share of the online CPUs' time that was busy in the last interval, 0 to 1.
    pub cpu_usage_ratio: Option<f64>,
    pub zones: Vec<ZoneTotals>,
    pub rows: Vec<WorkloadRow>,
    /// What the pods and containers of the rows are called.
    pub names: Arc<Names>,
    /// Which labels of pods are exported.
    pub pod_labels: Arc<[PodLabel]>,
    /// Per zone kind and source their energy and the unattributed are the active energy. Empty where processes are not
    /// accounted.
    pub processes: Vec<ProcessRow>,
    /// Active energy of workloads whose series have ended.
    pub retired: Vec<(EnergyKey, Microjoules)>,
    /// `None` when idle energy is not handed to pods.
    pub idle: Option<IdleShares>,
    pub cpu_info: Arc<[CpuInfo]>,
    /// All GPUs seen so far, by UUID.
    pub gpus: Vec<GpuNow>,
    /// GPU figures are exported under DCGM exporter's names too.
    pub dcgm_names: bool,
    /// The agent's start, where counters of workloads say when they were created (`--export.created`).
    pub counting_since: Option<SystemTime>,
    pub meters: Vec<MeterState>,
    pub attribution: AttributionInfo,
    pub health: Health,
    pub gpu_meter: GpuHealth,
    /// `None` with `--capping=off`.
    pub capping: Option<Arc<CappingStatus>>,
}

impl Snapshot {
    /// What is served before the first tick.
    #[must_use]
    pub fn empty(node: &str) -> Self {
        Self {
            build: Build::UNKNOWN,
            node: Arc::from(node),
            taken: SystemTime::now(),
            elapsed: Duration::ZERO,
            ticks: 0,
            cpu_usage_ratio: None,
            zones: Vec::new(),
            rows: Vec::new(),
            names: Arc::default(),
            pod_labels: Arc::from([]),
            processes: Vec::new(),
            retired: Vec::new(),
            idle: None,
            cpu_info: Arc::from([]),
            gpus: Vec::new(),
            dcgm_names: false,
            counting_since: None,
            meters: Vec::new(),
            attribution: AttributionInfo::default(),
            health: Health::default(),
            gpu_meter: GpuHealth::default(),
            capping: None,
        }
    }
}
