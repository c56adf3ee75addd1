//! The node as one subject of budgets over many nodes: all its devices, whoever uses them, and the range of its power.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::device::{BudgetDevice, DeviceKey, Lever, LeverKind, Range, Sharing};
use super::view::{BudgetView, Scene};
use crate::capping::knob::Knob;
use crate::capping::level::{NodeBudget, NodeLevel, Protect};
use crate::capping::observation::GpuDevice;
use crate::capping::policy::{
    Actuators, Amount, BudgetScope, BudgetSpec, Components, Control, CpuActuators, GpuActuators, Policy, Selector,
};
use crate::capping::quantity::Quantity;
use crate::capping::status::LevelRange;
use crate::units::Watts;

/// How power follows a relative clock, as the ratio law takes it.
const EXPONENT: f64 = 1.5;

/// What a set of devices can be held at, and what it may draw at most; watts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PowerRange {
    pub floor: f64,
    pub most: f64,
}

impl PowerRange {
    /// What may be drawn at a level.
    #[must_use]
    pub(crate) fn at(self, permille: u32) -> f64 {
        self.floor + f64::from(permille) / 1000.0 * (self.most - self.floor)
    }

    /// For people and for the controller of many nodes.
    #[must_use]
    pub(crate) fn with(self, level: NodeLevel) -> LevelRange {
        let limit = match level {
            NodeLevel::Open => None,
            NodeLevel::Permille(permille) => Some(Watts(self.at(permille))),
        };
        LevelRange { floor: Watts(self.floor), most: Watts(self.most), limit }
    }

    fn add(&mut self, other: Self) {
        self.floor += other.floor;
        self.most += other.most;
    }
}

/// The highest power of each device that was seen: the most of one that names no limit.
#[derive(Clone, Debug, Default)]
pub struct Highest(BTreeMap<DeviceKey, f64>);

impl Highest {
    fn of(&mut self, key: &DeviceKey, power: f64) -> f64 {
        let highest = self.0.entry(key.clone()).or_insert(power);
        *highest = highest.max(power);
        *highest
    }
}

/// What the node is held to, as a policy: by all means that hold for whoever uses a device.
#[must_use]
pub(crate) fn policy(budget: &NodeBudget, watts: f64) -> Policy {
    Policy {
        name: budget.name.clone(),
        mode: budget.mode,
        priority: 0,
        selector: Selector { select_all: true, ..Selector::default() },
        budget: BudgetSpec {
            amount: Amount::Watts(watts),
            scope: BudgetScope::PerNode,
            components: Components { gpu: true, cpu: true },
            window: std::time::Duration::from_secs(1),
        },
        control: Control::default(),
        actuators: Actuators {
            gpu: GpuActuators { allow_shared: true, ..GpuActuators::default() },
            // A quota is a pod's.
            cpu: CpuActuators { quota: false, rapl_limit: true, ..CpuActuators::default() },
        },
    }
}

