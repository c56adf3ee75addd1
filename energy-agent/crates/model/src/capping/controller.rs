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
mod whole;
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
use self::whole::Highest;
pub use self::whole::PowerRange;
use super::knob::{Knob, Limit, Limits};
use super::level::{Levels, NodeBudget, NodeLevel};
use super::observation::{Observation, PodNow};
use super::policy::{Amount, Authority, BudgetScope, Component, Mode, Policy, PolicyName};
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
    highest: Highest,
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
    /// Of the node: all that is measured. `None`: some of it was not measured in this interval.
    pub power: Option<Watts>,
    pub range: PowerRange,
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
            highest: Highest::default(),
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

    /// The policies of scope Total that decide about a pod: those whose levels are needed.
    pub fn totals(&mut self, in_force: &ActivePolicies, pods: &[PodNow]) -> BTreeSet<PolicyName> {
        self.decisions.refresh(in_force, pods);
        let shares = self.decisions.policies.iter().zip(&self.decisions.shares);
        let deciding = shares.filter(|(_, share)| !share.won.is_empty()).map(|(sourced, _)| &sourced.policy);
        let totals = deciding.filter(|policy| policy.budget.scope == BudgetScope::Total);
        totals.map(|policy| policy.name.clone()).collect()
    }

    /// One tick.
    pub fn step(&mut self, in_force: &ActivePolicies, levels: &Levels, seen: &Observation) -> Outcome {
        let now = seen.now;
        let elapsed = self.before.map_or(self.interval, |before| now.saturating_sub(before));
        self.before = Some(now);
        let tick = StepTime { now, elapsed, interval: self.interval };
        self.decisions.refresh(in_force, &seen.pods);
        let scene = Scene::new(seen, &self.decisions);
        let mut keeper = Keeper {
            earlier: std::mem::take(&mut self.budgets),
            budgets: BTreeMap::new(),
            past: &mut self.past,
            adopted: &mut self.adopted,
            tick,
            outcome: Outcome::default(),
        };
        let mut conflicts = BTreeSet::new();
        for (number, (sourced, share)) in self.decisions.policies.iter().zip(&self.decisions.shares).enumerate() {
            let Sourced { policy, source } = sourced;
            let parts: Vec<(Option<&PodNow>, &[Won])> = match policy.budget.scope {
                BudgetScope::PerPod => share.won.chunks(1).map(|won| (Some(&seen.pods[won[0].pod]), won)).collect(),
                BudgetScope::PerNode | BudgetScope::Total if share.won.is_empty() && !share.lost.is_empty() => {
                    Vec::new()
                }
                BudgetScope::PerNode | BudgetScope::Total => vec![(None, &*share.won)],
            };
            let mut subjects = Vec::with_capacity(parts.len());
            let mut level_range = None;
            for (pod, won) in parts {
                let view = scene.view(number, won);
                let subject = if policy.budget.scope == BudgetScope::Total {
                    let range = scene.power_range(&view, &mut self.highest);
                    let level = levels.policies.get(&policy.name).copied().unwrap_or_default();
                    level_range = Some(range.with(level));
                    keeper.keep_level(Policy::clone(policy), level, range, view)
                } else {
                    keeper.keep(policy, pod, view)
                };
                subjects.push(subject);
            }
            let lost = lost(&self.decisions, share, &seen.pods);
            conflicts.extend(lost.iter().map(|conflict| (policy.name.clone(), conflict.clone())));
            keeper.outcome.policies.push(PolicyStatus {
                name: policy.name.clone(),
                mode: policy.mode,
                scope: policy.budget.scope,
                source: Arc::clone(source),
                pods: share.won.len(),
                range: level_range,
                subjects,
                lost,
            });
        }
        let node = scene.whole_node();
        let range = scene.power_range(&node, &mut self.highest);
        (keeper.outcome.power, keeper.outcome.range) = (node.power.map(Watts), range);
        for budget in &levels.budgets {
            let (view, floor) = match &budget.protect {
                Some(protect) => scene.without_protected(&node, protect, &mut self.highest),
                None => (node.clone(), 0.0),
            };
            let range = PowerRange { floor: range.floor + floor, ..range };
            let subject = keeper.keep_level(whole::policy(budget, range.most), budget.level, range, view);
            keeper.outcome.policies.push(PolicyStatus {
                name: budget.name.clone(),
                mode: budget.mode,
                scope: BudgetScope::PerNode,
                source: Arc::from(budget.name.to_string()),
                pods: 0,
                range: Some(range.with(budget.level)),
                subjects: vec![subject],
                lost: Vec::new(),
            });
        }
        let Keeper { earlier, budgets, mut outcome, .. } = keeper;
        self.budgets = budgets;
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
        self.wait_for_adoption(in_force, levels, now, &mut outcome.limits);
        outcome
    }

    /// The agent has given everything back, and ends.
    pub fn end(&mut self) -> Vec<BudgetChange> {
        ended(std::mem::take(&mut self.budgets), &BudgetChangeKind::End).collect()
    }

    /// What was adopted and has not turned up stays for a while: policies, pods and GPUs come one after the other.
    fn wait_for_adoption(&mut self, in_force: &ActivePolicies, levels: &Levels, now: Duration, limits: &mut Limits) {
        if self.adopted.is_empty() {
            return;
        }
        if in_force.complete && levels.complete {
            self.adopt_until.get_or_insert(now + ADOPTION);
        }
        let waiting = self.adopt_until.is_none_or(|until| now < until);
        self.adopted.retain(|_, limit| match stands(&limit.policy, in_force, levels) {
            Some(stands) => stands && waiting,
            None => true,
        });
        for (knob, limit) in &self.adopted {
            limits.entry(knob.clone()).or_insert_with(|| limit.clone());
        }
    }
}

