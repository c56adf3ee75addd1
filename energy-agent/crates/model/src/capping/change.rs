//! What people should hear of, as one type: each [`Change`] becomes a line in the log and an event of the cluster.
//!
//! ```text
//! controller      BudgetChange ── of_budget ──┐
//! managed knobs   KnobChange ──── of_knobs ───┤
//! policy sources  Problem ─────── of_problem ─┼─ Change ── log, Events
//! end of agent    knobs left ──── of_end ─────┘
//! ```
//!
//! Each part says what happened in its own terms. The words for people are made here alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::controller::{BudgetChange, BudgetChangeKind};
use super::knob::Knob;
use super::managed_knob::change::{KnobChange, KnobChangeKind};
use super::policy::PolicyName;
use super::quantity::Quantity;
use super::status::{DocumentPlace, PodId, PolicyStatus, Problem, SubjectState, SubjectStatus};

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    Capping,
    Released,
    Unreachable,
    Invalid,
    Conflict,
    ForeignChange,
    Restored,
    RestoreFailed,
    TelemetryLost,
    NoActuator,
}

/// Something that happened: said once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub kind: ChangeKind,
    /// `None`: a whole document, or a limit that no policy is known of.
    pub policy: Option<PolicyName>,
    pub about: About,
    /// For people, with the remedy where there is one.
    pub message: String,
}

/// What it happened to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum About {
    Node,
    Pod(PodId),
    ConfigMap {
        namespace: Arc<str>,
        name: Arc<str>,
    },
    /// Of `power.energy-agent.io`; the namespace is empty for kinds without.
    Object {
        kind: &'static str,
        namespace: Arc<str>,
        name: Arc<str>,
    },
}

crate::as_str!(ChangeKind {
    Capping => "Capping",
    Released => "Released",
    Unreachable => "Unreachable",
    Invalid => "Invalid",
    Conflict => "Conflict",
    ForeignChange => "ForeignChange",
    Restored => "Restored",
    RestoreFailed => "RestoreFailed",
    TelemetryLost => "TelemetryLost",
    NoActuator => "NoActuator",
});

impl ChangeKind {
    /// Somebody has to see to it.
    #[must_use]
    pub const fn is_warning(self) -> bool {
        !matches!(self, Self::Capping | Self::Released | Self::Restored)
    }
}

/// What a step of the controller said; `None` where nobody has to hear of it. `policies` are those of the same step, and
/// `name` completes what is known of a pod.
pub fn of_budget(change: BudgetChange, policies: &[PolicyStatus], name: impl FnOnce(PodId) -> PodId) -> Option<Change> {
    let BudgetChange { policy, pod, kind } = change;
    let (kind, message) = match kind {
        BudgetChangeKind::State { from, to, reason } => {
            let mut subjects =
                policies.iter().filter(|status| status.name == policy).flat_map(|status| &status.subjects);
            let power = subjects.find(|subject| subject.pod == pod).map(power_of_budget).unwrap_or_default();
            of_state(from, to, reason, &power)?
        }
        BudgetChangeKind::Gone => (
            ChangeKind::Released,
            "released: the policy or the pod is gone, or another policy now decides about it".to_owned(),
        ),
        BudgetChangeKind::End => (ChangeKind::Released, "released: the agent ends".to_owned()),
        BudgetChangeKind::Conflict { component, winner } => (
            ChangeKind::Conflict,
            format!(
                "policy {winner} decides about its {}; give the policies other selectors or priorities",
                component.as_str()
            ),
        ),
    };
    let about = pod.map(name).filter(|pod| !pod.name.is_empty()).map_or(About::Node, About::Pod);
    Some(Change { kind, policy: Some(policy), about, message })
}

