//! The status of a PowerCappingPolicy: what its pods draw on all nodes, and whether it is in force.

use energy_model::capping::policy::Mode;
use energy_model::resources::condition::Condition;
use energy_model::resources::power_capping_policy::{KIND, PLURAL, PowerCappingPolicyStatus};
use energy_model::units::ratio;

use super::statuses::{StatusDraft, StatusPace, condition, number, shown, whole};
use super::totals::{DecidedPolicy, DecidedTotal};

/// Power that moved by less than this share of it is worth no write.
const FIGURES: f64 = 0.05;
const FIELDS: [&str; 2] = ["observedTime", "watts"];

/// How a policy stands after a round.
pub fn draft(decided: &DecidedPolicy, time: &str) -> StatusDraft {
    let object = &decided.object;
    let is_on = decided.mode != Mode::Off;
    let status = PowerCappingPolicyStatus {
        observed_generation: object.metadata.generation,
        observed_time: Some(time.to_owned()),
        watts: is_on.then(|| whole(decided.watts)),
        pods: decided.pods,
        capped_pods: decided.capped,
        nodes: number(decided.nodes.len()),
        conditions: conditions(decided, time),
    };
    let before: PowerCappingPolicyStatus = serde_json::from_value(object.status.clone()).unwrap_or_default();
    let counts = |status: &PowerCappingPolicyStatus| (status.pods, status.capped_pods, status.nodes);
    let (was, is) = (before.watts.unwrap_or_default(), status.watts.unwrap_or_default());
    StatusDraft {
        has_moved: counts(&before) != counts(&status)
            || ratio(was.abs_diff(is), was.max(is).unsigned_abs().max(1)) > FIGURES,
        pace: StatusPace::Policy,
        ..StatusDraft::new(object, KIND, PLURAL, &status, &FIELDS, &status.conditions)
    }
}

pub fn conditions(decided: &DecidedPolicy, time: &str) -> Vec<Condition> {
    let one = |kind: &str, is: bool, reason: &str, message: String| {
        condition(&decided.object, kind, is, reason, message, time)
    };
    let (is_ready, reason, message) = ready(decided);
    let mut conditions = vec![one("Ready", is_ready, reason, message)];
    if let Some(DecidedTotal { budget_watts, is_enforced, decision }) = &decided.total {
        let (watts, budget) = (shown(decision.watts), shown(*budget_watts));
        conditions.push(match decision.floors_exceed {
            Some(floors) => one(
                "InBudget",
                false,
                "FloorsExceedBudget",
                format!(
                    "floors {}: its pods can't be held at {budget}; have fewer pods or raise the budget",
                    shown(floors)
                ),
            ),
            None if decision.watts > *budget_watts => {
                one("InBudget", false, "OverBudget", format!("{watts} of {budget}"))
            }
            None => one("InBudget", true, "UnderBudget", format!("{watts} of {budget}")),
        });
        let level = decision.levels.first().filter(|level| !level.is_open());
        let limit = shown(decision.limit_watts);
        conditions.push(match (level, is_enforced) {
            (None, _) => one("Limiting", false, "Open", "nothing is limited".to_owned()),
            (Some(level), true) => one("Limiting", true, "Limited", format!("level {}: at most {limit}", level.get())),
            (Some(level), false) => {
                one("Limiting", true, "WouldLimit", format!("level {}: at most {limit}, were it enforced", level.get()))
            }
        });
    } else if decided.mode != Mode::Off {
        let capped = decided.capped > 0;
        let (reason, message) = if capped {
            ("Limited", format!("{} of {} pods are limited", decided.capped, decided.pods))
        } else {
            ("Open", "nothing is limited".to_owned())
        };
        conditions.push(one("Limiting", capped, reason, message));
    }
    conditions
}

fn ready(decided: &DecidedPolicy) -> (bool, &'static str, String) {
    let nodes = decided.nodes.len();
    if let Some(refusal) = &decided.refusal {
        let outcome =
            if decided.was_never_right { "nothing is limited by it" } else { "the previous version stays in force" };
        (false, "Refused", format!("{refusal}; {outcome}"))
    } else if decided.mode == Mode::Off {
        (true, "Off", "mode is Off".to_owned())
    } else if decided.total.as_ref().is_some_and(|total| total.decision.too_many_silent) {
        let silent = decided.silent;
        let message = format!(
            "{silent} of {nodes} nodes with its pods are silent, or agents were never heard: the level is lowered, never raised"
        );
        (false, "TooManySilent", message)
    } else if decided.pods == 0 {
        (true, "NoPods", "no running pod has these labels, or other policies decide about all that have".to_owned())
    } else {
        (true, "Running", format!("{} pods on {nodes} nodes", decided.pods))
    }
}
