//! What one budget is about: the power that counts, the devices that draw it, and why some of them cannot be lowered.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::decisions::{Decisions, Won};
use super::device::{BudgetDevice, DeviceKey, Lever, LeverKind, Range, Sharing};
use crate::capping::knob::Knob;
use crate::capping::knob::KnobState;
use crate::capping::observation::{GpuDevice, Observation, PodNow};
use crate::capping::policy::{Algorithm, BudgetScope, Component, CpuActuators, Policy, Selector};
use crate::capping::quantity::Quantity;
use crate::units::{floor_u64, nearest_u64};

/// The part of an observation that belongs to one budget.
#[derive(Clone, Debug, Default)]
pub struct BudgetView {
    /// Watts; `None`: some part of it was not measured.
    pub power: Option<f64>,
    /// How long ago the oldest interval ended that is part of it.
    pub age: Duration,
    pub devices: Vec<BudgetDevice>,
    /// Why a device that it draws power from cannot be used.
    pub blocked: Option<String>,
    /// Knobs that it would use if they could be used.
    pub unusable: Vec<Knob>,
    /// Clocks that are asked for from elsewhere, if the policy follows them.
    pub bounds: BTreeMap<Knob, u64>,
}

/// An observation with what all budgets look up in it.
pub struct Scene<'a> {
    pub seen: &'a Observation,
    pub decisions: &'a Decisions,
    /// GPUs by the uid of a user.
    gpus: HashMap<&'a str, Vec<&'a GpuDevice>>,
}

impl<'a> Scene<'a> {
    #[must_use]
    pub fn new(seen: &'a Observation, decisions: &'a Decisions) -> Self {
        let mut gpus: HashMap<&str, Vec<&GpuDevice>> = HashMap::new();
        for gpu in &seen.gpus {
            for user in &gpu.users {
                gpus.entry(&user.uid).or_default().push(gpu);
            }
        }
        Self { seen, decisions, gpus }
    }

    /// What policy `number` decides about: one pod, or all that it has won.
    #[must_use]
    pub fn view(&self, number: usize, won: &[Won]) -> BudgetView {
        let mut view = BudgetView { power: Some(0.0), ..BudgetView::default() };
        self.add_gpus(number, won, &mut view);
        self.add_cpus(number, won, &mut view);
        if self.decisions.policy(number).control.algorithm == Algorithm::External {
            view.bounds.clone_from(&self.seen.bounds);
        }
        view
    }

