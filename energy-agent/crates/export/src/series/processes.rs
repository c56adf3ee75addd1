//! Writes the series of processes, and what went wrong with them.

use energy_model::snapshot::{ProcessKind, ProcessRow, Snapshot, WorkloadEnergy};
use energy_model::zone::ZoneKind;

use super::{created_at, energy_labels, family, single};
use crate::metrics as m;
use crate::text::{Labels, SeriesValue, Writer};

/// Writes nothing where processes are not accounted.
pub fn write(writer: &mut Writer, snapshot: &Snapshot, node: &str) {
    if snapshot.processes.is_empty() {
        return;
    }
    let rows: Vec<_> = snapshot.processes.iter().map(|row| (labels(row, node), row)).collect();
    let created = |row: &ProcessRow| created_at(snapshot.counting_since, row.created);
    family(writer, &m::PROCESS_JOULES);
    for (labels, row) in &rows {
        for energy in cpu(row) {
            let more = with_state(row, energy_labels(energy.key));
            writer.counter(labels, &more, SeriesValue::Energy(energy.total), created(row));
        }
    }
    family(writer, &m::PROCESS_WATTS);
    for (labels, row) in &rows {
        for energy in cpu(row) {
            if let Some(power) = energy.power {
                writer.sample(labels, &with_state(row, energy_labels(energy.key)), SeriesValue::Power(power));
            }
        }
    }
    family(writer, &m::PROCESS_GPU_JOULES);
    for (labels, row) in &rows {
        for energy in gpu(row) {
            let [_, source] = energy_labels(energy.key);
            let more = [("state", row.state.as_str()), source];
            writer.counter(labels, &more, SeriesValue::Energy(energy.total), created(row));
        }
    }
    family(writer, &m::PROCESS_GPU_WATTS);
    for (labels, row) in &rows {
        for energy in gpu(row) {
            if let Some(power) = energy.power {
                let [_, source] = energy_labels(energy.key);
                writer.sample(labels, &[("state", row.state.as_str()), source], SeriesValue::Power(power));
            }
        }
    }
    family(writer, &m::PROCESS_SECONDS);
    for (labels, row) in &rows {
        writer.counter(labels, &[], SeriesValue::Time(row.runtime_ns), created(row));
    }
    single(writer, &m::PROCESS_MAP_DROPS, SeriesValue::Integer(snapshot.health.process_map_drops));
    single(writer, &m::PROCESS_EVENT_DROPS, SeriesValue::Integer(snapshot.health.process_event_drops));
    single(writer, &m::PROCESS_EXE_ERRORS, SeriesValue::Integer(snapshot.health.process_exe_errors));
}

fn cpu(row: &ProcessRow) -> impl Iterator<Item = &WorkloadEnergy> {
    row.energy.iter().filter(|energy| energy.key.zone != ZoneKind::Gpu)
}

/// Of processes that used a GPU.
fn gpu(row: &ProcessRow) -> impl Iterator<Item = &WorkloadEnergy> {
    row.energy.iter().filter(|energy| energy.key.zone == ZoneKind::Gpu && energy.total.0 > 0)
}

/// Labels of all families; the one of CPU seconds has no `state`.
fn labels(row: &ProcessRow, node: &str) -> Labels {
    let pid = row.pid.map(|pid| pid.to_string()).unwrap_or_default();
    let container = match &row.kind {
        ProcessKind::Container(id) => id,
        ProcessKind::Regular | ProcessKind::Kernel | ProcessKind::Other => "",
    };
    Labels::new(&[
        ("pid", &pid),
        ("comm", &row.comm),
        ("exe", &row.exe),
        ("type", row.kind.as_str()),
        ("container_id", container),
        ("node_name", node),
    ])
}

fn with_state<'a>(row: &ProcessRow, [zone, source]: [(&'a str, &'a str); 2]) -> [(&'a str, &'a str); 3] {
    [("state", row.state.as_str()), zone, source]
}
