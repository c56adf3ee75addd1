//! The curves of a run's page.

use super::gpus::{self, Held, PolicyLimit};
use super::{Ask, Times, Used};
use crate::energy::Sum;
use crate::number::count;
use crate::run::{Panel, Series, SeriesKind, SubjectKind};
use crate::samples::Samples;

/// Points that a curve has at most.
const MOST: usize = 1000;

pub(super) fn curves(
    samples: &Samples,
    ask: &Ask,
    times: &Times,
    cpu: &[Used],
    charged: &[(f64, f64)],
    held: &[Held],
    nodes: &[String],
) -> Vec<Series> {
    let mut curves = Vec::new();
    let mut add = |panel: Panel, kind: SeriesKind, label: String, node: &str, points: Vec<(f64, f64)>| {
        if !points.is_empty() {
            let node = if nodes.len() > 1 { node.to_owned() } else { String::new() };
            curves.push(Series { panel, label, node, kind, points: thinned(&points) });
        }
    };
    let gauges = [
        (Panel::GpuUtilization, gpus::UTILIZATION),
        (Panel::GpuTemperature, gpus::TEMPERATURE),
        (Panel::GpuMemoryUtilization, gpus::MEMORY_UTILIZATION),
        (Panel::GpuPower, gpus::WATTS),
        (Panel::Clock, gpus::CLOCK),
    ];
    for (panel, metric) in gauges {
        for held in held {
            let points = gpus::gauge(samples, metric, &held.used.uuid, held.from, held.to);
            add(panel, SeriesKind::Reading, format!("GPU {}", held.index), &held.used.node, points);
        }
    }
    if ask.subject.kind != SubjectKind::Node {
        add(Panel::GpuPower, SeriesKind::Mean, "charged to it".to_owned(), "", charged.to_vec());
    }
    for zone in ["package", "dram"] {
        for estimated in [false, true] {
            let of_zone = cpu.iter().filter(|used| {
                used.counter.label("zone") == zone && (used.counter.label("source") == "estimate") == estimated
            });
            let sum = Sum { counted: of_zone.map(|used| &used.counted).collect() };
            let label = if estimated { format!("{zone} (estimated)") } else { zone.to_owned() };
            add(Panel::CpuPower, SeriesKind::Mean, label, "", watts(&sum));
        }
    }
    for (panel, metric) in [(Panel::GpuPower, gpus::LIMIT_WATTS), (Panel::Clock, gpus::LIMIT_HERTZ)] {
        for PolicyLimit { labels, points } in gpus::policy_limits(samples, metric, ask, times, held, nodes) {
            let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
            if label("actuator") == "rapl_limit" {
                continue;
            }
            let device = label("device");
            let index = held.iter().find(|held| held.used.uuid == device).map(|held| format!("GPU {}", held.index));
            let device = index.unwrap_or_else(|| format!("CPU {device}"));
            let name = format!("{device} limit ({})", label("policy"));
            add(panel, SeriesKind::Limit, name, &label("node_name"), points);
        }
    }
    curves
}

/// Microjoules per second as watts.
fn watts(sum: &Sum<'_>) -> Vec<(f64, f64)> {
    sum.rates().into_iter().map(|(at, rate)| (at, rate / 1e6)).collect()
}

/// Means of as many points at a time as leave at most [`MOST`].
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let many = points.len().div_ceil(MOST).max(1);
    let mean = |part: &[(f64, f64)]| {
        let (at, value) = part.iter().fold((0.0, 0.0), |(at, value), point| (at + point.0, value + point.1));
        (at / count(part.len()), value / count(part.len()))
    };
    if many == 1 { points.to_vec() } else { points.chunks(many).map(mean).collect() }
}
