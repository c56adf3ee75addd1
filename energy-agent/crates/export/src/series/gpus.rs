//! The series of GPUs: energy and power of each, what it was doing, and what pods, containers and units used of them.

use std::collections::BTreeMap;

use energy_model::gpu::{GpuState, HeldBy};
use energy_model::snapshot::{GpuHolder, GpuNow, Snapshot, WorkloadEnergy, ZoneTotals};
use energy_model::units::{Microjoules, ratio};
use energy_model::workload::names::PodName;
use energy_model::workload::{POD_OVERHEAD, Workload};
use energy_model::zone::ZoneKind;

use super::{SeriesTotals, energy, family, power};
use crate::metrics::{self as m, Metric};
use crate::text::{Labels, SeriesValue, Writer};

/// NVML's `nvmlClocksEventReason*` bits by the names they are exported by.
const THROTTLE_REASONS: [(u32, &str); 9] = [
    (0, "gpu_idle"),
    (1, "applications_clocks_setting"),
    (2, "sw_power_cap"),
    (3, "hw_slowdown"),
    (4, "sync_boost"),
    (5, "sw_thermal_slowdown"),
    (6, "hw_thermal_slowdown"),
    (7, "hw_power_brake_slowdown"),
    (8, "display_clock_setting"),
];

/// Writes nothing where there never was a GPU.
pub fn write(writer: &mut Writer, snapshot: &Snapshot) {
    let node: &str = &snapshot.node;
    let gpus: Vec<(Labels, &GpuNow)> = snapshot.gpus.iter().map(|gpu| (labels(gpu, node), gpu)).collect();
    let current = || gpus.iter().filter(|(_, gpu)| gpu.current);
    family(writer, &m::NODE_GPU_INFO);
    for (labels, _) in current() {
        writer.sample(labels, &[], SeriesValue::Integer(1));
    }
    write_energy(writer, snapshot, &gpus);
    family(writer, &m::GPU_ATTRIBUTION_INFO);
    for (labels, gpu) in current() {
        if let Some(method) = gpu.method {
            writer.sample(labels, &[("method", method), ("idle", gpu.idle)], SeriesValue::Integer(1));
        }
    }
    let mut state = |metric: &Metric, value: &dyn Fn(&GpuState) -> Option<SeriesValue>| {
        family(writer, metric);
        for (labels, gpu) in current() {
            if let Some(value) = value(&gpu.state) {
                writer.sample(labels, &[], value);
            }
        }
    };
    state(&m::GPU_UTILIZATION, &|state| {
        state.utilization_ppm.map(|ppm| SeriesValue::Float(ratio(u64::from(ppm), 1_000_000)))
    });
    state(&m::GPU_MEMORY_UTILIZATION, &|state| {
        state.memory_utilization_ppm.map(|ppm| SeriesValue::Float(ratio(u64::from(ppm), 1_000_000)))
    });
    state(&m::GPU_MEMORY_USED, &|state| state.memory_used_bytes.map(SeriesValue::Integer));
    state(&m::GPU_MEMORY_TOTAL, &|state| state.memory_total_bytes.map(SeriesValue::Integer));
    state(&m::GPU_TEMPERATURE, &|state| state.temperature_celsius.map(|celsius| SeriesValue::Integer(celsius.into())));
    state(&m::GPU_SM_CLOCK, &|state| state.sm_clock_hertz.map(SeriesValue::Integer));
    state(&m::GPU_POWER_LIMIT, &|state| state.power_limit.map(SeriesValue::Power));
    family(writer, &m::GPU_THROTTLE_REASONS);
    for (labels, gpu) in current() {
        for (bit, reason) in gpu.state.throttle_reasons.iter().flat_map(|_| THROTTLE_REASONS) {
            let set = gpu.state.throttle_reasons.unwrap_or_default() >> bit & 1;
            writer.sample(labels, &[("reason", reason)], SeriesValue::Integer(set));
        }
    }
    family(writer, &m::GPU_RETIRED_JOULES);
    for (key, total) in snapshot.retired.iter().filter(|(key, _)| key.zone == ZoneKind::Gpu) {
        let labels = Labels::new(&[("source", key.source.as_str()), ("node_name", node)]);
        writer.sample(&labels, &[], SeriesValue::Energy(*total));
    }
}