    fn add_gpus(&self, number: usize, won: &[Won], view: &mut BudgetView) {
        let uids = || won.iter().filter(|won| won.gpu).map(|won| &*self.seen.pods[won.pod].uid);
        let mut gpus: Vec<&GpuDevice> = uids().filter_map(|uid| self.gpus.get(uid)).flatten().copied().collect();
        gpus.sort_by(|a, b| a.uuid.cmp(&b.uuid));
        gpus.dedup_by(|a, b| a.uuid == b.uuid);
        for gpu in gpus {
            let own = |uid: &Arc<str>| uids().any(|own| *own == **uid);
            let part: Option<f64> = gpu
                .users
                .iter()
                .filter(|user| own(&user.uid))
                .map(|user| user.power.map(|power| power.0).filter(|power| power.is_finite()))
                .sum();
            view.power = view.power.zip(part).map(|(sum, part)| sum + part);
            view.age = view.age.max(gpu.age);
            if let Some(reason) = self.not_alone(number, gpu) {
                view.blocked = Some(reason);
                continue;
            }
            let policy = self.decisions.policy(number);
            let range = |knob: Knob, wanted: bool, least: u64| {
                self.seen.knobs.get(&knob).filter(|_| wanted).and_then(|now| Range::new(&knob, now, least))
            };
            let actuators = policy.actuators.gpu;
            let least = u64::from(actuators.min_clock_mhz.unwrap_or(0));
            let clock = range(Knob::GpuClock(Arc::clone(&gpu.uuid)), actuators.locked_clocks, least);
            let limit = range(Knob::GpuPower(Arc::clone(&gpu.uuid)), actuators.power_limit, 0);
            let knobs = [
                (Knob::GpuClock(Arc::clone(&gpu.uuid)), actuators.locked_clocks && clock.is_none()),
                (Knob::GpuPower(Arc::clone(&gpu.uuid)), actuators.power_limit && limit.is_none()),
            ];
            view.unusable.extend(knobs.into_iter().filter(|(_, unusable)| *unusable).map(|(knob, _)| knob));
            // One of two that somebody else has taken is named as well: the other goes on.
            if let Some(knob) = view.unusable.iter().rfind(|knob| self.is_theirs(knob) && knob.device() == *gpu.uuid) {
                view.blocked = Some(self.stands(knob));
            }
            if clock.is_none() && limit.is_none() {
                view.blocked = Some(self.unusable(gpu, &view.unusable));
                continue;
            }
            let power = part.unwrap_or(0.0);
            let at = gpu.clock_mhz.map(u64::from);
            view.devices.push(BudgetDevice {
                key: DeviceKey::Gpu(Arc::clone(&gpu.uuid)),
                power,
                others: gpu.power.map_or(0.0, |whole| (whole.0 - power).max(0.0)),
                lever: clock.and_then(|clock| Lever::new(LeverKind::GpuClock, vec![clock], at)),
                limits: limit.into_iter().collect(),
                sharing: Sharing::ByPower,
            });
        }
    }

    /// Why a GPU cannot be lowered: how its knobs among `unusable` stand.
    fn unusable(&self, gpu: &GpuDevice, unusable: &[Knob]) -> String {
        let own = unusable.iter().filter(|knob| knob.device() == *gpu.uuid);
        let states = own.map(|knob| {
            let state = self.seen.knobs.get(knob).map_or(KnobState::Unreachable, |now| now.state);
            format!("{} is {}", knob.actuator(), state.as_str())
        });
        let states = states.collect::<Vec<_>>().join(", ");
        let why = if states.is_empty() { "the policy uses neither its clocks nor its power limit" } else { &states };
        format!("{} cannot be capped: {why}", gpu.uuid)
    }

    /// Why a GPU may not be capped on behalf of this policy: somebody else uses it who has not agreed.
    fn not_alone(&self, number: usize, gpu: &GpuDevice) -> Option<String> {
        if gpu.foreign {
            return Some(format!("{} is also used outside pods", gpu.uuid));
        }
        let policy = self.decisions.policy(number);
        let deciders = gpu.users.iter().map(|user| self.decisions.decider(&user.uid, Component::Gpu, policy));
        for (decider, user) in deciders.zip(&gpu.users) {
            let agreed = |other: usize| {
                other == number
                    || (policy.actuators.gpu.allow_shared && self.decisions.policy(other).actuators.gpu.allow_shared)
            };
            if !decider.is_some_and(agreed) {
                return Some(format!(
                    "{} is also used by pod {}, and its policy does not allow this",
                    gpu.uuid, user.uid
                ));
            }
        }
        None
    }

