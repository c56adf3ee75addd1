//! Writes the series of a snapshot: each family of the table once, over zones, pods, containers and units.
//! Pods and units are sums of rows, in whole microjoules, so that every identity holds on the text.

mod capping;
mod containers;
mod dcgm;
mod gpu_meter;
mod gpus;
mod labels;
mod processes;

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use energy_model::build::Build;
use energy_model::meter_state::UsageMeter;
use energy_model::snapshot::{
    EnergyKey, IdleShares, PodIdle, Snapshot, WorkloadEnergy, WorkloadRow, WorkloadState, ZoneParts, ZoneTotals,
};
use energy_model::units::{Microjoules, Watts, nanos};
use energy_model::workload::Workload;
use energy_model::workload::names::PodName;
use energy_model::zone::ZoneKind;

use self::containers::{containers, write_units};
use crate::level::Level;
use crate::metrics::{self as m, Metric};
use crate::text::{Created, Labels, SeriesValue, Writer};

/// Writes everything that a scrape shows of `snapshot`, apart from the agent's own metrics.
pub fn write(writer: &mut Writer, snapshot: &Snapshot, levels: &[Level]) {
    let node: &str = &snapshot.node;
    if levels.contains(&Level::Node) {
        write_node(writer, snapshot, node);
        gpus::write(writer, snapshot);
        if snapshot.dcgm_names {
            dcgm::write(writer, snapshot);
        }
    }
    // A meter that never counted cycles or switches leaves zeros in every row: not measured, so no series.
    let counted = Counted {
        cycles: snapshot.rows.iter().any(|row| row.cycles > 0),
        switches: snapshot.rows.iter().any(|row| row.switches > 0),
    };
    if levels.contains(&Level::Pod) {
        let pod_labels = |pod: PodName<'_>, state: WorkloadState| {
            Labels::new(&[
                ("pod_id", pod.id),
                ("pod_name", pod.name),
                ("pod_namespace", pod.namespace),
                ("state", state.as_str()),
                ("node_name", node),
            ])
        };
        let pods = grouped(snapshot, |workload| workload.pod_uid().map(|uid| snapshot.names.pod(uid)), pod_labels);
        write_pod_idle(writer, snapshot, pod_labels);
        write_energy(writer, &pods, &m::POD_JOULES, &m::POD_WATTS);
        gpus::write_shares(writer, &pods, &m::POD_GPU_JOULES, &m::POD_GPU_WATTS);
        gpus::write_holders(writer, snapshot);
        let [seconds, cycles, switches] = [&m::POD_CPU_SECONDS, &m::POD_CPU_CYCLES, &m::POD_SWITCHES];
        write_usage(writer, &pods, counted, seconds, cycles, switches);
        labels::write(writer, snapshot);
    }
    if levels.contains(&Level::Container) {
        write_units(writer, snapshot);
        let containers = containers(snapshot);
        write_energy(writer, &containers, &m::CONTAINER_JOULES, &m::CONTAINER_WATTS);
        gpus::write_shares(writer, &containers, &m::CONTAINER_GPU_JOULES, &m::CONTAINER_GPU_WATTS);
        let [seconds, cycles, switches] = [&m::CONTAINER_CPU_SECONDS, &m::CONTAINER_CPU_CYCLES, &m::CONTAINER_SWITCHES];
        write_usage(writer, &containers, counted, seconds, cycles, switches);
    }
    if levels.contains(&Level::Node) {
        let units = grouped(snapshot, Workload::unit, |unit, state| {
            Labels::new(&[("unit", unit), ("state", state.as_str()), ("node_name", node)])
        });
        write_energy(writer, &units, &m::SYSTEM_JOULES, &m::SYSTEM_WATTS);
        gpus::write_shares(writer, &units, &m::SYSTEM_GPU_JOULES, &m::SYSTEM_GPU_WATTS);
        let [seconds, cycles, switches] = [&m::SYSTEM_CPU_SECONDS, &m::SYSTEM_CPU_CYCLES, &m::SYSTEM_SWITCHES];
        write_usage(writer, &units, counted, seconds, cycles, switches);
    }
    if levels.contains(&Level::Process) {
        processes::write(writer, snapshot, node);
    }
    write_agent(writer, snapshot, node);
}

/// Totals that one set of labels stands for.
struct SeriesTotals<'a> {
    labels: Labels,
    /// When all of it was 0, where that is exported.
    created: Option<Created>,
    /// Ordered by key. A map would be the largest part of a page under construction; most are those of a single row.
    energy: Cow<'a, [WorkloadEnergy]>,
    runtime_ns: u64,
    cycles: u64,
    switches: u64,
}

