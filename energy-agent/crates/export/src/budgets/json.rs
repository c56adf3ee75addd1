//! The JSON form, in watts and seconds; what is not known is `null`. Written by hand: clients read these names.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use super::view::{BudgetRow, NodeView, View};

pub fn document(view: &View) -> Value {
    json!({
        "identity": view.identity,
        "leader": view.leader,
        "leads": view.leads,
        "epoch": view.epoch,
        "timestamp_seconds": view.taken.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        "rounds": view.rounds,
        "decision_seconds": view.decision.as_secs_f64(),
        "problems": view.troubles,
        "budgets": view.budgets.iter().map(|row| budget(view, row)).collect::<Vec<_>>(),
        "policies": view.policies.iter().map(|policy| budget(view, policy)).collect::<Vec<_>>(),
        "nodes": view.nodes.iter().map(node).collect::<Vec<_>>(),
    })
}

fn budget(view: &View, budget: &BudgetRow) -> Value {
    let nodes: Vec<&str> =
        budget.nodes.iter().filter_map(|place| view.nodes.get(*place)).map(|node| &*node.name).collect();
    let tiers = budget.tiers.iter().map(|tier| json!({"tier": tier.name, "permille": tier.permille}));
    let conditions = budget
        .conditions
        .iter()
        .map(|(kind, is, reason, message)| json!({"type": kind, "status": is, "reason": reason, "message": message}));
    json!({
        "name": budget.name,
        "mode": budget.mode,
        "parent": budget.parent,
        "budget_watts": budget.budget_watts,
        "power_watts": budget.watts,
        "limit_watts": budget.limit_watts,
        "levels": tiers.collect::<Vec<_>>(),
        "fallback_permille": budget.fallback_permille,
        "limited_nodes": budget.limited,
        "silent_nodes": budget.silent,
        "unreported_nodes": budget.unreported,
        "nodes": nodes,
        "conditions": conditions.collect::<Vec<_>>(),
    })
}

fn node(node: &NodeView) -> Value {
    json!({
        "name": *node.name,
        "state": node.state.as_str(),
        "reason": node.trouble,
        "power_watts": node.watts,
        "floor_watts": node.floor_watts,
        "most_watts": node.most_watts,
        "limit_watts": node.limit_watts,
        "limited_by": node.limited_by,
    })
}
