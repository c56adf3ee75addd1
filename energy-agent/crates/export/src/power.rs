//! `/power`: what this node says of its power to the controller of budgets over many nodes, after the last tick.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use energy_model::capping::knob::Knob;
use energy_model::capping::level::{NodeBudget, NodeLevel};
use energy_model::capping::policy::{Authority, Mode, PolicyName};
use energy_model::capping::status::{CapStatus, CappingStatus, DocumentPlace, NodePower, PolicyStatus, Problem};
use energy_model::power_report::{CpuReport, GpuReport, HeldLevel, PolicyReport, PowerReport};
use energy_model::resources::node_frequencies;
use energy_model::resources::power_level::OPEN;
use energy_model::snapshot::Snapshot;
use energy_model::units::Watts;

pub(crate) const PATH: &str = "/power";

const OFF: &str =
    "objects are not followed (--capping.resources=off): this node takes part in no budget over many nodes\n";

/// Answers a request. `follows`: objects of the cluster are followed; else there is no such page. Policies of tenants are named, as
/// they are in the metrics of the same server.
#[must_use]
pub(crate) fn answer(snapshot: &Snapshot, follows: bool) -> Response {
    let Some(status) = snapshot.capping.as_deref().filter(|_| follows) else {
        return (StatusCode::NOT_FOUND, OFF).into_response();
    };
    let report = report(snapshot, status);
    let text = serde_json::to_string(&report).expect("numbers and names are JSON");
    let mut response = format!("{text}\n").into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn report(snapshot: &Snapshot, status: &CappingStatus) -> PowerReport {
    let NodePower { power, floor: Watts(floor), most: Watts(most) } = status.node;
    let limit = status.node_limit();
    let (gpus, cpus) = clocks(snapshot, status);
    let of_frequencies = |problem: &&Problem| matches!(&problem.place, DocumentPlace::Object { kind, .. } if *kind == node_frequencies::KIND);
    PowerReport {
        node: snapshot.node.to_string(),
        seq: snapshot.ticks,
        watts: power.map(|power| power.0),
        floor_watts: floor,
        most_watts: most,
        limit_watts: limit.map(|limit| limit.watts.0),
        limited_by: limit.and_then(|limit| limit.held_by).map(|budget| budget.name.to_string()),
        levels: status.levels.iter().map(|budget| held(status, budget)).collect(),
        policies: policies(status),
        gpus,
        cpus,
        frequencies_refused: status.problems.iter().find(of_frequencies).map(|problem| problem.message.clone()),
    }
}

fn held(status: &CappingStatus, budget: &NodeBudget) -> HeldLevel {
    let permille = match budget.level {
        NodeLevel::Open => OPEN,
        NodeLevel::Permille(permille) => permille,
    };
    let floor_watts = status.raised_floor(budget).map(|floor| floor.0);
    HeldLevel { budget: budget.name.name.to_string(), epoch: budget.epoch, permille, floor_watts }
}

/// Those that select a pod of the node, and those that are refused.
fn policies(status: &CappingStatus) -> Vec<PolicyReport> {
    let tenants = || status.policies.iter().filter(|policy| policy.name.authority == Authority::Tenant);
    let mut reports: Vec<PolicyReport> = tenants()
        .map(|policy| (policy, refusal(status, &policy.name)))
        .filter(|(policy, refusal)| policy.pods > 0 || refusal.is_some())
        .map(|(policy, refusal)| PolicyReport { refused: refusal.cloned(), ..of_policy(policy) })
        .collect();
    // One without a version that was ever right is no policy.
    let names: BTreeSet<&PolicyName> = tenants().map(|policy| &policy.name).collect();
    for problem in &status.problems {
        let name = problem.policy.as_ref().filter(|name| name.authority == Authority::Tenant && !names.contains(name));
        reports.extend(name.map(|name| PolicyReport {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            refused: Some(problem.message.clone()),
            ..PolicyReport::default()
        }));
    }
    reports
}

fn refusal<'a>(status: &'a CappingStatus, policy: &PolicyName) -> Option<&'a String> {
    status.problems.iter().find(|problem| problem.policy.as_ref() == Some(policy)).map(|problem| &problem.message)
}

fn of_policy(policy: &PolicyStatus) -> PolicyReport {
    // The one subject of a budget for several pods stands for all of them.
    let capped = policy.subjects.iter().filter(|subject| subject.state.is_capped());
    let capped = capped.map(|subject| if subject.pod.is_some() { 1 } else { policy.pods }).sum();
    let powers: Option<Vec<f64>> = policy.subjects.iter().map(|subject| Some(subject.power?.0)).collect();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let range = policy.range.unwrap_or_default();
    PolicyReport {
        namespace: policy.name.namespace.to_string(),
        name: policy.name.name.to_string(),
        pods: count(policy.pods),
        capped_pods: count(capped),
        watts: powers.map(|powers| powers.iter().sum()),
        floor_watts: range.floor.0,
        most_watts: range.most.0,
        limit_watts: range.limit.filter(|_| policy.mode == Mode::Enforce).map(|limit| limit.0),
        refused: None,
    }
}

