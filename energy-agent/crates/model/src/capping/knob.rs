//! What can be written: one value of one device each, and the whole desired state of all of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::policy::PolicyName;

/// One value of the hardware or the kernel that can be lowered. Its value is a whole number in the unit given here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Knob {
    /// Upper end of a GPU's locked clock range, by UUID; MHz. Open is the reset call, never the highest clock.
    GpuClock(Arc<str>),
    /// A GPU's power management limit, by UUID; milliwatts.
    GpuPower(Arc<str>),
    /// `scaling_max_freq` of `cpufreq/policyN`; kHz.
    CpuFrequency(u32),
    /// CPU quota of a pod's own cgroup, by its path below the hierarchy's root; thousandths of a CPU.
    CpuQuota(Arc<str>),
    /// `long_term` power limit of a powercap zone, by its folder below `powercap`; microwatts.
    RaplLimit(Arc<str>),
}

/// What a knob is to be set to, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub value: u64,
    pub policy: PolicyName,
}

/// The whole desired state: a knob that is not in it is to be as it was before anything was written.
pub type Limits = BTreeMap<Knob, Limit>;

impl Knob {
    /// The value of the label `actuator`.
    #[must_use]
    pub const fn actuator(&self) -> &'static str {
        match self {
            Self::GpuClock(_) => "gpu_locked_clocks",
            Self::GpuPower(_) => "gpu_power_limit",
            Self::CpuFrequency(_) => "cpu_frequency",
            Self::CpuQuota(_) => "cpu_quota",
            Self::RaplLimit(_) => "rapl_limit",
        }
    }

    /// It is a GPU's.
    #[must_use]
    pub const fn is_gpu(&self) -> bool {
        matches!(self, Self::GpuClock(_) | Self::GpuPower(_))
    }

    /// Its device shows what it is set to. Locked clocks do not show.
    #[must_use]
    pub(crate) const fn is_readable(&self) -> bool {
        !matches!(self, Self::GpuClock(_))
    }

    /// The value of the label `device`: UUID, `policyN`, cgroup path or zone.
    #[must_use]
    pub fn device(&self) -> String {
        match self {
            Self::GpuClock(name) | Self::GpuPower(name) | Self::CpuQuota(name) | Self::RaplLimit(name) => {
                name.to_string()
            }
            Self::CpuFrequency(policy) => format!("policy{policy}"),
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.actuator(), self.device())
    }
}

/// A knob as its device shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As in [`super::observation::KnobNow`].
    pub min: u64,
    pub max: u64,
    pub step: u64,
    /// `None`: open, or nothing that can be read (locked clocks).
    pub value: Option<u64>,
    /// The value as the device has it, from which it is restored exactly; empty is the reset call.
    pub raw: String,
    /// [`KnobState::Ok`], or why it cannot be used whatever is written.
    pub state: KnobState,
    /// Another number is a device that has forgotten what was written (driver reload, cgroup made anew).
    pub epoch: u64,
}

/// What went wrong with a read or a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnobError {
    pub state: KnobState,
    /// With the file or call, and the remedy.
    pub detail: String,
}

/// A value to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnobValue {
    /// In the knob's unit, on a step of the device.
    Set(u64),
    /// As [`Found::raw`] was before the first write.
    Restore(String),
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

crate::as_str!(KnobState {
    Ok => "ok",
    Unsupported => "unsupported",
    NoPermission => "no_permission",
    Rejected => "rejected",
    NotEffective => "not_effective",
    Yielded => "yielded",
    Unreachable => "unreachable",
    Error => "error",
});
