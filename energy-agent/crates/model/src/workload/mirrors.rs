//! Which mirror pod stands for which static pod: the hash that a mirror pod claims counts once the kubelet's status names a
//! container that runs in the cgroup of that hash. Annotations and owners can be written by everybody who may create pods;
//! the status cannot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Workload;
use super::allocation::living;
use super::names::{Pod, Pods};

/// The pods as they were reported, where a pod has a hash only if it is proven.
#[derive(Debug, Default)]
pub struct Mirrors {
    told: Arc<Pods>,
    settled: Arc<Pods>,
    /// Hashes by the uid of the mirror pod, once proven; as long as the pod is reported.
    proven: BTreeMap<Arc<str>, Arc<str>>,
    /// A claim of `told` is without proof.
    waiting: bool,
}

impl Mirrors {
    /// The pods of `told`, with the hashes that are proven by now; the same value as long as nothing changes. A hash that
    /// is the uid of a pod is never one of a static pod, and one that two pods have proven is neither's.
    pub fn settle(&mut self, told: &Arc<Pods>, alive: &BTreeSet<Arc<Workload>>) -> Arc<Pods> {
        let same = Arc::ptr_eq(told, &self.told);
        if !same || self.waiting {
            let before = self.proven.clone();
            self.prove(told, alive);
            if !same || before != self.proven {
                self.told = Arc::clone(told);
                self.settled = self.apply();
            }
        }
        Arc::clone(&self.settled)
    }

    fn prove(&mut self, told: &Pods, alive: &BTreeSet<Arc<Workload>>) {
        self.proven.retain(|uid, hash| claims(told).any(|(pod, claim)| pod.uid == *uid && *claim == *hash));
        self.waiting = false;
        for (pod, hash) in claims(told).filter(|(pod, _)| !self.proven.contains_key(&pod.uid)).collect::<Vec<_>>() {
            let ids = pod.containers.iter().flat_map(|container| container.id.iter().chain(&container.past_ids));
            if ids.into_iter().any(|id| living(alive, hash, id).is_some()) {
                self.proven.insert(Arc::clone(&pod.uid), Arc::clone(hash));
            } else {
                self.waiting = true;
            }
        }
    }

    /// `told` without the other hashes.
    fn apply(&self) -> Arc<Pods> {
        let mut proofs: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for hash in self.proven.iter().filter(|(uid, _)| self.told.by_uid.contains_key(*uid)).map(|(_, hash)| hash) {
            *proofs.entry(hash).or_default() += 1;
        }
        let counts = |pod: &Pod, hash: &Arc<str>| {
            self.proven.contains_key(&pod.uid) && proofs.get(hash).is_none_or(|proofs| *proofs == 1)
        };
        let refused = |pods: &BTreeMap<Arc<str>, Arc<Pod>>| -> Vec<Arc<str>> {
            let refused = |pod: &&Arc<Pod>| pod.config_hash.as_ref().is_some_and(|hash| !counts(pod, hash));
            pods.values().filter(refused).map(|pod| Arc::clone(&pod.uid)).collect()
        };
        let (living, gone) = (refused(&self.told.by_uid), refused(&self.told.gone));
        if living.is_empty() && gone.is_empty() {
            return Arc::clone(&self.told);
        }
        let mut pods = Pods::clone(&self.told);
        for (uids, pods) in [(living, &mut pods.by_uid), (gone, &mut pods.gone)] {
            for uid in uids {
                pods.entry(uid).and_modify(|pod| Arc::make_mut(pod).config_hash = None);
            }
        }
        Arc::new(pods)
    }
}

