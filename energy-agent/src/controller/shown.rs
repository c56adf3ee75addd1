//! A round as the pages show it, with what the rounds before it were like.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use energy_budget::law::Decision;
use energy_export::budgets::view::{BudgetRow, HistoryPoint, NodeStanding, NodeView, TierView, View};
use energy_model::resources::condition::Condition;

use super::budgets::{Decided, Round, parents};
use super::fleet::{Fleet, NodeState};
use super::totals::{DecidedPolicy, DecidedTotal};
use super::{budget_status, policy_status};

/// Rounds that the page shows: ten minutes of rounds 5 s apart.
const HISTORY: usize = 120;

#[derive(Debug, Default)]
pub struct ShownRounds {
    rounds: u64,
    history: BTreeMap<String, VecDeque<HistoryPoint>>,
    /// By name; made anew when budgets or nodes change.
    parents: BTreeMap<String, String>,
    made_for: Option<(u64, Vec<(String, usize)>)>,
}

impl ShownRounds {
    /// A report older than `patience` does not count.
    pub fn view(&mut self, round: Option<(&Round, &[DecidedPolicy])>, fleet: &Fleet, patience: Duration) -> View {
        self.rounds += 1;
        let mut view = View::blank("");
        (view.rounds, view.taken, view.completed) = (self.rounds, SystemTime::now(), Instant::now());
        (view.counts.reports, view.counts.missing_reports) = (fleet.answers.reports, fleet.answers.failures);
        let Some((round, policies)) = round else { return view };
        let place = |budget: &Decided| (budget.object.metadata.name.clone(), budget.nodes.len());
        let made_for = (fleet.revision, round.budgets.iter().map(place).collect());
        if self.made_for.as_ref() != Some(&made_for) {
            self.parents = parents(round);
            self.made_for = Some(made_for);
        }
        let totals: Vec<_> = policies.iter().filter_map(|policy| Some((policy, policy.total.as_ref()?))).collect();
        self.history.retain(|name, _| {
            round.budgets.iter().any(|budget| budget.object.metadata.name == *name)
                || totals.iter().any(|(policy, _)| policy_name(policy) == *name)
        });
        view.nodes = fleet
            .nodes
            .iter()
            .zip(&round.limits)
            .map(|(node, limit)| {
                node_view(node, limit.as_ref().map(|(watts, budget)| (*watts, &budget.metadata.name)), patience)
            })
            .collect();
        view.budgets = round.budgets.iter().map(|budget| self.budget(budget)).collect();
        view.policies = totals.into_iter().map(|(policy, total)| self.policy(policy, total)).collect();
        view
    }

    fn remember(&mut self, name: &str, point: HistoryPoint) -> Vec<HistoryPoint> {
        let history = self.history.entry(name.to_owned()).or_default();
        history.push_back(point);
        if history.len() > HISTORY {
            history.pop_front();
        }
        history.iter().copied().collect()
    }

    fn policy(&mut self, decided: &DecidedPolicy, total: &DecidedTotal) -> BudgetRow {
        let DecidedTotal { budget_watts, is_enforced, decision } = total;
        let (name, permille) = (policy_name(decided), lowest(decision));
        BudgetRow {
            mode: if *is_enforced { "Enforce" } else { "Recommend" },
            parent: None,
            budget_watts: *budget_watts,
            watts: decision.watts,
            limit_watts: decision.limit_watts,
            tiers: vec![TierView { name: String::new(), permille }],
            fallback_permille: decision.fallback.get(),
            limited: if decided.capped > 0 { decided.nodes.len() } else { 0 },
            silent: decided.silent,
            unreported: 0,
            nodes: decided.nodes.clone(),
            conditions: shown(policy_status::conditions(decided, "")),
            history: self.remember(&name, HistoryPoint { watts: decision.watts, permille }),
            name,
        }
    }

    fn budget(&mut self, decided: &Decided) -> BudgetRow {
        let Decided { object, spec, decision, .. } = decided;
        let name = &object.metadata.name;
        let permille = lowest(decision);
        let history = self.remember(name, HistoryPoint { watts: decision.watts, permille });
        let tiers = spec.settings.tiers.iter().zip(&decision.levels);
        BudgetRow {
            name: name.clone(),
            mode: if spec.is_enforced() { "Enforce" } else { "Recommend" },
            parent: self.parents.get(name).cloned(),
            budget_watts: decided.budget_watts,
            watts: decision.watts,
            limit_watts: decision.limit_watts,
            tiers: tiers.map(|(tier, level)| TierView { name: tier.clone(), permille: level.get() }).collect(),
            fallback_permille: decision.fallback.get(),
            limited: decided.limited,
            silent: decided.silent,
            unreported: decided.unreported,
            nodes: decided.nodes.clone(),
            conditions: shown(budget_status::conditions(decided, "")),
            history,
        }
    }
}

fn policy_name(policy: &DecidedPolicy) -> String {
    format!("{}/{}", policy.object.metadata.namespace, policy.object.metadata.name)
}

fn lowest(decision: &Decision) -> u16 {
    decision.levels.iter().min().map_or(1000, |level| level.get())
}

fn shown(conditions: Vec<Condition>) -> Vec<(String, bool, String, String)> {
    conditions
        .into_iter()
        .map(|condition| (condition.kind, condition.status == "True", condition.reason, condition.message))
        .collect()
}

fn node_view(node: &NodeState, limit: Option<(f64, &String)>, patience: Duration) -> NodeView {
    let report = node.heard.as_ref().map(|heard| &heard.report);
    let now = Instant::now();
    let gpus = node.fresh_gpus(now, patience).filter(|_| node.address.is_none());
    let state = match (node.fresh(now, patience), &node.heard, &node.address) {
        (Some(_), ..) => NodeStanding::Reporting,
        (None, None, None) if gpus.is_some() => NodeStanding::Reporting,
        (None, None, None) if node.gpus.is_none() => NodeStanding::Unreported,
        _ => NodeStanding::Silent,
    };
    let own = report.and_then(|report| Some((report.limit_watts?, report.limited_by.clone()?)));
    NodeView {
        name: Arc::clone(&node.name),
        state,
        trouble: node.trouble.as_deref().map(str::to_owned),
        watts: report.map_or(gpus, |report| report.watts).filter(|_| state == NodeStanding::Reporting),
        floor_watts: report.map(|report| report.floor_watts),
        most_watts: report.map(|report| report.most_watts),
        limit_watts: limit.map(|(watts, _)| watts).or(own.as_ref().map(|(watts, _)| *watts)),
        limited_by: limit.map(|(_, budget)| format!("budget {budget}")).or(own.map(|(_, by)| by)),
    }
}