fn of_state(
    from: Option<SubjectState>,
    to: SubjectState,
    reason: Option<String>,
    power: &str,
) -> Option<(ChangeKind, String)> {
    use SubjectState::{Capping, Learning, NoActuator, Off, Open, Recommending, TelemetryLost, Unreachable};
    let because = |usual: &str| reason.unwrap_or_else(|| usual.to_owned());
    Some(match to {
        Capping => (ChangeKind::Capping, format!("capped to keep the budget{power}")),
        Open | Off | Recommending | Learning if matches!(from, Some(Capping | Unreachable | TelemetryLost)) => {
            (ChangeKind::Released, format!("no longer capped{power}"))
        }
        Unreachable => {
            let usual = "all limits are at their floors, and the power is still above the budget";
            (ChangeKind::Unreachable, format!("{}{power}; raise the budget or lower the floors", because(usual)))
        }
        TelemetryLost => (
            ChangeKind::TelemetryLost,
            because(
                "its power is not measured; see energy_agent_meter_up, energy_agent_gpu_up, or a kepler_node_cpu_watts of 0",
            ),
        ),
        NoActuator => (ChangeKind::NoActuator, because("no limit can be used for it; /policies says why")),
        Open | Off | Recommending | Learning => return None,
    })
}

/// `: 412.0 W of 400.0 W, through gpu_locked_clocks`, as far as it is known.
fn power_of_budget(subject: &SubjectStatus) -> String {
    let (Some(power), Some(budget)) = (subject.power, subject.budget) else { return String::new() };
    let mut means: Vec<&str> = subject.knobs.iter().map(Knob::actuator).collect();
    means.dedup();
    let [power, budget] = [power, budget].map(Quantity::Power);
    let through = if means.is_empty() { String::new() } else { format!(", through {}", means.join(", ")) };
    format!(": {power} of {budget}{through}")
}

/// What happened to knobs, which is in the log already: one change for each kind and policy.
pub fn of_knobs(changes: Vec<KnobChange>) -> Vec<Change> {
    let mut messages: BTreeMap<(ChangeKind, Option<PolicyName>), Vec<String>> = BTreeMap::new();
    for KnobChange { knob, policy, kind, detail } in changes {
        let (kind, words) = match kind {
            KnobChangeKind::Foreign => (ChangeKind::ForeignChange, "another program writes it: "),
            // Of a GPU that no policy is about, the log is enough.
            KnobChangeKind::Locked if policy.is_none() => continue,
            KnobChangeKind::Locked => {
                (ChangeKind::ForeignChange, "the agent does not write its clocks as long as it sees this: ")
            }
            KnobChangeKind::Restored => (ChangeKind::Restored, "restored: "),
            KnobChangeKind::RestoreFailed => (ChangeKind::RestoreFailed, "cannot be restored, the agent tries again: "),
            KnobChangeKind::Refused(_) => (ChangeKind::NoActuator, "cannot be limited, the agent tries again: "),
            KnobChangeKind::Resized | KnobChangeKind::Reverted | KnobChangeKind::Recovered => {
                continue;
            }
        };
        messages.entry((kind, policy)).or_default().push(format!("{knob}: {words}{detail}"));
    }
    let change = |((kind, policy), messages): (_, Vec<String>)| Change {
        kind,
        policy,
        about: About::Node,
        message: messages.join("; "),
    };
    messages.into_iter().map(change).collect()
}

/// The agent ends and could not give these back.
#[must_use]
pub fn of_end<'a>(left: impl Iterator<Item = &'a Knob>) -> Change {
    let left: Vec<String> = left.map(ToString::to_string).collect();
    Change {
        kind: ChangeKind::RestoreFailed,
        policy: None,
        about: About::Node,
        message: format!(
            "the agent ends with limits that it could not restore; its next start or `energy-agent restore` restores them: {}",
            left.join(", ")
        ),
    }
}

/// A refusal, which is in the log already.
#[must_use]
pub fn of_problem(problem: &Problem) -> Change {
    let Problem { policy, place, message, kept } = problem;
    let outcome = if *kept { "the previous version stays active" } else { "not active" };
    Change {
        kind: ChangeKind::Invalid,
        policy: policy.clone(),
        about: match place {
            DocumentPlace::File(_) => About::Node,
            DocumentPlace::ConfigMap { namespace, name, key: _ } => {
                About::ConfigMap { namespace: namespace.as_str().into(), name: name.as_str().into() }
            }
            DocumentPlace::Object { kind, namespace, name } => {
                About::Object { kind, namespace: namespace.as_str().into(), name: name.as_str().into() }
            }
        },
        message: format!("refused, {outcome}: {place}: {message}"),
    }
}

#[cfg(test)]
#[path = "change/tests.rs"]
mod tests;
