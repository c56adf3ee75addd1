//! The GPUs that a run held, what they were busy with, and the limits that were in force.

use std::collections::BTreeMap;

use super::{Ask, Times};
use crate::run::{Gpu, GpuUse, Limit, MeanMax, SubjectKind};
use crate::samples::{Labels, RawSeries, Samples};

pub(super) const UTILIZATION: &str = "energy_agent_node_gpu_utilization_ratio";
pub(super) const MEMORY_UTILIZATION: &str = "energy_agent_node_gpu_memory_utilization_ratio";
pub(super) const TEMPERATURE: &str = "energy_agent_node_gpu_temperature_celsius";
pub(super) const CLOCK: &str = "energy_agent_node_gpu_sm_clock_hertz";
pub(super) const WATTS: &str = "kepler_node_gpu_watts";
const POWER_LIMIT: &str = "energy_agent_node_gpu_power_limit_watts";
/// Which GPU a pod held; one series for each GPU and container.
pub(super) const HOLDER: &str = "energy_agent_gpu_holder_info";
pub(super) const LIMIT_HERTZ: &str = "energy_agent_cap_limit_hertz";
pub(super) const LIMIT_WATTS: &str = "energy_agent_cap_limit_watts";
const LIMIT_CPUS: &str = "energy_agent_cap_limit_cpus";

/// Of the GPUs of a node, and of its limits.
pub(super) const METRICS: [&str; 9] =
    [UTILIZATION, MEMORY_UTILIZATION, TEMPERATURE, CLOCK, WATTS, POWER_LIMIT, LIMIT_HERTZ, LIMIT_WATTS, LIMIT_CPUS];

/// A GPU that the run held.
pub(super) struct Held {
    /// As the node counts its GPUs.
    pub index: String,
    /// When it was held.
    pub from: f64,
    pub to: f64,
    pub used: GpuUse,
}

pub(super) fn held(samples: &Samples, ask: &Ask, times: &Times, nodes: &[String]) -> Vec<Held> {
    let of_node = ask.subject.kind == SubjectKind::Node;
    let mut found: BTreeMap<(String, String), (String, f64, f64)> = BTreeMap::new();
    for series in samples.of(if of_node { "kepler_node_gpu_info" } else { HOLDER }) {
        let (node, uuid) = (series.label("node_name"), series.label("gpu_uuid"));
        // The label of the node is missing where the metric has none.
        if uuid.is_empty() || !(node.is_empty() || nodes.iter().any(|name| name == node)) {
            continue;
        }
        let within =
            series.points.iter().map(|(at, _)| *at).filter(|at| *at >= times.start - 1.0 && *at <= times.end + 1.0);
        let (from, to) = within.fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), at| (from.min(at), to.max(at)));
        if from > to {
            continue;
        }
        let entry =
            found.entry((node.to_owned(), uuid.to_owned())).or_insert((series.label("gpu").to_owned(), from, to));
        (entry.1, entry.2) = (entry.1.min(from), entry.2.max(to));
    }
    let held = |((node, uuid), (index, from, to)): ((String, String), (String, f64, f64))| {
        let mean_max = |metric: &str| mean_max(&gauge(samples, metric, &uuid, from, to));
        let used = GpuUse {
            uuid: uuid.clone(),
            node,
            utilization: mean_max(UTILIZATION),
            memory_utilization: mean_max(MEMORY_UTILIZATION),
            celsius: mean_max(TEMPERATURE),
            clock_hertz: mean_max(CLOCK),
        };
        Held { index, from, to, used }
    };
    found.into_iter().map(held).collect()
}

/// The values of a GPU's gauge, whoever read them.
pub(super) fn gauge(samples: &Samples, metric: &str, uuid: &str, from: f64, to: f64) -> Vec<(f64, f64)> {
    let of_gpu = samples.of(metric).into_iter().filter(|series| series.label("gpu_uuid") == uuid);
    merged(of_gpu, from, to)
}

