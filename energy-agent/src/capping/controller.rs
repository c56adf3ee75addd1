//! Policies in force and what was seen become the whole desired state of the node's knobs, tick by tick. Pure: no I/O,
//! no clock, no log.

mod conflict;
mod device;
#[cfg(test)]
mod floors;
#[cfg(test)]
mod limits;
mod past;
mod peak;
#[cfg(test)]
mod properties;
mod ratio;
#[cfg(test)]
mod simulation;
mod subject;
mod table;
#[cfg(test)]
mod tests;
mod view;
#[cfg(test)]
mod whole_node;
#[cfg(test)]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use self::conflict::{Decisions, Share, Won};
use self::past::{Key, Past};
use self::subject::{Subject, Tick};
use self::view::Scene;
use super::knob::{Knob, Limit, Limits};
use super::observation::{Observation, PodNow};
use super::policy::{Mode, PolicyName, Scope};
use super::source::{InForce, Sourced};
use super::status::{Conflict, PodId, PolicyStatus, SubjectState, SubjectStatus};
use crate::units::Watts;

/// For how long a limit of an earlier run waits for the pods and devices it was for.
const ADOPTION: Duration = Duration::from_secs(30);

type Subjects = BTreeMap<Key, Subject>;

/// Keeps every budget. One for the node.
#[derive(Debug)]
pub struct Controller {
    interval: Duration,
    before: Option<Duration>,
    decisions: Decisions,
    subjects: Subjects,
    past: Past,
    conflicts: BTreeSet<(PolicyName, Conflict)>,
    adopted: Limits,
    adopt_until: Option<Duration>,
}

/// What a step comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub limits: Limits,
    /// Knobs of `limits` that were wanted lower than their device allows.
    pub clamped: BTreeSet<Knob>,
    /// Knobs that a policy in force would use, and that cannot be used.
    pub unusable: BTreeSet<Knob>,
    /// Ascending by name.
    pub policies: Vec<PolicyStatus>,
    pub changes: Vec<Change>,
}

/// Something that is different from the tick before: said once, in events and the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub policy: PolicyName,
    /// `None`: the node.
    pub pod: Option<PodId>,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// `from` is `None` for a new subject; a new one that is open is not told.
    State { from: Option<SubjectState>, to: SubjectState, reason: Option<String> },
    /// A subject that was capped is no more: its policy or pod is gone, or decides no longer. What it held is given back.
    Gone,
    /// A subject that was capped is not any more, because the agent ends.
    End,
    /// Another policy decides about the component of this pod.
    Conflict { component: &'static str, winner: PolicyName },
}

