//! The status of a ClusterPowerBudget: how it stands, in figures and conditions.

use std::sync::Arc;

use energy_model::capping::policy::Mode;
use energy_model::resources::cluster_power_budget::{ClusterPowerBudgetStatus, KIND, PLURAL};
use energy_model::resources::condition::Condition;
use energy_model::resources::object::KubeObject;
use energy_model::units::{floor_u64, ratio};

use super::budgets::{Decided, OffBudget, Round, UnreadBudget};
use super::statuses::{StatusDraft, StatusPace, condition, number, shown, whole};

/// Figures that moved by less than this share of the budget are worth no write.
const FIGURES: f64 = 0.02;
/// What a status of an earlier version may have, and this one has not.
const FIELDS: [&str; 6] = ["observedTime", "budgetWatts", "watts", "percent", "limitWatts", "levelPermille"];

/// How all budgets stand after a round.
pub fn drafts(round: &Round, time: &str) -> Vec<StatusDraft> {
    let decided = round.budgets.iter().map(|decided| (&decided.object, status(decided, time)));
    let unread = round.unread.iter().map(|unread| (&unread.object, refused(unread, time)));
    let off = round.off.iter().map(|budget| (&budget.object, switched_off(budget, time)));
    decided.chain(unread).chain(off).map(|(object, status)| draft(object, &status)).collect()
}

fn draft(object: &Arc<KubeObject>, status: &ClusterPowerBudgetStatus) -> StatusDraft {
    let before: ClusterPowerBudgetStatus = serde_json::from_value(object.status.clone()).unwrap_or_default();
    StatusDraft {
        has_moved: is_worth(&before, status),
        is_other: false,
        pace: StatusPace::Budget,
        ..StatusDraft::new(object, KIND, PLURAL, status, &FIELDS, &status.conditions)
    }
}

fn status(decided: &Decided, time: &str) -> ClusterPowerBudgetStatus {
    let Decided { object, decision, budget_watts, nodes, limited, silent, .. } = decided;
    let lowest = decision.levels.iter().min().map(|level| u32::from(level.get()));
    ClusterPowerBudgetStatus {
        observed_generation: object.metadata.generation,
        observed_time: Some(time.to_owned()),
        budget_watts: Some(whole(*budget_watts)),
        watts: Some(whole(decision.watts)),
        percent: u32::try_from(floor_u64(100.0 * decision.watts / budget_watts)).ok(),
        limit_watts: Some(whole(decision.limit_watts)),
        level_permille: lowest,
        nodes: number(nodes.len()),
        limited_nodes: number(*limited),
        silent_nodes: number(*silent),
        conditions: conditions(decided, time),
    }
}

fn refused(UnreadBudget { object, refusal, has_level }: &UnreadBudget, time: &str) -> ClusterPowerBudgetStatus {
    let outcome = if *has_level { "the level of an earlier version stays" } else { "nothing is limited by it" };
    let message = format!("{}; {outcome}", refusal.0);
    ClusterPowerBudgetStatus {
        observed_generation: object.metadata.generation,
        observed_time: Some(time.to_owned()),
        conditions: vec![condition(object, "Ready", false, "Refused", message, time)],
        ..ClusterPowerBudgetStatus::default()
    }
}

fn switched_off(OffBudget { object, refusal, nodes }: &OffBudget, time: &str) -> ClusterPowerBudgetStatus {
    let (is_ready, reason, message) = refusal.as_ref().map_or_else(
        || (true, "Off", "mode is Off".to_owned()),
        |refusal| (false, "Refused", format!("{}; the previous version stays active, which is Off", refusal.0)),
    );
    ClusterPowerBudgetStatus {
        observed_generation: object.metadata.generation,
        observed_time: Some(time.to_owned()),
        nodes: number(*nodes),
        conditions: vec![
            condition(object, "Ready", is_ready, reason, message, time),
            condition(object, "Limiting", false, "Open", "nothing is limited".to_owned(), time),
        ],
        ..ClusterPowerBudgetStatus::default()
    }
}

pub fn conditions(decided: &Decided, time: &str) -> Vec<Condition> {
    let Decided { object, spec, refusal, budget_watts, decision, stale, nodes, silent, .. } = decided;
    let (is_ready, reason, message) = if let Some(refusal) = refusal {
        (false, "Refused", format!("{}; the previous version stays active", refusal.0))
    } else if nodes.is_empty() {
        (false, "NoNodes", "no node has these labels; correct spec.nodes or label the nodes".to_owned())
    } else if decision.too_many_silent {
        (
            false,
            "TooManySilent",
            format!("{silent} of {} nodes are silent: the level is lowered, never raised", nodes.len()),
        )
    } else if let Some((reason, why)) = stale {
        (false, *reason, why.clone())
    } else {
        (true, "Running", format!("{} nodes", nodes.len()))
    };
    let (watts, budget) = (shown(decision.watts), shown(*budget_watts));
    let (in_budget, why, figures) = if decided.is_unheard {
        (false, "NotHeard", "no agent of its nodes has answered yet".to_owned())
    } else if let Some(floors) = decision.floors_exceed {
        let floors = shown(floors);
        (
            false,
            "FloorsExceedBudget",
            format!("floors {floors}: the nodes cannot be held at {budget}; take nodes away or raise the budget"),
        )
    } else if decision.watts > *budget_watts {
        (false, "OverBudget", format!("{watts} of {budget}"))
    } else {
        (true, "UnderBudget", format!("{watts} of {budget}"))
    };
    let is_limiting = decision.levels.iter().any(|level| !level.is_open());
    let tiers = spec.settings.tiers.iter().zip(&decision.levels).filter(|(_, level)| !level.is_open());
    let tiers: Vec<String> = tiers
        .map(|(tier, level)| {
            let tier = if tier.is_empty() { String::new() } else { format!("tier {tier} ") };
            format!("{tier}level {}", level.get())
        })
        .collect();
    let limit = shown(decision.limit_watts);
    let limiting = match (is_limiting, spec.spec.mode) {
        (true, Mode::Enforce) => ("Limited", format!("{}: at most {limit}", tiers.join(", "))),
        (true, _) => ("WouldLimit", format!("{}: at most {limit}, were it enforced", tiers.join(", "))),
        (false, _) => ("Open", "nothing is limited".to_owned()),
    };
    let mut in_budget = condition(object, "InBudget", in_budget, why, figures, time);
    if decided.is_unheard {
        "Unknown".clone_into(&mut in_budget.status);
    }
    vec![
        condition(object, "Ready", is_ready, reason, message, time),
        in_budget,
        condition(object, "Limiting", is_limiting, limiting.0, limiting.1, time),
    ]
}

/// Whether figures have moved enough.
fn is_worth(before: &ClusterPowerBudgetStatus, status: &ClusterPowerBudgetStatus) -> bool {
    let moved = |a: Option<i64>, b: Option<i64>| {
        let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
        ratio(a.abs_diff(b), status.budget_watts.unwrap_or_default().unsigned_abs().max(1)) > FIGURES
    };
    let counts = |status: &ClusterPowerBudgetStatus| (status.nodes, status.silent_nodes, status.level_permille);
    moved(before.watts, status.watts)
        || moved(before.budget_watts, status.budget_watts)
        || counts(before) != counts(status)
}
