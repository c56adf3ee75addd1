//! Samples of one subject into its run: energy by part, GPUs that it held, limits, curves, and what a reader has to know.

mod curves;
mod gpus;
mod powers;

use std::collections::BTreeMap;

use self::powers::{Late, Powers, charged};
use crate::energy::peak::peak;
use crate::energy::{Began, Counted, Window, count};
use crate::number::{duration, float};
use crate::run::{API_VERSION, Energy, Measured, MeasuredBy, Node, Part, PodPart, Run, Subject, SubjectKind, Warning};
use crate::samples::{Counter, INTERVAL, Pages, Samples};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The name of the run.
    pub id: String,
    pub subject: Subject,
    pub by: MeasuredBy,
    pub window: Window,
    /// Uids of the subject's pods.
    pub pods: Vec<String>,
    /// When the workload ran, where somebody knows better than its samples.
    pub ran: Option<(f64, f64)>,
}

/// The metrics of a kind of subject.
struct Names {
    cpu: &'static str,
    cpu_watts: &'static str,
    gpu: &'static str,
    gpu_watts: &'static str,
    idle: Option<&'static str>,
    seconds: Option<&'static str>,
}

const POD: Names = Names {
    cpu: "kepler_pod_cpu_joules_total",
    cpu_watts: "kepler_pod_cpu_watts",
    gpu: "kepler_pod_gpu_joules_total",
    gpu_watts: "kepler_pod_gpu_watts",
    idle: Some("energy_agent_pod_idle_joules_total"),
    seconds: Some("energy_agent_pod_cpu_seconds_total"),
};
const UNIT: Names = Names {
    cpu: "energy_agent_system_cpu_joules_total",
    cpu_watts: "energy_agent_system_cpu_watts",
    gpu: "energy_agent_system_gpu_joules_total",
    gpu_watts: "energy_agent_system_gpu_watts",
    idle: None,
    seconds: Some("energy_agent_system_cpu_seconds_total"),
};
const NODE: Names = Names {
    cpu: "kepler_node_cpu_joules_total",
    cpu_watts: "kepler_node_cpu_watts",
    gpu: "kepler_node_gpu_joules_total",
    gpu_watts: gpus::WATTS,
    idle: None,
    seconds: None,
};

const fn names(kind: SubjectKind) -> Names {
    match kind {
        SubjectKind::Node => NODE,
        SubjectKind::Unit => UNIT,
        _ => POD,
    }
}

/// The metrics that are read of a subject of this kind, each once.
#[must_use]
pub fn subject_metrics(kind: SubjectKind) -> Vec<&'static str> {
    let Names { cpu, cpu_watts, gpu, gpu_watts, idle, seconds } = names(kind);
    let holder = matches!(kind, SubjectKind::Pod | SubjectKind::Job | SubjectKind::Namespace).then_some(gpus::HOLDER);
    [Some(cpu), Some(cpu_watts), Some(gpu), Some(gpu_watts), idle, seconds, holder].into_iter().flatten().collect()
}

/// The metrics that are read of the subject's nodes.
#[must_use]
pub fn node_metrics() -> Vec<&'static str> {
    let mut names =
        vec![NODE.cpu, NODE.cpu_watts, NODE.gpu, "kepler_build_info", "kepler_node_cpu_info", "kepler_node_gpu_info"];
    names.extend(gpus::METRICS);
    names
}

/// The metrics that an agent has without the label of its node.
#[must_use]
pub const fn agent_metrics() -> [&'static str; 4] {
    [crate::samples::START, crate::samples::LAST_TICK, INTERVAL, "energy_agent_attribution_info"]
}

/// A counter that counted something in the window.
struct Used {
    counter: Counter,
    counted: Counted,
}

