//! The series of capping: each policy with its budgets, and each limit as it is wanted and as the device shows it.

use std::collections::BTreeMap;

use energy_model::capping::level::{NodeBudget, NodeLevel};
use energy_model::capping::policy::{Authority, PolicyName};
use energy_model::capping::quantity::Quantity;
use energy_model::capping::status::SourceState;
use energy_model::capping::status::{CapStatus, CappingStatus, NodePower, PodId, PolicyStatus, SubjectStatus};
use energy_model::units::{Microjoules, Watts, nanos};

use super::{family, single};
use crate::metrics::{self as m, Metric};
use crate::text::{Labels, SeriesValue, Writer};

pub fn write(writer: &mut Writer, status: &CappingStatus, node: &str) {
    let CappingStatus {
        policies,
        caps,
        problems: _,
        namespaces: _,
        node: _,
        levels: _,
        sources,
        restore_pending,
        restore_failures,
        journal_repairs,
    } = status;
    // Else a tenant's objects would be series of thousands of nodes.
    let policies: Vec<&PolicyStatus> = policies.iter().filter(|policy| policy.concerns_node()).collect();
    family(writer, &m::POLICY_INFO);
    for policy in &policies {
        let more = [("mode", policy.mode.as_str()), ("scope", policy.scope.as_str()), ("source", &*policy.source)];
        writer.sample(&policy_labels(&policy.name, node), &more, SeriesValue::Integer(1));
    }
    write_subjects(writer, &policies, node);
    family(writer, &m::POLICY_CONFLICTS);
    for policy in &policies {
        let lost = u64::try_from(policy.lost_pods().len()).unwrap_or(u64::MAX);
        writer.sample(&policy_labels(&policy.name, node), &[], SeriesValue::Integer(lost));
    }
    family(writer, &m::POLICY_PROBLEMS);
    for (source, count) in problems_by_source(status) {
        writer.sample(&Labels::new(&[("source", &source), ("node_name", node)]), &[], SeriesValue::Integer(count));
    }
    family(writer, &m::POLICY_SOURCE_UP);
    for SourceState { source, up, reason, detail: _ } in sources {
        let labels = Labels::new(&[("source", source), ("reason", reason.as_str()), ("node_name", node)]);
        writer.sample(&labels, &[], SeriesValue::Integer(u64::from(*up)));
    }
    write_node(writer, status, node);
    write_caps(writer, caps, node);
    single(writer, &m::CAP_RESTORE_PENDING, SeriesValue::Integer(*restore_pending));
    single(writer, &m::CAP_RESTORE_FAILURES, SeriesValue::Integer(*restore_failures));
    single(writer, &m::JOURNAL_REPAIRS, SeriesValue::Integer(*journal_repairs));
}

fn write_subjects(writer: &mut Writer, policies: &[&PolicyStatus], node: &str) {
    let subjects: Vec<(Labels, &SubjectStatus)> = policies
        .iter()
        .flat_map(|policy| policy.subjects.iter().map(|subject| (subject_labels(&policy.name, subject, node), subject)))
        .collect();
    family(writer, &m::POLICY_STATE);
    for (labels, subject) in &subjects {
        writer.sample(labels, &[("state", subject.state.as_str())], SeriesValue::Integer(1));
    }
    let mut all = |metric: &Metric, value: &dyn Fn(&SubjectStatus) -> Option<SeriesValue>| {
        family(writer, metric);
        for (labels, subject) in &subjects {
            if let Some(value) = value(subject) {
                writer.sample(labels, &[], value);
            }
        }
    };
    all(&m::POLICY_BUDGET, &|subject| subject.budget.map(SeriesValue::Power));
    all(&m::POLICY_POWER, &|subject| subject.power.map(SeriesValue::Power));
    all(&m::POLICY_HEADROOM, &|subject| subject.headroom().map(SeriesValue::Power));
    all(&m::POLICY_CEILING, &|subject| Some(SeriesValue::Float(subject.ceiling)));
    all(&m::POLICY_OVER_SECONDS, &|subject| Some(SeriesValue::Time(nanos(subject.over_budget))));
    all(&m::POLICY_OVER_JOULES, &|subject| Some(SeriesValue::Energy(Microjoules(subject.over_budget_uj))));
}

/// The node's power with its range, and what budgets over many nodes ask of it.
fn write_node(writer: &mut Writer, status: &CappingStatus, node: &str) {
    let NodePower { power, floor, most } = status.node;
    family(writer, &m::NODE_POWER);
    if let Some(power) = power {
        writer.sample(&Labels::new(&[("node_name", node)]), &[], SeriesValue::Power(power));
    }
    family(writer, &m::NODE_RANGE);
    for (bound, watts) in [("floor", floor), ("most", most)] {
        writer.sample(&Labels::new(&[("bound", bound), ("node_name", node)]), &[], SeriesValue::Power(watts));
    }
    family(writer, &m::NODE_LIMIT);
    if let Some(limit) = status.node_limit() {
        let budget = limit.held_by.map_or("", |budget| &budget.name);
        writer.sample(&Labels::new(&[("budget", budget), ("node_name", node)]), &[], SeriesValue::Power(limit.watts));
    }
    family(writer, &m::BUDGET_FLOOR);
    for budget in &status.levels {
        if let Some(floor) = status.raised_floor(budget) {
            let labels = Labels::new(&[("budget", &budget.name.name), ("node_name", node)]);
            writer.sample(&labels, &[], SeriesValue::Power(floor));
        }
    }
    family(writer, &m::BUDGET_LEVEL);
    for NodeBudget { name, level, standing, .. } in &status.levels {
        let permille = match level {
            NodeLevel::Open => 1000,
            NodeLevel::Permille(permille) => *permille,
        };
        let labels = Labels::new(&[("budget", &name.name), ("standing", standing.as_str()), ("node_name", node)]);
        writer.sample(&labels, &[], SeriesValue::Float(f64::from(permille) / 1000.0));
    }
}

