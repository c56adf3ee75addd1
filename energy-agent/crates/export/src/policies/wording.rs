//! What states, modes and limits are called on the page for people, and what they mean.

use energy_model::capping::knob::Knob;
use energy_model::capping::knob::KnobState;
use energy_model::capping::policy::{BudgetScope, Component, Mode};
use energy_model::capping::status::SubjectState;

/// How it is coloured; the words say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Active,
    Bad,
}

/// A state in two or three words and in a sentence. Neither has to be escaped.
pub struct StateWords {
    pub name: &'static str,
    pub meaning: &'static str,
    pub tone: Tone,
}

impl Tone {
    /// The class in the style sheet.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Good => "good",
            Self::Active => "active",
            Self::Bad => "bad",
        }
    }
}

pub const fn state(state: SubjectState) -> StateWords {
    let (name, meaning, tone) = match state {
        SubjectState::Off => ("off", "the policy's mode is Off", Tone::Plain),
        SubjectState::Open => ("open", "within its budget, nothing is capped", Tone::Good),
        SubjectState::Capping => ("capping", "capped to keep the budget", Tone::Active),
        SubjectState::Recommending => ("would cap", "with mode Enforce it would be capped", Tone::Plain),
        SubjectState::Unreachable => {
            ("unreachable", "all limits are at their floors, and the power is still above the budget", Tone::Bad)
        }
        SubjectState::TelemetryLost => ("telemetry lost", "its power is not measured", Tone::Bad),
        SubjectState::NoActuator => {
            ("no actuator", "no limit can be used for it: see the limits below and the log", Tone::Bad)
        }
        SubjectState::Learning => ("learning", "the peak for percentOfPeak is not known yet", Tone::Plain),
    };
    StateWords { name, meaning, tone }
}

pub(crate) const fn knob_state(state: KnobState) -> StateWords {
    let (name, meaning, tone) = match state {
        KnobState::Ok => ("ok", "can be written", Tone::Good),
        KnobState::Unsupported => ("unsupported", "the device or driver does not support it", Tone::Bad),
        KnobState::NoPermission => ("no permission", "the agent may not write it; the log has the remedy", Tone::Bad),
        KnobState::Rejected => ("rejected", "the driver refuses the value", Tone::Bad),
        KnobState::NotEffective => ("not effective", "a write succeeded but had no effect", Tone::Bad),
        KnobState::Yielded => {
            ("yielded", "another program writes it, and the agent does not write it for a while", Tone::Bad)
        }
        KnobState::Unreachable => ("unreachable", "the device cannot be reached", Tone::Bad),
        KnobState::Error => ("error", "the log says what went wrong", Tone::Bad),
    };
    StateWords { name, meaning, tone }
}

pub const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Off => "off",
        Mode::Recommend => "recommend",
        Mode::Enforce => "enforce",
    }
}

pub const fn scope(scope: BudgetScope) -> &'static str {
    match scope {
        BudgetScope::PerPod => "each pod has the budget for itself",
        BudgetScope::PerNode => "all its pods on this node share the budget",
        BudgetScope::Total => "all its pods in the cluster share the budget",
    }
}

pub const fn component(component: Component) -> &'static str {
    match component {
        Component::Gpu => "GPUs",
        Component::Cpu => "CPUs",
    }
}

pub const fn knob(knob: &Knob) -> &'static str {
    match knob {
        Knob::GpuClock(_) => "GPU clock",
        Knob::GpuPower(_) => "GPU power limit",
        Knob::CpuFrequency(_) => "CPU clock",
        Knob::CpuQuota(_) => "CPU quota",
        Knob::RaplLimit(_) => "CPU package power limit",
    }
}