/// A GPU that is not read any more keeps its totals.
fn write_energy(writer: &mut Writer, snapshot: &Snapshot, gpus: &[(Labels, &GpuNow)]) {
    let mut zone = |metric: &Metric, value: &dyn Fn(&ZoneTotals) -> Option<SeriesValue>| {
        family(writer, metric);
        for (labels, gpu) in gpus {
            for totals in zones_of(snapshot, gpu) {
                if let Some(value) = value(totals) {
                    writer.sample(labels, &[("source", totals.zone.source.as_str())], value);
                }
            }
        }
    };
    zone(&m::NODE_GPU_JOULES, &|totals| Some(SeriesValue::Energy(totals.measured)));
    zone(&m::NODE_GPU_ACTIVE_JOULES, &energy(|parts| parts.active));
    zone(&m::NODE_GPU_IDLE_JOULES, &energy(|parts| parts.idle));
    zone(&m::GPU_UNATTRIBUTED_JOULES, &energy(|parts| parts.unattributed));
    zone(&m::NODE_GPU_WATTS, &|totals| totals.power.map(SeriesValue::Power));
    zone(&m::NODE_GPU_ACTIVE_WATTS, &power(|parts| parts.active_power));
    zone(&m::NODE_GPU_IDLE_WATTS, &power(|parts| parts.idle_power));
}

/// What a GPU used, by source.
pub(super) fn zones_of<'a>(snapshot: &'a Snapshot, gpu: &'a GpuNow) -> impl Iterator<Item = &'a ZoneTotals> {
    snapshot.zones.iter().filter(|totals| totals.zone.kind == ZoneKind::Gpu && *totals.zone.path == *gpu.gpu.uuid)
}

fn labels(gpu: &GpuNow, node: &str) -> Labels {
    Labels::new(&[
        ("gpu", &gpu.gpu.index.to_string()),
        ("gpu_uuid", &gpu.gpu.uuid),
        ("gpu_name", &gpu.gpu.name),
        ("vendor", "nvidia"),
        ("node_name", node),
    ])
}

/// Which containers hold each GPU that is read, of pods and outside them. Instances of one name are one series;
/// one without a name has its id.
pub(super) fn write_holders(writer: &mut Writer, snapshot: &Snapshot) {
    family(writer, &m::GPU_HOLDER_INFO);
    for gpu in snapshot.gpus.iter().filter(|gpu| gpu.current) {
        let mut holders: BTreeMap<(PodName<'_>, &str, &str), HeldBy> = BTreeMap::new();
        for GpuHolder { workload, evidence, .. } in gpu.holders.iter().filter(|holder| holder.holds) {
            let (pod, container, id) = match &**workload {
                Workload::PodContainer { uid, id, .. } => match snapshot.names.container(uid, id) {
                    Some(name) => (snapshot.names.pod(uid), &**name, ""),
                    None => (snapshot.names.pod(uid), "", &**id),
                },
                Workload::Container { id, .. } => (PodName { id: "", name: "", namespace: "" }, "", &**id),
                other => match other.pod_uid() {
                    Some(uid) => (snapshot.names.pod(uid), POD_OVERHEAD, ""),
                    None => continue,
                },
            };
            let known = holders.entry((pod, container, id)).or_insert(*evidence);
            *known = (*known).max(*evidence);
        }
        let index = gpu.gpu.index.to_string();
        for ((pod, container, id), evidence) in holders {
            let labels = Labels::new(&[
                ("gpu", &index),
                ("gpu_uuid", &gpu.gpu.uuid),
                ("pod_id", pod.id),
                ("pod_name", pod.name),
                ("pod_namespace", pod.namespace),
                ("container_name", container),
                ("container_id", id),
                ("node_name", &snapshot.node),
                ("evidence", evidence.as_str()),
            ]);
            writer.sample(&labels, &[], SeriesValue::Integer(1));
        }
    }
}

/// What pods, containers or units used of GPUs; nothing for those that never did.
pub(super) fn write_shares(writer: &mut Writer, all: &[SeriesTotals<'_>], joules: &Metric, watts: &Metric) {
    let shares = || {
        let shares = all.iter().flat_map(|totals| totals.energy.iter().map(move |energy| (totals, energy)));
        shares.filter(|(_, energy)| energy.key.zone == ZoneKind::Gpu && energy.total > Microjoules::ZERO)
    };
    family(writer, joules);
    for (totals, WorkloadEnergy { key, total, power: _ }) in shares() {
        writer.counter(&totals.labels, &[("source", key.source.as_str())], SeriesValue::Energy(*total), totals.created);
    }
    family(writer, watts);
    for (totals, WorkloadEnergy { key, total: _, power }) in shares() {
        if let Some(power) = power {
            writer.sample(&totals.labels, &[("source", key.source.as_str())], SeriesValue::Power(*power));
        }
    }
}
