//! What a test or a user plays: the content of `state.json`. A key that is absent has the default of a healthy, idle
//! H100; `null` is a figure that the device or driver does not have (`NOT_SUPPORTED`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plant::Plant;
use crate::returns::Return;

/// The driver and its GPUs. Without a `state.json` the driver is not loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    pub driver_version: String,
    /// 1000 x major + 10 x minor.
    pub cuda_version: i32,
    /// Another number is a driver that was unloaded and loaded again: locked clocks and limits are gone, and every call of
    /// a program that initialised before gives `UNKNOWN` until it shuts down and initialises again.
    pub generation: u64,
    /// By symbol (`nvmlInit_v2`), `*` for every call.
    pub errors: BTreeMap<String, Return>,
    /// Seconds for which the call does not return, by symbol, `*` for every call. It ends early when the entry goes.
    pub hangs: BTreeMap<String, f64>,
    /// The order is the index.
    pub gpus: Vec<Gpu>,
    /// Whether calls are counted in the folder `calls`.
    pub count_calls: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    pub uuid: String,
    pub name: String,
    /// Of `/dev/nvidiaN`; the index where it is absent.
    pub minor: Option<u32>,
    pub bus_id: String,
    /// By symbol, `*` for every call on this GPU, asking for its handle included.
    pub errors: BTreeMap<String, Return>,
    /// As [`State::hangs`], for this GPU.
    pub hangs: BTreeMap<String, f64>,

    /// What the counter of the energy shows; millijoules.
    pub energy_mj: Option<u64>,
    pub power_mw: Option<u32>,
    /// What a field value for the power of the moment shows; `power_mw` where it is absent.
    pub power_instant_mw: Option<u32>,
    /// Power of the superchip's module that the GPU is part of. Other GPUs have no such scope.
    pub module_power_mw: Option<u32>,
    /// The driver's buffer of power samples: microseconds since 1970, milliwatts.
    pub power_samples: Option<Vec<(u64, u32)>>,
    /// Percent of the time in which a kernel ran, and in which memory was accessed.
    pub utilization: Option<(u32, u32)>,
    pub memory_total_bytes: Option<u64>,
    pub memory_used_bytes: Option<u64>,
    pub temperature_celsius: Option<u32>,
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// NVML's bit mask `nvmlClocksEventReason*`.
    pub throttle_reasons: Option<u64>,
    /// NVML's number of it: 4 Pascal, 5 Volta, 9 Hopper.
    pub architecture: u32,
    pub clocks: Clocks,
    pub limits: Option<Limits>,

    pub processes: Option<Vec<Process>>,
    /// SM utilisation of processes; an empty list is `NOT_FOUND`, as with an idle GPU.
    pub samples: Option<Vec<Sample>>,
    /// Answer with every sample, whatever the caller has seen.
    pub ignore_last_seen: bool,
    /// `None`: the GPU has no MIG.
    pub mig: Option<Mig>,
    /// Critical errors so far, oldest first. A program gets those that come while it listens.
    pub xids: Vec<u64>,
    /// 0 none, 1 pass-through, 2 vGPU guest, 3 and 4 hosts of vGPUs.
    pub virtualization: u32,

    /// With a plant, energy, power, utilisation, SM clock, throttle reasons and the samples follow the load of the
    /// processes, the locked clocks and the power limit; what is set here for them says no more than whether they are
    /// supported.
    pub plant: Option<Plant>,
}

/// What the clocks can be set to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clocks {
    pub min_mhz: u32,
    pub max_mhz: u32,
    pub step_mhz: u32,
    /// Supported memory clocks, highest first.
    pub memory_mhz: Vec<u32>,
    /// Locks are taken, and the plant runs as without.
    pub ignore_locks: bool,
}

/// Power limits; milliwatts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    pub min_mw: u32,
    pub max_mw: u32,
    pub default_mw: u32,
    /// What the device enforces, where that is not the limit that was set.
    pub enforced_mw: Option<u32>,
    /// A new limit is taken without an error, and the old one kept.
    pub keep: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Process {
    pub pid: u32,
    pub kind: ProcessKind,
    /// `None`: not available.
    pub memory_bytes: Option<u64>,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
    /// Part of the time in which it would use the SMs, 0 to 1, with a plant.
    pub load: f64,
    /// Other loads from a time on; microseconds of the monotonic clock, rising.
    pub steps: Vec<(u64, f64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    #[default]
    Compute,
    Graphics,
    /// A client of the MPS server: listed as such and as a compute process.
    Mps,
}

/// One utilisation sample of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sample {
    pub pid: u32,
    /// Microseconds since 1970.
    pub at_us: u64,
    /// Percent.
    pub sm: u32,
    pub memory: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mig {
    pub enabled: bool,
    pub instances: Vec<Instance>,
}

/// A MIG device: a GPU instance with its compute instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Instance {
    /// `MIG-...`.
    pub uuid: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// Compute slices, 1 to 7.
    pub slices: u32,
    pub multiprocessors: u32,
    pub memory_mb: u64,
    pub energy_mj: Option<u64>,
    pub power_mw: Option<u32>,
    pub utilization: Option<(u32, u32)>,
}

impl Gpu {
    /// What all processes together ask of the SMs at a time of the monotonic clock, 0 to 1.
    #[must_use]
    pub fn load(&self, at_us: u64) -> f64 {
        self.asked(at_us).min(1.0)
    }

    /// What a process gets of the SMs: they share when together they ask for more than there is.
    #[must_use]
    pub fn load_of(&self, process: &Process, at_us: u64) -> f64 {
        process.asked(at_us) / self.asked(at_us).max(1.0)
    }

    fn asked(&self, at_us: u64) -> f64 {
        self.processes.iter().flatten().map(|process| process.asked(at_us)).sum()
    }
}

impl Process {
    fn asked(&self, at_us: u64) -> f64 {
        self.steps.iter().rev().find(|(from_us, _)| *from_us <= at_us).map_or(self.load, |&(_, load)| load)
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            driver_version: "580.82.07".to_owned(),
            cuda_version: 13_000,
            generation: 1,
            errors: BTreeMap::new(),
            hangs: BTreeMap::new(),
            gpus: Vec::new(),
            count_calls: true,
        }
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            uuid: String::new(),
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            minor: None,
            bus_id: "00000000:3B:00.0".to_owned(),
            errors: BTreeMap::new(),
            hangs: BTreeMap::new(),
            energy_mj: Some(0),
            power_mw: Some(70_000),
            power_instant_mw: None,
            module_power_mw: None,
            power_samples: Some(Vec::new()),
            utilization: Some((0, 0)),
            memory_total_bytes: Some(80 << 30),
            memory_used_bytes: Some(0),
            temperature_celsius: Some(35),
            sm_clock_mhz: Some(345),
            memory_clock_mhz: Some(2619),
            throttle_reasons: Some(1),
            architecture: 9,
            clocks: Clocks::default(),
            limits: Some(Limits::default()),
            processes: Some(Vec::new()),
            samples: Some(Vec::new()),
            ignore_last_seen: false,
            mig: None,
            xids: Vec::new(),
            virtualization: 0,
            plant: None,
        }
    }
}

impl Default for Clocks {
    fn default() -> Self {
        Self { min_mhz: 345, max_mhz: 1980, step_mhz: 15, memory_mhz: vec![2619, 1593], ignore_locks: false }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { min_mw: 200_000, max_mw: 700_000, default_mw: 700_000, enforced_mw: None, keep: false }
    }
}
