//! The cgroups that are pods' own, those that their containers' are in.

use std::collections::HashMap;
use std::sync::Arc;

use energy_model::sample::CgroupId;
use energy_model::table;
use energy_model::workload::Workload;
use energy_model::workload::cgroup::PathReading;
use energy_model::workload::places::Places;

/// A pod's own cgroup.
#[derive(Debug)]
struct PodCgroup {
    id: CgroupId,
    path: Arc<str>,
}

/// The own cgroup of each pod, by what it is named by.
#[derive(Debug, Default)]
pub struct PodCgroups(HashMap<Arc<str>, PodCgroup>);

impl PodCgroups {
    /// The path below the hierarchy's root, without a leading `/`.
    pub fn path(&self, uid: &str) -> Option<&Arc<str>> {
        self.0.get(uid).map(|pod| &pod.path)
    }

    pub fn paths(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.values().map(|pod| &pod.path)
    }

    /// A cgroup of the workload exists at this path.
    pub fn note(&mut self, id: CgroupId, path: &str, workload: &Workload) {
        let Workload::PodOverhead { uid } = workload else { return };
        let path = path.trim_start_matches('/');
        // What lies deeper is a pod's cgroup too, though not its own.
        if self.0.get(uid).is_none_or(|known| path.len() <= known.path.len()) {
            self.0.insert(Arc::clone(uid), PodCgroup { id, path: Arc::from(path) });
        }
    }

    /// What was taken for the own cgroup of a pod is not if the pod's place is on this path and not there.
    pub(crate) fn drop_misplaced(&mut self, reading: &PathReading, places: &Places) {
        for pod in &reading.pods {
            let is_here = |known: &PodCgroup| {
                let known = PathReading::of(&known.path);
                known.pods.iter().any(|known| known.uid == pod.uid && known.spot == pod.spot)
            };
            if places.is_place(&pod.uid, &pod.spot) && self.0.get(&*pod.uid).is_some_and(|it| !is_here(it)) {
                self.0.remove(&*pod.uid);
            }
        }
    }

    /// The cgroup is the pod's own no more.
    pub fn forget(&mut self, id: CgroupId, workload: &Workload) {
        if let Workload::PodOverhead { uid } = workload
            && self.0.get(uid).is_some_and(|pod| pod.id == id)
        {
            self.0.remove(uid);
        }
    }

    /// Gives memory back that fewer pods do not need.
    pub fn fit(&mut self) {
        table::fit(&mut self.0);
    }
}
