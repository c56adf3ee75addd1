//! Which workload a cgroup belongs to, by its path, other paths, reported pods and chosen units; and moving cgroups
//! from one to another when that changes.

use std::collections::HashSet;
use std::sync::Arc;

use energy_model::sample::CgroupId;
use energy_model::workload::Workload;
use energy_model::workload::cgroup::{KATA_OVERHEAD, PathReading};
use energy_model::workload::units::{Claim, Units};
use tracing::warn;

use super::{Cgroup, Owners};
use crate::workload::tree::walk;

impl Owners {
    /// The units that have rows from now on. What the others used before stays where it was charged, and a container keeps
    /// its unit.
    pub fn choose(&mut self, units: &Units) {
        if *units == self.roster.units {
            return;
        }
        self.roster.units = units.clone();
        let folders = match walk(&self.root) {
            Ok(folders) => folders,
            Err(error) => return warn!(error = format!("{error:#}"), "cgroups cannot be listed, their units stay"),
        };
        let mut moved = Vec::new();
        for folder in folders {
            let Some(cgroup) = self.cgroups.get(&folder.id) else { continue };
            let path = folder.cgroup_path();
            let claim = self.claim(&PathReading::of(&path), &path);
            if claim.row != *cgroup.workload {
                moved.push((folder.id, Arc::from(path), claim));
            }
        }
        self.give(moved);
    }

    /// The workload in whose row the work of `workload`, whose cgroup is at `path`, is shown.
    #[must_use]
    pub fn row(&self, workload: Workload, path: &str) -> Workload {
        self.roster.admit(&self.claim_of(workload, &PathReading::of(path), path)).0
    }

    /// What the cgroup at `path` asks for.
    pub(super) fn claim(&self, reading: &PathReading, path: &str) -> Claim {
        self.claim_of(self.belongs(reading), reading, path)
    }

    fn claim_of(&self, workload: Workload, reading: &PathReading, path: &str) -> Claim {
        let uid = workload.pod_uid().filter(|uid| !self.places.is_nodes(uid));
        let pod = uid.and_then(|uid| reading.pods.iter().find(|pod| *pod.uid == **uid));
        self.roster.units.claim(workload, path, pod)
    }

    /// What a path belongs to by now.
    fn belongs(&self, reading: &PathReading) -> Workload {
        let sandbox = reading.hypervisor_of().and_then(|sandbox| {
            // In cgroups that only root makes: elsewhere anybody makes one of this name.
            let is_it = |it: &&Arc<Workload>| match &***it {
                Workload::PodContainer { uid, id, .. } => **id == *sandbox && self.places.is_roots(uid),
                _ => false,
            };
            let mut found = self.roster.known().filter(is_it);
            // Of two nobody knows which.
            found.next().filter(|_| found.next().is_none())
        });
        sandbox.map_or_else(|| Workload::from(self.places.place(reading)), |sandbox| Workload::clone(sandbox))
    }

    /// Counts a cgroup of the workload that has room for it.
    pub(super) fn enter(&mut self, claim: Claim, live: bool) -> Arc<Workload> {
        let (workload, is_first) = self.roster.enter(claim, live);
        if is_first && let Workload::PodContainer { id, .. } = &*workload {
            self.is_stale |= self.doubtful.waits_for(id);
        }
        workload
    }

    /// A cgroup of the workload is forgotten.
    pub(super) fn leave(&mut self, workload: &Workload) {
        if self.roster.leave(workload)
            && let Workload::PodOverhead { uid } = workload
        {
            self.firsts.forget(uid);
        }
    }

    /// Keeps what is known of pods up with a cgroup that exists.
    pub(super) fn note_pod(&mut self, id: CgroupId, path: &str, workload: &Workload) {
        if path.starts_with(KATA_OVERHEAD) {
            return;
        }
        self.pods.note(id, path, workload);
        self.firsts.see(id, workload);
    }

    /// Gives cgroups to the workloads that they belong to by now. What they used before stays where it was charged.
    pub(super) fn place_again(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        #[cfg(test)]
        {
            self.placings += 1;
        }
        let (mut moved, mut free) = (Vec::new(), Vec::new());
        for (id, path) in self.doubtful.paths() {
            let Some(cgroup) = self.cgroups.get(&id) else { continue };
            let claim = self.claim(&PathReading::of(path), path);
            if claim.row != *cgroup.workload {
                moved.push((id, Arc::clone(path), claim));
            } else if claim.holder.is_none() {
                // Such as a pod that is reported now.
                free.push(Arc::clone(&cgroup.workload));
            }
        }
        for workload in free {
            self.roster.set_free(&workload);
        }
        self.give(moved);
    }

    /// Gives the cgroups at these paths to these workloads.
    fn give(&mut self, moved: Vec<(CgroupId, Arc<str>, Claim)>) {
        let mut pods = HashSet::new();
        for (id, path, claim) in moved {
            let Some(Cgroup { workload: before, removed, is_cut, .. }) = self.cgroups.get(&id) else { continue };
            let (before, live, is_cut) = (Arc::clone(before), removed.is_none(), *is_cut);
            // One after the other, as there may not be room for all.
            if self.roster.keeps(&before, &claim) {
                continue;
            }
            if live {
                self.roster.end(&before);
            }
            self.pods.forget(id, &before);
            self.leave(&before);
            let workload = self.enter(claim, live);
            if live && !is_cut {
                self.note_pod(id, &path, &workload);
            }
            pods.extend(before.pod_uid().cloned());
            if let Some(cgroup) = self.cgroups.get_mut(&id) {
                cgroup.workload = workload;
            }
        }
        // What was first in a pod may not be in it.
        self.firsts.retain(|uid| !pods.contains(uid));
        for (id, cgroup) in &self.cgroups {
            if cgroup.workload.pod_uid().is_some_and(|uid| pods.contains(uid)) {
                self.firsts.see(*id, &cgroup.workload);
            }
        }
    }
}
