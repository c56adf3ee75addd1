//! Which policy decides about each pod and component, by one rule: the highest priority, then the lowest budget, then
//! the name. Each authority decides for itself, so that no priority of a tenant takes a pod from an admin. Worked out anew only for what has changed, and by index, so that thousands of policies cost nothing a tick.
//!
//! Enforce and Recommend are ranked apart: a policy that only recommends cannot take a pod from one that enforces, and
//! it goes on saying what it would do. A budget in watts ranks before a part of a peak, whose watts are not known
//! beforehand; among those the lower percentage is lower. Policies in mode Off decide nothing.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use crate::capping::observation::PodNow;
use crate::capping::policy::{Amount, Authority, Component, Mode, Policy};
use crate::capping::source::{ActivePolicies, Sourced};
use crate::workload::names::Pod;

/// What is decided, kept until pods or policies change. Policies are numbered by their place in [`Decisions::policies`].
#[derive(Debug, Default)]
pub struct Decisions {
    /// Ascending by name.
    pub policies: Vec<Sourced>,
    /// By policy.
    pub shares: Vec<PolicyShare>,
    pods: Vec<Matched>,
    by_uid: HashMap<Arc<str>, usize>,
    by_namespace: HashMap<String, Vec<usize>>,
    by_label: HashMap<(String, String), Vec<usize>>,
    anywhere: Vec<usize>,
}

/// What one policy got. Pods are numbered by their place in the observation.
#[derive(Debug, Default)]
pub struct PolicyShare {
    pub won: Vec<Won>,
    pub lost: Vec<Lost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Won {
    pub pod: usize,
    pub gpu: bool,
    pub cpu: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    pub pod: usize,
    pub component: Component,
    pub winner: usize,
}

#[derive(Debug)]
struct Matched {
    uid: Arc<str>,
    pod: Arc<Pod>,
    policies: Vec<usize>,
    admin: Ranked,
    tenant: Ranked,
}

/// Who decides, by the mode in which it would.
#[derive(Clone, Copy, Debug, Default)]
struct Ranked {
    enforce: Deciders,
    recommend: Deciders,
}

#[derive(Clone, Copy, Debug, Default)]
struct Deciders {
    gpu: Option<usize>,
    cpu: Option<usize>,
}

impl Decisions {
    /// Brings the decisions up to date with the policies and pods of a tick.
    pub fn refresh(&mut self, in_force: &ActivePolicies, pods: &[PodNow]) {
        let same_policies = self.policies.len() == in_force.policies.len()
            && self.policies.iter().zip(in_force.policies.values()).all(|(a, b)| Arc::ptr_eq(&a.policy, &b.policy));
        let same_pods = self.pods.len() == pods.len()
            && self.pods.iter().zip(pods).all(|(a, b)| Arc::ptr_eq(&a.pod, &b.pod) && a.uid == b.uid);
        if same_policies && same_pods {
            return;
        }
        let mut known = HashMap::new();
        if same_policies {
            known = std::mem::take(&mut self.pods).into_iter().map(|pod| (Arc::clone(&pod.uid), pod)).collect();
        } else {
            self.policies = in_force.policies.values().cloned().collect();
            self.index();
        }
        self.pods = pods
            .iter()
            .map(|pod| match known.remove(&pod.uid) {
                Some(matched) if Arc::ptr_eq(&matched.pod, &pod.pod) => matched,
                _ => self.matched(pod),
            })
            .collect();
        self.by_uid = self.pods.iter().enumerate().map(|(place, pod)| (Arc::clone(&pod.uid), place)).collect();
        self.share_out();
    }

    /// The policy that decides about the component of a pod, among those of the same authority and mode as `policy`.
    #[must_use]
    pub(crate) fn decider(&self, uid: &str, component: Component, policy: &Policy) -> Option<usize> {
        let pod = self.pods.get(*self.by_uid.get(uid)?)?;
        pod.deciders(policy)?.of(component)
    }

    #[must_use]
    pub fn policy(&self, number: usize) -> &Policy {
        &self.policies[number].policy
    }

