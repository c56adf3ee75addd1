//! What GPUs draw at present, for zones, workloads and processes: the mean power of each GPU's last interval, which is its
//! own and not the tick's.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::snapshot::{EnergyKey, ProcessKind, ProcessRow, WorkloadEnergy, WorkloadRow, WorkloadState, ZoneTotals};
use crate::units::Watts;
use crate::workload::Workload;
use crate::zone::{Source, Zone, ZoneKind};

/// Mean power of one GPU's last interval.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuPower {
    pub measured: Watts,
    pub active: Watts,
    pub idle: Watts,
    /// The parts of the active power.
    pub shares: Vec<(Arc<Workload>, Watts)>,
    /// As far as it is known by process, by host PID.
    pub processes: Vec<(u32, Watts)>,
}

/// The power of all GPUs that were read a short time ago.
#[derive(Debug, Default)]
pub struct GpuPowers<'a> {
    gpus: BTreeMap<&'a Zone, &'a GpuPower>,
    /// What workloads draw of all GPUs of a source. A source that is not among them was not measured.
    charged: BTreeMap<Source, Watts>,
    workloads: BTreeMap<(Source, &'a Workload), Watts>,
    processes: BTreeMap<(Source, u32), Watts>,
}

impl<'a> FromIterator<(&'a Zone, &'a GpuPower)> for GpuPowers<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a Zone, &'a GpuPower)>>(gpus: I) -> Self {
        let mut all = Self::default();
        for (zone, power) in gpus {
            all.gpus.insert(zone, power);
            all.charged.entry(zone.source).or_default().0 += power.shares.iter().map(|(_, part)| part.0).sum::<f64>();
            for (owner, part) in &power.shares {
                all.workloads.entry((zone.source, owner)).or_default().0 += part.0;
            }
            for (pid, part) in &power.processes {
                all.processes.entry((zone.source, *pid)).or_default().0 += part.0;
            }
        }
        all
    }
}

impl GpuPowers<'_> {
    /// Gives a GPU's totals their power.
    pub(super) fn of_zone(&self, totals: &mut ZoneTotals) {
        let Some(power) = self.gpus.get(&*totals.zone) else { return };
        totals.power = Some(power.measured);
        if let Some(parts) = &mut totals.parts {
            (parts.active_power, parts.idle_power) = (Some(power.active), Some(power.idle));
        }
    }

    /// Gives a workload's GPU energies their power. An ended workload draws nothing.
    pub(super) fn of_row(&self, row: &mut WorkloadRow) {
        if self.charged.is_empty() || row.state != WorkloadState::Running {
            return;
        }
        for energy in row.energy.iter_mut().filter(|energy| energy.key.zone == ZoneKind::Gpu) {
            let EnergyKey { zone: _, source } = energy.key;
            let watts = self.workloads.get(&(source, &*row.workload)).copied();
            energy.power = self.charged.contains_key(&source).then(|| watts.unwrap_or_default());
        }
    }

    /// Gives the GPU energies of processes their power; what workloads draw and no row has is the row `other`'s.
    pub(crate) fn of_processes(&self, rows: &mut [ProcessRow]) {
        let (mut rest, mut watts) = (self.charged.clone(), self.processes.clone());
        let gpu = |energy: &&mut WorkloadEnergy| energy.key.zone == ZoneKind::Gpu;
        // An ended process draws nothing, even if another process has its pid now.
        for row in rows.iter_mut().filter(|row| row.state == WorkloadState::Running) {
            let Some(pid) = row.pid else { continue };
            for energy in row.energy.iter_mut().filter(gpu) {
                let own = watts.remove(&(energy.key.source, pid)).unwrap_or_default();
                energy.power = rest.get_mut(&energy.key.source).map(|rest| {
                    rest.0 -= own.0;
                    own
                });
            }
        }
        for row in rows.iter_mut().filter(|row| row.kind == ProcessKind::Other) {
            for energy in row.energy.iter_mut().filter(gpu) {
                // A sum of differences may end a hair below zero.
                energy.power = rest.get(&energy.key.source).map(|rest| Watts(rest.0.max(0.0)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Energies;
    use crate::units::Microjoules;

    const KEY: EnergyKey = EnergyKey { zone: ZoneKind::Gpu, source: Source::Nvml };

    fn row(pid: Option<u32>, kind: ProcessKind, state: WorkloadState) -> ProcessRow {
        let energy = Energies::from_iter([WorkloadEnergy { key: KEY, total: Microjoules(1), power: None }]);
        ProcessRow {
            pid,
            kind,
            comm: Arc::from("job"),
            exe: Arc::from(""),
            created: std::time::Duration::ZERO,
            state,
            energy,
            runtime_ns: 0,
        }
    }

    #[test]
    fn power_is_the_living_processs_of_that_pid_and_the_rest_is_other() {
        let mut rows = [
            row(None, ProcessKind::Other, WorkloadState::Running),
            row(Some(7), ProcessKind::Regular, WorkloadState::Terminated),
            row(Some(7), ProcessKind::Regular, WorkloadState::Running),
        ];
        let zone = Zone { kind: ZoneKind::Gpu, socket: None, die: None, source: Source::Nvml, path: "GPU-1".into() };
        let power = GpuPower {
            measured: Watts(60.0),
            active: Watts(50.0),
            idle: Watts(10.0),
            shares: vec![(Arc::new(Workload::Unit { unit: "a".into() }), Watts(40.0))],
            processes: vec![(7, Watts(30.0)), (8, Watts(5.0))],
        };
        GpuPowers::from_iter([(&zone, &power)]).of_processes(&mut rows);
        let power: Vec<_> = rows.iter().map(|row| row.energy[0].power).collect();
        assert_eq!(power, [Some(Watts(10.0)), None, Some(Watts(30.0))]);
    }

    #[test]
    fn without_a_measured_gpu_there_is_no_power() {
        let mut rows = [
            row(None, ProcessKind::Other, WorkloadState::Running),
            row(Some(7), ProcessKind::Regular, WorkloadState::Running),
        ];
        GpuPowers::default().of_processes(&mut rows);
        assert!(rows.iter().all(|row| row.energy[0].power.is_none()));
    }
}
