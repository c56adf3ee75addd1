//! What the kubelet says about devices in terms of workloads: joins the names of pods and containers with those that run.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device_id::DeviceId;
use super::holder::Uuids;
use super::holder::{Holder, KubeletResources};
use super::names::{Pod, Pods};
use super::{Runtime, Workload};

/// A container may have begun to run since the last look.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Who has each device.
#[derive(Debug, Default)]
pub struct Allocations {
    resources: Arc<KubeletResources>,
    uuids: Arc<Uuids>,
    pods: Arc<Pods>,
    looked: Option<Instant>,
    devices: HashMap<DeviceId, Given>,
}

/// Who was given a device.
#[derive(Debug)]
struct Given {
    holders: Vec<Holder>,
    /// `None` where a holder is not known by name, or does not run: then nobody can be the device's only owner.
    workloads: Option<Vec<Arc<Workload>>>,
}

impl Allocations {
    /// Takes in what is known now.
    pub fn refresh(
        &mut self,
        resources: &Arc<KubeletResources>,
        uuids: &Arc<Uuids>,
        pods: &Arc<Pods>,
        alive: &BTreeSet<Arc<Workload>>,
        now: Instant,
    ) {
        let same =
            Arc::ptr_eq(resources, &self.resources) && Arc::ptr_eq(uuids, &self.uuids) && Arc::ptr_eq(pods, &self.pods);
        if same && self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK_EVERY) {
            return;
        }
        (self.resources, self.uuids) = (Arc::clone(resources), Arc::clone(uuids));
        (self.pods, self.looked) = (Arc::clone(pods), Some(now));
        self.devices = resolve(resources, uuids, pods, alive);
    }

    /// The workloads that have the device of these names; nobody where one that has it is not known.
    #[must_use]
    pub fn of(&self, ids: &[DeviceId]) -> Vec<Arc<Workload>> {
        let given: Option<Vec<_>> = self.given(ids).map(|given| given.workloads.as_ref()).collect();
        let mut workloads: Vec<_> = given.unwrap_or_default().into_iter().flatten().cloned().collect();
        workloads.sort();
        workloads.dedup();
        workloads
    }

    /// The only container that has the device of these names, as the kubelet calls it.
    #[must_use]
    pub fn holder(&self, ids: &[DeviceId]) -> Option<&Holder> {
        let mut holders = self.given(ids).flat_map(|given| &given.holders);
        let first = holders.next()?;
        holders.all(|other| other == first).then_some(first)
    }

    fn given(&self, ids: &[DeviceId]) -> impl Iterator<Item = &Given> {
        ids.iter().filter_map(|id| self.devices.get(id))
    }
}

fn resolve(
    resources: &KubeletResources,
    uuids: &Uuids,
    pods: &Pods,
    alive: &BTreeSet<Arc<Workload>>,
) -> HashMap<DeviceId, Given> {
    let mut by_name: HashMap<(&str, &str), Vec<&Pod>> = HashMap::new();
    for pod in pods.by_uid.values() {
        by_name.entry((&*pod.namespace, &*pod.name)).or_default().push(pod);
    }
    let owner = |holder: &Holder| {
        if resources.doubles.contains(&(holder.namespace.clone(), holder.pod.clone())) {
            return None;
        }
        let of_pod = |pod: &&Pod| {
            let container = pod.containers.iter().find(|container| *container.name == *holder.container)?;
            let id = container.id.as_ref()?;
            // A static pod's cgroup is named by its hash.
            [Some(&pod.uid), pod.config_hash.as_ref()].into_iter().flatten().find_map(|uid| living(alive, uid, id))
        };
        // Of two pods of one name, of which one was deleted unseen, the one that runs; of two that run, neither.
        let mut running = by_name.get(&(holder.namespace.as_str(), holder.pod.as_str()))?.iter().filter_map(of_pod);
        running.next().filter(|_| running.next().is_none())
    };
    let mut devices: HashMap<DeviceId, Vec<Holder>> = HashMap::new();
    for (id, holders) in &resources.devices {
        let id = match id {
            DeviceId::Claimed(claimed) => uuids.get(claimed).map(|uuid| DeviceId::Uuid(Arc::clone(uuid))),
            _ => None,
        }
        .unwrap_or_else(|| id.clone());
        devices.entry(id).or_default().extend(holders.iter().cloned());
    }
    let given = |(id, holders): (DeviceId, Vec<Holder>)| {
        let workloads = holders.iter().map(owner).collect();
        (id, Given { holders, workloads })
    };
    devices.into_iter().map(given).collect()
}

