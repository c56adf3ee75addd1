//! What a step of the controller sees: pods with their power, devices with what can be done to them. Gathered anew at
//! each tick; the controller reads nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::knob::Knob;
use crate::units::Watts;
use crate::workload::names::Pod;

/// The node at one tick.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// A clock that does not go backwards.
    pub now: Duration,
    /// Ascending by uid.
    pub pods: Vec<PodNow>,
    /// Ascending by UUID.
    pub gpus: Vec<GpuDevice>,
    /// Of the whole node: measured CPU power, idle included. `None`: not measured in this interval.
    pub node_cpu_power: Option<Watts>,
    /// Every knob there is, with its range and state. A knob that is not in it does not exist here.
    pub knobs: BTreeMap<Knob, KnobNow>,
}

/// One living pod.
#[derive(Clone, Debug)]
pub struct PodNow {
    pub pod: Arc<Pod>,
    /// What its cgroup is named by: the uid, or a static pod's hash.
    pub uid: Arc<str>,
    /// Active CPU power (package and dram) in the last interval; 0 for a pod that has just come. `None`: not measured.
    pub cpu_power: Option<Watts>,
    /// CPUs' worth of run time in the last interval.
    pub cpus_used: f64,
    /// Its quota, if its cgroup has one that can be written.
    pub quota: Option<Knob>,
    /// The `cpufreq` policies whose CPUs are this pod's alone.
    pub frequencies: Vec<Knob>,
}

/// One GPU.
#[derive(Clone, Debug)]
pub struct GpuDevice {
    pub uuid: Arc<str>,
    /// Power of the last interval, idle included; `None`: not measured, or nothing new since the last tick.
    pub power: Option<Watts>,
    /// How long ago the interval ended that `power` is of: a slow driver's answer is there a tick late.
    pub age: Duration,
    /// Who uses it, in the order of [`Observation::pods`], with their parts of `power`.
    pub users: Vec<GpuUser>,
    /// Something that is no pod uses it too.
    pub foreign: bool,
    /// Idle power, where it was learned.
    pub idle: Option<Watts>,
    /// SM clock of the moment, MHz. A cut starts from it: behind a power limit the clock is below its ceiling, and a step
    /// takes up to five ticks instead of three where it is not known.
    pub clock_mhz: Option<u32>,
}

/// A pod on a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuUser {
    pub uid: Arc<str>,
    /// By active energy; equal parts where nobody was active. `None` where the GPU's power is not known.
    pub power: Option<Watts>,
}

/// A knob that exists.
#[derive(Clone, Debug, PartialEq)]
pub struct KnobNow {
    /// The device's own range, in the knob's unit; `min` is the agent's floor where that is higher. What is written lies
    /// within it.
    pub min: u64,
    pub max: u64,
    /// Values between `min` and `max` lie this far apart (1: any value).
    pub step: u64,
    /// What it was before anything was written: the upper bound for what is wanted. `None`: open (no quota, clocks not
    /// locked), which is more than `max`.
    pub original: Option<u64>,
    /// What is set now, as it was last read or, where it cannot be read, written. `None`: open.
    pub current: Option<u64>,
    pub state: KnobState,
}

/// Whether a knob can be used; the value of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnobState {
    Ok,
    /// The device or driver does not have it.
    Unsupported,
    /// It may not be written; the remedy is in the log.
    NoPermission,
    /// The driver refuses the value.
    Rejected,
    /// It was written without an error and did not change (locked by firmware).
    NotEffective,
    /// Somebody else writes it; it is left to them.
    Yielded,
    /// The device cannot be reached (lost, hanging, driver away).
    Unreachable,
    Error,
}

impl KnobState {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unsupported => "unsupported",
            Self::NoPermission => "no_permission",
            Self::Rejected => "rejected",
            Self::NotEffective => "not_effective",
            Self::Yielded => "yielded",
            Self::Unreachable => "unreachable",
            Self::Error => "error",
        }
    }
}