impl<'a> SeriesTotals<'a> {
    fn new() -> Self {
        let (labels, energy) = (Labels::default(), Cow::Borrowed(&[] as &[_]));
        Self { labels, created: None, energy, runtime_ns: 0, cycles: 0, switches: 0 }
    }

    /// `since` is when the agent started, where it is to be said when counters were created.
    fn add(&mut self, row: &'a WorkloadRow, since: Option<SystemTime>) {
        let WorkloadRow { workload: _, created, state: _, energy, runtime_ns, cycles, switches } = row;
        if let Some(created) = created_at(since, *created) {
            self.created = Some(self.created.map_or(created, |earlier| earlier.min(created)));
        }
        if self.energy.is_empty() {
            self.energy = Cow::Borrowed(energy);
        } else {
            add_energy(self.energy.to_mut(), energy);
        }
        self.runtime_ns += runtime_ns;
        self.cycles += cycles;
        self.switches += switches;
    }

    /// The energies of CPU zones; GPUs have families of their own.
    fn cpu(&self) -> impl Iterator<Item = &WorkloadEnergy> {
        self.energy.iter().filter(|energy| energy.key.zone != ZoneKind::Gpu)
    }
}

/// `since` is when the agent started, where it is to be said when counters were created: `created` after that.
fn created_at(since: Option<SystemTime>, created: Duration) -> Option<Created> {
    let unix = since?.checked_add(created)?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(unix.as_millis()).ok().map(Created)
}

fn add_energy(sum: &mut Vec<WorkloadEnergy>, parts: &[WorkloadEnergy]) {
    for part in parts {
        let index = match sum.binary_search_by_key(&part.key, |energy| energy.key) {
            Ok(index) => index,
            Err(index) => {
                sum.insert(index, *part);
                continue;
            }
        };
        let WorkloadEnergy { key: _, total, power } = &mut sum[index];
        *total += part.total;
        *power = match (*power, part.power) {
            (Some(Watts(a)), Some(Watts(b))) => Some(Watts(a + b)),
            (a, b) => a.or(b),
        };
    }
}

/// Sums the rows that have the same `key`, in its order; a sum is running while any of its rows is.
fn grouped<'a, K: Copy + Ord + Hash>(
    snapshot: &'a Snapshot,
    key: impl Fn(&'a Workload) -> Option<K>,
    labels: impl Fn(K, WorkloadState) -> Labels,
) -> Vec<SeriesTotals<'a>> {
    let mut groups: Vec<(K, WorkloadState, SeriesTotals<'a>)> = Vec::new();
    let mut places = HashMap::new();
    // Rows of one group mostly follow each other.
    let mut last = None;
    for row in &snapshot.rows {
        let Some(key) = key(&row.workload) else { continue };
        let place = match last {
            Some((last, place)) if last == key => place,
            _ => *places.entry(key).or_insert_with(|| {
                groups.push((key, row.state, SeriesTotals::new()));
                groups.len() - 1
            }),
        };
        last = Some((key, place));
        let (_, state, totals) = &mut groups[place];
        // Running orders before Terminated.
        *state = row.state.min(*state);
        totals.add(row, snapshot.counting_since);
    }
    // They mostly are in order already.
    groups.sort_by_key(|(key, _, _)| *key);
    groups.into_iter().map(|(key, state, totals)| SeriesTotals { labels: labels(key, state), ..totals }).collect()
}

pub(super) fn family(writer: &mut Writer, metric: &Metric) {
    writer.family(metric.name, metric.kind, metric.help);
}

pub(super) fn single(writer: &mut Writer, metric: &Metric, value: SeriesValue) {
    family(writer, metric);
    writer.sample(&Labels::default(), &[], value);
}

