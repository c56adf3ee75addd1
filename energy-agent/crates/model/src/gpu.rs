//! What one reading says about one GPU: the contract between the meter and the attribution.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::meter_state::Reason;
use crate::units::{Microjoules, Watts};
use crate::zone::Source;

/// A physical GPU. Constant for the life of its series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gpu {
    /// `GPU-...`: the identity; indices may change with a driver restart.
    pub uuid: Arc<str>,
    /// NVML's index when it was last seen; the value of Kepler's label `gpu`.
    pub index: u32,
    /// Of its device file, `/dev/nvidiaN`; counted otherwise than the index.
    pub minor: Option<u32>,
    /// Product name; the value of Kepler's label `gpu_name`.
    pub name: Arc<str>,
}

/// What a GPU did since its previous reading.
#[derive(Clone, Debug)]
pub struct GpuReading {
    pub gpu: Arc<Gpu>,
    /// When it was taken; it may have waited for a tick since.
    pub taken: Instant,
    /// `None`: not measured (not supported, first reading, GPU lost).
    pub energy: Option<GpuEnergy>,
    /// Of the superchip's module that the GPU is part of, with its CPU and memory; `None` for all other GPUs.
    pub module: Option<GpuEnergy>,
    /// What `energy` and the processes' work cover. Readings are taken on a thread of their own, so this is not the tick's
    /// interval.
    pub elapsed: Duration,
    pub state: GpuState,
    /// Processes that hold a context, with what they did.
    pub processes: Vec<GpuProcess>,
    /// What `GpuProcess::work` is.
    pub evidence: Evidence,
    /// Instances where the GPU is in MIG mode; empty otherwise.
    pub instances: Vec<GpuInstance>,
}

/// Energy of one GPU in the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuEnergy {
    pub energy: Microjoules,
    /// [`Source::Nvml`] (counter) or [`Source::NvmlIntegrated`] (power over the driver's time stamps); never changes for a
    /// GPU while the agent runs.
    pub source: Source,
    /// As in [`crate::zone::ZoneEnergy::gap`].
    pub gap: bool,
}

/// Figures of the moment; `None` where the GPU or the driver does not have them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuState {
    /// Part of the time in which a kernel ran, in millionths.
    pub utilization_ppm: Option<u32>,
    /// Part of the time in which its memory was read or written, in millionths.
    pub memory_utilization_ppm: Option<u32>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub temperature_celsius: Option<u32>,
    pub sm_clock_hertz: Option<u64>,
    pub memory_clock_hertz: Option<u64>,
    pub power: Option<Watts>,
    pub power_limit: Option<Watts>,
    /// NVML's bit mask `nvmlClocksEventReason*`.
    pub throttle_reasons: Option<u64>,
}

/// How a GPU's work was divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Time-weighted SM utilisation samples; `work` is SM-time, in percent times microseconds.
    Samples,
    /// There are no samples (not supported by the GPU, or MIG): `work` is 0 everywhere.
    None,
}

/// How it is known that a container holds a GPU; the better reason is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldBy {
    /// A process of it has a context on the GPU.
    Context,
    /// A process of it was seen to work on the GPU.
    Samples,
    /// The kubelet gave the GPU, or a MIG instance of it, to the container.
    Allocation,
}

crate::as_str!(HeldBy { Context => "context", Samples => "samples", Allocation => "allocation" });

/// One process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// As the driver says: in the host's PID namespace.
    pub pid: u32,
    /// By [`Evidence`].
    pub work: u64,
    pub memory_bytes: Option<u64>,
    pub kind: GpuProcessKind,
    /// GPU instance id in MIG mode.
    pub instance: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuProcessKind {
    Compute,
    Graphics,
    /// A client of the MPS server.
    Mps,
    /// `nvidia-cuda-mps-server`, through which the clients' work runs.
    MpsServer,
}

/// A MIG GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInstance {
    pub id: u32,
    /// `MIG-...`.
    pub uuid: Arc<str>,
    /// NVML's index among the GPU's MIG devices.
    pub index: u32,
    /// Compute slices of the GPU (1 to 7).
    pub slices: u32,
    /// Activity in millionths, where the driver reports it.
    pub activity_ppm: Option<u32>,
}

/// Whether one GPU can be read; a row of `energy_agent_gpu_up`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuUp {
    pub index: u32,
    /// Empty for a GPU that was never readable.
    pub uuid: Arc<str>,
    pub up: bool,
    pub reason: Reason,
    /// Critical XID errors since the agent started.
    pub xids: u64,
    /// How long the calls of the last reading took together; `None` before the first.
    pub took: Option<Duration>,
}

/// What was noticed on GPUs since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuHealth {
    pub gpus: Vec<GpuUp>,
    pub ignored: Ignored,
}

/// Samples that were not used, by reason; the label `reason` of `energy_agent_gpu_samples_ignored_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Process 0.
    pub no_process: u64,
    pub over_100_percent: u64,
    /// Not newer than what the driver was asked for: said again, or stamped after the clock was set back.
    pub past: u64,
    pub future: u64,
    /// The process was not there, neither now nor at the previous reading.
    pub exited: u64,
}

impl Ignored {
    #[must_use]
    pub const fn by_reason(&self) -> [(&'static str, u64); 5] {
        let Self { no_process, over_100_percent, past, future, exited } = *self;
        [
            ("exited", exited),
            ("future", future),
            ("no_process", no_process),
            ("over_100_percent", over_100_percent),
            ("past", past),
        ]
    }
}

impl std::ops::AddAssign for Ignored {
    fn add_assign(&mut self, other: Self) {
        let Self { no_process, over_100_percent, past, future, exited } = other;
        self.no_process += no_process;
        self.over_100_percent += over_100_percent;
        self.past += past;
        self.future += future;
        self.exited += exited;
    }
}