/// The GPUs, and the cores whose clock is limited.
fn clocks(snapshot: &Snapshot, status: &CappingStatus) -> (Vec<GpuReport>, Vec<CpuReport>) {
    let limits: BTreeMap<&Knob, &CapStatus> =
        status.caps.iter().filter(|cap| cap.wanted.is_some()).map(|cap| (&cap.knob, cap)).collect();
    let megahertz = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let gpus = snapshot.gpus.iter().filter(|now| now.current).map(|now| {
        let uuid = &now.gpu.uuid;
        let clock = limits.get(&Knob::GpuClock(Arc::clone(uuid)));
        let power = limits.get(&Knob::GpuPower(Arc::clone(uuid)));
        GpuReport {
            uuid: uuid.to_string(),
            model: now.gpu.name.to_string(),
            clock_mhz: now.state.sm_clock_hertz.map(|hertz| megahertz(hertz / 1_000_000)),
            ceiling_mhz: clock.and_then(|cap| cap.wanted).map(megahertz),
            lowered: clock.or(power).is_some(),
            limited_by: clock.or(power).and_then(|cap| cap.policy.as_ref()).map(ToString::to_string),
        }
    });
    let cpus = limits.iter().filter_map(|(knob, cap)| match knob {
        Knob::CpuFrequency(core_id) => {
            Some(CpuReport { core_id: *core_id, ceiling_mhz: megahertz(cap.wanted? / 1000) })
        }
        _ => None,
    });
    (gpus.collect(), cpus.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use energy_model::capping::level::Standing;
    use energy_model::capping::policy::BudgetScope;
    use energy_model::capping::status::{LevelRange, SubjectState, SubjectStatus};

    use super::*;

    fn named(authority: Authority, namespace: &str, name: &str) -> PolicyName {
        PolicyName { authority, namespace: namespace.into(), name: name.into() }
    }

    fn budget(name: &str, mode: Mode, level: NodeLevel) -> NodeBudget {
        let name = named(Authority::Budget, "", name);
        NodeBudget { name, mode, level, epoch: 7, standing: Standing::Followed, protect: None }
    }

    fn policy(name: PolicyName, pods: usize, range: LevelRange, state: SubjectState) -> PolicyStatus {
        let subject = SubjectStatus {
            pod: None,
            state,
            reason: None,
            budget: range.limit,
            power: Some(Watts(640.0)),
            ceiling: 1.0,
            over_budget: std::time::Duration::ZERO,
            over_budget_uj: 0,
            knobs: Vec::new(),
        };
        let (mode, scope) = (Mode::Enforce, BudgetScope::Total);
        PolicyStatus {
            name,
            mode,
            scope,
            source: "x".into(),
            pods,
            range: Some(range),
            subjects: vec![subject],
            lost: Vec::new(),
        }
    }

    fn range(floor: f64, limit: Option<f64>) -> LevelRange {
        LevelRange { floor: Watts(floor), most: Watts(1000.0), limit: limit.map(Watts) }
    }

    fn snapshot() -> Snapshot {
        let node = NodePower { power: Some(Watts(640.0)), floor: Watts(200.0), most: Watts(1000.0) };
        let levels = vec![
            budget("hall", Mode::Enforce, NodeLevel::Permille(900)),
            budget("rack", Mode::Enforce, NodeLevel::Permille(500)),
            budget("trial", Mode::Recommend, NodeLevel::Permille(0)),
        ];
        let total = range(100.0, Some(550.0));
        let policies = vec![
            policy(named(Authority::Tenant, "ml", "elsewhere"), 0, total, SubjectState::Open),
            policy(named(Authority::Tenant, "ml", "train"), 3, total, SubjectState::Capping),
            // Protected pods hold its floor up.
            policy(named(Authority::Budget, "", "hall"), 0, range(400.0, Some(940.0)), SubjectState::Open),
            policy(named(Authority::Budget, "", "rack"), 0, range(200.0, Some(600.0)), SubjectState::Open),
            policy(named(Authority::Budget, "", "trial"), 0, range(200.0, Some(200.0)), SubjectState::Open),
        ];
        let place = DocumentPlace::Object { kind: "PowerCappingPolicy", namespace: "ml".into(), name: "bad".into() };
        let bad = Some(named(Authority::Tenant, "ml", "bad"));
        let problems = vec![Problem { policy: bad, place, message: "spec.budget: no".into(), kept: false }];
        let status = CappingStatus { node, levels, policies, problems, ..CappingStatus::default() };
        Snapshot { capping: Some(Arc::new(status)), ..Snapshot::empty("n1") }
    }

    #[test]
    fn the_lowest_enforced_level_is_the_limit() {
        let snapshot = snapshot();
        let report = report(&snapshot, snapshot.capping.as_ref().unwrap());
        assert_eq!(
            (report.node.as_str(), report.watts, report.floor_watts, report.most_watts),
            ("n1", Some(640.0), 200.0, 1000.0)
        );
        // Nobody says that the node would draw more.
        assert_eq!((report.limit_watts, report.limited_by), (Some(600.0), None));
        let levels: Vec<(&str, u32, Option<f64>)> =
            report.levels.iter().map(|held| (held.budget.as_str(), held.permille, held.floor_watts)).collect();
        assert_eq!(levels, [("hall", 900, Some(400.0)), ("rack", 500, None), ("trial", 0, None)]);
    }

    #[test]
    fn policies_with_pods_here_and_refused_ones_are_reported() {
        let snapshot = snapshot();
        let [train, bad] = &report(&snapshot, snapshot.capping.as_ref().unwrap()).policies[..] else { panic!() };
        assert_eq!((train.name.as_str(), train.pods, train.capped_pods, train.watts), ("train", 3, 3, Some(640.0)));
        assert_eq!((train.floor_watts, train.most_watts, train.limit_watts), (100.0, 1000.0, Some(550.0)));
        assert_eq!((bad.name.as_str(), bad.pods, bad.refused.as_deref()), ("bad", 0, Some("spec.budget: no")));
    }

    #[test]
    fn a_node_that_follows_no_objects_has_no_report() {
        assert_eq!(answer(&snapshot(), false).status(), StatusCode::NOT_FOUND);
        assert_eq!(answer(&Snapshot::empty("n1"), true).status(), StatusCode::NOT_FOUND);
        assert_eq!(answer(&snapshot(), true).status(), StatusCode::OK);
    }
}
