//! `/power`: what this node says of its power to the controller of budgets over many nodes, after the last tick.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use energy_model::capping::level::{NodeBudget, NodeLevel};
use energy_model::capping::policy::{Authority, Mode};
use energy_model::capping::status::{CappingStatus, NodePower, PolicyStatus, SubjectState};
use energy_model::power_report::{HeldLevel, PolicyReport, PowerReport};
use energy_model::resources::power_level::OPEN;
use energy_model::snapshot::Snapshot;
use energy_model::units::Watts;

pub(crate) const PATH: &str = "/power";

const OFF: &str =
    "objects are not followed (--capping.resources=off): this node takes part in no budget over many nodes\n";

/// Answers a request. `follows`: objects of the cluster are followed. `has_login`: whoever asks has logged in; only then are
/// policies of tenants named.
#[must_use]
pub(crate) fn answer(snapshot: &Snapshot, follows: bool, has_login: bool) -> Response {
    let Some(status) = snapshot.capping.as_deref().filter(|_| follows) else {
        return (StatusCode::NOT_FOUND, OFF).into_response();
    };
    let report = report(snapshot, status, has_login);
    let text = serde_json::to_string(&report).expect("numbers and names are JSON");
    let mut response = format!("{text}\n").into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn report(snapshot: &Snapshot, status: &CappingStatus, has_login: bool) -> PowerReport {
    let NodePower { power, floor: Watts(floor), most: Watts(most) } = status.node;
    let limits = status.levels.iter().filter(|budget| budget.mode == Mode::Enforce);
    let limits = limits.filter_map(|budget| match budget.level {
        NodeLevel::Open => None,
        NodeLevel::Permille(permille) => Some((floor + f64::from(permille) / 1000.0 * (most - floor), budget)),
    });
    let lowest = limits.min_by(|(a, _), (b, _)| a.total_cmp(b));
    let policies = status.policies.iter().filter(|policy| has_login && policy.name.authority == Authority::Tenant);
    PowerReport {
        node: snapshot.node.to_string(),
        seq: snapshot.ticks,
        watts: power.map(|power| power.0),
        floor_watts: floor,
        most_watts: most,
        limit_watts: lowest.map(|(limit, _)| limit),
        limited_by: lowest.filter(|(_, budget)| holds(status, budget)).map(|(_, budget)| budget.name.name.to_string()),
        levels: status.levels.iter().map(held).collect(),
        policies: policies.map(|policy| of_policy(status, policy)).collect(),
    }
}

/// The node would draw more without this budget.
fn holds(status: &CappingStatus, budget: &NodeBudget) -> bool {
    let own = status.policies.iter().find(|policy| policy.name == budget.name);
    own.is_some_and(|policy| policy.subjects.iter().any(|subject| is_capped(subject.state)))
}

const fn is_capped(state: SubjectState) -> bool {
    matches!(state, SubjectState::Capping | SubjectState::Unreachable)
}

fn held(budget: &NodeBudget) -> HeldLevel {
    let permille = match budget.level {
        NodeLevel::Open => OPEN,
        NodeLevel::Permille(permille) => permille,
    };
    HeldLevel { budget: budget.name.name.to_string(), epoch: budget.epoch, permille, floor_watts: None }
}

fn of_policy(status: &CappingStatus, policy: &PolicyStatus) -> PolicyReport {
    let capped = policy.subjects.iter().filter(|subject| is_capped(subject.state)).count();
    let powers: Option<Vec<f64>> = policy.subjects.iter().map(|subject| Some(subject.power?.0)).collect();
    let refusal = status.problems.iter().find(|problem| problem.policy.as_ref() == Some(&policy.name));
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    PolicyReport {
        namespace: policy.name.namespace.to_string(),
        name: policy.name.name.to_string(),
        pods: count(policy.subjects.iter().filter(|subject| subject.pod.is_some()).count()),
        capped_pods: count(capped),
        watts: powers.map(|powers| powers.iter().sum()),
        refused: refusal.map(|problem| problem.message.clone()),
        ..PolicyReport::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use std::sync::Arc;

    use energy_model::capping::level::Standing;
    use energy_model::capping::policy::PolicyName;

    use super::*;

    fn budget(name: &str, mode: Mode, level: NodeLevel) -> NodeBudget {
        let name = PolicyName { authority: Authority::Budget, name: name.into(), ..PolicyName::default() };
        NodeBudget { name, mode, level, epoch: 7, standing: Standing::Followed }
    }

    fn snapshot() -> Snapshot {
        let node = NodePower { power: Some(Watts(640.0)), floor: Watts(200.0), most: Watts(1000.0) };
        let levels = vec![
            budget("hall", Mode::Enforce, NodeLevel::Permille(900)),
            budget("rack", Mode::Enforce, NodeLevel::Permille(500)),
            budget("trial", Mode::Recommend, NodeLevel::Permille(0)),
        ];
        let status = CappingStatus { node, levels, ..CappingStatus::default() };
        Snapshot { capping: Some(Arc::new(status)), ..Snapshot::empty("n1") }
    }

    #[test]
    fn the_lowest_enforced_level_is_the_limit() {
        let snapshot = snapshot();
        let report = report(&snapshot, snapshot.capping.as_ref().unwrap(), false);
        assert_eq!(
            (report.node.as_str(), report.watts, report.floor_watts, report.most_watts),
            ("n1", Some(640.0), 200.0, 1000.0)
        );
        // 200 + 0.5 * 800. Nobody says that the node would draw more.
        assert_eq!((report.limit_watts, report.limited_by), (Some(600.0), None));
        let levels: Vec<(&str, u32)> = report.levels.iter().map(|held| (held.budget.as_str(), held.permille)).collect();
        assert_eq!(levels, [("hall", 900), ("rack", 500), ("trial", 0)]);
    }

    #[test]
    fn a_node_that_follows_no_objects_has_no_report() {
        assert_eq!(answer(&snapshot(), false, true).status(), StatusCode::NOT_FOUND);
        assert_eq!(answer(&Snapshot::empty("n1"), true, true).status(), StatusCode::NOT_FOUND);
        assert_eq!(answer(&snapshot(), true, false).status(), StatusCode::OK);
    }
}
