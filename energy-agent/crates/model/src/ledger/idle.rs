//! Adds up what pods were given of the idle energy, apart from their active energy: totals that never fall, and that
//! move to the retired idle energy in the tick in which the pod's series end.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::key;
use crate::attribution::Attribution;
use crate::attribution::idle_policy::{Claims, IdleDivision, hand_out};
use crate::attribution::method::IdlePolicy;
use crate::meter_state::{MeterName, MeterState, Reason};
use crate::snapshot::{EnergyKey, IdleEnergies, IdleShares, PodIdle, WorkloadRow, WorkloadState};
use crate::units::Microjoules;
use crate::workload::names::Pods;

/// Idle energy by pod since the agent started.
///
/// After each [`Self::apply`], per [`EnergyKey`]: the zones' idle energy is the pods' plus the unassigned plus the retired.
#[derive(Debug)]
pub struct IdleLedger {
    policy: IdlePolicy,
    /// Ascending by uid.
    pods: BTreeMap<Arc<str>, IdleEntry>,
    unassigned: BTreeMap<EnergyKey, Microjoules>,
    retired: BTreeMap<EnergyKey, Microjoules>,
    requests: Requests,
}

#[derive(Debug)]
struct IdleEntry {
    /// The first of its rows.
    created: Duration,
    state: WorkloadState,
    energy: IdleEnergies,
}

/// CPU requests by the name of the pod's cgroup, made anew when the pods were reported anew.
#[derive(Debug, Default)]
struct Requests {
    told: Arc<Pods>,
    milli: HashMap<Arc<str>, u64>,
}

impl IdleLedger {
    #[must_use]
    pub fn new(policy: IdlePolicy) -> Self {
        Self {
            policy,
            pods: BTreeMap::new(),
            unassigned: BTreeMap::new(),
            retired: BTreeMap::new(),
            requests: Requests::default(),
        }
    }

    /// Hands out one interval's idle energy. `rows` are those of the workloads after the attribution was added, ascending; a
    /// pod without a row has no series any more.
    pub fn apply<'a>(
        &mut self,
        attribution: &Attribution,
        rows: impl Iterator<Item = &'a WorkloadRow> + Clone,
        pods: &Arc<Pods>,
    ) {
        if self.policy == IdlePolicy::None {
            return;
        }
        self.requests.learn(pods);
        let running =
            rows.clone().filter(|row| row.state == WorkloadState::Running).filter_map(|row| row.workload.pod_uid());
        let claims =
            Claims::new(&attribution.usage, running, |uid| self.requests.milli.get(uid).copied().unwrap_or_default());
        for IdleDivision { zone, parts, idle } in hand_out(self.policy, attribution, &claims) {
            let key = key(zone);
            for totals in [&mut self.unassigned, &mut self.retired] {
                totals.entry(key).or_default();
            }
            let Some(parts) = parts else {
                *self.unassigned.entry(key).or_default() += idle;
                continue;
            };
            for (uid, part) in claims.uids.iter().zip(parts) {
                let entry = match self.pods.get_mut(*uid) {
                    Some(entry) => entry,
                    None => self.pods.entry(Arc::clone(uid)).or_insert_with(IdleEntry::new),
                };
                entry.add(key, part);
            }
        }
        self.settle(rows);
    }

    /// Gives every pod the state of its rows, and retires those that have none.
    fn settle<'a>(&mut self, rows: impl Iterator<Item = &'a WorkloadRow>) {
        let mut states: BTreeMap<&str, (WorkloadState, Duration)> = BTreeMap::new();
        for row in rows {
            if let Some(uid) = row.workload.pod_uid() {
                let (state, created) = states.entry(uid).or_insert((row.state, row.created));
                // Running orders before Terminated.
                *state = row.state.min(*state);
                *created = row.created.min(*created);
            }
        }
        self.pods.retain(|uid, entry| {
            if let Some(&(state, created)) = states.get(&**uid) {
                entry.state = state;
                entry.created = created.min(entry.created);
                return true;
            }
            for &(key, total) in &entry.energy {
                *self.retired.entry(key).or_default() += total;
            }
            false
        });
    }

    /// What a scrape shows of it; `None` when idle energy is not handed out.
    #[must_use]
    pub fn shares(&self) -> Option<IdleShares> {
        let list =
            |totals: &BTreeMap<EnergyKey, Microjoules>| totals.iter().map(|(&key, &total)| (key, total)).collect();
        let pod = |(uid, entry): (&Arc<str>, &IdleEntry)| PodIdle {
            uid: Arc::clone(uid),
            created: entry.created,
            state: entry.state,
            energy: entry.energy.clone(),
        };
        (self.policy != IdlePolicy::None).then(|| IdleShares {
            policy: self.policy.as_str(),
            pods: self.pods.iter().map(pod).collect(),
            unassigned: list(&self.unassigned),
            retired: list(&self.retired),
        })
    }

    /// Whether the policy has what it needs to know, as a meter of the name `idle_policy`; only `requests` needs anything.
    #[must_use]
    pub fn state(&self) -> Option<MeterState> {
        (self.policy == IdlePolicy::Requests).then(|| match self.requests.told.by_uid.len() {
            0 => MeterState::down(
                MeterName::IdlePolicy,
                Reason::Absent,
                "requests: no CPU request of a pod is known, so all idle energy is unassigned; see --pods.source",
            ),
            pods => MeterState::up(MeterName::IdlePolicy, format!("requests: of {pods} pods")),
        })
    }
}

impl IdleEntry {
    fn new() -> Self {
        Self { created: Duration::MAX, state: WorkloadState::Running, energy: IdleEnergies::new() }
    }

    fn add(&mut self, key: EnergyKey, part: Microjoules) {
        match self.energy.binary_search_by_key(&key, |&(key, _)| key) {
            Ok(place) => self.energy[place].1 += part,
            Err(place) => self.energy.insert(place, (key, part)),
        }
    }
}

impl Requests {
    /// A static pod's cgroup is named by its config hash.
    fn learn(&mut self, pods: &Arc<Pods>) {
        if Arc::ptr_eq(&self.told, pods) {
            return;
        }
        self.told = Arc::clone(pods);
        self.milli.clear();
        // Who lives goes last: a static pod's hash outlives its mirror pod.
        for pod in pods.gone.values().chain(pods.by_uid.values()) {
            for name in [Some(&pod.uid), pod.config_hash.as_ref()].into_iter().flatten() {
                self.milli.insert(Arc::clone(name), pod.cpu_request_milli);
            }
        }
    }
}
