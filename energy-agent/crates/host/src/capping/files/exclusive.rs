//! Which pods have CPUs, and with them clocks, for themselves: the `cpuset` of their containers against that of everyone
//! else's.
//!
//! Source: `cpuset.cpus`, <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset>, as the kubelet's CPU manager writes
//! it: with its static policy, containers that asked for whole CPUs get their own and all others the rest. Services of the
//! node outside pods may still run anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use energy_model::capping::knob::Knob;

use super::attribute;
use super::hierarchy::Hierarchy;
use crate::meter::cpu::parse_list;

/// Where the cpusets are.
#[derive(Debug)]
pub struct Cpusets {
    hierarchy: Option<Hierarchy>,
}

impl Cpusets {
    /// cgroup v2 where it has the controller, else the v1 hierarchy beside it.
    #[must_use]
    pub fn open(cgroupfs: &Path) -> Self {
        Self { hierarchy: Hierarchy::of("cpuset", "cpuset.cpus", cgroupfs) }
    }

    /// The CPUs that the containers of a pod were given; `None` where they may run on any.
    ///
    /// A container without a set of its own beside others that have one is the sandbox, which only waits. v1 hands the
    /// parent's set down, so that one equal to the pod's is none of its own.
    #[must_use]
    pub fn of_pod(&self, cgroup: &str) -> Option<BTreeSet<u32>> {
        let folder = self.hierarchy.as_ref()?.root().join(cgroup.trim_matches('/'));
        let read = |folder: &Path| attribute::read(&folder.join("cpuset.cpus")).ok();
        let pods = read(&folder)?;
        let entries = fs::read_dir(&folder).ok()?.flatten();
        let own: Vec<String> = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| read(&entry.path()))
            .filter(|cpus| !cpus.is_empty() && *cpus != pods)
            .collect();
        if own.is_empty() {
            return None;
        }
        let sets: Result<Vec<Vec<u32>>, _> = own.iter().map(|cpus| parse_list(cpus)).collect();
        Some(sets.ok()?.into_iter().flatten().collect())
    }
}

/// The clocks that are a pod's alone: every CPU of the policy is among the pod's, and none of them is another pod's, given
/// the CPUs of each policy and those of each pod (`None`: any). Pods without one are not in the result.
#[must_use]
pub(crate) fn exclusive(
    policies: &BTreeMap<u32, Vec<u32>>,
    pods: &BTreeMap<Arc<str>, Option<BTreeSet<u32>>>,
) -> BTreeMap<Arc<str>, Vec<Knob>> {
    // How many pods may run on a CPU, and one of them.
    let mut users: BTreeMap<u32, (u32, &Arc<str>)> = BTreeMap::new();
    for (pod, cpus) in pods {
        let Some(cpus) = cpus else { return BTreeMap::new() };
        for &cpu in cpus {
            users.entry(cpu).or_insert((0, pod)).0 += 1;
        }
    }
    let mut owned: BTreeMap<Arc<str>, Vec<Knob>> = BTreeMap::new();
    for (&policy, cpus) in policies {
        let owners: BTreeSet<Option<&Arc<str>>> =
            cpus.iter().map(|cpu| users.get(cpu).and_then(|&(count, pod)| (count == 1).then_some(pod))).collect();
        if let [Some(owner)] = owners.into_iter().collect::<Vec<_>>()[..] {
            owned.entry(Arc::clone(owner)).or_default().push(Knob::CpuFrequency(policy));
        }
    }
    owned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(pods: &[(&str, Option<&str>)]) -> BTreeMap<Arc<str>, Option<BTreeSet<u32>>> {
        let set = |cpus: &str| parse_list(cpus).unwrap().into_iter().collect();
        pods.iter().map(|&(pod, cpus)| (Arc::from(pod), cpus.map(set))).collect()
    }

    fn policies(policies: &[(u32, &str)]) -> BTreeMap<u32, Vec<u32>> {
        policies.iter().map(|&(policy, cpus)| (policy, parse_list(cpus).unwrap())).collect()
    }

    fn owned(of: &[(&str, &[u32])]) -> BTreeMap<Arc<str>, Vec<Knob>> {
        of.iter().map(|(pod, own)| (Arc::from(*pod), own.iter().copied().map(Knob::CpuFrequency).collect())).collect()
    }

    #[test]
    fn a_pod_owns_the_clocks_of_cpus_that_no_other_pod_may_use() {
        let each = policies(&[(0, "0"), (1, "1"), (2, "2"), (3, "3")]);
        let shared_pool = pods(&[("a", Some("2-3")), ("b", Some("0-1")), ("c", Some("0-1"))]);
        assert_eq!(exclusive(&each, &shared_pool), owned(&[("a", &[2, 3])]));
    }

    #[test]
    fn a_clock_of_which_a_pod_has_a_part_is_not_its_own() {
        let clusters = policies(&[(0, "0-3"), (4, "4-7")]);
        assert_eq!(exclusive(&clusters, &pods(&[("a", Some("2-7"))])), owned(&[("a", &[4])]));
        let split = pods(&[("a", Some("0-1")), ("b", Some("2-3"))]);
        assert_eq!(exclusive(&clusters, &split), owned(&[]));
    }

    #[test]
    fn a_pod_that_may_run_anywhere_leaves_nobody_a_clock() {
        let each = policies(&[(0, "0"), (1, "1")]);
        assert_eq!(exclusive(&each, &pods(&[("a", Some("0-1")), ("b", None)])), owned(&[]));
        assert_eq!(exclusive(&each, &pods(&[("a", None)])), owned(&[]));
    }

    #[test]
    fn a_clock_without_a_cpu_online_is_nobodys() {
        assert_eq!(exclusive(&policies(&[(0, "")]), &pods(&[("a", Some("0-1"))])), owned(&[]));
    }

    #[test]
    fn a_sandbox_without_a_set_of_its_own_is_no_other_user() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpuset cpu\n").unwrap();
        let cpuset = |folder: &str, cpus: &str| {
            fs::create_dir_all(root.path().join(folder)).unwrap();
            fs::write(root.path().join(folder).join("cpuset.cpus"), format!("{cpus}\n")).unwrap();
        };
        for (folder, cpus) in [("p/a", ""), ("p/a/app", "2-3"), ("p/a/more", "5"), ("p/a/sandbox", ""), ("p/b", "")] {
            cpuset(folder, cpus);
        }
        let cpusets = Cpusets::open(root.path());
        assert_eq!(cpusets.of_pod("p/a"), Some(BTreeSet::from([2, 3, 5])));
        assert_eq!(cpusets.of_pod("/p/b"), None);
        assert_eq!(cpusets.of_pod("p/gone"), None);
        // v1 shows the set of the parent where there is none.
        for (folder, cpus) in
            [("p/c", "0-7"), ("p/c/app", "2-3"), ("p/c/sandbox", "0-7"), ("p/d", "0-7"), ("p/d/app", "0-7")]
        {
            cpuset(folder, cpus);
        }
        assert_eq!(cpusets.of_pod("p/c"), Some(BTreeSet::from([2, 3])));
        assert_eq!(cpusets.of_pod("p/d"), None);
    }
}
