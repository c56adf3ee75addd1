//! What the API server or the kubelet says about the node's pods, trimmed to what is used, and the names that follow from
//! it for the pods and containers of cgroups.
//!
//! Instances of a named container (restarts) are summed under the id of the current one. When the row of an ended instance is
//! folded, its total is kept by name, so that neither the container's counter nor the pod's falls. The API does not report the ids of
//! sandboxes (pause containers). A runtime makes a pod's sandbox first, so it is the pod's first container unless the API names that
//! one, and it is shown as the container `POD` together with what runs in the pod's cgroup beside containers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::sandbox::Sandboxes;
use super::{POD_OVERHEAD, Workload};

/// The pods of this node as they were last reported. An update replaces the whole value; pods not mentioned are shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    pub by_uid: BTreeMap<Arc<str>, Arc<Pod>>,
    /// Pods deleted a short time ago: work of theirs may still have to be named.
    pub gone: BTreeMap<Arc<str>, Arc<Pod>>,
}

impl Pods {
    /// The pod that has, or lately had, this container; `None` if two say so.
    #[must_use]
    pub fn with_container(&self, id: &str) -> Option<&Pod> {
        let has = |pod: &&Arc<Pod>| {
            let mut ids = pod.containers.iter().flat_map(|container| container.id.iter().chain(&container.past_ids));
            ids.any(|known| **known == *id)
        };
        let [living, gone] = [&self.by_uid, &self.gone].map(|pods| {
            let mut pods = pods.values().filter(has);
            (pods.next(), pods.next())
        });
        let (pod, other) = if living.0.is_some() { living } else { gone };
        pod.filter(|_| other.is_none()).map(|pod| &**pod)
    }
}

/// One pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`. For a static pod seen through the API server this is its mirror pod's.
    pub uid: Arc<str>,
    /// Annotation `kubernetes.io/config.hash` of a mirror pod: what the cgroup of its static pod is named by in place of
    /// the uid. A claim until [`super::mirrors::Mirrors`] has seen the proof.
    pub config_hash: Option<Arc<str>>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub labels: BTreeMap<String, String>,
    /// Of every kind, in the order of the status; then those that have no status yet.
    pub containers: Vec<PodContainer>,
    /// Effective CPU request of the pod (the scheduler's sum), thousandths of a CPU.
    pub cpu_request_milli: u64,
    /// `spec.priority`: the value of its PriorityClass.
    pub priority: i32,
}

impl Pod {
    /// What its cgroup is named by.
    #[must_use]
    pub fn cgroup_name(&self) -> &Arc<str> {
        self.config_hash.as_ref().unwrap_or(&self.uid)
    }
}

/// A container of a pod: main, init, sidecar or ephemeral.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodContainer {
    pub name: Arc<str>,
    /// Id without the scheme (`containerd://`); `None` until the runtime has made it.
    pub id: Option<Arc<str>>,
    /// Ids of earlier instances, as far as they were reported; the newest first, a few.
    pub past_ids: Vec<Arc<str>>,
}

/// Names of the pods that are there, and of all that still have a row in the ledger.
#[derive(Clone, Debug, Default)]
pub struct Names {
    told: Arc<Pods>,
    /// The version of the first containers that sandboxes were found by.
    firsts: u64,
    /// By what a cgroup is named by: the uid, for static pods also the hash.
    pods: HashMap<Arc<str>, Named>,
}

#[derive(Clone, Debug)]
struct Named {
    pod: Arc<Pod>,
    /// Container name by id, earlier instances and the sandbox included.
    containers: HashMap<Arc<str>, Arc<str>>,
}

/// How a pod is called on the page; empty while its name is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName<'a> {
    /// The API's uid, also for a static pod; before that is known, what its cgroup is named by.
    pub id: &'a str,
    pub name: &'a str,
    pub namespace: &'a str,
}

