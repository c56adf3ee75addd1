//! How far the devices of a budget are lowered: a relative ceiling and power limits each, and their values on the knobs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::reading::BudgetReading;
use crate::capping::controller::device::{BudgetDevice, DeviceKey, Lever, Range, Sharing};
use crate::capping::controller::view::BudgetView;
use crate::capping::knob::{Knob, Limits};
use crate::capping::policy::{Algorithm, Control, PolicyName};
use crate::capping::quantity::Quantity;
use crate::units::{self, Watts, floor_u64, nearest_u64};

/// A power limit is set this far above a device's share of the budget where its clocks are lowered too.
const BACKSTOP: f64 = 1.10;
/// Such a limit is not rewritten for less than this part of it.
const BACKSTOP_CHANGE: f64 = 0.05;
/// A device that draws this much of its limit is held back by it.
const LIMITED: f64 = 0.95;
/// Raises stop at this number of writes of a device within a minute, of the 20 there may be: the rest is for cuts.
const WRITES_FOR_RAISES: usize = 12;
const MINUTE: Duration = Duration::from_secs(60);
/// A device that draws this much more than the mean is cut first.
const HOT: f64 = 1.2;
/// A device that draws less than this part of the mean is not cut.
const IDLE: f64 = 0.1;
/// Devices this near to the lowest ceiling rise with it.
const NEAR: f64 = 0.02;
/// The cut of a device that is gone is kept for so long, in case the device comes back.
const FORGET_DEVICE: Duration = Duration::from_secs(60);

/// The cuts of all devices of a budget.
#[derive(Clone, Debug, Default)]
pub struct Cuts {
    /// Knobs that were wanted lower than their device allows.
    pub clamped: BTreeSet<Knob>,
    devices: BTreeMap<DeviceKey, Cut>,
}

/// How far one device is lowered.
#[derive(Clone, Debug)]
struct Cut {
    /// Relative; 1 is open.
    ceiling: f64,
    /// Power limits that are set.
    limits: BTreeMap<Knob, u64>,
    /// A quota's steps are a twentieth of this.
    reference: Option<u64>,
    seen_at: Duration,
    /// What was wanted last, and when it was changed within a minute.
    wanted: BTreeMap<Knob, u64>,
    writes: VecDeque<Duration>,
}

impl Cut {
    const fn open() -> Self {
        Self {
            ceiling: 1.0,
            limits: BTreeMap::new(),
            reference: None,
            seen_at: Duration::ZERO,
            wanted: BTreeMap::new(),
            writes: VecDeque::new(),
        }
    }
}

impl Cuts {
    /// Brings the devices up to date with a view. A new one is open.
    pub fn refresh(&mut self, view: &mut BudgetView, now: Duration) {
        for device in &mut view.devices {
            let cut = self.devices.entry(device.key.clone()).or_insert_with(Cut::open);
            cut.seen_at = now;
            if let Some(lever) = &mut device.lever {
                let first = &lever.ranges[0];
                let reference = cut.reference.or_else(|| (!first.open).then_some(first.top));
                reference.into_iter().for_each(|reference| lever.quantise(reference));
            }
        }
        self.devices.retain(|_, cut| cut.seen_at + FORGET_DEVICE > now);
    }

    /// Takes over what an earlier run has set for this policy, and takes it out of `adopted`. Whether there was something.
    pub fn adopt(&mut self, policy: &PolicyName, view: &BudgetView, adopted: &mut Limits) -> bool {
        let mut some = false;
        for device in &view.devices {
            let mut take = |range: &Range| {
                let ours = adopted.get(&range.knob).is_some_and(|limit| limit.policy == *policy);
                ours.then(|| adopted.remove(&range.knob)).flatten().map(|limit| limit.value)
            };
            let lowered: Vec<(f64, u64)> = device
                .lever
                .iter()
                .flat_map(|lever| &lever.ranges)
                .filter_map(|range| take(range).map(|value| (range.relative(value), value)))
                .collect();
            let limits: Vec<(Knob, u64)> =
                device.limits.iter().filter_map(|range| Some((range.knob.clone(), take(range)?))).collect();
            if lowered.is_empty() && limits.is_empty() {
                continue;
            }
            let cut = self.devices.entry(device.key.clone()).or_insert_with(Cut::open);
            cut.ceiling = lowered.iter().map(|(ceiling, _)| *ceiling).fold(1.0, f64::min);
            cut.reference = lowered.first().map(|(_, value)| *value);
            cut.limits.extend(limits);
            cut.wanted.clone_from(&cut.limits);
            some = true;
        }
        some
    }

    /// Opens every device.
    pub fn release(&mut self) {
        for cut in self.devices.values_mut() {
            cut.ceiling = 1.0;
            cut.limits.clear();
        }
        self.clamped.clear();
    }

