//! A path may name several pods and containers. This module decides which of them it belongs to, by the pods that the
//! cluster has reported and by the other places where each name is found.
//!
//! A cgroup's maker chooses its name, and a container may make cgroups below its own. So a name counts in one place: the
//! one with the fewest folders around it that are no slices, and among several the one that was made first. No pod lies
//! inside another, unless the node itself runs in a pod. Then the cluster reports the inner pod and all others at its
//! depth, but not the outer pod. A reported pod is therefore found at the least depth at which any reported pod was found,
//! and nowhere else. If several pods are not reported, the outermost counts.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::cgroup::{PathReading, Placement, PodOnPath, Spot};
use super::names::Pods;
use crate::sample::CgroupId;
use crate::table;

/// The place of every pod and container that a known cgroup's path names.
#[derive(Debug, Default)]
pub struct Places {
    by_name: HashMap<Arc<str>, NamePlace>,
    told: Arc<Pods>,
    /// What static pods' cgroups are named by.
    hashes: BTreeSet<Arc<str>>,
    /// The least depth at which a reported pod was found so far.
    level: Option<usize>,
}

/// Where a name counts. It never moves to a greater depth while any path names it.
#[derive(Debug)]
struct NamePlace {
    spot: Spot,
    /// The first cgroup there; numbers of cgroups ascend in the order in which they are made.
    since: CgroupId,
    /// Cgroups whose paths have the name.
    paths: usize,
}

impl Places {
    /// Takes in the names of a cgroup's path; whether that changes what others are.
    pub fn mention(&mut self, cgroup: CgroupId, reading: &PathReading) -> bool {
        let mut changed = false;
        for (name, spot) in names(reading) {
            let place = match self.by_name.get_mut(name) {
                Some(place) => place,
                None => self.by_name.entry(name.into()).or_insert_with(|| NamePlace {
                    spot: spot.clone(),
                    since: cgroup,
                    paths: 0,
                }),
            };
            place.paths += 1;
            if (rank(spot), cgroup) < (rank(&place.spot), place.since) {
                changed |= place.spot != *spot;
                (place.spot, place.since) = (spot.clone(), cgroup);
            }
        }
        for pod in &reading.pods {
            if self.level.is_none_or(|level| pod.spot.level < level) && self.is_told(&pod.uid) {
                self.level = Some(pod.spot.level);
                changed = true;
            }
        }
        changed
    }

    /// A cgroup with these names is forgotten.
    pub fn release<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            let Some(place) = self.by_name.get_mut(name) else { continue };
            place.paths -= 1;
            if place.paths == 0 {
                self.by_name.remove(name);
            }
        }
        table::fit(&mut self.by_name);
    }

    /// The pods that are reported from now on.
    pub fn tell(&mut self, pods: &Arc<Pods>) {
        self.told = Arc::clone(pods);
        let told = || pods.by_uid.values().chain(pods.gone.values());
        self.hashes = told().filter_map(|pod| pod.config_hash.clone()).collect();
        let names = told().map(|pod| &pod.uid).chain(&self.hashes);
        let least = names.filter_map(|name| Some(self.by_name.get(name)?.spot.level)).min();
        self.level = self.level.into_iter().chain(least).min();
    }

    /// What the path belongs to.
    #[must_use]
    pub fn place(&self, reading: &PathReading) -> Placement {
        let told = |pod: &&PodOnPath| {
            Some(pod.spot.level) == self.level && self.is_told(&pod.uid) && self.is_place(&pod.uid, &pod.spot)
        };
        let untold = |pod: &&PodOnPath| !self.is_told(&pod.uid) && self.is_place(&pod.uid, &pod.spot);
        let pod = reading.pods.iter().find(told).or_else(|| reading.pods.iter().find(untold));
        let in_container = reading.container.as_ref().is_some_and(|(id, spot)| self.is_place(&id.id, spot));
        reading.placement(pod, in_container)
    }

    /// Whether the pod is the node's kubelet's: its place has nothing around it, or as much as all reported pods' and it is reported.
    /// Anybody else's is somewhere below what its maker runs in.
    #[must_use]
    pub fn is_nodes(&self, uid: &str) -> bool {
        let is_it = |spot: &Spot| spot.level == 0 || (Some(spot.level) == self.level && self.is_told(uid));
        self.by_name.get(uid).is_some_and(|place| is_it(&place.spot))
    }

    /// Whether the pod is the node's kubelet's, or lies where only root makes cgroups.
    #[must_use]
    pub fn is_roots(&self, uid: &str) -> bool {
        self.is_nodes(uid) || self.by_name.get(uid).is_some_and(|place| place.spot.is_in_plain_folders())
    }

    fn is_told(&self, name: &str) -> bool {
        self.told.by_uid.contains_key(name) || self.told.gone.contains_key(name) || self.hashes.contains(name)
    }

    /// Whether the name counts there.
    #[must_use]
    pub fn is_place(&self, name: &str, spot: &Spot) -> bool {
        self.by_name.get(name).is_none_or(|place| place.spot == *spot)
    }
}

/// The least counts. A container in a service that it is the payload of comes after one that has nothing around it.
fn rank(spot: &Spot) -> (usize, bool) {
    (spot.level, !spot.holder.is_empty())
}