impl Names {
    /// The names after `told`. Pods and container instances that are no longer reported stay named while `rows`, the
    /// workloads of the ledger, have them. `None` if there is nothing new.
    ///
    /// The API does not report the id of a sandbox. It is the one of `firsts` without a reported name, once any name of its
    /// pod is reported. A runtime without sandboxes makes a container that is reported first.
    #[must_use]
    pub fn after<'a>(
        &self,
        told: &Arc<Pods>,
        firsts: &Sandboxes,
        rows: impl Iterator<Item = &'a Arc<Workload>>,
    ) -> Option<Self> {
        let nobody = told.by_uid.is_empty() && told.gone.is_empty();
        if Arc::ptr_eq(told, &self.told) && (nobody || firsts.version() == self.firsts) {
            return None;
        }
        let mut pods = HashMap::with_capacity(told.by_uid.len() + told.gone.len());
        // Who lives goes last: a static pod's hash outlives its mirror pod.
        for pod in told.gone.values().chain(told.by_uid.values()) {
            let named = Named::from(pod);
            if let Some(hash) = &pod.config_hash {
                pods.insert(Arc::clone(hash), named.clone());
            }
            pods.insert(Arc::clone(&pod.uid), named);
        }
        for workload in rows {
            let Some((uid, before)) = workload.pod_uid().and_then(|uid| self.pods.get_key_value(uid)) else { continue };
            let named = pods
                .entry(Arc::clone(uid))
                .or_insert_with(|| Named { pod: Arc::clone(&before.pod), containers: HashMap::new() });
            if let Workload::PodContainer { id, .. } = &**workload
                && let Some((id, name)) = before.containers.get_key_value(id)
            {
                named.containers.entry(Arc::clone(id)).or_insert_with(|| Arc::clone(name));
            }
        }
        for (uid, named) in &mut pods {
            if let Some(id) = firsts.of(uid).filter(|_| named.pod.containers.iter().any(|it| it.id.is_some())) {
                named.containers.entry(Arc::clone(id)).or_insert_with(|| POD_OVERHEAD.into());
            }
        }
        Some(Self { told: Arc::clone(told), firsts: firsts.version(), pods })
    }

    /// The pod that a cgroup belongs to.
    #[must_use]
    pub fn pod<'a>(&'a self, uid: &'a str) -> PodName<'a> {
        match self.pods.get(uid) {
            Some(Named { pod, .. }) => PodName { id: &pod.uid, name: &pod.name, namespace: &pod.namespace },
            None => PodName { id: uid, name: "", namespace: "" },
        }
    }

    /// The name of a container in the pod of that cgroup, if it was reported or is the sandbox.
    #[must_use]
    pub fn container(&self, uid: &str, id: &str) -> Option<&Arc<str>> {
        self.pods.get(uid)?.containers.get(id)
    }

    /// The instance of that name that was last reported as the current one.
    #[must_use]
    pub fn current(&self, uid: &str, name: &str) -> Option<&str> {
        let container = self.pods.get(uid)?.pod.containers.iter().find(|container| *container.name == *name)?;
        container.id.as_deref()
    }

    /// Labels of the pod as Kubernetes has them.
    #[must_use]
    pub fn labels(&self, uid: &str) -> Option<&BTreeMap<String, String>> {
        Some(&self.pods.get(uid)?.pod.labels)
    }

    /// Whether the pod of that cgroup was reported.
    #[must_use]
    pub fn knows(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }
}