/// `None`: no sample of the subject in the window.
#[must_use]
pub fn run(samples: &Samples, ask: &Ask) -> Option<Run> {
    let pages = Pages::of(samples);
    let used = |name: &str, window: Window| -> Vec<Used> {
        let counters = pages.counters(samples, name).into_iter();
        let counted = counters.filter_map(|counter| {
            let counted = count(&counter, window)?;
            Some(Used { counter, counted })
        });
        counted.collect()
    };
    let Names { cpu, cpu_watts, gpu, gpu_watts, idle, seconds } = names(ask.subject.kind);
    // Another exporter may use the names of Kepler; ours has the label source.
    let ours = |used: &Used| !used.counter.label("source").is_empty();
    let of = |name: &str| used(name, ask.window).into_iter().filter(ours).collect::<Vec<_>>();
    let parts = [of(cpu), of(gpu), idle.map(of).unwrap_or_default()];
    let all: Vec<&Used> = parts.iter().flatten().collect();
    let seconds = seconds.map(|name| used(name, ask.window)).unwrap_or_default();
    if all.is_empty() && seconds.is_empty() {
        return None;
    }
    let sights: Vec<&Counted> = all.iter().copied().chain(&seconds).map(|used| &used.counted).collect();
    let times = Times::of(&sights, ask);
    let late = Late::of(samples, times.interval);
    let [cpu_powers, gpu_powers, none] =
        [Some(cpu_watts), Some(gpu_watts), None].map(|metric| Powers::of(samples, metric));
    let mut energy = Vec::new();
    let by_part = [Part::Package, Part::Gpu, Part::Idle].into_iter().zip(&parts);
    for ((part, used), powers) in by_part.zip([&cpu_powers, &gpu_powers, &none]) {
        energy.extend(energies(part, used, powers, ask.window, &late));
    }
    energy.sort_by(|a, b| (a.part, &a.node, &a.zone, &a.source).cmp(&(b.part, &b.node, &b.zone, &b.source)));
    let nodes = node_names(&all, &seconds);
    let meanwhile = Window { from: times.start, to: times.end };
    let node_energy = if ask.subject.kind == SubjectKind::Node {
        Vec::new()
    } else {
        let of_node = |part: Part, counters: &str, watts: &str| {
            let used: Vec<Used> = used(counters, meanwhile).into_iter().filter(ours).collect();
            energies(part, &used, &Powers::of(samples, Some(watts)), meanwhile, &late)
        };
        let mut node_energy = of_node(Part::Package, NODE.cpu, NODE.cpu_watts);
        node_energy.extend(of_node(Part::Gpu, NODE.gpu, NODE.gpu_watts));
        node_energy.retain(|energy| nodes.contains(&energy.node));
        node_energy
    };
    let held = gpus::held(samples, ask, &times, &nodes);
    let mut warnings = times.warnings.clone();
    if energy.iter().any(|energy| energy.estimated) {
        let message = "Estimated energy is from a model of the CPU's load, not from a meter; `energy-agent doctor` on the \
                       node says what is missing.";
        warnings.push(Warning { code: "estimated".to_owned(), message: message.to_owned() });
    }
    Some(Run {
        api_version: API_VERSION.to_owned(),
        id: ask.id.clone(),
        subject: ask.subject.clone(),
        work: None,
        labels: BTreeMap::new(),
        nodes: described(samples, &nodes),
        measured: Measured {
            by: ask.by,
            interval_seconds: times.interval,
            coverage: times.coverage,
            attribution: attribution(samples),
        },
        start: times.start,
        end: times.end,
        waited: None,
        cpu_seconds: (!seconds.is_empty()).then(|| float(seconds.iter().map(|used| used.counted.total).sum()) / 1e6),
        node_energy,
        series: curves::curves(
            samples,
            ask,
            &times,
            &parts[0],
            &charged(&parts[1], &gpu_powers, ask.window, &late),
            &held,
            &nodes,
        ),
        limits: gpus::limits(samples, ask, &times, &held, &nodes),
        gpus: held.iter().map(|held| held.used.clone()).collect(),
        pods: if ask.subject.kind == SubjectKind::Node || ask.subject.kind == SubjectKind::Unit {
            Vec::new()
        } else {
            pods(samples, cpu, &all, ask)
        },
        energy,
        outcome: None,
        warnings,
        prices: None,
    })
}

/// When the subject ran, and how much of it was seen.
struct Times {
    start: f64,
    end: f64,
    interval: f64,
    coverage: f64,
    warnings: Vec<Warning>,
}

