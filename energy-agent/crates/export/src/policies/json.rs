//! The JSON form. Base units as in metrics: watts, joules, seconds, hertz, CPUs; what is not known is `null`.
//!
//! Written by hand, not derived: clients read these names and units, and they stay when those of the status change.

use std::time::UNIX_EPOCH;

use energy_model::capping::knob::Knob;
use energy_model::capping::policy::{Authority, PolicyName};
use energy_model::capping::quantity::Quantity;
use energy_model::capping::status::SourceState;
use energy_model::capping::status::{
    CapStatus, CappingStatus, Conflict, LevelRange, PodId, PolicyStatus, Problem, SubjectStatus,
};
use energy_model::snapshot::Snapshot;
use energy_model::units::{Watts, ratio};
use serde_json::{Value, json};

pub fn document(snapshot: &Snapshot, status: &CappingStatus) -> Value {
    let CappingStatus { policies, caps, problems, sources, restore_pending, restore_failures, .. } = status;
    json!({
        "node": *snapshot.node,
        "timestamp_seconds": snapshot.taken.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        "policies": policies.iter().map(policy).collect::<Vec<_>>(),
        "limits": caps.iter().map(cap).collect::<Vec<_>>(),
        "problems": problems.iter().map(problem).collect::<Vec<_>>(),
        "sources": sources.iter().map(source).collect::<Vec<_>>(),
        "restore_pending": restore_pending,
        "restore_failures": restore_failures,
    })
}

fn policy(policy: &PolicyStatus) -> Value {
    let PolicyStatus { name, mode, scope, source, pods: _, range, subjects, lost } = policy;
    let PolicyName { authority, namespace, name } = name;
    json!({
        "authority": authority.as_str(),
        "namespace": **namespace,
        "name": **name,
        "mode": mode.as_str(),
        "scope": scope.as_str(),
        "source": **source,
        "range": range.map(|LevelRange { floor, most, limit }| json!({
            "floor_watts": floor.0, "most_watts": most.0, "limit_watts": limit.map(|limit| limit.0),
        })),
        "subjects": subjects.iter().map(subject).collect::<Vec<_>>(),
        "conflicts": lost.iter().map(conflict).collect::<Vec<_>>(),
    })
}

fn subject(subject: &SubjectStatus) -> Value {
    let SubjectStatus { pod, state, reason, budget, power, ceiling, over_budget, over_budget_uj, knobs } = subject;
    let limit = |knob: &Knob| json!({"actuator": knob.actuator(), "device": knob.device()});
    json!({
        "pod": pod.as_ref().map(pod_id),
        "state": state.as_str(),
        "reason": reason,
        "budget_watts": watts(*budget),
        "power_watts": watts(*power),
        "headroom_watts": watts(subject.headroom()),
        "ceiling_ratio": ceiling,
        "over_budget_seconds": over_budget.as_secs_f64(),
        "over_budget_joules": ratio(*over_budget_uj, 1_000_000),
        "limits": knobs.iter().map(limit).collect::<Vec<_>>(),
    })
}

fn cap(cap: &CapStatus) -> Value {
    let CapStatus { knob, state, wanted, found, original, policy, clamped, detail, writes } = cap;
    let number = |value: &Option<u64>| value.map(|value| number(Quantity::of(knob, value)));
    json!({
        "actuator": knob.actuator(),
        "device": knob.device(),
        "unit": Quantity::of(knob, 0).unit(),
        "state": state.as_str(),
        "policy": policy.as_ref().map(policy_name),
        "wanted": number(wanted),
        "found": number(found),
        "original": number(original),
        "clamped": clamped,
        "detail": detail,
        "writes": writes.by_result().into_iter().map(|(result, count)| (result, json!(count))).collect::<Value>(),
    })
}

fn problem(problem: &Problem) -> Value {
    let Problem { policy, place, message, kept } = problem;
    json!({"policy": policy.as_ref().map(policy_name), "source": place.to_string(), "message": message, "kept": kept})
}

fn source(state: &SourceState) -> Value {
    let SourceState { source, up, reason, detail } = state;
    json!({"source": **source, "up": up, "reason": reason.as_str(), "detail": detail})
}

fn conflict(conflict: &Conflict) -> Value {
    let Conflict { pod, component, winner } = conflict;
    json!({"pod": pod_id(pod), "component": component.as_str(), "winner": policy_name(winner)})
}

fn pod_id(pod: &PodId) -> Value {
    let PodId { uid, namespace, name } = pod;
    json!({"uid": **uid, "namespace": **namespace, "name": **name})
}

fn policy_name(policy: &PolicyName) -> Value {
    let PolicyName { authority, namespace, name } = policy;
    let mut policy = json!({"namespace": **namespace, "name": **name});
    if *authority != Authority::Admin {
        policy["authority"] = json!(authority.as_str());
    }
    policy
}

fn watts(power: Option<Watts>) -> Option<f64> {
    power.map(|Watts(watts)| watts)
}

fn number(quantity: Quantity) -> Value {
    match quantity {
        Quantity::Hertz(hertz) => json!(hertz),
        Quantity::Power(Watts(watts)) => json!(watts),
        Quantity::Cpus(cpus) => json!(cpus),
    }
}
