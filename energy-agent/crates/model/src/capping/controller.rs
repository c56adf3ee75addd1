//! Active policies and an observation become the whole desired state of the node's knobs, tick by tick. Pure: no I/O,
//! no clock, no log.

mod budget;
mod decisions;
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

use self::budget::{Budget, Shown, StepTime};
use self::decisions::{Decisions, PolicyShare, Won};
use self::past::{BudgetKey, Past};
use self::view::{BudgetView, Scene};
use super::knob::{Knob, Limit, Limits};
use super::observation::{Observation, PodNow};
use super::policy::{BudgetScope, Component, Mode, Policy, PolicyName};
use super::source::{ActivePolicies, Sourced};
use super::status::{Conflict, PodId, PolicyStatus, SubjectState, SubjectStatus};
use crate::units::Watts;

/// For how long a limit of an earlier run waits for the pods and devices it was for.
const ADOPTION: Duration = Duration::from_secs(30);

type Budgets = BTreeMap<BudgetKey, Budget>;

/// Keeps every budget. One for the node.
#[derive(Debug)]
pub struct Controller {
    interval: Duration,
    before: Option<Duration>,
    decisions: Decisions,
    budgets: Budgets,
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
    /// Knobs that an active policy would use, and that cannot be used.
    pub unusable: BTreeSet<Knob>,
    /// Ascending by name.
    pub policies: Vec<PolicyStatus>,
    pub changes: Vec<BudgetChange>,
}

/// A difference from the tick before; reported once, in Events and the log.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetChange {
    pub policy: PolicyName,
    /// `None`: the node.
    pub pod: Option<PodId>,
    pub kind: BudgetChangeKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum BudgetChangeKind {
    /// `from` is `None` for a new budget. A new budget that is open or off is no change.
    State { from: Option<SubjectState>, to: SubjectState, reason: Option<String> },
    /// A capped budget has ended: its policy or pod is gone, or another policy decides. Its limits are restored.
    Gone,
    /// A capped budget has ended because the agent ends.
    End,
    /// Another policy decides about the component of this pod.
    Conflict { component: Component, winner: PolicyName },
}