impl Scene<'_> {
    /// All devices of the node. A GPU that something beside pods uses counts and is never lowered.
    #[must_use]
    pub(crate) fn whole_node(&self) -> BudgetView {
        let mut view = BudgetView { power: Some(0.0), ..BudgetView::default() };
        for gpu in &self.seen.gpus {
            let power = gpu.power.map(|power| power.0).filter(|power| power.is_finite());
            view.power = view.power.zip(power).map(|(sum, power)| sum + power);
            view.age = view.age.max(gpu.age);
            match self.gpu(gpu, power) {
                Ok(device) => view.devices.push(device),
                Err(why) => view.blocked = Some(why),
            }
        }
        let power = self.seen.node_cpu_power.map(|power| power.0).filter(|power| power.is_finite());
        // A node whose CPUs nobody measures is its GPUs.
        if let Some(power) = power {
            view.power = view.power.map(|sum| sum + power);
            view.devices.extend(self.cpus(power));
        }
        view
    }

    /// What a budget may lower of the node that protects some pods: all but the GPUs that only such pods use. These may draw
    /// all that they can, so that the node's floor is higher by the watts that are returned.
    #[must_use]
    pub(crate) fn without_protected(
        &self,
        node: &BudgetView,
        protect: &Protect,
        highest: &mut Highest,
    ) -> (BudgetView, f64) {
        let mut view = BudgetView { devices: Vec::with_capacity(node.devices.len()), ..node.clone() };
        let mut kept = 0.0;
        for device in &node.devices {
            if self.is_protected(&device.key, protect) {
                let range = self.range_of(device, highest);
                kept += range.most - range.floor;
            } else {
                view.devices.push(device.clone());
            }
        }
        if view.devices.is_empty() && !node.devices.is_empty() {
            view.blocked = Some("only protected pods use what could be lowered".to_owned());
        }
        (view, kept)
    }

    /// CPUs are everybody's.
    fn is_protected(&self, device: &DeviceKey, protect: &Protect) -> bool {
        let DeviceKey::Gpu(uuid) = device else { return false };
        let users = self.seen.gpus.iter().find(|gpu| gpu.uuid == *uuid).map_or(&[][..], |gpu| &gpu.users);
        let is_covered = |uid: &str| {
            let pod = self.seen.pods.iter().find(|pod| *pod.uid == *uid);
            pod.is_some_and(|now| protect.covers(now.pod.priority, &now.pod.labels))
        };
        !users.is_empty() && users.iter().all(|user| is_covered(&user.uid))
    }

    fn gpu(&self, gpu: &GpuDevice, power: Option<f64>) -> Result<BudgetDevice, String> {
        if gpu.foreign {
            return Err(format!("{} is also used outside pods", gpu.uuid));
        }
        let range = |knob: Knob| self.seen.knobs.get(&knob).and_then(|now| Range::new(&knob, now, 0));
        let clock = range(Knob::GpuClock(Arc::clone(&gpu.uuid)));
        let limit = range(Knob::GpuPower(Arc::clone(&gpu.uuid)));
        if clock.is_none() && limit.is_none() {
            return Err(format!("{} cannot be capped", gpu.uuid));
        }
        let at = gpu.clock_mhz.map(u64::from);
        Ok(BudgetDevice {
            key: DeviceKey::Gpu(Arc::clone(&gpu.uuid)),
            power: power.unwrap_or(0.0),
            others: 0.0,
            lever: clock.and_then(|clock| Lever::new(LeverKind::GpuClock, vec![clock], at)),
            limits: limit.into_iter().collect(),
            sharing: Sharing::ByPower,
        })
    }

    /// By the packages' own limits, else by all clocks; `None`: by neither.
    fn cpus(&self, power: f64) -> Option<BudgetDevice> {
        let of = |is_kind: fn(&Knob) -> bool| -> Vec<Range> {
            let knobs = self.seen.knobs.iter().filter(|(knob, _)| is_kind(knob));
            knobs.filter_map(|(knob, now)| Range::new(knob, now, 0)).collect()
        };
        let limits = of(|knob| matches!(knob, Knob::RaplLimit(_)));
        let parts = u32::try_from(limits.len()).unwrap_or(u32::MAX);
        let lever = if limits.is_empty() {
            Some(Lever::new(LeverKind::CpuFrequency, of(|knob| matches!(knob, Knob::CpuFrequency(_))), None)?)
        } else {
            None
        };
        let sharing = if limits.is_empty() { Sharing::ByPower } else { Sharing::EqualParts(parts) };
        Some(BudgetDevice { key: DeviceKey::Cpu(None), power, others: 0.0, lever, limits, sharing })
    }

    /// The range of a view's power. What cannot be lowered counts with what it draws in both; what is not measured, with its
    /// most.
    pub(crate) fn power_range(&self, view: &BudgetView, highest: &mut Highest) -> PowerRange {
        let mut range = PowerRange::default();
        let mut lowered = 0.0;
        for device in &view.devices {
            lowered += device.power;
            range.add(self.range_of(device, highest));
        }
        let rest = view.power.map_or(0.0, |power| (power - lowered).max(0.0));
        range.add(PowerRange { floor: rest, most: rest });
        range
    }

    fn range_of(&self, device: &BudgetDevice, highest: &mut Highest) -> PowerRange {
        let watts = |knob: &Knob, value: u64| match Quantity::of(knob, value) {
            Quantity::Power(Watts(watts)) => watts,
            Quantity::Hertz(_) | Quantity::Cpus(_) => 0.0,
        };
        let seen = highest.of(&device.key, device.power);
        let of_limits = |value: fn(&Range) -> u64| -> Option<f64> {
            let sum = device.limits.iter().map(|range| watts(&range.knob, value(range))).sum();
            (!device.limits.is_empty()).then_some(sum)
        };
        let most = of_limits(|range| range.top).unwrap_or(seen).max(seen);
        let idle = match &device.key {
            DeviceKey::Gpu(uuid) => {
                let gpu = self.seen.gpus.iter().find(|gpu| gpu.uuid == *uuid);
                gpu.and_then(|gpu| gpu.idle).map_or(0.0, |idle| idle.0)
            }
            DeviceKey::Cpu(_) => 0.0,
        };
        let idle = idle.min(most);
        let by_clock = device.lever.as_ref().map(|lever| idle + (most - idle) * lever.floor().powf(EXPONENT));
        let by_limit = of_limits(|range| range.floor);
        let floor = [by_clock, by_limit].into_iter().flatten().fold(most, f64::min);
        PowerRange { floor: floor.max(idle), most }
    }
}