    fn add_cpus(&self, number: usize, won: &[Won], view: &mut BudgetView) {
        let policy = self.decisions.policy(number);
        let places: BTreeSet<usize> = won.iter().filter(|won| won.cpu).map(|won| won.pod).collect();
        let counted: Vec<_> = places.iter().map(|&place| &self.seen.pods[place]).collect();
        let node = policy.budget.components.cpu && policy.budget.scope == BudgetScope::PerNode && selects_all(policy);
        let power: Option<f64> = if node {
            self.seen.node_cpu_power.map(|power| power.0).filter(|power| power.is_finite())
        } else {
            counted.iter().map(|pod| pod.cpu_power.map(|power| power.0).filter(|power| power.is_finite())).sum()
        };
        view.power = view.power.zip(power).map(|(sum, power)| sum + power);
        let cpu = policy.actuators.cpu;
        if node && cpu.rapl_limit {
            if let Some(reason) = self.decided_by_another(&places, policy) {
                view.blocked = Some(reason);
            } else if self.add_rapl(power, cpu, view) {
                return;
            }
        }
        let min_khz = u64::from(cpu.min_frequency_mhz.unwrap_or(0)) * 1000;
        if node && cpu.frequency && !counted.is_empty() {
            // Cores that belong to a pod of another policy are left alone; one that shares the rest forbids them.
            let others = self.seen.pods.iter().enumerate().filter(|(place, _)| !places.contains(place));
            let theirs: BTreeSet<&Knob> = others.clone().flat_map(|(_, pod)| &pod.frequencies).collect();
            let shared = others.clone().any(|(_, pod)| pod.frequencies.is_empty());
            let knobs = self.seen.knobs.keys().filter(|knob| matches!(knob, Knob::CpuFrequency(_)));
            let ranges: Option<Vec<Range>> =
                knobs.filter(|knob| !theirs.contains(knob)).map(|knob| self.range(knob, min_khz)).collect();
            if !shared && let Some(lever) = ranges.and_then(|ranges| Lever::new(LeverKind::CpuFrequency, ranges, None))
            {
                view.devices.push(cpu_device(None, power.unwrap_or(0.0), lever));
                return;
            }
        }
        for pod in counted.into_iter().filter(|_| cpu.frequency || cpu.quota) {
            let clocks = pod.frequencies.iter().filter(|_| cpu.frequency);
            let knobs = clocks.chain(pod.quota.iter().filter(|_| cpu.quota));
            view.unusable.extend(knobs.filter(|knob| self.range(knob, 0).is_none()).cloned());
            let ranges: Option<Vec<Range>> = pod.frequencies.iter().map(|knob| self.range(knob, min_khz)).collect();
            let frequency =
                ranges.filter(|_| cpu.frequency).and_then(|ranges| Lever::new(LeverKind::CpuFrequency, ranges, None));
            let quota = || {
                let least = nearest_u64(cpu.min_cpus.unwrap_or(0.0) * 1000.0);
                let range = pod.quota.as_ref().filter(|_| cpu.quota).and_then(|knob| self.range(knob, least))?;
                Lever::new(LeverKind::Quota, vec![range], Some(floor_u64(pod.cpus_used * 1000.0)))
            };
            match frequency.or_else(quota) {
                Some(lever) => {
                    let power = pod.cpu_power.map_or(0.0, |power| power.0);
                    view.devices.push(cpu_device(Some(Arc::clone(&pod.uid)), power, lever));
                }
                None => {
                    let theirs = pod.frequencies.iter().chain(&pod.quota).find(|knob| self.is_theirs(knob));
                    view.blocked = Some(theirs.map_or_else(|| without_means(pod, cpu), |knob| self.stands(knob)));
                }
            }
        }
    }

    /// Why the node as a whole is not this policy's to lower; `None`: it is. `places` are the pods that it decides about.
    fn decided_by_another(&self, places: &BTreeSet<usize>, policy: &Policy) -> Option<String> {
        let (_, pod) = self.seen.pods.iter().enumerate().find(|(place, _)| !places.contains(place))?;
        let winner = self.decisions.decider(&pod.uid, Component::Cpu, policy);
        let winner = winner.map_or("another".to_owned(), |winner| self.decisions.policy(winner).name.to_string());
        let pod = name(pod);
        let or = if has_others(policy.actuators.cpu) { "" } else { ", or name Frequency or Quota too" };
        Some(format!(
            "RaplLimit caps the whole node, but policy {winner} decides about the CPUs of pod {pod}; give this policy a \
             higher priority{or}"
        ))
    }

