//! The workloads of a snapshot, each once: pods with all that runs in them, containers outside pods, and units without these
//! containers. Their power and energy add up to the rows'.

use std::collections::BTreeMap;

use energy_model::snapshot::{Snapshot, WorkloadEnergy};
use energy_model::units::{Microjoules, Watts};
use energy_model::workload::Workload;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Consumer<'a> {
    Pod(&'a str),
    Container(&'a str),
    Unit(&'a str),
}

impl<'a> From<&'a Workload> for Consumer<'a> {
    fn from(workload: &'a Workload) -> Self {
        match workload {
            Workload::PodOverhead { uid } | Workload::PodContainer { uid, .. } | Workload::PodEnded { uid, .. } => {
                Self::Pod(uid)
            }
            Workload::Container { id, .. } => Self::Container(id),
            Workload::Unit { unit } => Self::Unit(unit),
            Workload::Kernel => Self::Unit("kernel"),
        }
    }
}

/// What a consumer uses of CPUs, memory and GPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Use {
    pub power: Watts,
    /// Since the agent started.
    pub energy: Microjoules,
}

/// Those that draw something now, the largest first, at most `count`.
pub(super) fn largest(snapshot: &Snapshot, count: usize) -> Vec<(Consumer<'_>, Use)> {
    let mut all: BTreeMap<Consumer<'_>, Use> = BTreeMap::new();
    for row in &snapshot.rows {
        let used = all.entry(Consumer::from(&*row.workload)).or_default();
        for WorkloadEnergy { key: _, total, power } in &row.energy {
            used.energy += *total;
            used.power.0 += power.map_or(0.0, |Watts(watts)| watts);
        }
    }
    let mut all: Vec<_> = all.into_iter().filter(|(_, used)| used.power.0 > 0.0).collect();
    // Of equals, the order of the names stays.
    all.sort_by(|(_, a), (_, b)| b.power.0.total_cmp(&a.power.0));
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use std::sync::Arc;
    use std::time::Duration;

    use energy_model::snapshot::{EnergyKey, WorkloadRow, WorkloadState};
    use energy_model::workload::Runtime;
    use energy_model::zone::{Source, ZoneKind};

    use super::*;

    fn row(workload: Workload, parts: &[(ZoneKind, u64, f64)]) -> WorkloadRow {
        let energy = parts.iter().map(|(zone, total, watts)| WorkloadEnergy {
            key: EnergyKey { zone: *zone, source: Source::Rapl },
            total: Microjoules(*total),
            power: Some(Watts(*watts)),
        });
        WorkloadRow {
            workload: Arc::new(workload),
            created: Duration::ZERO,
            state: WorkloadState::Running,
            energy: energy.collect(),
            runtime_ns: 0,
            cycles: 0,
            switches: 0,
        }
    }

    #[test]
    fn each_is_counted_once_with_its_gpus_and_the_largest_comes_first() {
        use ZoneKind::{Dram, Gpu, Package};
        let (uid, unit, runtime) = (Arc::<str>::from("u"), Arc::<str>::from("docker.service"), Runtime::Docker);
        let rows = vec![
            row(Workload::Kernel, &[(Package, 10, 0.0)]),
            row(Workload::Unit { unit: Arc::clone(&unit) }, &[(Package, 1, 0.5)]),
            row(Workload::Container { unit, id: Arc::from("d0c"), runtime }, &[(Package, 20, 2.0), (Dram, 5, 0.25)]),
            row(Workload::PodOverhead { uid: Arc::clone(&uid) }, &[(Package, 2, 0.5)]),
            row(Workload::PodContainer { uid, id: Arc::from("c"), runtime }, &[(Package, 3, 1.0), (Gpu, 400, 150.0)]),
        ];
        let snapshot = Snapshot { rows, ..Snapshot::empty("n") };
        let used = |watts: f64, energy| Use { power: Watts(watts), energy: Microjoules(energy) };
        let expected = [
            (Consumer::Pod("u"), used(151.5, 405)),
            (Consumer::Container("d0c"), used(2.25, 25)),
            (Consumer::Unit("docker.service"), used(0.5, 1)),
        ];
        assert_eq!(largest(&snapshot, 5), expected, "the kernel draws nothing now");
        assert_eq!(largest(&snapshot, 1), expected[..1]);
    }
}
