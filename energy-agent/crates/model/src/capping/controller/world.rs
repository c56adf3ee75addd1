//! A small node for tests: pods on GPUs and cgroups, policies, and the ticks of a controller over them.

use std::collections::BTreeMap;

use super::*;
use crate::capping::knob::Knob;
use crate::capping::knob::KnobState;
use crate::capping::observation::{GpuDevice, GpuUser, KnobNow};
use crate::capping::policy::{Actuators, Amount, BudgetSpec, Components, Control, Policy, Selector};
use crate::workload::names::Pod;

/// A node and its controller.
pub struct World {
    pub controller: Controller,
    pub in_force: ActivePolicies,
    pub levels: Levels,
    pub seen: Observation,
    pub outcome: Outcome,
}

pub fn name(name: &str) -> PolicyName {
    PolicyName { namespace: Arc::from(""), name: Arc::from(name), ..PolicyName::default() }
}

/// Enforces `watts` of GPU power for each pod of namespace `ml`.
pub fn policy(called: &str, watts: f64) -> Policy {
    Policy {
        name: name(called),
        mode: Mode::Enforce,
        priority: 0,
        selector: Selector { namespaces: vec!["ml".to_owned()], ..Selector::default() },
        budget: BudgetSpec {
            amount: Amount::Watts(watts),
            scope: BudgetScope::PerPod,
            components: Components { gpu: true, cpu: false },
            window: Duration::from_secs(1),
        },
        control: Control::default(),
        actuators: Actuators::default(),
    }
}

pub const fn knob(min: u64, max: u64, step: u64) -> KnobNow {
    KnobNow { min, max, step, original: None, current: None, state: KnobState::Ok }
}

pub fn clock_of(gpu: &str) -> Knob {
    Knob::GpuClock(Arc::from(gpu))
}

pub(crate) fn limit_of(gpu: &str) -> Knob {
    Knob::GpuPower(Arc::from(gpu))
}

pub(crate) fn quota_of(pod: &str) -> Knob {
    Knob::CpuQuota(Arc::from(pod))
}

/// States of the changes of a tick.
pub fn states(outcome: &Outcome) -> Vec<SubjectState> {
    let state = |change: &BudgetChange| match change.kind {
        BudgetChangeKind::State { to, .. } => Some(to),
        BudgetChangeKind::Gone | BudgetChangeKind::End | BudgetChangeKind::Conflict { .. } => None,
    };
    outcome.changes.iter().filter_map(state).collect()
}

impl World {
    pub fn new() -> Self {
        Self {
            controller: Controller::new(Duration::from_secs(1)),
            in_force: ActivePolicies { complete: true, ..ActivePolicies::default() },
            levels: Levels { complete: true, ..Levels::default() },
            seen: Observation::default(),
            outcome: Outcome::default(),
        }
    }

    /// Adds or replaces a policy.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.put(policy);
        self
    }

    pub fn put(&mut self, policy: Policy) {
        let sourced = Sourced { policy: Arc::new(policy), source: Arc::from("file policies.yaml") };
        self.in_force.policies.insert(sourced.policy.name.clone(), sourced);
    }

    /// A pod of namespace `ml` with a quota that is open, on a node of 64 CPUs.
    pub fn pod(self, uid: &str) -> Self {
        self.pod_with(uid, "ml", &[])
    }

    pub fn pod_with(mut self, uid: &str, namespace: &str, labels: &[(&str, &str)]) -> Self {
        let pod = Pod {
            uid: Arc::from(uid),
            namespace: Arc::from(namespace),
            name: Arc::from(uid),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..Pod::default()
        };
        self.seen.knobs.insert(quota_of(uid), knob(10, 64_000, 1));
        self.seen.pods.push(PodNow {
            pod: Arc::new(pod),
            uid: Arc::from(uid),
            cpu_power: Some(Watts(0.0)),
            cpus_used: 0.0,
            quota: Some(quota_of(uid)),
            frequencies: Vec::new(),
        });
        self.seen.pods.sort_by(|a, b| a.uid.cmp(&b.uid));
        self
    }

    /// An H100, idle at 70 W, used by these pods.
    pub fn gpu(mut self, uuid: &str, users: &[&str]) -> Self {
        let users = users.iter().map(|uid| GpuUser { uid: Arc::from(*uid), power: Some(Watts(0.0)) }).collect();
        self.seen.gpus.push(GpuDevice {
            uuid: Arc::from(uuid),
            power: None,
            age: Duration::ZERO,
            users,
            foreign: false,
            idle: None,
            clock_mhz: None,
            look: None,
        });
        self.seen.knobs.insert(clock_of(uuid), knob(345, 1980, 15));
        let power = KnobNow { original: Some(700_000), ..knob(200_000, 700_000, 1) };
        self.seen.knobs.insert(limit_of(uuid), power);
        self.draw(uuid, 70.0);
        self
    }

    /// Power of a GPU, in equal parts of its users.
    pub fn draw(&mut self, uuid: &str, watts: f64) {
        let gpu = self.seen.gpus.iter_mut().find(|gpu| *gpu.uuid == *uuid).unwrap();
        gpu.power = Some(Watts(watts));
        let count = f64::from(u32::try_from(gpu.users.len()).unwrap());
        gpu.users.iter_mut().for_each(|user| user.power = Some(Watts(watts / count)));
    }

    /// Power and CPUs of a pod.
    pub fn work(&mut self, uid: &str, watts: f64, cpus: f64) {
        let pod = self.seen.pods.iter_mut().find(|pod| *pod.uid == *uid).unwrap();
        (pod.cpu_power, pod.cpus_used) = (Some(Watts(watts)), cpus);
    }

    pub fn tick(&mut self) -> &Outcome {
        self.seen.now += Duration::from_secs(1);
        self.outcome = self.controller.step(&self.in_force, &self.levels, &self.seen);
        &self.outcome
    }

    /// The same observation for some ticks.
    pub fn ticks(&mut self, count: u32) -> &Outcome {
        (0..count).for_each(|_| drop(self.tick().clone()));
        &self.outcome
    }

    pub fn limit(&self, knob: &Knob) -> Option<u64> {
        self.outcome.limits.get(knob).map(|limit| limit.value)
    }

    pub fn values(&self) -> BTreeMap<Knob, u64> {
        self.outcome.limits.iter().map(|(knob, limit)| (knob.clone(), limit.value)).collect()
    }

    pub fn status(&self, policy: &str) -> &PolicyStatus {
        self.outcome.policies.iter().find(|status| *status.name.name == *policy).unwrap()
    }

    /// State of the only budget of a policy.
    pub fn state(&self, policy: &str) -> SubjectState {
        let [subject] = &*self.status(policy).subjects else { panic!("{:?}", self.status(policy)) };
        subject.state
    }
}