fn merged(series: impl Iterator<Item = RawSeries>, from: f64, to: f64) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = series.flat_map(|series| series.points).collect();
    points.retain(|(at, _)| *at >= from && *at <= to);
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn mean_max(points: &[(f64, f64)]) -> Option<MeanMax> {
    let max = points.iter().map(|(_, value)| *value).max_by(f64::total_cmp)?;
    let sum: f64 = points.iter().map(|(_, value)| value).sum();
    Some(MeanMax { mean: sum / crate::number::count(points.len()), max })
}

/// What a node tells of its GPUs.
pub(super) fn of_node(samples: &Samples, node: &str) -> Vec<Gpu> {
    let info = samples.of("kepler_node_gpu_info");
    let gpu = |series: &RawSeries| Gpu {
        uuid: series.label("gpu_uuid").to_owned(),
        index: series.label("gpu").parse().unwrap_or_default(),
        model: Some(series.label("gpu_name").to_owned()).filter(|name| !name.is_empty()),
    };
    let mut gpus: Vec<Gpu> = info.iter().filter(|series| series.label("node_name") == node).map(gpu).collect();
    gpus.sort_by(|a, b| (a.index, &a.uuid).cmp(&(b.index, &b.uuid)));
    gpus.dedup();
    gpus
}

/// A limit of a policy over time: what it is of, the policy, and its values.
pub(super) struct PolicyLimit {
    pub labels: Labels,
    pub points: Vec<(f64, f64)>,
}

/// The limits of policies on what the run held: its GPUs, its nodes' clocks and power, the quotas of its pods.
pub(super) fn policy_limits(
    samples: &Samples,
    metric: &str,
    ask: &Ask,
    times: &Times,
    held: &[Held],
    nodes: &[String],
) -> Vec<PolicyLimit> {
    let mut found: BTreeMap<Labels, Vec<RawSeries>> = BTreeMap::new();
    let uids: Vec<String> = ask.pods.iter().flat_map(|uid| [uid.clone(), uid.replace('-', "_")]).collect();
    for series in samples.of(metric) {
        let device = series.label("device");
        let concerns = match series.label("actuator") {
            "cpu_quota" => uids.iter().any(|uid| device.contains(uid.as_str())),
            "cpu_frequency" | "rapl_limit" => nodes.iter().any(|node| node == series.label("node_name")),
            _ => held.iter().any(|held| held.used.uuid == device),
        };
        if concerns {
            let own = ["actuator", "device", "policy", "policy_namespace", "node_name"];
            let labels = series.labels.iter().filter(|(name, _)| own.contains(&name.as_str()));
            let labels = labels.map(|(name, value)| (name.clone(), value.clone())).collect();
            found.entry(labels).or_default().push(series);
        }
    }
    let limits = found.into_iter().map(|(labels, series)| PolicyLimit {
        labels,
        points: merged(series.into_iter(), times.start, times.end + 1.0),
    });
    limits.filter(|limit| !limit.points.is_empty()).collect()
}

/// The lowest value of each limit that was in force.
pub(super) fn limits(samples: &Samples, ask: &Ask, times: &Times, held: &[Held], nodes: &[String]) -> Vec<Limit> {
    let mut limits = Vec::new();
    for (metric, unit) in [(LIMIT_HERTZ, "Hz"), (LIMIT_WATTS, "W"), (LIMIT_CPUS, "CPUs")] {
        for PolicyLimit { labels, points } in policy_limits(samples, metric, ask, times, held, nodes) {
            let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
            let (namespace, policy) = (label("policy_namespace"), label("policy"));
            limits.push(Limit {
                policy: if namespace.is_empty() { policy } else { format!("{namespace}/{policy}") },
                what: format!("{} {}", label("device"), label("actuator")),
                value: points.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min),
                unit: unit.to_owned(),
            });
        }
    }
    for held in held {
        let points = gauge(samples, POWER_LIMIT, &held.used.uuid, held.from, held.to);
        if let Some(value) = points.iter().map(|(_, value)| *value).min_by(f64::total_cmp) {
            let what = format!("{} power limit of the driver", held.used.uuid);
            limits.push(Limit { policy: String::new(), what, value, unit: "W".to_owned() });
        }
    }
    limits
}