impl Controller {
    /// `interval`: the distance of two steps.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            before: None,
            decisions: Decisions::default(),
            budgets: BTreeMap::new(),
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
    pub fn step(&mut self, in_force: &ActivePolicies, seen: &Observation) -> Outcome {
        let now = seen.now;
        let elapsed = self.before.map_or(self.interval, |before| now.saturating_sub(before));
        self.before = Some(now);
        let tick = StepTime { now, elapsed, interval: self.interval };
        self.decisions.refresh(in_force, &seen.pods);
        let scene = Scene::new(seen, &self.decisions);
        let mut outcome = Outcome::default();
        let mut earlier = std::mem::take(&mut self.budgets);
        let mut conflicts = BTreeSet::new();
        for (number, (sourced, share)) in self.decisions.policies.iter().zip(&self.decisions.shares).enumerate() {
            let Sourced { policy, source } = sourced;
            let parts: Vec<(Option<&PodNow>, &[Won])> = match policy.budget.scope {
                BudgetScope::PerPod => share.won.chunks(1).map(|won| (Some(&seen.pods[won[0].pod]), won)).collect(),
                BudgetScope::PerNode if share.won.is_empty() && !share.lost.is_empty() => Vec::new(),
                BudgetScope::PerNode => vec![(None, &*share.won)],
            };
            let mut subjects = Vec::with_capacity(parts.len());
            for (pod, won) in parts {
                let key = (policy.name.clone(), pod.map(|pod| Arc::clone(&pod.uid)));
                let old = earlier.remove(&key);
                let from = old.as_ref().map(|budget| budget.shown.state);
                let mut budget = match old {
                    Some(old) if old.mode == policy.mode => old,
                    Some(old) => Budget::new(policy, now, old.excess),
                    None => Budget::new(policy, now, self.past.take(&key)),
                };
                let mut view = scene.view(number, won);
                budget.step(policy, &mut view, tick, &mut self.adopted);
                outcome.add_limits(policy, &mut budget, &view, now);
                let pod = pod.map(pod_id);
                outcome.changes.extend(changed(policy, pod.clone(), from, &budget.shown));
                subjects.push(status(policy, pod, &budget, &view));
                self.budgets.insert(key, budget);
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
        for (key, budget) in &earlier {
            self.past.keep(key, budget.excess);
        }
        outcome.changes.extend(ended(earlier, &BudgetChangeKind::Gone));
        for (policy, conflict) in conflicts.difference(&self.conflicts) {
            let Conflict { pod, component, winner } = conflict.clone();
            let kind = BudgetChangeKind::Conflict { component, winner };
            outcome.changes.push(BudgetChange { policy: policy.clone(), pod: Some(pod), kind });
        }
        self.conflicts = conflicts;
        self.wait_for_adoption(in_force, now, &mut outcome.limits);
        outcome
    }

    /// The agent has given everything back, and ends.
    pub fn end(&mut self) -> Vec<BudgetChange> {
        ended(std::mem::take(&mut self.budgets), &BudgetChangeKind::End).collect()
    }

    fn lost(&self, share: &PolicyShare, pods: &[PodNow]) -> Vec<Conflict> {
        let conflict = |lost: &decisions::Lost| Conflict {
            pod: pod_id(&pods[lost.pod]),
            component: lost.component,
            winner: self.decisions.policy(lost.winner).name.clone(),
        };
        share.lost.iter().map(conflict).collect()
    }

    /// What was adopted and has not turned up stays for a while: policies, pods and GPUs come one after the other.
    fn wait_for_adoption(&mut self, in_force: &ActivePolicies, now: Duration, limits: &mut Limits) {
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

impl Outcome {
    /// Where several budgets want a knob lower, the lowest value holds.
    fn add_limits(&mut self, policy: &Policy, budget: &mut Budget, view: &BudgetView, now: Duration) {
        for (knob, value) in budget.limits(view, now) {
            if budget.clamped().contains(&knob) {
                self.clamped.insert(knob.clone());
            }
            let limit = Limit { value, policy: policy.name.clone() };
            if self.limits.get(&knob).is_none_or(|other| value < other.value) {
                self.limits.insert(knob, limit);
            }
        }
        if policy.mode != Mode::Off {
            self.unusable.extend(view.unusable.iter().cloned());
        }
    }
}

/// `from` is `None` for a new budget.
fn changed(policy: &Policy, pod: Option<PodId>, from: Option<SubjectState>, shown: &Shown) -> Option<BudgetChange> {
    let Shown { state: to, reason, .. } = shown;
    let quiet = from.is_none() && matches!(to, SubjectState::Open | SubjectState::Off);
    let kind = BudgetChangeKind::State { from, to: *to, reason: reason.clone() };
    (from != Some(*to) && !quiet).then(|| BudgetChange { policy: policy.name.clone(), pod, kind })
}

fn status(policy: &Policy, pod: Option<PodId>, budget: &Budget, view: &BudgetView) -> SubjectStatus {
    let Shown { state, reason, budget: watts, power } = &budget.shown;
    let levers = view.devices.iter().flat_map(|device| device.lever.iter().flat_map(|lever| &lever.ranges));
    let limits = view.devices.iter().flat_map(|device| &device.limits);
    SubjectStatus {
        pod,
        state: *state,
        reason: reason.clone(),
        budget: watts.map(Watts),
        power: power.map(Watts).filter(|_| policy.mode != Mode::Off),
        ceiling: budget.ceiling(view),
        over_budget: budget.excess.time,
        over_budget_uj: budget.excess.energy_uj,
        knobs: levers.chain(limits).map(|range| range.knob.clone()).collect(),
    }
}

/// The ends of those that were capped.
fn ended(budgets: Budgets, kind: &BudgetChangeKind) -> impl Iterator<Item = BudgetChange> {
    budgets.into_iter().filter(|(_, budget)| budget.is_capped()).map(|((policy, uid), _)| {
        let pod = uid.map(|uid| PodId { uid, ..PodId::default() });
        BudgetChange { policy, pod, kind: kind.clone() }
    })
}

fn pod_id(now: &PodNow) -> PodId {
    let pod = &now.pod;
    PodId { uid: Arc::clone(&pod.uid), namespace: Arc::clone(&pod.namespace), name: Arc::clone(&pod.name) }
}