/// Whether limits of a policy are still wanted; `None`: that is not known yet.
#[must_use]
pub fn stands(policy: &PolicyName, in_force: &ActivePolicies, levels: &Levels) -> Option<bool> {
    if policy.authority == Authority::Budget {
        let budget = levels.budgets.iter().find(|budget| budget.name == *policy);
        let holds = |budget: &NodeBudget| budget.mode == Mode::Enforce && budget.level != NodeLevel::Open;
        // A budget without a level may be one whose level was not read yet.
        return if levels.complete {
            Some(budget.is_some_and(holds))
        } else {
            budget.filter(|budget| holds(budget)).map(|_| true)
        };
    }
    match in_force.policies.get(policy) {
        Some(sourced) => Some(sourced.policy.mode == Mode::Enforce),
        None => in_force.complete.then_some(false),
    }
}

fn lost(decisions: &Decisions, share: &PolicyShare, pods: &[PodNow]) -> Vec<Conflict> {
    let conflict = |lost: &decisions::Lost| Conflict {
        pod: pod_id(&pods[lost.pod]),
        component: lost.component,
        winner: decisions.policy(lost.winner).name.clone(),
    };
    share.lost.iter().map(conflict).collect()
}

/// Takes one budget after the other through a tick.
struct Keeper<'a> {
    /// Those of the tick before that were not met yet.
    earlier: Budgets,
    budgets: Budgets,
    past: &'a mut Past,
    adopted: &'a mut Limits,
    tick: StepTime,
    outcome: Outcome,
}

impl Keeper<'_> {
    fn keep(&mut self, policy: &Policy, pod: Option<&PodNow>, mut view: BudgetView) -> SubjectStatus {
        let now = self.tick.now;
        let key = (policy.name.clone(), pod.map(|pod| Arc::clone(&pod.uid)));
        let old = self.earlier.remove(&key);
        let from = old.as_ref().map(|budget| budget.shown.state);
        let mut budget = match old {
            Some(old) if old.mode == policy.mode => old,
            Some(old) => Budget::new(policy, now, old.excess),
            None => Budget::new(policy, now, self.past.take(&key)),
        };
        budget.step(policy, &mut view, self.tick, self.adopted);
        self.outcome.add_limits(policy, &mut budget, &view, now);
        let pod = pod.map(pod_id);
        self.outcome.changes.extend(changed(policy, pod.clone(), from, &budget.shown));
        let subject = status(policy, pod, &budget, &view);
        self.budgets.insert(key, budget);
        subject
    }

    /// A budget that follows a level: while that is open, nothing is kept, and what was lowered is restored at once.
    fn keep_level(
        &mut self,
        mut policy: Policy,
        level: NodeLevel,
        range: PowerRange,
        view: BudgetView,
    ) -> SubjectStatus {
        let (mode, power) = (policy.mode, view.power.map(Watts));
        match level {
            NodeLevel::Permille(permille) => policy.budget.amount = Amount::Watts(range.at(permille)),
            NodeLevel::Open => policy.mode = Mode::Off,
        }
        let mut subject = self.keep(&policy, None, view);
        if level == NodeLevel::Open && mode != Mode::Off {
            (subject.state, subject.budget, subject.power) = (SubjectState::Open, None, power);
        }
        subject
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