impl Controller {
    /// `interval`: the distance of two steps.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            before: None,
            decisions: Decisions::default(),
            subjects: BTreeMap::new(),
            past: Past::default(),
            conflicts: BTreeSet::new(),
            adopted: Limits::new(),
            adopt_until: None,
        }
    }

    /// What an earlier run had written and its policies still want: these caps go on from where they are. Those whose
    /// policy, pod or device does not turn up are given back.
    pub fn adopt(&mut self, limits: &Limits) {
        self.adopted.clone_from(limits);
    }

    /// One tick.
    pub fn step(&mut self, in_force: &InForce, seen: &Observation) -> Outcome {
        let now = seen.now;
        let elapsed = self.before.map_or(self.interval, |before| now.saturating_sub(before));
        self.before = Some(now);
        let tick = Tick { now, elapsed, interval: self.interval };
        self.decisions.refresh(in_force, &seen.pods);
        let scene = Scene::new(seen, &self.decisions);
        let mut outcome = Outcome::default();
        let mut earlier = std::mem::take(&mut self.subjects);
        let mut conflicts = BTreeSet::new();
        for (number, (sourced, share)) in self.decisions.policies.iter().zip(&self.decisions.shares).enumerate() {
            let Sourced { policy, source } = sourced;
            let parts: Vec<(Option<usize>, &[Won])> = match policy.budget.scope {
                Scope::PerPod => share.won.chunks(1).map(|won| (Some(won[0].pod), won)).collect(),
                Scope::PerNode if share.won.is_empty() && !share.lost.is_empty() => Vec::new(),
                Scope::PerNode => vec![(None, &*share.won)],
            };
            let mut subjects = Vec::with_capacity(parts.len());
            for (place, won) in parts {
                let pod = place.map(|place| &seen.pods[place]);
                let key = (policy.name.clone(), pod.map(|pod| Arc::clone(&pod.uid)));
                let old = earlier.remove(&key);
                let from = old.as_ref().map(|subject| subject.state);
                let mut subject = match old {
                    Some(old) if old.mode == policy.mode => old,
                    Some(old) => Subject::new(policy, now, old.excess),
                    None => Subject::new(policy, now, self.past.take(&key)),
                };
                let mut view = scene.view(number, won);
                subject.step(policy, &mut view, tick, &mut self.adopted);
                for (knob, value) in subject.limits(&view, now) {
                    if subject.clamped.contains(&knob) {
                        outcome.clamped.insert(knob.clone());
                    }
                    let limit = Limit { value, policy: policy.name.clone() };
                    if outcome.limits.get(&knob).is_none_or(|other| value < other.value) {
                        outcome.limits.insert(knob, limit);
                    }
                }
                if policy.mode != Mode::Off {
                    outcome.unusable.extend(view.unusable.iter().cloned());
                }
                let quiet = from.is_none() && matches!(subject.state, SubjectState::Open | SubjectState::Off);
                if from != Some(subject.state) && !quiet {
                    let what = What::State { from, to: subject.state, reason: subject.reason.clone() };
                    outcome.changes.push(Change { policy: policy.name.clone(), pod: pod.map(pod_id), what });
                }
                let levers = view.devices.iter().flat_map(|device| device.lever.iter().flat_map(|lever| &lever.ranges));
                let limits = view.devices.iter().flat_map(|device| &device.limits);
                subjects.push(SubjectStatus {
                    pod: pod.map(pod_id),
                    state: subject.state,
                    reason: subject.reason.clone(),
                    budget: subject.budget.map(Watts),
                    power: subject.power.map(Watts).filter(|_| policy.mode != Mode::Off),
                    ceiling: subject.ceiling(&view),
                    over_budget: subject.excess.time,
                    over_budget_uj: subject.excess.energy_uj,
                    knobs: levers.chain(limits).map(|range| range.knob.clone()).collect(),
                });
                self.subjects.insert(key, subject);
            }
            let lost = self.lost(share, &seen.pods);
            conflicts.extend(lost.iter().map(|conflict| (policy.name.clone(), conflict.clone())));
            outcome.policies.push(PolicyStatus {
                name: policy.name.clone(),
                mode: policy.mode,
                scope: policy.budget.scope,
                source: Arc::clone(source),
                subjects,
                lost,
            });
        }
        for (key, subject) in &earlier {
            self.past.keep(key, subject.excess);
        }
        outcome.changes.extend(let_go(earlier, &What::Gone));
        for (policy, conflict) in conflicts.difference(&self.conflicts) {
            let Conflict { pod, component, winner } = conflict.clone();
            let what = What::Conflict { component, winner };
            outcome.changes.push(Change { policy: policy.clone(), pod: Some(pod), what });
        }
        self.conflicts = conflicts;
        self.wait_for_adoption(in_force, now, &mut outcome.limits);
        outcome
    }

    /// The agent has given everything back, and ends.
    pub fn end(&mut self) -> Vec<Change> {
        let_go(std::mem::take(&mut self.subjects), &What::End).collect()
    }

    fn lost(&self, share: &Share, pods: &[PodNow]) -> Vec<Conflict> {
        let conflict = |lost: &conflict::Lost| Conflict {
            pod: pod_id(&pods[lost.pod]),
            component: lost.component.as_str(),
            winner: self.decisions.policy(lost.winner).name.clone(),
        };
        share.lost.iter().map(conflict).collect()
    }

    /// What was adopted and has not turned up stays for a while: policies, pods and GPUs come one after the other.
    fn wait_for_adoption(&mut self, in_force: &InForce, now: Duration, limits: &mut Limits) {
        if self.adopted.is_empty() {
            return;
        }
        if in_force.complete {
            self.adopt_until.get_or_insert(now + ADOPTION);
        }
        let waiting = self.adopt_until.is_none_or(|until| now < until);
        self.adopted.retain(|_, limit| match in_force.policies.get(&limit.policy) {
            Some(sourced) => sourced.policy.mode == Mode::Enforce && waiting,
            None => !in_force.complete,
        });
        for (knob, limit) in &self.adopted {
            limits.entry(knob.clone()).or_insert_with(|| limit.clone());
        }
    }
}

/// Those of them that were capped.
fn let_go(subjects: Subjects, what: &What) -> impl Iterator<Item = Change> {
    let capped = subjects.into_iter().filter(|(_, subject)| subject.engaged && subject.mode == Mode::Enforce);
    capped.map(|((policy, uid), _)| {
        let pod = uid.map(|uid| PodId { uid, ..PodId::default() });
        Change { policy, pod, what: what.clone() }
    })
}

fn pod_id(now: &PodNow) -> PodId {
    let pod = &now.pod;
    PodId { uid: Arc::clone(&pod.uid), namespace: Arc::clone(&pod.namespace), name: Arc::clone(&pod.name) }
}