/// The container of a cgroup, whatever its runtime.
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
    use super::*;
    use crate::workload::device_id::Claimed;
    use crate::workload::names::PodContainer;

    fn pod(uid: &str, id: &str) -> (Arc<str>, Arc<Pod>) {
        let container = PodContainer { name: "main".into(), id: Some(id.into()), ..PodContainer::default() };
        let pod = Pod {
            uid: uid.into(),
            namespace: "ml".into(),
            name: "train".into(),
            containers: vec![container],
            ..Pod::default()
        };
        (uid.into(), Arc::new(pod))
    }

    fn container(uid: &str, id: &str) -> Arc<Workload> {
        Arc::new(Workload::PodContainer { uid: uid.into(), id: id.into(), runtime: Runtime::Crio })
    }

    fn holder(namespace: &str, pod: &str) -> Holder {
        Holder { namespace: namespace.into(), pod: pod.into(), container: "main".into() }
    }

    fn gpu(uuid: &str) -> DeviceId {
        DeviceId::Uuid(uuid.into())
    }

    fn claimed(driver: &str, pool: &str, device: &str) -> DeviceId {
        DeviceId::Claimed(Claimed { driver: driver.into(), pool: pool.into(), device: device.into() })
    }

    /// GPU-1 is the device `gpu-0` of its driver on this node.
    fn uuids() -> Uuids {
        let claimed = Claimed { driver: "gpu.nvidia.com".into(), pool: "worker-1".into(), device: "gpu-0".into() };
        Uuids::from([(claimed, Arc::from("GPU-1"))])
    }

    /// What follows for `ids` from these holders and pods.
    fn of(
        devices: &[(DeviceId, Vec<Holder>)],
        doubles: &[(&str, &str)],
        pods: &[(Arc<str>, Arc<Pod>)],
        alive: &[Arc<Workload>],
        ids: &[DeviceId],
    ) -> Vec<Arc<Workload>> {
        let doubles = doubles.iter().map(|(namespace, pod)| ((*namespace).to_owned(), (*pod).to_owned())).collect();
        let resources = KubeletResources { devices: devices.iter().cloned().collect(), doubles };
        let pods = Pods { by_uid: pods.iter().cloned().collect(), ..Pods::default() };
        let mut allocations = Allocations::default();
        let alive = alive.iter().cloned().collect();
        allocations.refresh(&Arc::new(resources), &Arc::new(uuids()), &Arc::new(pods), &alive, Instant::now());
        allocations.of(ids)
    }

    #[test]
    fn a_device_is_its_holders_if_all_of_them_are_known_and_run() {
        let pods = Pods { by_uid: [pod("uid-1", "c1")].into(), ..Pods::default() };
        let train = || holder("ml", "train");
        let devices = [(gpu("GPU-1"), vec![train()]), (gpu("GPU-2"), vec![train(), holder("ml", "other")])];
        let resources = KubeletResources { devices: devices.into(), ..KubeletResources::default() };
        let (resources, uuids, pods) = (Arc::new(resources), Arc::default(), Arc::new(pods));
        let now = Instant::now();
        let mut allocations = Allocations::default();
        let alive = |ids: &[&str]| ids.iter().map(|id| container("uid-1", id)).collect::<BTreeSet<_>>();
        allocations.refresh(&resources, &uuids, &pods, &alive(&["c0", "c2"]), now);
        assert_eq!(allocations.of(&[gpu("GPU-1")]), []);
        let alive = alive(&["c0", "c1", "c2"]);
        allocations.refresh(&resources, &uuids, &pods, &alive, now + Duration::from_secs(4));
        assert_eq!(allocations.of(&[gpu("GPU-1")]), [], "looked at 4 s ago");
        allocations.refresh(&resources, &uuids, &pods, &alive, now + Duration::from_secs(5));
        assert_eq!(allocations.of(&[gpu("GPU-1")]), [container("uid-1", "c1")]);
        assert_eq!(allocations.of(&[gpu("GPU-2")]), [], "one of two holders is not known");
        assert_eq!(allocations.holder(&[gpu("GPU-1")]), Some(&train()));
        assert_eq!(allocations.holder(&[gpu("GPU-2")]), None);
    }

    /// An old pod and the next of its name, as a StatefulSet makes them.
    #[test]
    fn of_two_pods_of_one_name_the_one_that_runs_has_the_device_and_of_two_that_run_neither() {
        let pods = [pod("uid-1", "c1"), pod("uid-2", "c2")];
        let devices = [(gpu("GPU-1"), vec![holder("ml", "train")]), (gpu("GPU-2"), vec![holder("ml", "train")])];
        let [old, new] = [container("uid-1", "c1"), container("uid-2", "c2")];
        let told = |doubles: &[(&str, &str)], alive: &[Arc<Workload>]| {
            [gpu("GPU-1"), gpu("GPU-2")].map(|id| of(&devices, doubles, &pods, alive, &[id]))
        };
        assert_eq!(told(&[], &[Arc::clone(&new)]), [[Arc::clone(&new)], [Arc::clone(&new)]]);
        assert_eq!(told(&[], &[old, Arc::clone(&new)]), [[], []]);
        // The kubelet's answer has both: GPU-1 is one's and GPU-2 the other's, and the old one has ended in between.
        assert_eq!(told(&[("ml", "train")], &[Arc::clone(&new)]), [[], []]);
        assert_eq!(told(&[("web", "train"), ("ml", "trainer")], &[Arc::clone(&new)]), [[Arc::clone(&new)], [new]]);
    }

    #[test]
    fn a_pod_of_another_namespace_has_nothing_by_its_name() {
        let devices = [(gpu("GPU-1"), vec![holder("victim", "train")])];
        let alive = [container("uid-1", "c1")];
        assert_eq!(of(&devices, &[], &[pod("uid-1", "c1")], &alive, &[gpu("GPU-1")]), []);
    }

    #[test]
    fn a_claimed_device_is_a_gpu_by_all_three_names_alone() {
        let alive = [container("uid-1", "c1")];
        let of = |id: DeviceId| {
            let given = [(id, vec![holder("ml", "train")])];
            of(&given, &[], &[pod("uid-1", "c1")], &alive, &[gpu("GPU-1")])
        };
        assert_eq!(of(claimed("gpu.nvidia.com", "worker-1", "gpu-0")), alive);
        for [driver, pool, device] in [
            ["compute-domain.nvidia.com", "worker-1", "gpu-0"],
            ["gpu.nvidia.com", "worker-2", "gpu-0"],
            ["gpu.nvidia.com", "worker-1", "gpu-1"],
            ["gpu.nvidia.com", "worker-1", "GPU-1"],
        ] {
            assert_eq!(of(claimed(driver, pool, device)), [], "{driver}/{pool}/{device}");
        }
    }

    #[test]
    fn a_device_that_two_plugins_give_is_both_holders() {
        let pods = [pod("uid-1", "c1")];
        let alive = [container("uid-1", "c1")];
        let names = [gpu("GPU-1"), DeviceId::Index(0), DeviceId::Minor(3)];
        let by = |id: DeviceId, pod: &str| (id, vec![holder("ml", pod)]);
        let of = |devices: &[(DeviceId, Vec<Holder>)]| of(devices, &[], &pods, &alive, &names);
        assert_eq!(of(&[by(DeviceId::Index(0), "train")]), alive);
        assert_eq!(of(&[by(DeviceId::Minor(3), "train"), by(gpu("GPU-1"), "train")]), alive);
        assert_eq!(of(&[by(DeviceId::Minor(3), "train"), by(gpu("GPU-1"), "unknown")]), []);
        assert_eq!(of(&[by(DeviceId::Index(3), "train"), by(gpu("GPU-2"), "train")]), []);
    }
}
