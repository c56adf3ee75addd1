//! Divides the active energy of a GPU by who used it: each workload's and process's part, and what belongs to nobody
//! known; exactly, in microjoules. The rules are in `docs/accuracy.md`.

mod divide;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(super) use self::divide::Parts;
use super::busy::Busy;
use crate::gpu::{Evidence, GpuProcessKind, GpuReading, HeldBy};
use crate::units::{Microjoules, nanos};
use crate::workload::Workload;

/// Millionths in a whole.
const WHOLE_PPM: u64 = 1_000_000;

/// What a GPU's active energy was divided by; the value of the label `method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuMethod {
    /// SM time of each process.
    Samples,
    /// SM time, that of the MPS server divided among its clients.
    Mps,
    /// All contexts are of one container or pod.
    Context,
    /// The kubelet gave the whole GPU to one container or pod.
    Allocation,
    /// Compute slices of each MIG instance times its activity.
    MigActivity,
    /// Compute slices of the MIG instances in use.
    MigSlices,
    /// There is no evidence whose it was.
    None,
}

crate::as_str!(GpuMethod {
    Samples => "samples",
    Mps => "mps",
    Context => "context",
    Allocation => "allocation",
    MigActivity => "mig-activity",
    MigSlices => "mig-slices",
    None => "none",
});

/// To whom a GPU and its MIG instances were given, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Containers that have the whole GPU; several where it is shared (time-slicing, MPS).
    pub device: Vec<Arc<Workload>>,
    /// Containers by GPU instance id.
    pub instances: Vec<(u32, Arc<Workload>)>,
}

/// One GPU's reading with processes turned into workloads.
#[derive(Clone, Copy, Debug)]
pub struct GpuUse<'a> {
    pub reading: &'a GpuReading,
    /// Parallel to [`GpuReading::processes`]; `None` where a process could not be placed.
    pub owners: &'a [Option<Arc<Workload>>],
    pub allocation: &'a Allocation,
}

impl GpuUse<'_> {
    /// Divides the GPU's active energy.
    pub(super) fn divide(&self, active: Microjoules) -> Parts {
        divide::divide(self, active)
    }

    /// Who holds the GPU, and how that is known; a workload may come several times.
    pub fn holders(&self) -> impl Iterator<Item = (&Arc<Workload>, HeldBy)> {
        let Allocation { device, instances } = self.allocation;
        let given = device.iter().chain(instances.iter().map(|(_, workload)| workload));
        // The work of the MPS server is that of its clients, who have contexts of their own.
        let placed = self.reading.processes.iter().zip(self.owners);
        let users = placed.filter(|(process, _)| process.kind != GpuProcessKind::MpsServer);
        let users = users.filter_map(|(process, owner)| {
            let evidence = if process.work > 0 { HeldBy::Samples } else { HeldBy::Context };
            Some((owner.as_ref()?, evidence))
        });
        given.map(|workload| (workload, HeldBy::Allocation)).chain(users)
    }

    /// How busy the GPU was: the most that its utilisation or its processes' work says. In MIG mode the
    /// activity of the instances where it is known, else the slices in use. `None` where neither is known.
    pub(super) fn busy(&self) -> Option<Busy> {
        let GpuReading { state, processes, evidence, instances, elapsed, .. } = self.reading;
        let utilization = state.utilization_ppm.map(u64::from);
        let said = if !instances.is_empty() {
            let slices: u64 = instances.iter().map(|instance| u64::from(instance.slices)).sum();
            let weights: u64 = self.instance_weights().1.iter().sum();
            Some((weights / slices.max(1)).max(utilization.unwrap_or(0)))
        } else if *evidence == Evidence::Samples {
            let work: u128 = processes.iter().map(|process| u128::from(process.work)).sum();
            // Percent times microseconds over nanoseconds.
            let busy = work * 10_000_000 / u128::from(nanos(*elapsed)).max(1);
            Some(u64::try_from(busy).unwrap_or(u64::MAX).max(utilization.unwrap_or(0)))
        } else {
            utilization.or_else(|| processes.is_empty().then_some(0))
        };
        said.map(|ppm| Busy::new(ppm, u128::from(WHOLE_PPM)))
    }

    /// What the MIG instances weigh, in slices times millionths, and by what rule.
    fn instance_weights(&self) -> (GpuMethod, Vec<u64>) {
        let instances = &self.reading.instances;
        let weigh = |slices: u32, ppm: u64| u64::from(slices) * ppm;
        if instances.iter().all(|instance| instance.activity_ppm.is_some()) {
            let activity = |ppm: Option<u32>| ppm.map_or(0, u64::from).min(WHOLE_PPM);
            let weights = instances.iter().map(|instance| weigh(instance.slices, activity(instance.activity_ppm)));
            return (GpuMethod::MigActivity, weights.collect());
        }
        let used = |id: u32| {
            self.reading.processes.iter().any(|process| process.instance == Some(id))
                || self.allocation.instances.iter().any(|(instance, _)| *instance == id)
        };
        let weights = instances.iter().map(|instance| weigh(instance.slices, u64::from(used(instance.id)) * WHOLE_PPM));
        (GpuMethod::MigSlices, weights.collect())
    }
}
