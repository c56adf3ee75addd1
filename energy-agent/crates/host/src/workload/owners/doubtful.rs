//! Cgroups that may belong to another workload once other paths or pods are known.

use std::collections::HashMap;
use std::sync::Arc;

use energy_model::sample::CgroupId;
use energy_model::table;
use energy_model::workload::cgroup::PathReading;

/// Most cgroups to look at again when other paths or reported pods change what theirs means; a node in a container has about as
/// many as pods and containers.
const MAX: usize = 16_384;

/// Paths with a meaning that depends on others.
#[derive(Debug, Default)]
pub struct Doubtful {
    paths: HashMap<CgroupId, Arc<str>>,
    /// Of these the ones that belong to the pod of a sandbox, by its id: how many.
    hypervisors: HashMap<Box<str>, usize>,
}

impl Doubtful {
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    pub fn has_room(&self) -> bool {
        self.paths.len() < MAX
    }

    pub fn paths(&self) -> impl Iterator<Item = (CgroupId, &Arc<str>)> {
        self.paths.iter().map(|(&id, path)| (id, path))
    }

    /// Whether some path belongs to the pod that has this sandbox.
    pub(crate) fn waits_for(&self, sandbox: &str) -> bool {
        self.hypervisors.contains_key(sandbox)
    }

    pub fn insert(&mut self, id: CgroupId, path: &str, reading: &PathReading) {
        if let Some(sandbox) = reading.hypervisor_of() {
            *self.hypervisors.entry(sandbox.into()).or_default() += 1;
        }
        self.paths.insert(id, Arc::from(path));
    }

    pub fn remove(&mut self, id: CgroupId) -> Option<PathReading> {
        let reading = PathReading::of(&self.paths.remove(&id)?);
        if let Some(sandbox) = reading.hypervisor_of()
            && let Some(count) = self.hypervisors.get_mut(sandbox)
        {
            *count -= 1;
            if *count == 0 {
                self.hypervisors.remove(sandbox);
            }
        }
        Some(reading)
    }

    /// Gives memory back that fewer paths do not need.
    pub fn fit(&mut self) {
        table::fit(&mut self.paths);
    }
}