impl Times {
    fn of(sights: &[&Counted], ask: &Ask) -> Self {
        let mut warnings = Vec::new();
        let mut warn = |code: &str, message: String| {
            warnings.push(Warning { code: code.to_owned(), message });
        };
        let longest = |of: fn(&Counted) -> f64| sights.iter().map(|counted| of(counted)).fold(0.0, f64::max);
        let earliest = |times: &mut dyn Iterator<Item = f64>| times.fold(f64::INFINITY, f64::min);
        let latest = |times: &mut dyn Iterator<Item = f64>| times.fold(f64::NEG_INFINITY, f64::max);
        let (interval, unseen) = (longest(|counted| counted.interval), longest(|counted| counted.unseen));
        let last = latest(&mut sights.iter().map(|counted| counted.last));

        let begin = |counted: &&Counted| match counted.began {
            Began::Within(from, _) => from.max(ask.window.from),
            Began::AtSample | Began::Lost => ask.window.from,
        };
        let start = earliest(&mut sights.iter().map(begin));
        // Counters that ended, such as those of a job's former pods, end the run only if all have.
        let ends: Vec<f64> = sights.iter().filter_map(|counted| counted.ended).collect();
        let all_ended = sights.iter().all(|counted| counted.ended.is_some());
        let gone =
            |counted: &&&Counted| counted.ended.is_none() && counted.vanished.is_some_and(|at| at > counted.last);
        let vanished: Vec<&Counted> = sights.iter().filter(gone).copied().collect();
        let (mut end, mut lost_at_end) = (last, 0.0);
        if all_ended {
            end = latest(&mut ends.iter().copied());
        } else if ask.window.to - last > 2.0 * interval.max(1.0) && vanished.is_empty() {
            // No page at all came after it: it may have gone on.
            end = ask.window.to;
            lost_at_end = ask.window.to - last;
            warn(
                "end_not_seen",
                format!("No agent was seen in the last {}; what was used then is not counted.", duration(lost_at_end)),
            );
        }
        for counted in &vanished {
            lost_at_end = f64::max(lost_at_end, counted.vanished.unwrap_or(counted.last) - counted.last);
        }
        if let Some(lost) = vanished.first().and(Some(lost_at_end)) {
            warn(
                "end_not_seen",
                format!(
                    "The last total was not seen: up to {} at the end are missing. The agent keeps ended workloads for \
                     --export.terminated-retention; Prometheus has to scrape within it.",
                    duration(lost)
                ),
            );
        }
        let restarts = sights.iter().map(|counted| counted.restarts).max().unwrap_or_default();
        if restarts > 0 {
            let unseen = longest(|counted| counted.longest_unseen);
            warn(
                "agent_restarted",
                format!(
                    "The counter began again at 0 {restarts} time{}, as the agent or the unit restarted; the longest time that \
                     nobody saw is {}.",
                    if restarts == 1 { "" } else { "s" },
                    duration(unseen)
                ),
            );
        }
        if sights.iter().any(|counted| counted.began == Began::Lost) {
            warn(
                "began_before",
                "The first sample already shows energy, and when it was used is not known; it is left out.".to_owned(),
            );
        } else if ask.ran.is_none()
            && !matches!(ask.subject.kind, SubjectKind::Node | SubjectKind::Unit | SubjectKind::Namespace)
            && ask.by == MeasuredBy::Prometheus
            && sights.iter().any(|counted| counted.began == Began::AtSample)
        {
            warn("began_before", "It ran before --from; an earlier --from counts more of it.".to_owned());
        }
        let (start, end) = ask.ran.unwrap_or((start, end));
        let length = end - start;
        if ask.ran.is_none() && length < 2.0 * interval && !matches!(ask.subject.kind, SubjectKind::Node) {
            warn(
                "short_for_readings",
                format!(
                    "It ran for about one reading or less ({}): the energy is whole, its time and mean power are rough.",
                    duration(interval)
                ),
            );
        }
        let lost = unseen + lost_at_end;
        let coverage = if length > 0.0 { (1.0 - lost / length).clamp(0.0, 1.0) } else { 1.0 };
        Self { start, end, interval, coverage, warnings }
    }
}