fn write_energy(writer: &mut Writer, all: &[SeriesTotals<'_>], joules: &Metric, watts: &Metric) {
    family(writer, joules);
    for totals in all {
        for WorkloadEnergy { key, total, power: _ } in totals.cpu() {
            writer.counter(&totals.labels, &energy_labels(*key), SeriesValue::Energy(*total), totals.created);
        }
    }
    family(writer, watts);
    for totals in all {
        for WorkloadEnergy { key, total: _, power } in totals.cpu() {
            if let Some(power) = power {
                writer.sample(&totals.labels, &energy_labels(*key), SeriesValue::Power(*power));
            }
        }
    }
}

/// What pods were given of the idle energy, with the labels of their other series.
fn write_pod_idle(writer: &mut Writer, snapshot: &Snapshot, labels: impl Fn(PodName<'_>, WorkloadState) -> Labels) {
    let Some(idle) = &snapshot.idle else { return };
    family(writer, &m::POD_IDLE_JOULES);
    for PodIdle { uid, created, state, energy } in &idle.pods {
        let labels = labels(snapshot.names.pod(uid), *state);
        let created = created_at(snapshot.counting_since, *created);
        for (key, total) in energy {
            let [zone, source] = energy_labels(*key);
            let more = [zone, source, ("policy", idle.policy)];
            writer.counter(&labels, &more, SeriesValue::Energy(*total), created);
        }
    }
}

pub(super) const fn energy_labels(key: EnergyKey) -> [(&'static str, &'static str); 2] {
    [("zone", key.zone.as_str()), ("source", key.source.as_str())]
}

/// What some meter counted at all.
#[derive(Clone, Copy)]
struct Counted {
    cycles: bool,
    switches: bool,
}

fn write_usage(
    writer: &mut Writer,
    all: &[SeriesTotals<'_>],
    counted: Counted,
    seconds: &Metric,
    cycles: &Metric,
    switches: &Metric,
) {
    family(writer, seconds);
    for totals in all {
        writer.counter(&totals.labels, &[], SeriesValue::Time(totals.runtime_ns), totals.created);
    }
    family(writer, cycles);
    for totals in all.iter().filter(|_| counted.cycles) {
        writer.counter(&totals.labels, &[], SeriesValue::Integer(totals.cycles), totals.created);
    }
    family(writer, switches);
    for totals in all.iter().filter(|_| counted.switches) {
        writer.counter(&totals.labels, &[], SeriesValue::Integer(totals.switches), totals.created);
    }
}

/// A part of a zone's energy, where it is divided.
fn energy(part: fn(&ZoneParts) -> Microjoules) -> impl Fn(&ZoneTotals) -> Option<SeriesValue> {
    move |totals| totals.parts.as_ref().map(|parts| SeriesValue::Energy(part(parts)))
}

/// A part of a zone's power, where it is divided and was measured.
fn power(part: fn(&ZoneParts) -> Option<Watts>) -> impl Fn(&ZoneTotals) -> Option<SeriesValue> {
    move |totals| totals.parts.as_ref().and_then(part).map(SeriesValue::Power)
}

fn write_node(writer: &mut Writer, snapshot: &Snapshot, node: &str) {
    let zones = snapshot.zones.iter().filter(|totals| totals.zone.kind != ZoneKind::Gpu);
    let zones: Vec<_> = zones.map(|totals| (zone_labels(totals, node), totals)).collect();
    let mut zone_family = |metric: &Metric, value: &dyn Fn(&ZoneTotals) -> Option<SeriesValue>| {
        family(writer, metric);
        for (labels, totals) in &zones {
            if let Some(value) = value(totals) {
                writer.sample(labels, &[], value);
            }
        }
    };
    zone_family(&m::NODE_JOULES, &|totals| Some(SeriesValue::Energy(totals.measured)));
    zone_family(&m::NODE_ACTIVE_JOULES, &energy(|parts| parts.active));
    zone_family(&m::NODE_IDLE_JOULES, &energy(|parts| parts.idle));
    zone_family(&m::NODE_UNATTRIBUTED_JOULES, &energy(|parts| parts.unattributed));
    zone_family(&m::NODE_WATTS, &|totals| totals.power.map(SeriesValue::Power));
    zone_family(&m::NODE_ACTIVE_WATTS, &power(|parts| parts.active_power));
    zone_family(&m::NODE_IDLE_WATTS, &power(|parts| parts.idle_power));
    if let Some(busy) = snapshot.cpu_usage_ratio {
        family(writer, &m::NODE_USAGE_RATIO);
        writer.sample(&Labels::new(&[("node_name", node)]), &[], SeriesValue::Float(busy));
    }
    family(writer, &m::NODE_INFO);
    for cpu in snapshot.cpu_info.iter() {
        let labels = Labels::new(&[
            ("processor", &cpu.processor),
            ("vendor_id", &cpu.vendor_id),
            ("model_name", &cpu.model_name),
            ("physical_id", &cpu.physical_id),
            ("core_id", &cpu.core_id),
            ("node_name", node),
        ]);
        writer.sample(&labels, &[], SeriesValue::Integer(1));
    }
    family(writer, &m::RETIRED_JOULES);
    for (key, total) in snapshot.retired.iter().filter(|(key, _)| key.zone != ZoneKind::Gpu) {
        writer.sample(&Labels::new(&energy_labels(*key)), &[("node_name", node)], SeriesValue::Energy(*total));
    }
    if let Some(IdleShares { policy, pods: _, unassigned, retired }) = &snapshot.idle {
        for (metric, totals) in [(&m::IDLE_UNASSIGNED_JOULES, unassigned), (&m::RETIRED_IDLE_JOULES, retired)] {
            family(writer, metric);
            for (key, total) in totals {
                let [zone, source] = energy_labels(*key);
                let labels = Labels::new(&[("policy", policy), zone, source, ("node_name", node)]);
                writer.sample(&labels, &[], SeriesValue::Energy(*total));
            }
        }
    }
}

fn zone_labels(totals: &ZoneTotals, node: &str) -> Labels {
    let zone = &totals.zone;
    let text = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
    Labels::new(&[
        ("zone", zone.kind.as_str()),
        ("path", &zone.path),
        ("source", zone.source.as_str()),
        ("socket", &text(zone.socket)),
        ("die", &text(zone.die)),
        ("node_name", node),
    ])
}

fn write_build(writer: &mut Writer, build: &Build, node: &str) {
    let Build { version, revision, branch, rustc, ebpf, date: _ } = *build;
    let arch = ("arch", std::env::consts::ARCH);
    let (branch, revision, version) = (("branch", branch), ("revision", revision), ("version", version));
    family(writer, &m::KEPLER_BUILD_INFO);
    let labels = Labels::new(&[arch, branch, revision, version, ("node_name", node)]);
    writer.sample(&labels, &[], SeriesValue::Integer(1));
    family(writer, &m::BUILD_INFO);
    let ebpf = ("ebpf", ebpf.get(..12).unwrap_or(ebpf));
    let labels = Labels::new(&[arch, branch, ebpf, revision, ("rustversion", rustc), version]);
    writer.sample(&labels, &[], SeriesValue::Integer(1));
}

fn write_agent(writer: &mut Writer, snapshot: &Snapshot, node: &str) {
    write_build(writer, &snapshot.build, node);
    family(writer, &m::METER_UP);
    for state in &snapshot.meters {
        let labels = Labels::new(&[("meter", state.meter.as_str()), ("reason", state.reason.as_str())]);
        writer.sample(&labels, &[], SeriesValue::Integer(u64::from(state.is_up())));
    }
    gpu_meter::write(writer, &snapshot.gpu_meter, node);
    if let Some(status) = &snapshot.capping {
        capping::write(writer, status, node);
    }
    let how = &snapshot.attribution;
    if let Some(usage) = how.usage {
        family(writer, &m::ATTRIBUTION_INFO);
        let (meter, program, weight) = (usage.as_str(), usage.program(), how.weight.as_str());
        let labels = [("meter", meter), ("program", program), ("weight", weight), ("idle", how.idle)];
        writer.sample(&Labels::new(&labels), &[], SeriesValue::Integer(1));
    }
    let health = &snapshot.health;
    single(writer, &m::TICKS, SeriesValue::Integer(snapshot.ticks));
    single(writer, &m::LATE_TICKS, SeriesValue::Integer(health.late_ticks));
    if snapshot.ticks > 0 {
        single(writer, &m::INTERVAL, SeriesValue::Time(nanos(snapshot.elapsed)));
        if let Ok(since) = snapshot.taken.duration_since(UNIX_EPOCH) {
            single(writer, &m::LAST_TICK, SeriesValue::Time(nanos(since)));
        }
    }
    single(writer, &m::ZONE_WRAPS, SeriesValue::Integer(health.zone_wraps));
    single(writer, &m::ZONE_RESETS, SeriesValue::Integer(health.zone_resets));
    single(writer, &m::ZONE_GAPS, SeriesValue::Integer(health.zone_gaps));
    single(writer, &m::ZONE_READ_ERRORS, SeriesValue::Integer(health.zone_read_errors));
    if matches!(how.usage, Some(UsageMeter::Ebpf(_))) {
        single(writer, &m::MISSED_SWITCHES, SeriesValue::Integer(health.missed_switches));
        single(writer, &m::MAP_DROPS, SeriesValue::Integer(health.map_drops));
        single(writer, &m::CYCLES_FALLBACKS, SeriesValue::Integer(health.cycles_fallbacks));
        single(writer, &m::EVENT_DROPS, SeriesValue::Integer(health.event_drops));
    }
    single(writer, &m::UNKNOWN_CGROUPS, SeriesValue::Integer(health.unknown_cgroups));
    single(writer, &m::LOG_LOST, SeriesValue::Integer(health.log_lines_lost));
    if let Some(ns) = health.ebpf_run_ns {
        single(writer, &m::EBPF_RUN, SeriesValue::Time(ns));
    }
}