    /// What is wanted of each knob. Counts what has changed.
    pub fn values(&mut self, view: &BudgetView, now: Duration) -> BTreeMap<Knob, u64> {
        let mut all = BTreeMap::new();
        for device in &view.devices {
            let Some(cut) = self.devices.get_mut(&device.key) else { continue };
            let mut wanted = BTreeMap::new();
            if cut.ceiling < 1.0 {
                for range in device.lever.iter().flat_map(|lever| &lever.ranges) {
                    wanted.extend(range.value(cut.ceiling).map(|value| (range.knob.clone(), value)));
                }
            }
            for range in &device.limits {
                wanted.extend(cut.limits.get(&range.knob).map(|value| (range.knob.clone(), *value)));
            }
            let changed = wanted.iter().filter(|(knob, value)| cut.wanted.get(knob) != Some(value)).count();
            cut.writes.extend(std::iter::repeat_n(now, changed));
            while cut.writes.front().is_some_and(|at| *at + MINUTE <= now) {
                cut.writes.pop_front();
            }
            cut.wanted.clone_from(&wanted);
            all.extend(wanted);
        }
        all
    }

    /// The lowest relative ceiling; of a device without a lever, that of its power limits.
    #[must_use]
    pub fn lowest(&self, view: &BudgetView) -> f64 {
        let of = |device: &BudgetDevice| {
            let Some(cut) = self.devices.get(&device.key) else { return 1.0 };
            let limit = |range: &Range| cut.limits.get(&range.knob).map(|value| range.relative(*value));
            match device.lever {
                Some(_) => cut.ceiling,
                None => device.limits.iter().filter_map(limit).fold(1.0, f64::min),
            }
        };
        view.devices.iter().map(of).fold(1.0, f64::min)
    }

    /// Whether no ceiling is lowered.
    #[must_use]
    pub(crate) fn ceilings_are_open(&self, view: &BudgetView) -> bool {
        view.devices.iter().all(|device| self.ceiling(device) >= 1.0)
    }

    fn ceiling(&self, device: &BudgetDevice) -> f64 {
        self.devices.get(&device.key).map_or(1.0, |cut| cut.ceiling)
    }

