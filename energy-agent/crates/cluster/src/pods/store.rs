//! Keeps the pods as they are reported one by one, and for a moment those that are gone, so that a reader who looks once a
//! tick sees each of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::workload::names::{Pod, PodContainer, Pods};

/// How long a deleted pod stays known; longer than any interval between two ticks.
const KEEP_GONE: Duration = Duration::from_secs(180);
/// Most deleted pods to keep.
const MAX_GONE: usize = 4096;
/// Earlier instances of a container to remember; it restarts less often between two ticks.
const MAX_PAST_IDS: usize = 8;

/// What was reported so far.
#[derive(Debug, Default)]
pub struct PodStore {
    pods: Arc<Pods>,
    /// Oldest first; void if the pod came back.
    gone: VecDeque<(Instant, Arc<str>)>,
}

impl PodStore {
    /// All pods as of now; later changes make a new value.
    #[must_use]
    pub fn pods(&self) -> Arc<Pods> {
        Arc::clone(&self.pods)
    }

    /// A pod is new or has changed. One without uid is none.
    pub fn apply(&mut self, mut pod: Pod, now: Instant) {
        self.forget(now);
        let uid = Arc::clone(&pod.uid);
        if uid.is_empty() {
            return;
        }
        if let Some(before) = self.pods.by_uid.get(&uid) {
            remember(&mut pod.containers, &before.containers);
            if **before == pod {
                return;
            }
        }
        Arc::make_mut(&mut self.pods).by_uid.insert(uid, Arc::new(pod));
    }

    /// A pod was deleted.
    pub fn delete(&mut self, uid: &str, now: Instant) {
        self.forget(now);
        if !self.pods.by_uid.contains_key(uid) {
            return;
        }
        let pods = Arc::make_mut(&mut self.pods);
        if let Some((uid, pod)) = pods.by_uid.remove_entry(uid) {
            pods.gone.insert(Arc::clone(&uid), pod);
            self.gone.push_back((now, uid));
        }
    }

    /// These are all pods; those not among them were deleted unseen.
    pub fn replace(&mut self, all: Vec<Pod>, now: Instant) {
        let all: BTreeMap<Arc<str>, Pod> = all.into_iter().map(|pod| (Arc::clone(&pod.uid), pod)).collect();
        let missing: Vec<_> = self.pods.by_uid.keys().filter(|uid| !all.contains_key(*uid)).cloned().collect();
        for uid in missing {
            self.delete(&uid, now);
        }
        for pod in all.into_values() {
            self.apply(pod, now);
        }
    }

    fn forget(&mut self, now: Instant) {
        while let Some((at, uid)) = self.gone.front() {
            if self.gone.len() <= MAX_GONE && now.saturating_duration_since(*at) < KEEP_GONE {
                break;
            }
            if self.pods.gone.contains_key(uid) {
                Arc::make_mut(&mut self.pods).gone.remove(uid);
            }
            self.gone.pop_front();
        }
    }
}

/// Carries over which instances there were, and the current one where the status names none any more.
fn remember(containers: &mut [PodContainer], before: &[PodContainer]) {
    for container in containers {
        let Some(before) = before.iter().find(|before| before.name == container.name) else { continue };
        if container.id.is_none() {
            container.id.clone_from(&before.id);
        }
        for id in before.id.iter().chain(&before.past_ids) {
            if container.id.as_ref() != Some(id) && !container.past_ids.contains(id) {
                container.past_ids.push(Arc::clone(id));
            }
        }
        container.past_ids.truncate(MAX_PAST_IDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, id: Option<&str>) -> Pod {
        let containers = vec![PodContainer { name: "main".into(), id: id.map(Arc::from), past_ids: Vec::new() }];
        Pod { uid: uid.into(), name: "web".into(), containers, ..Pod::default() }
    }

    fn known(book: &PodStore) -> (Vec<String>, Vec<String>) {
        let names = |pods: &BTreeMap<Arc<str>, Arc<Pod>>| pods.keys().map(|uid| uid.to_string()).collect();
        (names(&book.pods().by_uid), names(&book.pods().gone))
    }

    #[test]
    fn a_deleted_pod_is_known_for_three_minutes() {
        let (mut book, start) = (PodStore::default(), Instant::now());
        book.apply(pod("a", None), start);
        book.delete("a", start);
        book.delete("a", start);
        assert_eq!(known(&book), (vec![], vec!["a".to_owned()]));
        book.apply(pod("b", None), start + Duration::from_secs(179));
        assert_eq!(known(&book), (vec!["b".to_owned()], vec!["a".to_owned()]));
        book.apply(pod("b", None), start + Duration::from_secs(180));
        assert_eq!(known(&book), (vec!["b".to_owned()], vec![]));
    }

    #[test]
    fn fc_105_a_pod_that_is_missing_in_a_new_list_is_gone() {
        let (mut book, now) = (PodStore::default(), Instant::now());
        book.replace(vec![pod("a", None)], now);
        book.replace(vec![pod("b", None)], now);
        book.apply(pod("c", None), now);
        assert_eq!(known(&book), (vec!["b".to_owned(), "c".to_owned()], vec!["a".to_owned()]));
    }

    #[test]
    fn fc_106_the_same_pod_told_twice_changes_nothing() {
        let (mut book, now) = (PodStore::default(), Instant::now());
        book.apply(pod("a", Some("1")), now);
        let before = book.pods();
        book.apply(pod("a", Some("1")), now);
        assert!(Arc::ptr_eq(&before, &book.pods()));
    }

    #[test]
    fn a_container_keeps_its_id_and_remembers_earlier_ones() {
        let (mut book, now) = (PodStore::default(), Instant::now());
        for id in [Some("1"), None, Some("2"), Some("3")] {
            book.apply(pod("a", id), now);
        }
        let container = &book.pods().by_uid["a"].containers[0];
        assert_eq!(container.id.as_deref(), Some("3"));
        assert_eq!(container.past_ids.iter().map(|id| &**id).collect::<Vec<_>>(), ["2", "1"]);
    }

    #[test]
    fn churn_leaves_a_bounded_number_of_deleted_pods() {
        let (mut book, now) = (PodStore::default(), Instant::now());
        for number in 0..MAX_GONE + 100 {
            book.apply(pod(&number.to_string(), None), now);
            book.delete(&number.to_string(), now);
        }
        book.apply(pod("last", None), now);
        assert_eq!(book.pods().gone.len(), MAX_GONE);
    }
}