/// The pods that claim a hash which is no pod's uid.
fn claims(told: &Pods) -> impl Iterator<Item = (&Arc<Pod>, &Arc<str>)> {
    let pods = told.by_uid.values().chain(told.gone.values());
    pods.filter_map(|pod| Some((pod, pod.config_hash.as_ref()?)))
        .filter(|(_, hash)| !told.by_uid.contains_key(*hash) && !told.gone.contains_key(*hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Runtime;
    use crate::workload::names::PodContainer;

    const HASH: &str = "905322c7772380d4801f7a74d88494d7";

    fn pod(uid: &str, hash: Option<&str>, id: Option<&str>) -> Arc<Pod> {
        let containers = vec![PodContainer { name: "main".into(), id: id.map(Arc::from), past_ids: Vec::new() }];
        Arc::new(Pod { uid: uid.into(), config_hash: hash.map(Arc::from), containers, ..Pod::default() })
    }

    fn told(pods: &[Arc<Pod>], gone: &[Arc<Pod>]) -> Arc<Pods> {
        let map = |pods: &[Arc<Pod>]| pods.iter().map(|pod| (Arc::clone(&pod.uid), Arc::clone(pod))).collect();
        Arc::new(Pods { by_uid: map(pods), gone: map(gone) })
    }

    fn alive(containers: &[(&str, &str)]) -> BTreeSet<Arc<Workload>> {
        let container = |&(uid, id): &(&str, &str)| {
            Arc::new(Workload::PodContainer { uid: uid.into(), id: id.into(), runtime: Runtime::Crio })
        };
        containers.iter().map(container).collect()
    }

    fn hashes(pods: &Pods) -> Vec<&str> {
        let all = pods.by_uid.values().chain(pods.gone.values());
        all.filter(|pod| pod.config_hash.is_some()).map(|pod| &*pod.uid).collect()
    }

    #[test]
    fn a_hash_counts_once_a_container_of_the_status_runs_in_its_cgroup() {
        let (mut mirrors, pods) = (Mirrors::default(), told(&[pod("mirror", Some(HASH), Some("1"))], &[]));
        let early = mirrors.settle(&pods, &alive(&[("mirror", "1"), (HASH, "2")]));
        assert_eq!(hashes(&early), Vec::<&str>::new());
        assert!(Arc::ptr_eq(&early, &mirrors.settle(&pods, &alive(&[]))), "nothing is new");
        assert_eq!(hashes(&mirrors.settle(&pods, &alive(&[(HASH, "1")]))), ["mirror"]);
        // And stays so when the container ends, and the pod.
        assert_eq!(hashes(&mirrors.settle(&pods, &alive(&[]))), ["mirror"]);
        let ended = told(&[], &[pod("mirror", Some(HASH), Some("1"))]);
        assert_eq!(hashes(&mirrors.settle(&ended, &alive(&[]))), ["mirror"]);
        mirrors.settle(&told(&[], &[]), &alive(&[]));
        assert_eq!(hashes(&mirrors.settle(&ended, &alive(&[]))), Vec::<&str>::new(), "forgotten with the pod");
    }

    #[test]
    fn a_claim_without_proof_takes_nothing_from_the_one_that_has_it() {
        let mirror = pod("mirror", Some(HASH), Some("1"));
        let forged = [pod("forged", Some(HASH), None), pod("other", Some(HASH), Some("9"))];
        let running = alive(&[(HASH, "1"), ("other", "9")]);
        let pods = told(&[&forged[..], &[Arc::clone(&mirror)]].concat(), &[]);
        assert_eq!(hashes(&Mirrors::default().settle(&pods, &running)), ["mirror"]);
        // A deleted mirror pod that is made anew hands the hash on.
        let again = told(&[pod("again", Some(HASH), Some("1"))], &[mirror]);
        assert_eq!(hashes(&Mirrors::default().settle(&again, &running)), ["again", "mirror"]);
        // Who writes statuses can forge a proof; then nobody gains.
        let twice = told(&[pod("a", Some(HASH), Some("1")), pod("b", Some(HASH), Some("1"))], &[]);
        assert_eq!(hashes(&Mirrors::default().settle(&twice, &running)), Vec::<&str>::new());
    }

    #[test]
    fn the_uid_of_a_pod_living_or_gone_is_no_hash() {
        let claim = pod("attacker", Some("victim"), Some("1"));
        let running = alive(&[("victim", "1")]);
        let victim = pod("victim", None, Some("1"));
        for pods in [told(&[Arc::clone(&claim), Arc::clone(&victim)], &[]), told(&[claim], &[victim])] {
            let settled = Mirrors::default().settle(&pods, &running);
            assert_eq!(hashes(&settled), Vec::<&str>::new());
            assert!(settled.by_uid.contains_key("attacker"), "it is a pod all the same");
        }
    }
}