fn write_caps(writer: &mut Writer, caps: &[CapStatus], node: &str) {
    let caps: Vec<(Labels, &CapStatus)> = caps.iter().map(|cap| (knob_labels(cap, node), cap)).collect();
    for (metric, unit) in [(&m::CAP_LIMIT_HERTZ, "hertz"), (&m::CAP_LIMIT_WATTS, "watts"), (&m::CAP_LIMIT_CPUS, "cpus")]
    {
        family(writer, metric);
        for (labels, cap) in &caps {
            let policy = cap.policy.clone().unwrap_or_default();
            let more = [("policy", &*policy.name), ("policy_namespace", &*policy.namespace)];
            let more = [&more[..], &authority(&policy)].concat();
            write_quantity(writer, labels, &more, cap, cap.wanted, unit);
        }
    }
    for (metric, unit) in [(&m::CAP_FOUND_HERTZ, "hertz"), (&m::CAP_FOUND_WATTS, "watts"), (&m::CAP_FOUND_CPUS, "cpus")]
    {
        family(writer, metric);
        for (labels, cap) in &caps {
            write_quantity(writer, labels, &[], cap, cap.found, unit);
        }
    }
    family(writer, &m::CAP_UP);
    for (labels, cap) in &caps {
        writer.sample(labels, &[("reason", cap.state.as_str())], SeriesValue::Integer(u64::from(cap.is_up())));
    }
    family(writer, &m::CAP_CLAMPED);
    for (labels, cap) in &caps {
        writer.sample(labels, &[], SeriesValue::Integer(u64::from(cap.clamped)));
    }
    family(writer, &m::CAP_WRITES);
    for (labels, cap) in &caps {
        for (result, count) in cap.writes.by_result() {
            writer.sample(labels, &[("result", result)], SeriesValue::Integer(count));
        }
    }
}

/// Writes `value` where the knob's unit is that of the family.
fn write_quantity(
    writer: &mut Writer,
    labels: &Labels,
    more: &[(&str, &str)],
    cap: &CapStatus,
    value: Option<u64>,
    unit: &str,
) {
    let Some(quantity) = value.map(|value| Quantity::of(&cap.knob, value)).filter(|value| value.unit() == unit) else {
        return;
    };
    let value = match quantity {
        Quantity::Hertz(hertz) => SeriesValue::Integer(hertz),
        Quantity::Power(Watts(watts)) => SeriesValue::Power(Watts(watts)),
        Quantity::Cpus(cpus) => SeriesValue::Float(cpus),
    };
    writer.sample(labels, more, value);
}

/// How many were refused by source; 0 where all policies of a source are fine.
fn problems_by_source(status: &CappingStatus) -> BTreeMap<String, u64> {
    let policies = status.policies.iter().filter(|policy| policy.concerns_node());
    let mut counts: BTreeMap<_, _> = policies.map(|policy| (policy.source.to_string(), 0)).collect();
    for problem in status.own_problems() {
        *counts.entry(problem.place.to_string()).or_default() += 1;
    }
    counts
}

fn policy_labels(name: &PolicyName, node: &str) -> Labels {
    let labels = [("policy", &*name.name), ("policy_namespace", &*name.namespace), ("node_name", node)];
    Labels::new(&[&labels[..], &authority(name)].concat())
}

/// Of an object: a document of the same name is another policy. Documents have no such label.
fn authority(name: &PolicyName) -> Vec<(&'static str, &'static str)> {
    match name.authority {
        Authority::Admin => Vec::new(),
        Authority::Tenant | Authority::Budget => vec![("authority", name.authority.as_str())],
    }
}

fn subject_labels(policy: &PolicyName, subject: &SubjectStatus, node: &str) -> Labels {
    let PodId { uid, namespace, name } = subject.pod.clone().unwrap_or_default();
    let labels = [
        ("policy", &*policy.name),
        ("policy_namespace", &*policy.namespace),
        ("pod_id", &*uid),
        ("pod_name", &*name),
        ("pod_namespace", &*namespace),
        ("node_name", node),
    ];
    Labels::new(&[&labels[..], &authority(policy)].concat())
}

fn knob_labels(cap: &CapStatus, node: &str) -> Labels {
    Labels::new(&[("actuator", cap.knob.actuator()), ("device", &cap.knob.device()), ("node_name", node)])
}

#[cfg(test)]
#[path = "capping/tests.rs"]
mod tests;