    fn index(&mut self) {
        self.by_namespace.clear();
        self.by_label.clear();
        self.anywhere.clear();
        for (number, Sourced { policy, .. }) in self.policies.iter().enumerate() {
            let selector = &policy.selector;
            if !policy.name.namespace.is_empty() {
                self.by_namespace.entry(policy.name.namespace.to_string()).or_default().push(number);
            } else if let Some((key, value)) = selector.match_labels.iter().next() {
                self.by_label.entry((key.clone(), value.clone())).or_default().push(number);
            } else if selector.namespaces.is_empty() {
                self.anywhere.push(number);
            } else {
                for namespace in &selector.namespaces {
                    self.by_namespace.entry(namespace.clone()).or_default().push(number);
                }
            }
        }
    }

    fn matched(&self, now: &PodNow) -> Matched {
        let labels = now.pod.labels.iter().map(|(key, value)| (key.clone(), value.clone()));
        let mut policies: Vec<usize> = labels
            .filter_map(|label| self.by_label.get(&label))
            .chain(self.by_namespace.get(&*now.pod.namespace))
            .chain([&self.anywhere])
            .flatten()
            .copied()
            .filter(|&number| self.policy(number).selects(&now.pod))
            .collect();
        policies.sort_unstable();
        policies.dedup();
        let decide = |authority, mode| {
            let best = |component| {
                let counted = |policy: &Policy| {
                    policy.name.authority == authority && policy.mode == mode && policy.counts(component)
                };
                policies.iter().copied().filter(|&number| counted(self.policy(number))).min_by(|&a, &b| self.rank(a, b))
            };
            Deciders { gpu: best(Component::Gpu), cpu: best(Component::Cpu) }
        };
        let ranked = |authority| Ranked {
            enforce: decide(authority, Mode::Enforce),
            recommend: decide(authority, Mode::Recommend),
        };
        let (admin, tenant) = (ranked(Authority::Admin), ranked(Authority::Tenant));
        Matched { uid: Arc::clone(&now.uid), pod: Arc::clone(&now.pod), policies, admin, tenant }
    }

    /// Less: `a` decides. Numbers are in the order of names.
    fn rank(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let key = |number| {
            let policy: &Policy = self.policy(number);
            let (kind, amount) = match policy.budget.amount {
                Amount::Watts(watts) => (0, watts),
                Amount::PercentOfPeak { percent, .. } => (1, percent),
            };
            (Reverse(policy.priority), kind, amount)
        };
        let ((priority_a, kind_a, amount_a), (priority_b, kind_b, amount_b)) = (key(a), key(b));
        (priority_a, kind_a)
            .cmp(&(priority_b, kind_b))
            .then(amount_a.total_cmp(&amount_b))
            .then_with(|| self.policy(a).name.cmp(&self.policy(b).name))
    }

    fn share_out(&mut self) {
        let mut shares: Vec<PolicyShare> = self.policies.iter().map(|_| PolicyShare::default()).collect();
        for (place, pod) in self.pods.iter().enumerate() {
            for &number in &pod.policies {
                let policy = self.policy(number);
                let Some(deciders) = pod.deciders(policy) else {
                    // Mode Off: shown, but nothing is decided.
                    shares[number].won.push(Won { pod: place, gpu: false, cpu: false });
                    continue;
                };
                let mut won = Won { pod: place, gpu: false, cpu: false };
                for component in [Component::Gpu, Component::Cpu] {
                    let Some(winner) = deciders.of(component).filter(|_| policy.counts(component)) else { continue };
                    match component {
                        Component::Gpu => won.gpu = winner == number,
                        Component::Cpu => won.cpu = winner == number,
                    }
                    if winner != number {
                        shares[number].lost.push(Lost { pod: place, component, winner });
                    }
                }
                if won.gpu || won.cpu {
                    shares[number].won.push(won);
                }
            }
        }
        self.shares = shares;
    }
}

impl Matched {
    const fn deciders(&self, policy: &Policy) -> Option<Deciders> {
        let ranked = match policy.name.authority {
            Authority::Admin => self.admin,
            Authority::Tenant => self.tenant,
            // Decides about nodes.
            Authority::Budget => return None,
        };
        match policy.mode {
            Mode::Off => None,
            Mode::Recommend => Some(ranked.recommend),
            Mode::Enforce => Some(ranked.enforce),
        }
    }
}

impl Deciders {
    const fn of(self, component: Component) -> Option<usize> {
        match component {
            Component::Gpu => self.gpu,
            Component::Cpu => self.cpu,
        }
    }
}

impl Policy {
    const fn counts(&self, component: Component) -> bool {
        match component {
            Component::Gpu => self.budget.components.gpu,
            Component::Cpu => self.budget.components.cpu,
        }
    }
}
