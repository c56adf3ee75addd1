//! `/power`: what this node says of its power to the controller of budgets over many nodes, after the last tick.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
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
use energy_model::turns::in_turns;
use energy_model::units::Watts;
use rustc_hash::FxHasher;

pub(crate) const PATH: &str = "/power";

/// Length of the policies in a report: those of hundreds of pods. The rest is left for refusals, and for hundreds of devices.
const POLICY_BYTES: usize = 96 * 1024;
/// Refused objects in a report, beside those that decide about a pod.
const MOST_REFUSED: usize = 32;
/// Bytes of what is said of one.
const MESSAGE: usize = 240;

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
        policies: policies(status, &snapshot.node),
        gpus,
        cpus,
        frequencies_refused: status.problems.iter().find(of_frequencies).map(|problem| shortened(&problem.message)),
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

/// Those that decide about a pod of the node, and those that are refused and may concern one.
fn policies(status: &CappingStatus, node: &str) -> Vec<PolicyReport> {
    let mut refusals: BTreeMap<&PolicyName, String> = BTreeMap::new();
    for problem in status.own_problems() {
        let policy = problem.policy.as_ref().filter(|policy| policy.authority == Authority::Tenant);
        if let Some(policy) = policy {
            refusals.entry(policy).or_insert_with(|| shortened(&problem.message));
        }
    }
    let tenants = status.policies.iter().filter(|policy| policy.name.authority == Authority::Tenant);
    let mut deciding: Vec<PolicyReport> = tenants
        .filter(|policy| policy.pods > 0)
        .map(|policy| PolicyReport { refused: refusals.remove(&policy.name), ..of_policy(policy) })
        .collect();
    // The level of a budget over many nodes depends on each of them.
    deciding.sort_by_key(|report| report.most_watts <= 0.0);
    let refused = refusals.into_iter().map(|(name, refused)| PolicyReport {
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
        refused: Some(refused),
        ..PolicyReport::default()
    });
    let mut refused: Vec<PolicyReport> = refused.collect();
    // Each node begins with others, and always with the same: what is told does not come and go.
    let first = place_of(node, refused.len());
    refused.rotate_left(first);
    let mut reports = within(POLICY_BYTES, in_turns(deciding, |report| report.namespace.clone()));
    reports.extend(in_turns(refused, |report| report.namespace.clone()).into_iter().take(MOST_REFUSED));
    reports
}

/// The first of them, as far as they are no longer than this as JSON.
fn within(bytes: usize, reports: Vec<PolicyReport>) -> Vec<PolicyReport> {
    let mut left = bytes;
    let fits = |report: &PolicyReport| {
        let length = serde_json::to_vec(report).map_or(usize::MAX, |json| json.len());
        let rest = left.checked_sub(length);
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    reports.into_iter().take_while(fits).collect()
}

fn place_of(node: &str, places: usize) -> usize {
    let mut hasher = FxHasher::default();
    hasher.write(node.as_bytes());
    let places = u64::try_from(places.max(1)).unwrap_or(u64::MAX);
    usize::try_from(hasher.finish() % places).unwrap_or_default()
}

/// The beginning of a message, which may repeat what a tenant wrote.
fn shortened(message: &str) -> String {
    let end = message.floor_char_boundary(MESSAGE);
    if end < message.len() { format!("{}…", &message[..end]) } else { message.to_owned() }
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
    use energy_model::power_report::MOST_BYTES;

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
        let namespaces = std::iter::once("ml".into()).collect();
        let status = CappingStatus { node, levels, policies, problems, namespaces, ..CappingStatus::default() };
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

    /// A refusal of an object with the longest name that there is.
    fn refusal(namespace: &str, number: usize) -> Problem {
        let name = format!("{number:0>253}");
        let policy = Some(named(Authority::Tenant, namespace, &name));
        let place = DocumentPlace::Object { kind: "PowerCappingPolicy", namespace: namespace.to_owned(), name };
        Problem { policy, place, message: "\"no\" ".repeat(1000), kept: false }
    }

    #[test]
    fn a_tenant_with_hundreds_of_objects_neither_silences_a_node_nor_hides_what_others_are_told() {
        let mut snapshot = snapshot();
        let mut status = CappingStatus::clone(snapshot.capping.as_ref().unwrap());
        let long = "x".repeat(63);
        status.namespaces = [long.as_str(), "ml", "other"].into_iter().map(Arc::from).collect();
        status.problems.extend((0..500).map(|number| refusal(&long, number)));
        // Not of this node, which has no pod there.
        status.problems.extend((0..500).map(|number| refusal("elsewhere", number)));
        let deciding = |namespace: &str, number: usize| {
            let name = named(Authority::Tenant, namespace, &format!("{number:0>253}"));
            policy(name, 1, range(100.0, None), SubjectState::Capping)
        };
        status.policies.extend((0..500).map(|number| deciding(&long, 500 + number)));
        status.policies.push(deciding("other", 7));
        snapshot.capping = Some(Arc::new(status.clone()));
        let report = report(&snapshot, &status);
        // Not even half of what a controller takes.
        assert!(serde_json::to_vec(&report).unwrap().len() < MOST_BYTES / 2);
        let has = |namespace: &str, is_refused: bool| {
            let of = report.policies.iter().filter(|policy| policy.namespace == namespace);
            of.filter(|policy| policy.refused.is_some() == is_refused).count()
        };
        assert_eq!((has("ml", false), has("ml", true), has("other", false), has("elsewhere", true)), (1, 1, 1, 0));
        assert_eq!(has(&long, true), MOST_REFUSED - 1);
        assert!(has(&long, false) > 100);
        // Other nodes tell others of them.
        let names = |node: &str| {
            let refused = policies(&status, node).into_iter().filter(|policy| policy.refused.is_some());
            refused.map(|policy| policy.name).collect::<Vec<_>>()
        };
        assert!(names("n1") == names("n1") && names("n1") != names("n2"));
    }

    #[test]
    fn a_node_that_follows_no_objects_has_no_report() {
        assert_eq!(answer(&snapshot(), false).status(), StatusCode::NOT_FOUND);
        assert_eq!(answer(&Snapshot::empty("n1"), true).status(), StatusCode::NOT_FOUND);
        assert_eq!(answer(&snapshot(), true).status(), StatusCode::OK);
    }
}
