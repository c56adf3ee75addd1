//! The status of a NodeFrequencies object: what its node draws, may draw and is limited by, and whether the clocks that
//! recommenders ask for are in force.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use energy_model::power_report::{GpuReport, PowerReport};
use energy_model::resources::condition::Condition;
use energy_model::resources::node_frequencies::{
    GpuFrequencyStatus, KIND, NodeFrequenciesSpec, NodeFrequenciesStatus, PLURAL,
};
use energy_model::resources::object::KubeObject;

use super::fleet::{Fleet, NodeState};
use super::sources::ObjectsByKey;
use super::statuses::{StatusDraft, StatusPace, condition, number, whole};

const FIELDS: [&str; 8] =
    ["reportTime", "watts", "limitWatts", "limitedBy", "floorWatts", "mostWatts", "model", "gpuFrequencies"];
/// As the definition has it.
const MOST_GPUS: usize = 64;

/// How all nodes with such an object stand after a round.
pub fn drafts(objects: &ObjectsByKey, fleet: &Fleet, wall: SystemTime) -> Vec<StatusDraft> {
    let of = |object: &Arc<KubeObject>| draft(object, fleet.node(&object.metadata.name), wall);
    objects.values().map(of).collect()
}

fn draft(object: &Arc<KubeObject>, node: Option<&NodeState>, wall: SystemTime) -> StatusDraft {
    let time = humantime::format_rfc3339_seconds(wall).to_string();
    let report = node.and_then(|node| node.heard.as_ref()).map(|heard| &heard.report);
    let conditions = vec![applied(object, node, report, wall, &time)];
    let status = match report {
        Some(report) => status(object, report, &time, conditions),
        None => NodeFrequenciesStatus {
            observed_generation: object.metadata.generation,
            conditions,
            ..NodeFrequenciesStatus::default()
        },
    };
    let before: NodeFrequenciesStatus = serde_json::from_value(object.status.clone()).unwrap_or_default();
    let state = |status: &NodeFrequenciesStatus| {
        let limits: Vec<_> =
            status.gpu_frequencies.iter().map(|gpu| (gpu.uuid.clone(), gpu.ceiling_frequency)).collect();
        (status.limited_by.clone(), status.limit_watts.is_some(), status.gpus, status.lowered_gpus, limits)
    };
    StatusDraft {
        is_other: state(&before) != state(&status),
        pace: StatusPace::Node,
        ..StatusDraft::new(object, KIND, PLURAL, &status, &FIELDS, &status.conditions)
    }
}

fn status(object: &KubeObject, report: &PowerReport, time: &str, conditions: Vec<Condition>) -> NodeFrequenciesStatus {
    let gpu = |gpu: &GpuReport| GpuFrequencyStatus {
        uuid: gpu.uuid.clone(),
        ceiling_frequency: gpu.ceiling_mhz,
        graphics_frequency: gpu.clock_mhz,
        limited_by: gpu.limited_by.clone(),
    };
    let models: BTreeSet<&str> = report.gpus.iter().map(|gpu| gpu.model.as_str()).collect();
    let models: String = models.into_iter().collect::<Vec<_>>().join(", ").chars().take(256).collect();
    NodeFrequenciesStatus {
        observed_generation: object.metadata.generation,
        report_time: Some(time.to_owned()),
        watts: report.watts.map(whole),
        limit_watts: report.limit_watts.map(whole),
        limited_by: report.limited_by.as_ref().map(|budget| format!("budget {budget}")),
        floor_watts: Some(whole(report.floor_watts)),
        most_watts: Some(whole(report.most_watts)),
        model: (!models.is_empty()).then_some(models),
        gpus: number(report.gpus.len()),
        lowered_gpus: number(report.gpus.iter().filter(|gpu| gpu.lowered).count()),
        gpu_frequencies: report.gpus.iter().take(MOST_GPUS).map(gpu).collect(),
        conditions,
    }
}

/// Whether each clock that is asked for and has not expired is in force.
fn applied(
    object: &KubeObject,
    node: Option<&NodeState>,
    report: Option<&PowerReport>,
    wall: SystemTime,
    time: &str,
) -> Condition {
    let say = |is: bool, reason: &str, message: String| condition(object, "Applied", is, reason, message, time);
    let (Some(node), Some(report)) = (node, report) else {
        let why = node.map_or("no node has this name", |_| "its agent was not heard");
        return say(false, "NoReport", why.to_owned());
    };
    if let Some(trouble) = &node.trouble {
        return say(false, "NoReport", trouble.to_string());
    }
    if let Some(refusal) = &report.frequencies_refused {
        return say(false, "Refused", refusal.clone());
    }
    let spec: NodeFrequenciesSpec = match object.spec() {
        Ok(spec) => spec,
        Err(_) if object.spec.is_null() => NodeFrequenciesSpec::default(),
        Err(refusal) => return say(false, "Refused", refusal),
    };
    let holds = |time: &Option<String>| {
        let time = time.as_deref().map(str::parse::<k8s_openapi::jiff::Timestamp>);
        time.is_none_or(|time| time.is_ok_and(|time| wall < SystemTime::from(time)))
    };
    let (mut asked, mut missing) = (0_u32, Vec::new());
    for bound in spec.gpu_frequencies.iter().filter(|bound| holds(&bound.expiration_time)) {
        asked += 1;
        let gpu = report.gpus.iter().find(|gpu| gpu.uuid == bound.uuid);
        let ceiling = gpu.and_then(|gpu| gpu.ceiling_mhz);
        if ceiling.is_none_or(|ceiling| ceiling > bound.graphics_frequency) {
            missing.push(match (gpu, ceiling) {
                (None, _) => format!("{} is not on this node", bound.uuid),
                (Some(_), None) => format!("{} is not limited", bound.uuid),
                (Some(_), Some(ceiling)) => format!("{} is held at {ceiling} MHz", bound.uuid),
            });
        }
    }
    for bound in spec.cpu_frequencies.iter().filter(|bound| holds(&bound.expiration_time)) {
        asked += 1;
        let core = report.cpus.iter().find(|core| core.core_id == bound.core_id);
        if core.is_none_or(|core| core.ceiling_mhz > bound.frequency) {
            missing.push(format!("core {} is not limited so far", bound.core_id));
        }
    }
    if asked == 0 {
        return say(true, "NothingAsked", "no clock is asked for that has not expired".to_owned());
    }
    if missing.is_empty() {
        return say(true, "Followed", format!("{asked} clocks"));
    }
    let why = "a policy with algorithm external has to decide about the pods there, and floors hold";
    say(false, "NotFollowed", format!("{}: {why}", missing.join("; ")))
}