    /// Lowers the ceilings: of the hot devices if there are some, else of all. Whether something changed.
    pub fn lower(&mut self, algorithm: &Algorithm, view: &mut BudgetView, reading: BudgetReading) -> bool {
        let BudgetReading { power, mean, target, .. } = reading;
        let count = u32::try_from(view.devices.len()).unwrap_or(u32::MAX).max(1);
        let average = view.devices.iter().map(|device| device.power).sum::<f64>() / f64::from(count);
        // A pod that does next to nothing would be choked for nothing.
        let busy = |device: &BudgetDevice| device.power >= IDLE * average;
        let low = |device: &BudgetDevice| {
            let lever = device.lever.as_ref();
            !busy(device) || lever.is_none_or(|lever| lever.on_step(lever.floor()) >= self.ceiling(device))
        };
        let hot = |device: &BudgetDevice| device.power > HOT * average && !low(device);
        let some_hot = view.devices.iter().any(hot);
        let chosen: Vec<bool> =
            view.devices.iter().map(|device| if some_hot { hot(device) } else { !low(device) }).collect();
        // Those at their floors are asked for less with the others, and have nothing to give.
        let asked: Vec<bool> =
            view.devices.iter().map(|device| if some_hot { hot(device) } else { busy(device) }).collect();
        let part: f64 =
            view.devices.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(device, _)| device.power).sum();
        // What the others draw stays; the mean of a longer window is divided as the last tick was.
        let part = if power > 0.0 { part * mean / power } else { 0.0 };
        let left = if part > 0.0 { ((target - (mean - part)) / part).max(0.0) } else { 0.0 };
        let mut changed = false;
        for (device, _) in view.devices.iter_mut().zip(&asked).filter(|(_, asked)| **asked) {
            let (Some(cut), Some(lever)) = (self.devices.get_mut(&device.key), &mut device.lever) else { continue };
            if cut.reference.is_none() && lever.ranges[0].open {
                let top = lever.ranges[0].top;
                let used = lever.at.map_or(top, |at| floor_u64(at * units::ratio(top, 1)));
                cut.reference = Some(used.max(1));
                lever.quantise(used.max(1));
            }
            let own = device.power.max(1e-9);
            let wanted = lever.cut(algorithm, cut.ceiling, own, own * left).min(cut.ceiling);
            let ceiling = lever.on_step(wanted).min(cut.ceiling);
            changed |= ceiling < cut.ceiling;
            cut.ceiling = ceiling;
            clamp(&mut self.clamped, lever, wanted);
        }
        changed
    }

    /// Lowers every ceiling to its floor. Whether there is one.
    pub(crate) fn lower_to_floor(&mut self, view: &BudgetView) -> bool {
        let mut some = false;
        for device in &view.devices {
            if let (Some(cut), Some(lever)) = (self.devices.get_mut(&device.key), &device.lever) {
                cut.ceiling = lever.on_step(lever.floor());
                some = true;
            }
        }
        some
    }

    /// Sets ceilings that come from elsewhere. Whether one is lowered.
    pub(crate) fn follow(&mut self, view: &BudgetView, ceilings: &BTreeMap<DeviceKey, f64>) -> bool {
        let mut lowered = false;
        for device in &view.devices {
            let (Some(cut), Some(lever)) = (self.devices.get_mut(&device.key), &device.lever) else { continue };
            let wanted = ceilings.get(&device.key).copied().unwrap_or(1.0);
            cut.ceiling = lever.on_step(wanted.max(lever.floor()));
            lowered |= cut.ceiling < 1.0;
            clamp(&mut self.clamped, lever, wanted);
        }
        lowered
    }

    /// Holds every device at no more than its part of the budget, as if all of them drew their most. One whose most is not
    /// known is left to the law. Whether something is lowered.
    pub(crate) fn stand(&mut self, control: &Control, view: &BudgetView, budget: f64) -> bool {
        let mut full = view.clone();
        for device in &mut full.devices {
            let tops = device.limits.iter().map(|range| units::ratio(range.top, 1) / per_watt(range));
            device.power = tops.sum::<f64>();
        }
        let total: f64 = full.devices.iter().map(|device| device.power).sum();
        if total <= budget {
            return false;
        }
        let reading = BudgetReading::new(control, total, total, budget);
        let mut lowered = false;
        for device in full.devices.iter().filter(|device| device.power > 0.0) {
            let Some(cut) = self.devices.get_mut(&device.key) else { continue };
            if let Some(lever) = &device.lever {
                let part = device.power * reading.target / total;
                let ceiling = lever.on_step(lever.fitting(&control.algorithm, device.power, part));
                cut.ceiling = cut.ceiling.min(ceiling);
                lowered |= cut.ceiling < 1.0;
            }
            for range in &device.limits {
                let Some(value) = range.at_most(share(&full, device, range, reading)) else { continue };
                let set = cut.limits.entry(range.knob.clone()).or_insert(value);
                *set = value.min(*set);
                lowered = true;
            }
        }
        lowered
    }

    /// Sets the power limits for each device's share of the budget. Whether something changed.
    pub fn limit(&mut self, view: &BudgetView, reading: BudgetReading) -> bool {
        let mut changed = false;
        for device in &view.devices {
            changed |= self.limit_device(view, device, reading);
        }
        changed
    }

    /// Brings the power limits that are set to a budget that was edited.
    pub(crate) fn limit_anew(&mut self, view: &BudgetView, reading: BudgetReading) {
        for device in &view.devices {
            if self.devices.get(&device.key).is_some_and(|cut| !cut.limits.is_empty()) {
                self.limit_device(view, device, reading);
            }
        }
    }

    fn limit_device(&mut self, view: &BudgetView, device: &BudgetDevice, reading: BudgetReading) -> bool {
        let Some(cut) = self.devices.get_mut(&device.key) else { return false };
        let mut changed = false;
        for range in &device.limits {
            let wanted = share(view, device, range, reading);
            let value = range.at_most(wanted);
            let set = cut.limits.get(&range.knob).copied();
            let near =
                |old: u64, new: u64| device.lever.is_some() && units::ratio(old.abs_diff(new), old) < BACKSTOP_CHANGE;
            if let (Some(old), Some(new)) = (set, value)
                && near(old, new)
            {
                continue;
            }
            changed |= value != set;
            if wanted < range.floor {
                self.clamped.insert(range.knob.clone());
            } else {
                self.clamped.remove(&range.knob);
            }
            match value {
                Some(value) => cut.limits.insert(range.knob.clone(), value),
                None => cut.limits.remove(&range.knob),
            };
        }
        changed
    }

    /// Why the power limits that are set allow more than the budget; `None`: they don't. Behind clocks they may, by a
    /// tenth.
    #[must_use]
    pub(crate) fn allow_more(&self, view: &BudgetView, budget: f64) -> Option<String> {
        let (mut sum, mut least, mut clocks) = (0.0, true, false);
        for device in &view.devices {
            let limits = self.devices.get(&device.key).map(|cut| &cut.limits)?;
            for range in device.limits.iter().filter(|range| limits.contains_key(&range.knob)) {
                let value = limits[&range.knob];
                sum += units::ratio(value, 1) / per_watt(range) - device.others;
                least &= range.at_most(0) == Some(value);
                clocks |= device.lever.is_some();
            }
        }
        let allowed = if clocks { budget * BACKSTOP } else { budget };
        let why = match (least, clocks) {
            (true, _) => "no device allows a lower limit",
            (false, true) => "the clocks keep the budget",
            (false, false) => "a GPU with little load may draw up to an equal share, and is cut if it does",
        };
        let [sum_shown, budget] = [sum, budget].map(|watts| Quantity::Power(Watts(watts)));
        (sum > allowed + 0.5).then(|| format!("the power limits add up to {sum_shown} of {budget}: {why}"))
    }

    /// Raises the lowest ceilings. `room`: by what the power may be multiplied. `time`: what the raise is for. Whether
    /// something changed.
    pub(crate) fn raise(&mut self, algorithm: &Algorithm, view: &BudgetView, room: f64, time: Duration) -> bool {
        let lowest = view.devices.iter().map(|device| self.ceiling(device)).fold(1.0, f64::min);
        let is_lowest = |device: &&BudgetDevice| device.lever.is_none() || self.ceiling(device) <= lowest + NEAR;
        let chosen: Vec<&BudgetDevice> = view.devices.iter().filter(is_lowest).collect();
        let mut changed = false;
        for device in chosen {
            let Some(cut) = self.devices.get_mut(&device.key) else { continue };
            if cut.writes.len() >= WRITES_FOR_RAISES {
                continue;
            }
            // A limit that holds its device back while the power is below the budget was meant for another load.
            for range in &device.limits {
                let Some(set) = cut.limits.get_mut(&range.knob) else { continue };
                let whole = (device.power + device.others) * per_watt(range);
                if device.sharing == Sharing::ByPower && whole > LIMITED * units::ratio(*set, 1) {
                    match range.at_most(floor_u64(units::ratio(*set, 1) * room)) {
                        Some(value) => {
                            *set = value;
                            self.clamped.remove(&range.knob);
                        }
                        None => drop(cut.limits.remove(&range.knob)),
                    }
                    changed = true;
                }
            }
            let Some(lever) = device.lever.as_ref().filter(|_| cut.ceiling < 1.0) else { continue };
            let own = device.power.max(1e-9);
            let raised = lever.raise(algorithm, cut.ceiling, own, own * room, time.as_secs_f64());
            let raised = lever.on_step(raised);
            if raised > cut.ceiling {
                cut.ceiling = raised;
                clamp(&mut self.clamped, lever, raised);
                changed = true;
            }
        }
        changed
    }
}

