//! Which container of each pod was made first: its sandbox, if it has one. Runtimes make it before all others, and the
//! API reports the ids of all others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::Workload;
use crate::sample::CgroupId;
use crate::table;

/// The first container of each pod, by what the pod's cgroup is named by.
#[derive(Debug, Default)]
pub struct Sandboxes {
    by_pod: HashMap<Arc<str>, First>,
    version: u64,
}

#[derive(Debug)]
struct First {
    /// Numbers of cgroups ascend in the order in which they are made.
    cgroup: CgroupId,
    id: Arc<str>,
}

impl Sandboxes {
    /// Takes a cgroup into account that may be a pod's container.
    pub fn see(&mut self, cgroup: CgroupId, workload: &Workload) {
        let Workload::PodContainer { uid, id, .. } = workload else { return };
        match self.by_pod.entry(Arc::clone(uid)) {
            Entry::Occupied(mut first) if cgroup < first.get().cgroup => {
                if *id != first.get().id {
                    self.version += 1;
                }
                first.insert(First { cgroup, id: Arc::clone(id) });
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(place) => {
                place.insert(First { cgroup, id: Arc::clone(id) });
                self.version += 1;
            }
        }
    }

    /// The pod is gone.
    pub fn forget(&mut self, uid: &str) {
        self.by_pod.remove(uid);
        table::fit(&mut self.by_pod);
    }

    /// Forgets the pods of which nothing `is_known` any more.
    pub fn retain(&mut self, mut is_known: impl FnMut(&Arc<str>) -> bool) {
        self.by_pod.retain(|uid, _| is_known(uid));
    }

    /// The id of the container of this pod that was made first.
    #[must_use]
    pub fn of(&self, uid: &str) -> Option<&Arc<str>> {
        self.by_pod.get(uid).map(|first| &first.id)
    }

    /// Another one after each change of an answer.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Runtime;

    #[test]
    fn the_lowest_cgroup_of_a_pod_is_its_first_in_whatever_order_they_are_found() {
        let container = |uid: &str, id: &str| Workload::PodContainer {
            uid: uid.into(),
            id: id.into(),
            runtime: Runtime::Containerd,
        };
        let mut firsts = Sandboxes::default();
        firsts.see(7, &container("a", "main"));
        firsts.see(5, &container("a", "pause"));
        firsts.see(6, &container("b", "main"));
        firsts.see(9, &container("a", "side"));
        firsts.see(4, &Workload::PodOverhead { uid: "a".into() });
        assert_eq!([firsts.of("a"), firsts.of("b")].map(|id| id.map(|id| &**id)), [Some("pause"), Some("main")]);
        assert_eq!(firsts.version(), 3);
        firsts.retain(|uid| **uid != *"a");
        assert_eq!(firsts.of("a"), None);
        assert!(firsts.of("b").is_some());
    }
}
