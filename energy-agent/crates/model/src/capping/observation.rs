//! What a step of the controller sees: pods with their power, devices with what can be done to them. Gathered anew at
//! each tick; the controller reads nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::knob::{Knob, KnobState};
use crate::gpu::GpuState;
use crate::units::Watts;
use crate::workload::names::Pod;

/// A GPU that works for so much of the time runs at the highest clock that it may.
const BUSY_PPM: u32 = 500_000;
/// Bits of [`GpuState::throttle_reasons`]: `nvmlClocksEventReasonGpuIdle` and `nvmlClocksEventReasonApplicationsClocksSetting`.
/// Source: <https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html>.
const GPU_IDLE: u64 = 0x1;
const APPLICATIONS_CLOCKS_SETTING: u64 = 0x2;

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
    /// Clocks that a recommender asks for and that have not expired, in the unit of the knob.
    pub bounds: BTreeMap<Knob, u64>,
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
    /// What the clock says of locks; `None`: nothing new since the last tick.
    pub look: Option<ClockLook>,
}

/// A GPU's clock in one reading, and why it is not higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockLook {
    pub mhz: u32,
    pub why: Why,
}

/// Why a GPU's clock is not the highest, where it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It works, and the driver names nothing, or that somebody has set the clocks.
    Unexplained,
    /// It does little or nothing.
    Idle,
    /// The driver names something else (power, heat, other GPUs), or does not say enough.
    Explained,
}

impl ClockLook {
    /// `None` where the driver does not report the clock.
    #[must_use]
    pub fn of(state: &GpuState) -> Option<Self> {
        let mhz = u32::try_from(state.sm_clock_hertz? / 1_000_000).ok()?;
        let why = match (state.throttle_reasons, state.utilization_ppm) {
            (Some(reasons), _) if reasons & !(GPU_IDLE | APPLICATIONS_CLOCKS_SETTING) != 0 => Why::Explained,
            (Some(reasons), _) if reasons & GPU_IDLE != 0 => Why::Idle,
            (Some(_), Some(busy_ppm)) if busy_ppm >= BUSY_PPM => Why::Unexplained,
            (Some(_), Some(_)) => Why::Idle,
            (None, _) | (_, None) => Why::Explained,
        };
        Some(Self { mhz, why })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_unexplained_where_a_busy_gpu_has_no_reason_or_a_setting() {
        let look = |reasons: Option<u64>, busy_percent: Option<u32>| {
            let state = GpuState {
                sm_clock_hertz: Some(600_000_000),
                throttle_reasons: reasons,
                utilization_ppm: busy_percent.map(|percent| percent * 10_000),
                ..GpuState::default()
            };
            let ClockLook { mhz, why } = ClockLook::of(&state).unwrap();
            assert_eq!(mhz, 600);
            why
        };
        // 1 idle, 2 the clocks that somebody has set.
        for (reasons, busy, why) in [
            (Some(0), Some(100), Why::Unexplained),
            (Some(2), Some(50), Why::Unexplained),
            (Some(0), Some(49), Why::Idle),
            (Some(1), Some(100), Why::Idle),
            (Some(3), Some(100), Why::Idle),
            (None, Some(100), Why::Explained),
            (Some(0), None, Why::Explained),
        ] {
            assert_eq!(look(reasons, busy), why, "{reasons:?} {busy:?}");
        }
        // Power, slowdown, sync boost, heat, heat, brake, display, and what newer drivers name.
        for bit in [2, 3, 4, 5, 6, 7, 8, 9, 12, 63] {
            assert_eq!(look(Some(1 << bit), Some(100)), Why::Explained, "bit {bit}");
            assert_eq!(look(Some(1 << bit | 2), Some(100)), Why::Explained, "bit {bit}");
        }
        assert_eq!(ClockLook::of(&GpuState::default()), None);
    }
}