    /// Whether the whole node is held by its packages' limits: by those that can be written.
    fn add_rapl(&self, power: Option<f64>, cpu: CpuActuators, view: &mut BudgetView) -> bool {
        let knobs: Vec<&Knob> = self.seen.knobs.keys().filter(|knob| matches!(knob, Knob::RaplLimit(_))).collect();
        if knobs.is_empty() {
            let remedy = if has_others(cpu) { "" } else { "; name Frequency or Quota" };
            view.blocked = Some(format!("no package of this node has a power limit (powercap){remedy}"));
            return false;
        }
        let (usable, not): (Vec<_>, Vec<_>) =
            knobs.iter().map(|&knob| (knob, self.range(knob, 0))).partition(|(_, range)| range.is_some());
        if let Some((knob, _)) = not.first() {
            view.blocked = Some(self.stands(knob));
        }
        view.unusable.extend(not.iter().map(|&(knob, _)| knob.clone()));
        if usable.is_empty() {
            return false;
        }
        view.devices.push(BudgetDevice {
            key: DeviceKey::Cpu(None),
            power: power.unwrap_or(0.0),
            others: 0.0,
            lever: None,
            limits: usable.into_iter().filter_map(|(_, range)| range).collect(),
            sharing: Sharing::EqualParts(u32::try_from(knobs.len()).unwrap_or(u32::MAX)),
        });
        true
    }

    fn is_theirs(&self, knob: &Knob) -> bool {
        self.seen.knobs.get(knob).is_some_and(|now| now.state == KnobState::Yielded)
    }

    /// Why a knob cannot be used, and whose value rules.
    fn stands(&self, knob: &Knob) -> String {
        let Some(now) = self.seen.knobs.get(knob) else { return format!("{knob} does not exist") };
        let theirs = match (now.state, now.original) {
            // The clocks of a GPU do not show who has set them to what: the limit's own line says what is known.
            (KnobState::Yielded, _) if matches!(knob, Knob::GpuClock(_)) => ": another program has set it".to_owned(),
            (KnobState::Yielded, None) => ": another program has removed its limit".to_owned(),
            (KnobState::Yielded, Some(value)) => {
                format!(": another program has set it to {}", Quantity::of(knob, value))
            }
            _ => String::new(),
        };
        format!("{knob} is {}{theirs}", now.state.as_str())
    }

    fn range(&self, knob: &Knob, least: u64) -> Option<Range> {
        Range::new(knob, self.seen.knobs.get(knob)?, least)
    }
}

const fn cpu_device(uid: Option<Arc<str>>, power: f64, lever: Lever) -> BudgetDevice {
    BudgetDevice {
        key: DeviceKey::Cpu(uid),
        power,
        others: 0.0,
        lever: Some(lever),
        limits: Vec::new(),
        sharing: Sharing::ByPower,
    }
}

/// Whether the policy names other means than the packages' limits.
const fn has_others(cpu: CpuActuators) -> bool {
    cpu.frequency || cpu.quota
}

/// What a pod lacks of the means that its policy names.
fn without_means(pod: &PodNow, cpu: CpuActuators) -> String {
    let lacks = match (cpu.frequency, cpu.quota) {
        (true, true) => "neither cores of its own nor a writable quota",
        (true, false) => "no cores of its own with a writable clock",
        _ => "no writable quota",
    };
    format!("pod {} has {lacks}", name(pod))
}

/// A pod as people know it.
fn name(now: &PodNow) -> String {
    format!("{}/{}", now.pod.namespace, now.pod.name)
}

/// Whether a policy is about every pod there may be.
fn selects_all(policy: &Policy) -> bool {
    let Selector { match_labels, match_expressions, namespaces, select_all } = &policy.selector;
    *select_all
        && match_labels.is_empty()
        && match_expressions.is_empty()
        && namespaces.is_empty()
        && policy.name.namespace.is_empty()
}
