//! What the kubelet says about devices in terms of workloads: joins the names of pods and containers with those that run.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::names::{Pod, Pods};
use super::podresources::Resources;
use super::{Runtime, Workload};

/// A container may have begun to run since the last look.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The workloads that have each device, by its UUID.
#[derive(Debug, Default)]
pub struct Allocations {
    resources: Arc<Resources>,
    pods: Arc<Pods>,
    looked: Option<Instant>,
    devices: HashMap<String, Vec<Arc<Workload>>>,
}

impl Allocations {
    /// Takes in what is known now.
    pub fn refresh(
        &mut self,
        resources: &Arc<Resources>,
        pods: &Arc<Pods>,
        alive: &BTreeSet<Arc<Workload>>,
        now: Instant,
    ) {
        let same = Arc::ptr_eq(resources, &self.resources) && Arc::ptr_eq(pods, &self.pods);
        if same && self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK_EVERY) {
            return;
        }
        (self.resources, self.pods, self.looked) = (Arc::clone(resources), Arc::clone(pods), Some(now));
        self.devices = resolve(resources, pods, alive);
    }

    /// Those that have the device of this UUID.
    #[must_use]
    pub fn of(&self, uuid: &str) -> &[Arc<Workload>] {
        self.devices.get(uuid).map_or(&[], Vec::as_slice)
    }

    /// What the kubelet said, by names.
    #[must_use]
    pub const fn resources(&self) -> &Arc<Resources> {
        &self.resources
    }
}

/// A holder that is not known by name, or does not run, leaves its device out: then nobody can be its only owner.
fn resolve(resources: &Resources, pods: &Pods, alive: &BTreeSet<Arc<Workload>>) -> HashMap<String, Vec<Arc<Workload>>> {
    // Of two pods of one name, of which one was deleted unseen, the one that runs.
    let mut by_name: HashMap<(&str, &str), Vec<&Pod>> = HashMap::new();
    for pod in pods.by_uid.values() {
        by_name.entry((&*pod.namespace, &*pod.name)).or_default().push(pod);
    }
    let devices = resources.devices.iter().filter_map(|(device, holders)| {
        let owner = |holder: &super::podresources::Holder| {
            let of_pod = |pod: &&Pod| {
                let container = pod.containers.iter().find(|container| *container.name == *holder.container)?;
                let id = container.id.as_ref()?;
                // A static pod's cgroup is named by its hash.
                [Some(&pod.uid), pod.config_hash.as_ref()].into_iter().flatten().find_map(|uid| living(alive, uid, id))
            };
            by_name.get(&(holder.namespace.as_str(), holder.pod.as_str()))?.iter().find_map(of_pod)
        };
        let owners: Option<Vec<_>> = holders.iter().map(owner).collect();
        Some((device.clone(), owners?))
    });
    devices.collect()
}

/// The container as its cgroup tells it, whatever its runtime.
pub(super) fn living(alive: &BTreeSet<Arc<Workload>>, uid: &Arc<str>, id: &Arc<str>) -> Option<Arc<Workload>> {
    let lowest = Workload::PodContainer { uid: Arc::clone(uid), id: Arc::clone(id), runtime: Runtime::Containerd };
    let found = alive.range::<Workload, _>(&lowest..).next()?;
    match &**found {
        Workload::PodContainer { uid: pod, id: container, .. } if pod == uid && container == id => {
            Some(Arc::clone(found))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::PodContainer;
    use super::super::podresources::Holder;
    use super::*;

    #[test]
    fn a_device_is_its_holders_if_all_of_them_are_known_and_run() {
        let pod = Pod {
            uid: "uid-1".into(),
            namespace: "ml".into(),
            name: "train".into(),
            containers: vec![PodContainer { name: "main".into(), id: Some("c1".into()), ..PodContainer::default() }],
            ..Pod::default()
        };
        let pods = Pods { by_uid: [("uid-1".into(), Arc::new(pod))].into(), ..Pods::default() };
        let holder = |pod: &str| Holder { namespace: "ml".into(), pod: pod.into(), container: "main".into() };
        let devices = [("GPU-1", vec![holder("train")]), ("GPU-2", vec![holder("train"), holder("other")])];
        let resources = Resources { devices: devices.map(|(id, holders)| (id.to_owned(), holders)).into() };
        let container =
            |id: &str| Arc::new(Workload::PodContainer { uid: "uid-1".into(), id: id.into(), runtime: Runtime::Crio });
        let (resources, pods, now) = (Arc::new(resources), Arc::new(pods), Instant::now());
        let mut allocations = Allocations::default();
        allocations.refresh(&resources, &pods, &BTreeSet::from([container("c0"), container("c2")]), now);
        assert_eq!(allocations.of("GPU-1"), []);
        let alive = BTreeSet::from([container("c0"), container("c1"), container("c2")]);
        allocations.refresh(&resources, &pods, &alive, now + Duration::from_secs(4));
        assert_eq!(allocations.of("GPU-1"), [], "looked at 4 s ago");
        allocations.refresh(&resources, &pods, &alive, now + Duration::from_secs(5));
        assert_eq!(allocations.of("GPU-1"), [container("c1")]);
        assert_eq!(allocations.of("GPU-2"), [], "one of two holders is not known");
    }
}
