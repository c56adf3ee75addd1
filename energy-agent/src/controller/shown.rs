//! A round as the pages show it, with what the rounds before it were like.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use energy_export::budgets::view::{BudgetRow, HistoryPoint, NodeStanding, NodeView, TierView, View};

use super::budgets::{Decided, Round, parents};
use super::fleet::{Fleet, NodeState};
use super::statuses;

/// Rounds that the page shows: ten minutes of rounds 5 s apart.
const HISTORY: usize = 120;

#[derive(Debug, Default)]
pub struct ShownRounds {
    rounds: u64,
    history: BTreeMap<String, VecDeque<HistoryPoint>>,
    /// By name; made anew when budgets or nodes change.
    parents: BTreeMap<String, String>,
    made_for: Option<(u64, Vec<usize>)>,
}

impl ShownRounds {
    pub fn view(&mut self, round: Option<&Round>, fleet: &Fleet, interval: Duration) -> View {
        self.rounds += 1;
        let mut view = View::blank("");
        (view.rounds, view.taken, view.completed) = (self.rounds, SystemTime::now(), Instant::now());
        (view.counts.reports, view.counts.missing_reports) = (fleet.answers.reports, fleet.answers.failures);
        let Some(round) = round else { return view };
        let made_for = (fleet.revision, round.budgets.iter().map(|budget| budget.nodes.len()).collect());
        if self.made_for.as_ref() != Some(&made_for) {
            self.parents = parents(round);
            self.made_for = Some(made_for);
        }
        self.history.retain(|name, _| round.budgets.iter().any(|budget| budget.object.metadata.name == *name));
        let patience = interval * 5 / 2;
        view.nodes = fleet
            .nodes
            .iter()
            .zip(&round.limits)
            .map(|(node, limit)| {
                node_view(node, limit.as_ref().map(|(watts, budget)| (*watts, &budget.metadata.name)), patience)
            })
            .collect();
        view.budgets = round.budgets.iter().map(|budget| self.budget(budget)).collect();
        view
    }

    fn budget(&mut self, decided: &Decided) -> BudgetRow {
        let Decided { object, spec, decision, .. } = decided;
        let name = &object.metadata.name;
        let permille = decision.levels.iter().min().map_or(1000, |level| level.get());
        let history = self.history.entry(name.clone()).or_default();
        history.push_back(HistoryPoint { watts: decision.watts, permille });
        if history.len() > HISTORY {
            history.pop_front();
        }
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
            conditions: statuses::conditions(decided, "")
                .into_iter()
                .map(|condition| (condition.kind, condition.status == "True", condition.reason, condition.message))
                .collect(),
            history: history.iter().copied().collect(),
        }
    }
}

fn node_view(node: &NodeState, limit: Option<(f64, &String)>, patience: Duration) -> NodeView {
    let report = node.heard.as_ref().map(|heard| &heard.report);
    let state = match (node.fresh(Instant::now(), patience), &node.heard, &node.address) {
        (Some(_), ..) => NodeStanding::Reporting,
        (None, None, None) => NodeStanding::Unreported,
        _ => NodeStanding::Silent,
    };
    let own = report.and_then(|report| Some((report.limit_watts?, report.limited_by.clone()?)));
    NodeView {
        name: Arc::clone(&node.name),
        state,
        trouble: node.trouble.clone(),
        watts: report.and_then(|report| report.watts).filter(|_| state == NodeStanding::Reporting),
        floor_watts: report.map(|report| report.floor_watts),
        most_watts: report.map(|report| report.most_watts),
        limit_watts: limit.map(|(watts, _)| watts).or(own.as_ref().map(|(watts, _)| *watts)),
        limited_by: limit.map(|(_, budget)| format!("budget {budget}")).or(own.map(|(_, by)| by)),
    }
}