impl From<&Arc<Pod>> for Named {
    fn from(pod: &Arc<Pod>) -> Self {
        let ids = |container: &PodContainer| {
            let name = Arc::clone(&container.name);
            let ids: Vec<_> = container.id.iter().chain(&container.past_ids).cloned().collect();
            ids.into_iter().map(move |id| (id, Arc::clone(&name)))
        };
        Self { pod: Arc::clone(pod), containers: pod.containers.iter().flat_map(ids).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Runtime;

    fn pod(uid: &str, name: &str, ids: &[(&str, &str)]) -> Arc<Pod> {
        let containers = ids
            .iter()
            .map(|(name, id)| PodContainer { name: (*name).into(), id: Some((*id).into()), past_ids: Vec::new() })
            .collect();
        Arc::new(Pod { uid: uid.into(), name: name.into(), namespace: "ns".into(), containers, ..Pod::default() })
    }

    fn told(pods: &[Arc<Pod>]) -> Arc<Pods> {
        let by_uid = pods.iter().map(|pod| (Arc::clone(&pod.uid), Arc::clone(pod))).collect();
        Arc::new(Pods { by_uid, gone: BTreeMap::new() })
    }

    fn container(uid: &str, id: &str) -> Arc<Workload> {
        Arc::new(Workload::PodContainer { uid: uid.into(), id: id.into(), runtime: Runtime::Unknown })
    }

    #[test]
    fn a_pod_that_is_no_longer_told_keeps_its_names_while_it_has_a_row() {
        let row = container("u", "1");
        let names = Names::default()
            .after(&told(&[pod("u", "web", &[("main", "1")])]), &Sandboxes::default(), [&row].into_iter())
            .unwrap();
        let gone = names.after(&told(&[]), &Sandboxes::default(), [&row].into_iter()).unwrap();
        assert_eq!(gone.pod("u"), PodName { id: "u", name: "web", namespace: "ns" });
        assert_eq!(gone.container("u", "1").map(|name| &**name), Some("main"));
        let retired = gone.after(&told(&[]), &Sandboxes::default(), [].into_iter()).unwrap();
        assert_eq!(retired.pod("u"), PodName { id: "u", name: "", namespace: "" });
    }

    #[test]
    fn an_instance_that_is_no_longer_told_keeps_its_name_while_it_has_a_row() {
        let rows = [container("u", "1"), container("u", "2")];
        let first = Names::default()
            .after(&told(&[pod("u", "web", &[("main", "1")])]), &Sandboxes::default(), rows.iter())
            .unwrap();
        let second =
            first.after(&told(&[pod("u", "web", &[("main", "2")])]), &Sandboxes::default(), rows.iter()).unwrap();
        let third =
            second.after(&told(&[pod("u", "web", &[("main", "3")])]), &Sandboxes::default(), rows[1..].iter()).unwrap();
        let name = |names: &Names, id: &str| names.container("u", id).map(|name| name.to_string());
        assert_eq!([name(&second, "1"), name(&second, "2")], [Some("main".into()), Some("main".into())]);
        assert_eq!(
            [name(&third, "1"), name(&third, "2"), name(&third, "3")],
            [None, Some("main".into()), Some("main".into())]
        );
        assert_eq!(third.current("u", "main"), Some("3"));
    }

    #[test]
    fn fc_026_a_static_pod_is_found_by_its_hash_and_shown_by_its_uid() {
        let mirror = Pod { config_hash: Some("hash".into()), ..(*pod("api-uid", "etcd-node", &[])).clone() };
        let names = Names::default().after(&told(&[Arc::new(mirror)]), &Sandboxes::default(), [].into_iter()).unwrap();
        assert_eq!(names.pod("hash"), PodName { id: "api-uid", name: "etcd-node", namespace: "ns" });
    }

    #[test]
    fn fc_029_the_same_name_with_another_uid_is_another_pod() {
        let row = container("old", "1");
        let old = Names::default()
            .after(&told(&[pod("old", "db-0", &[("db", "1")])]), &Sandboxes::default(), [&row].into_iter())
            .unwrap();
        let both =
            old.after(&told(&[pod("new", "db-0", &[("db", "2")])]), &Sandboxes::default(), [&row].into_iter()).unwrap();
        assert_eq!(
            [both.pod("old"), both.pod("new")].map(|pod| (pod.id, pod.name)),
            [("old", "db-0"), ("new", "db-0")]
        );
        assert_eq!([both.container("new", "1"), both.container("old", "2")], [None, None]);
    }

    #[test]
    fn a_pod_that_was_deleted_since_the_last_look_has_a_name() {
        let mut pods = Pods::default();
        pods.gone.insert("u".into(), pod("u", "job", &[("main", "1")]));
        let names = Names::default().after(&Arc::new(pods), &Sandboxes::default(), [].into_iter()).unwrap();
        assert_eq!(names.pod("u").name, "job");
    }

    #[test]
    fn the_first_container_that_nobody_tells_of_is_the_sandbox_as_long_as_it_has_a_row() {
        let mut firsts = Sandboxes::default();
        firsts.see(2, &container("u", "0"));
        firsts.see(3, &container("u", "1"));
        let name = |names: &Names, id: &str| names.container("u", id).map(ToString::to_string);
        // No container of the pod is reported yet: the first one may be one that is reported late.
        let mut waiting = (*pod("u", "web", &[])).clone();
        waiting.containers.push(PodContainer { name: "main".into(), ..PodContainer::default() });
        let rows = [container("u", "0"), container("u", "1")];
        let names = Names::default().after(&told(&[Arc::new(waiting)]), &firsts, rows.iter()).unwrap();
        assert_eq!(name(&names, "0"), None);
        let names = names.after(&told(&[pod("u", "web", &[("main", "1")])]), &firsts, rows.iter()).unwrap();
        assert_eq!([name(&names, "0"), name(&names, "1")], [Some("POD".into()), Some("main".into())]);
        // Nor does it lose the name when another container's id is to come.
        let names = names.after(&told(&[]), &Sandboxes::default(), rows.iter()).unwrap();
        assert_eq!(name(&names, "0"), Some("POD".into()));
        // Where runtimes make no sandbox, the first container has its own name.
        let mut firsts = Sandboxes::default();
        firsts.see(3, &container("u", "1"));
        let names = Names::default().after(&told(&[pod("u", "web", &[("main", "1")])]), &firsts, rows.iter()).unwrap();
        assert_eq!([name(&names, "0"), name(&names, "1")], [None, Some("main".into())]);
    }

    #[test]
    fn a_sandbox_that_is_found_after_its_pod_was_told_has_its_name_without_another_word() {
        let (told, mut firsts) = (told(&[pod("u", "web", &[("main", "1")])]), Sandboxes::default());
        let names = Names::default().after(&told, &firsts, [].into_iter()).unwrap();
        assert!(names.after(&told, &firsts, [].into_iter()).is_none());
        firsts.see(2, &container("u", "0"));
        let names = names.after(&told, &firsts, [].into_iter()).unwrap();
        assert_eq!(names.container("u", "0").map(|name| &**name), Some("POD"));
        assert!(names.after(&told, &firsts, [].into_iter()).is_none());
    }
}
