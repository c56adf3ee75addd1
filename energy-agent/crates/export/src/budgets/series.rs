//! The metrics of the controller.

use super::view::{BudgetRow, NodeStanding, View};
use crate::metrics::FamilyKind;
use crate::text::{Labels, SeriesValue, Writer};

pub fn write(writer: &mut Writer, view: &View) {
    let none = Labels::default();
    let mut one = |name: &str, kind: FamilyKind, help: &str, value: SeriesValue| {
        writer.family(name, kind, help);
        writer.sample(&none, &[], value);
    };
    let leads = u64::from(view.leads);
    one(
        "energy_agent_controller_leader",
        FamilyKind::Gauge,
        "1 on the replica that leads and writes levels, 0 on others.",
        SeriesValue::Integer(leads),
    );
    one(
        "energy_agent_controller_terms_total",
        FamilyKind::Counter,
        "How often this replica has taken the lead.",
        SeriesValue::Integer(view.counts.terms),
    );
    one(
        "energy_agent_controller_rounds_total",
        FamilyKind::Counter,
        "Rounds so far.",
        SeriesValue::Integer(view.rounds),
    );
    one(
        "energy_agent_controller_decision_seconds",
        FamilyKind::Gauge,
        "How long the last decision about all budgets took.",
        SeriesValue::Float(view.decision.as_secs_f64()),
    );
    let counts = view.counts;
    let pairs = [("ok", counts.reports), ("missing", counts.missing_reports)];
    by(
        writer,
        "energy_agent_controller_reports_total",
        FamilyKind::Counter,
        "result",
        "Reports of agents, by whether they came.",
        &pairs,
    );
    let pairs = [("ok", counts.writes), ("failed", counts.failed_writes), ("conflict", counts.conflicts)];
    by(
        writer,
        "energy_agent_controller_writes_total",
        FamilyKind::Counter,
        "result",
        "Writes to the API server, by what came of them.",
        &pairs,
    );
    if !view.leads {
        // Only the leader's figures are of now.
        return;
    }
    let states = [NodeStanding::Reporting, NodeStanding::Silent, NodeStanding::Unreported];
    let of = |state| u64::try_from(view.nodes.iter().filter(|node| node.state == state).count()).unwrap_or(u64::MAX);
    let pairs = states.map(|state| (state.as_str(), of(state)));
    by(
        writer,
        "energy_agent_cluster_nodes",
        FamilyKind::Gauge,
        "state",
        "Nodes of the cluster: reporting, silent (an agent that does not answer), unreported (no agent).",
        &pairs,
    );

    let labels: Vec<Labels> =
        view.budgets.iter().map(|budget| Labels::new(&[("budget", &budget.name), ("mode", budget.mode)])).collect();
    let mut family = |name: &str, help: &str, value: &dyn Fn(&BudgetRow) -> SeriesValue| {
        writer.family(name, FamilyKind::Gauge, help);
        for (budget, labels) in view.budgets.iter().zip(&labels) {
            writer.sample(labels, &[], value(budget));
        }
    };
    let count = |number: usize| SeriesValue::Integer(u64::try_from(number).unwrap_or(u64::MAX));
    family("energy_agent_budget_watts", "The budget that counts at present.", &|budget| {
        SeriesValue::Float(budget.budget_watts)
    });
    family(
        "energy_agent_budget_power_watts",
        "Power of all nodes of the budget, with overhead; silent nodes count with their limit.",
        &|budget| SeriesValue::Float(budget.watts),
    );
    family(
        "energy_agent_budget_limit_watts",
        "What the nodes of the budget may draw at most as things stand.",
        &|budget| SeriesValue::Float(budget.limit_watts),
    );
    family(
        "energy_agent_budget_level_ratio",
        "Level of the tier that is cut most: 0 at the floors, 1 open.",
        &|budget| SeriesValue::Float(f64::from(budget.permille()) / 1000.0),
    );
    family("energy_agent_budget_nodes", "Nodes that the budget selects.", &|budget| count(budget.nodes.len()));
    family("energy_agent_budget_limited_nodes", "Nodes that would draw more without the budget.", &|budget| {
        count(budget.limited)
    });
    family("energy_agent_budget_silent_nodes", "Nodes of the budget whose agent does not answer.", &|budget| {
        count(budget.silent)
    });
    writer.family(
        "energy_agent_budget_condition",
        FamilyKind::Gauge,
        "1: the condition of the budget's status is True. Ready, InBudget, Limiting.",
    );
    for (budget, labels) in view.budgets.iter().zip(&labels) {
        for (kind, is, reason, _) in &budget.conditions {
            writer.sample(labels, &[("type", kind), ("reason", reason)], SeriesValue::Integer(u64::from(*is)));
        }
    }
}

fn by(writer: &mut Writer, name: &str, kind: FamilyKind, label: &str, help: &str, pairs: &[(&str, u64)]) {
    writer.family(name, kind, help);
    for (value, count) in pairs {
        writer.sample(&Labels::default(), &[(label, value)], SeriesValue::Integer(*count));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime};

    use super::super::view::Counts;
    use super::*;
    use crate::metrics;
    use crate::text::Format;

    /// Prometheus reads both pages: one name must not have two meanings.
    #[test]
    fn no_metric_of_the_controller_has_the_name_of_an_agents() {
        let budget = BudgetRow {
            name: "rack".to_owned(),
            mode: "Enforce",
            parent: None,
            budget_watts: 1.0,
            watts: 1.0,
            limit_watts: 1.0,
            tiers: Vec::new(),
            fallback_permille: 0,
            limited: 0,
            silent: 0,
            unreported: 0,
            nodes: Vec::new(),
            conditions: vec![("Ready".to_owned(), true, "Ok".to_owned(), String::new())],
            history: Vec::new(),
        };
        let view = View {
            identity: String::new(),
            leader: None,
            leads: true,
            epoch: 1,
            taken: SystemTime::now(),
            completed: Instant::now(),
            rounds: 1,
            decision: Duration::ZERO,
            troubles: Vec::new(),
            counts: Counts::default(),
            budgets: vec![budget],
            policies: Vec::new(),
            nodes: Vec::new(),
        };
        let mut writer = Writer::new(Format::Text);
        write(&mut writer, &view);
        let page = String::from_utf8(writer.finish().0).unwrap();
        let names: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert!(names.len() > 10, "{page}");
        let shared: Vec<&&str> =
            names.iter().filter(|name| metrics::ALL.iter().any(|metric| metric.name == **name)).collect();
        assert_eq!(shared, Vec::<&&str>::new());
    }
}