/// The energy of a part by zone and source; of the CPU's zones only package and DRAM are parts that add up.
fn energies(part: Part, used: &[Used], powers: &Powers, window: Window, late: &Late) -> Vec<Energy> {
    let mut groups: BTreeMap<(Part, String, String, String), Vec<&Used>> = BTreeMap::new();
    for one in used {
        let label = |name: &str| one.counter.label(name);
        let kind = match (part, label("zone")) {
            (Part::Package, "package") => Part::Package,
            (Part::Package, "dram") => Part::Dram,
            (Part::Package, _) => Part::Other,
            (part, _) => part,
        };
        let place = ["socket", "die"].map(label).into_iter().filter(|place| !place.is_empty());
        let zone = match (part, label("zone"), label("gpu_uuid")) {
            (Part::Gpu, _, "") => "gpu".to_owned(),
            (Part::Gpu, _, uuid) => uuid.to_owned(),
            (_, zone, _) => std::iter::once(zone).chain(place).collect::<Vec<_>>().join("-"),
        };
        let key = (kind, label("node_name").to_owned(), zone, label("source").to_owned());
        groups.entry(key).or_default().push(one);
    }
    let energy = |((part, node, zone, source), group): ((Part, String, String, String), Vec<&Used>)| {
        let counted: Vec<&Counted> = group.iter().map(|used| &used.counted).collect();
        let late = if part == Part::Gpu { late.gpu } else { late.cpu };
        let own = powers.sums(&group.iter().map(|used| &used.counter).collect::<Vec<_>>(), window);
        let of_counters = peak(&counted, window, late).map(|rate| rate / 1e6);
        Energy {
            part,
            zone,
            node,
            estimated: source == "estimate",
            source,
            microjoules: counted.iter().map(|counted| counted.total).sum(),
            peak_watts: own.into_iter().map(|(_, watts)| watts).chain(of_counters).max_by(f64::total_cmp),
        }
    };
    groups.into_iter().map(energy).collect()
}

fn node_names(used: &[&Used], seconds: &[Used]) -> Vec<String> {
    let all = used.iter().copied().chain(seconds).map(|used| used.counter.label("node_name").to_owned());
    let mut nodes: Vec<String> = all.collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// What the agents tell of the nodes.
fn described(samples: &Samples, nodes: &[String]) -> Vec<Node> {
    let label = |metric: &str, node: &str, label: &str| {
        let series = samples.of(metric).into_iter().find(|series| series.label("node_name") == node);
        series.map(|series| series.label(label).to_owned()).filter(|text| !text.is_empty())
    };
    let describe = |name: &String| Node {
        name: name.clone(),
        cpu: label("kepler_node_cpu_info", name, "model_name"),
        agent_version: label("kepler_build_info", name, "version"),
        gpus: gpus::of_node(samples, name),
        ..Node::default()
    };
    nodes.iter().map(describe).collect()
}

/// How energy was divided; several values of a label are joined.
fn attribution(samples: &Samples) -> BTreeMap<String, String> {
    let mut joined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for series in samples.of("energy_agent_attribution_info") {
        for name in ["meter", "program", "weight", "idle"] {
            let value = series.label(name);
            let values = joined.entry(name.to_owned()).or_default();
            if !value.is_empty() && !values.iter().any(|known| known == value) {
                values.push(value.to_owned());
            }
        }
    }
    joined
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(name, values)| (name, values.join(", ")))
        .collect()
}

/// The pods of the subject, the one with most energy first.
fn pods(samples: &Samples, cpu: &str, used: &[&Used], ask: &Ask) -> Vec<PodPart> {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for series in samples.of(cpu).iter().filter(|series| !series.label("pod_name").is_empty()) {
        names.insert(series.label("pod_id").to_owned(), series.label("pod_name").to_owned());
    }
    let mut pods: BTreeMap<&str, Vec<&Used>> = BTreeMap::new();
    for used in used.iter().copied() {
        pods.entry(used.counter.label("pod_id")).or_default().push(used);
    }
    let part = |(uid, used): (&str, Vec<&Used>)| {
        let sights: Vec<&Counted> = used.iter().map(|used| &used.counted).collect();
        let ask = Ask { ran: None, ..ask.clone() };
        let Times { start, end, .. } = Times::of(&sights, &ask);
        // Core and uncore are parts of the package.
        let counts = |used: &&Used| matches!(used.counter.label("zone"), "package" | "dram" | "");
        let sum = |estimated: bool| {
            let of_kind = |used: &&Used| (used.counter.label("source") == "estimate") == estimated;
            used.iter().copied().filter(counts).filter(of_kind).map(|used| used.counted.total).sum()
        };
        PodPart {
            name: names.get(uid).cloned().unwrap_or_else(|| uid.to_owned()),
            node: used.first().map(|used| used.counter.label("node_name").to_owned()).unwrap_or_default(),
            start,
            end,
            microjoules: sum(false),
            estimated_microjoules: sum(true),
            phase: String::new(),
        }
    };
    let mut pods: Vec<PodPart> = pods.into_iter().map(part).collect();
    pods.sort_by(|a, b| b.microjoules.cmp(&a.microjoules).then(a.name.cmp(&b.name)));
    pods
}

#[cfg(test)]
mod tests;