/// The names that can count: the pods', without any the container's.
pub fn names(reading: &PathReading) -> impl Iterator<Item = (&str, &Spot)> {
    let pods = reading.pods.iter().map(|pod| (pod.uid.as_str(), &pod.spot));
    let container = reading.container.iter().filter(|_| reading.pods.is_empty());
    pods.chain(container.map(|(container, spot)| (container.id.as_str(), spot)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::names::Pod;

    const A: &str = "aaaaaaaa-1919-52ea-898e-2489f38c2504";
    const B: &str = "bbbbbbbb-1919-52ea-898e-2489f38c2504";
    const ID: &str = "e163073df4c38b1df6bff3b06c1d62392a3fbf7592afe21e312a53ff0c532736";
    const OTHER: &str = "d9f3d370aee7e68646dbc0d1345875b71a15f6efdfab5be9686e29ec7e47d721";

    fn pods(told: &[&str]) -> Arc<Pods> {
        let pod = |uid: &&str| (Arc::from(*uid), Arc::new(Pod { uid: Arc::from(*uid), ..Pod::default() }));
        Arc::new(Pods { by_uid: told.iter().map(pod).collect(), ..Pods::default() })
    }

    /// Paths in the order in which their cgroups are made.
    fn places(paths: &[&str], told: &[&str]) -> Places {
        let mut places = Places::default();
        for (id, path) in (1..).zip(paths) {
            places.mention(id, &PathReading::of(path));
        }
        places.tell(&pods(told));
        places
    }

    /// The pod's uid, the container's id or the unit.
    fn whose(places: &Places, path: &str) -> String {
        match places.place(&PathReading::of(path)) {
            Placement::Pod { uid, .. } => uid,
            Placement::System { container: Some(container), .. } => container.id,
            Placement::System { unit, .. } | Placement::Unresolved { unit, .. } => unit,
            Placement::Kernel => unreachable!("no path is the kernel's"),
        }
    }

    #[test]
    fn inside_a_pod_begins_another_only_where_the_node_runs_in_it() {
        let outer = format!("/kubepods/pod{A}/{ID}");
        let inner = format!("{outer}/kubelet/kubepods/burstable/pod{B}/{OTHER}");
        let paths = [outer.as_str(), inner.as_str()];
        for (told, whose_inner) in [(&[][..], A), (&[A], A), (&[A, B], A), (&[B], B)] {
            let places = places(&paths, told);
            assert_eq!(whose(&places, &inner), whose_inner, "{told:?}");
            assert_eq!(whose(&places, &outer), A);
        }
        // A reported pod at the outer depth shows where the node is, also after its end.
        let beside = format!("/kubepods/pod{}", A.replace('a', "c"));
        let mut with = places(&[&outer, &inner, &beside], &[&A.replace('a', "c"), B]);
        assert_eq!(whose(&with, &inner), A);
        with.release([A.replace('a', "c").as_str()].into_iter());
        with.tell(&pods(&[B]));
        assert_eq!(whose(&with, &inner), A);
    }

    #[test]
    fn a_pod_has_one_place_the_least_deep_and_of_equals_the_first() {
        let own = format!("/kubepods.slice/kubepods-pod{}.slice", B.replace('-', "_"));
        let in_docker = format!("/system.slice/docker-{ID}.scope/kubepods/pod{B}/{OTHER}");
        let by_user = format!("/user.slice/user-1000.slice/user@1000.service/kubepods/pod{B}/{OTHER}");
        for told in [&[][..], &[B]] {
            // In whatever order they are made.
            for paths in [[&own, &in_docker, &by_user], [&by_user, &in_docker, &own]] {
                let places = places(&paths.map(String::as_str), told);
                assert_eq!(whose(&places, &own), B);
                assert_eq!(whose(&places, &in_docker), ID);
                assert_eq!(whose(&places, &by_user), "user@1000.service");
            }
        }
        // Two nodes in containers beside each other.
        let second = in_docker.replace(ID, OTHER);
        let places = places(&[&in_docker, &second], &[B]);
        assert_eq!([whose(&places, &in_docker), whose(&places, &second)], [B, OTHER]);
    }

    #[test]
    fn a_container_outside_pods_has_one_place_too() {
        let own = format!("/system.slice/docker-{ID}.scope");
        let by_user = format!("/user.slice/user-1000.slice/user@1000.service/docker-{ID}.scope/x");
        let mut places = places(&[&by_user], &[]);
        assert_eq!(whose(&places, &by_user), ID);
        assert!(places.mention(9, &PathReading::of(&own)), "it takes the name from the other");
        assert_eq!(whose(&places, &own), ID);
        assert_eq!(whose(&places, &by_user), format!("user@1000.service/docker-{ID}.scope"));
    }

    #[test]
    fn names_are_forgotten_with_the_last_cgroup_that_has_them() {
        let (own, below) = (format!("/kubepods/pod{A}"), format!("/kubepods/pod{A}/{ID}/kubepods/pod{B}"));
        let mut places = places(&[&own, &below], &[]);
        for path in [&below, &own] {
            assert!(!places.by_name.is_empty());
            let reading = PathReading::of(path);
            places.release(names(&reading).map(|(name, _)| name));
        }
        assert!(places.by_name.is_empty());
    }
}