/// The lowest relative ceiling that would keep the budget if every device were open now.
#[must_use]
pub fn fitting(algorithm: &Algorithm, view: &BudgetView, reading: BudgetReading) -> f64 {
    let of = |device: &BudgetDevice| match &device.lever {
        Some(lever) => lever.fitting(algorithm, reading.mean, reading.target),
        None => {
            let limit = |range: &Range| {
                let value = range.at_most(share(view, device, range, reading));
                value.map_or(1.0, |value| range.relative(value))
            };
            device.limits.iter().map(limit).fold(1.0, f64::min)
        }
    };
    view.devices.iter().map(of).fold(1.0, f64::min)
}

/// The lowest relative ceiling that there can be. `None`: no device has one.
#[must_use]
pub(crate) fn lowest_floor(view: &BudgetView) -> Option<f64> {
    let levers = view.devices.iter().filter_map(|device| device.lever.as_ref());
    levers.map(|lever| lever.on_step(lever.floor())).reduce(f64::min)
}

/// What a power limit of a device is to be for its share of the budget, in its unit.
fn share(view: &BudgetView, device: &BudgetDevice, range: &Range, reading: BudgetReading) -> u64 {
    let BudgetReading { power, budget, target, .. } = reading;
    let watts = match device.sharing {
        Sharing::EqualParts(count) => target * device.power / power / f64::from(count.max(1)),
        Sharing::ByPower => {
            let alike = view.devices.iter().filter(|device| !device.limits.is_empty());
            let (sum, count) = alike.fold((0.0, 0_u32), |(sum, count), other| (sum + other.power, count + 1));
            let share = (budget * sum / power / f64::from(count.max(1))).max(budget * device.power / power);
            share * if device.lever.is_some() { BACKSTOP } else { 1.0 } + device.others
        }
    };
    // What a share is exactly must not become the step below it by rounding.
    nearest_u64(watts * per_watt(range))
}

/// Notes which knobs their devices keep above a relative ceiling.
fn clamp(clamped: &mut BTreeSet<Knob>, lever: &Lever, ceiling: f64) {
    for range in &lever.ranges {
        if range.clamps(ceiling) {
            clamped.insert(range.knob.clone());
        } else {
            clamped.remove(&range.knob);
        }
    }
}

/// A power limit's unit in a watt.
const fn per_watt(range: &Range) -> f64 {
    match range.knob {
        Knob::RaplLimit(_) => 1e6,
        _ => 1e3,
    }
}
