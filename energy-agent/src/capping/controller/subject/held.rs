//! The devices of a subject: ceilings and power limits that go down and up, and what they come to on their knobs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::{Subject, Tick};
use crate::capping::controller::device::{Device, Lever, Range, Sharing};
use crate::capping::controller::view::View;
use crate::capping::knob::{Knob, Limits};
use crate::capping::policy::{Mode, Policy};
use crate::capping::quantity::Quantity;
use crate::units::{self, Watts, floor_u64, nearest_u64};

/// A power limit stands this far above a device's share of the budget where its clocks are held too.
const BACKSTOP: f64 = 1.10;
/// A limit that stands is not rewritten for less than this part of it.
const BACKSTOP_CHANGE: f64 = 0.05;
/// A device that draws this much of its limit is held back by it.
const LIMITED: f64 = 0.95;
const RAISE_EVERY: Duration = Duration::from_secs(5);
/// Raises stop at this number of writes of a device within a minute, of the 20 there may be: the rest is for cuts.
const WRITES_FOR_RAISES: usize = 12;
const MINUTE: Duration = Duration::from_secs(60);
/// A device that draws this much more than the mean is cut first.
const HOT: f64 = 1.2;
/// A device that draws less than this part of the mean is not cut.
const IDLE: f64 = 0.1;
/// Devices this near to the lowest ceiling rise with it.
const NEAR: f64 = 0.02;
/// What is kept of a device that is gone, in case it comes back.
const FORGET_DEVICE: Duration = Duration::from_secs(60);

/// What is kept of a device.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// Relative; 1 is open.
    pub(super) ceiling: f64,
    /// Power limits.
    standing: BTreeMap<Knob, u64>,
    /// What a quota's steps are a twentieth of.
    reference: Option<u64>,
    seen_at: Duration,
    /// What was wanted last, and when it was changed within a minute.
    wanted: BTreeMap<Knob, u64>,
    writes: VecDeque<Duration>,
}

impl Held {
    const fn new() -> Self {
        Self {
            ceiling: 1.0,
            standing: BTreeMap::new(),
            reference: None,
            seen_at: Duration::ZERO,
            wanted: BTreeMap::new(),
            writes: VecDeque::new(),
        }
    }

    pub(super) fn release(&mut self) {
        self.ceiling = 1.0;
        self.standing.clear();
    }
}

impl Subject {
    /// What is wanted of each knob, in mode Enforce. Counts what has changed.
    pub fn limits(&mut self, view: &View, now: Duration) -> BTreeMap<Knob, u64> {
        let mut all = BTreeMap::new();
        if self.mode != Mode::Enforce {
            return all;
        }
        for device in &view.devices {
            let Some(held) = self.devices.get_mut(&device.key) else { continue };
            let mut wanted = BTreeMap::new();
            if held.ceiling < 1.0 {
                for range in device.lever.iter().flat_map(|lever| &lever.ranges) {
                    wanted.extend(range.value(held.ceiling).map(|value| (range.knob.clone(), value)));
                }
            }
            for range in &device.limits {
                wanted.extend(held.standing.get(&range.knob).map(|value| (range.knob.clone(), *value)));
            }
            let changed = wanted.iter().filter(|(knob, value)| held.wanted.get(knob) != Some(value)).count();
            held.writes.extend(std::iter::repeat_n(now, changed));
            while held.writes.front().is_some_and(|at| *at + MINUTE <= now) {
                held.writes.pop_front();
            }
            held.wanted.clone_from(&wanted);
            all.extend(wanted);
        }
        all
    }

    /// The lowest relative ceiling of its devices.
    #[must_use]
    pub fn ceiling(&self, view: &View) -> f64 {
        if self.mode == Mode::Recommend {
            return self.recommended;
        }
        let of = |device: &Device| {
            let Some(held) = self.devices.get(&device.key) else { return 1.0 };
            let limit = |range: &Range| held.standing.get(&range.knob).map(|value| range.relative(*value));
            match device.lever {
                Some(_) => held.ceiling,
                None => device.limits.iter().filter_map(limit).fold(1.0, f64::min),
            }
        };
        view.devices.iter().map(of).fold(1.0, f64::min)
    }

    /// Brings the devices up to date; a new one is as `adopted` says, or open.
    pub(super) fn meet(&mut self, policy: &Policy, view: &mut View, tick: Tick, adopted: &mut Limits) {
        for device in &mut view.devices {
            let held = self.devices.entry(device.key.clone()).or_insert_with(Held::new);
            held.seen_at = tick.now;
            if policy.mode == Mode::Enforce && !adopted.is_empty() {
                let mut take = |range: &Range| {
                    let ours = adopted.get(&range.knob).is_some_and(|limit| limit.policy == policy.name);
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
                if !lowered.is_empty() || !limits.is_empty() {
                    held.ceiling = lowered.iter().map(|(ceiling, _)| *ceiling).fold(1.0, f64::min);
                    held.reference = lowered.first().map(|(_, value)| *value);
                    held.standing.extend(limits);
                    held.wanted.clone_from(&held.standing);
                    self.engaged = true;
                    self.hold_until = self.hold_until.max(tick.now + self.hold);
                }
            }
            if let Some(lever) = &mut device.lever {
                let first = &lever.ranges[0];
                let reference = held.reference.or_else(|| (!first.open).then_some(first.top));
                reference.into_iter().for_each(|reference| lever.quantise(reference));
            }
        }
        self.devices.retain(|_, held| held.seen_at + FORGET_DEVICE > tick.now);
    }

    /// Lowers the ceilings: of the hot devices if there are some, else of all. Whether something changed.
    pub(super) fn cut(&mut self, policy: &Policy, view: &mut View, (mean, power): (f64, f64), target: f64) -> bool {
        let count = u32::try_from(view.devices.len()).unwrap_or(u32::MAX).max(1);
        let average = view.devices.iter().map(|device| device.power).sum::<f64>() / f64::from(count);
        let held = &self.devices;
        // A pod that does next to nothing would be choked for nothing.
        let busy = |device: &Device| device.power >= IDLE * average;
        let low = |device: &Device| {
            let lever = device.lever.as_ref();
            let ceiling = held.get(&device.key).map_or(1.0, |held| held.ceiling);
            !busy(device) || lever.is_none_or(|lever| lever.on_step(lever.floor()) >= ceiling)
        };
        let hot = |device: &Device| device.power > HOT * average && !low(device);
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
            let (Some(held), Some(lever)) = (self.devices.get_mut(&device.key), &mut device.lever) else { continue };
            if held.reference.is_none() && lever.ranges[0].open {
                let top = lever.ranges[0].top;
                let used = lever.at.map_or(top, |at| floor_u64(at * units::ratio(top, 1)));
                held.reference = Some(used.max(1));
                lever.quantise(used.max(1));
            }
            let own = device.power.max(1e-9);
            let wanted = lever.cut(&policy.control.algorithm, held.ceiling, own, own * left).min(held.ceiling);
            let ceiling = lever.on_step(wanted).min(held.ceiling);
            changed |= ceiling < held.ceiling;
            held.ceiling = ceiling;
            clamp(&mut self.clamped, lever, wanted);
        }
        changed
    }

    /// Sets the power limits of a device for its share of the budget. Whether something changed.
    pub(super) fn stand(&mut self, view: &View, device: &Device, budget: f64, target: f64, power: f64) -> bool {
        let Some(held) = self.devices.get_mut(&device.key) else { return false };
        let mut changed = false;
        for range in &device.limits {
            let wanted = standing(view, device, range, budget, target, power);
            let value = range.at_most(wanted);
            let stands = held.standing.get(&range.knob).copied();
            let near =
                |old: u64, new: u64| device.lever.is_some() && units::ratio(old.abs_diff(new), old) < BACKSTOP_CHANGE;
            if let (Some(old), Some(new)) = (stands, value)
                && near(old, new)
            {
                continue;
            }
            changed |= value != stands;
            if wanted < range.floor {
                self.clamped.insert(range.knob.clone());
            } else {
                self.clamped.remove(&range.knob);
            }
            match value {
                Some(value) => held.standing.insert(range.knob.clone(), value),
                None => held.standing.remove(&range.knob),
            };
        }
        changed
    }

    /// Brings the power limits that stand to a budget that was changed.
    pub(super) fn follow(&mut self, policy: &Policy, view: &View, budget: f64, power: f64) {
        if power <= 0.0 || self.stood_for.replace(budget) == Some(budget) {
            return;
        }
        let target = budget * policy.control.target;
        for device in &view.devices {
            if self.devices.get(&device.key).is_some_and(|held| !held.standing.is_empty()) {
                self.stand(view, device, budget, target, power);
            }
        }
    }

    /// Why the power limits that stand allow more than the budget; `None`: they don't. Behind clocks they may, by a tenth.
    pub(super) fn allow_more(&self, view: &View, budget: f64) -> Option<String> {
        let (mut sum, mut least, mut clocks) = (0.0, true, false);
        for device in &view.devices {
            let standing = self.devices.get(&device.key).map(|held| &held.standing)?;
            for range in device.limits.iter().filter(|range| standing.contains_key(&range.knob)) {
                let value = standing[&range.knob];
                sum += units::ratio(value, 1) / per_watt(range) - device.others;
                least &= range.at_most(0) == Some(value);
                clocks |= device.lever.is_some();
            }
        }
        let allowed = if clocks { budget * BACKSTOP } else { budget };
        let why = match (least, clocks) {
            (true, _) => "no device can be limited to less",
            (false, true) => "the clocks are what holds the budget",
            (false, false) => "a GPU that draws little may draw up to an equal part, and is cut when it does",
        };
        let [sum_shown, budget] = [sum, budget].map(|watts| Quantity::Power(Watts(watts)));
        (sum > allowed + 0.5).then(|| format!("the power limits add up to {sum_shown} of {budget}: {why}"))
    }

    /// Raises the lowest ceilings. `room`: by what the power may be multiplied.
    pub(super) fn raise(&mut self, policy: &Policy, view: &View, tick: Tick, room: f64) {
        if self.paced_at.is_some_and(|at| tick.now < at + RAISE_EVERY) {
            return;
        }
        let held = &self.devices;
        let ceiling = |device: &Device| held.get(&device.key).map_or(1.0, |held| held.ceiling);
        let lowest = view.devices.iter().map(ceiling).fold(1.0, f64::min);
        let is_lowest = |device: &&Device| device.lever.is_none() || ceiling(device) <= lowest + NEAR;
        let chosen: Vec<&Device> = view.devices.iter().filter(is_lowest).collect();
        for device in chosen {
            let Some(held) = self.devices.get_mut(&device.key) else { continue };
            if held.writes.len() >= WRITES_FOR_RAISES {
                continue;
            }
            // A limit that holds its device back while the subject is below its budget was meant for another load.
            for range in &device.limits {
                let Some(stands) = held.standing.get_mut(&range.knob) else { continue };
                let whole = (device.power + device.others) * per_watt(range);
                if device.sharing == Sharing::ByPower && whole > LIMITED * units::ratio(*stands, 1) {
                    match range.at_most(floor_u64(units::ratio(*stands, 1) * room)) {
                        Some(value) => {
                            *stands = value;
                            self.clamped.remove(&range.knob);
                        }
                        None => drop(held.standing.remove(&range.knob)),
                    }
                    (self.paced_at, self.raised_at) = (Some(tick.now), Some(tick.now));
                }
            }
            let Some(lever) = device.lever.as_ref().filter(|_| held.ceiling < 1.0) else { continue };
            let seconds = RAISE_EVERY.max(tick.interval).as_secs_f64();
            let own = device.power.max(1e-9);
            let raised = lever.raise(&policy.control.algorithm, held.ceiling, own, own * room, seconds);
            let raised = lever.on_step(raised);
            if raised > held.ceiling {
                held.ceiling = raised;
                clamp(&mut self.clamped, lever, raised);
                (self.paced_at, self.raised_at) = (Some(tick.now), Some(tick.now));
            }
        }
    }
}

/// What a power limit of a device is to be for its share of the budget, in its unit; `power` is the subject's.
pub(super) fn standing(view: &View, device: &Device, range: &Range, budget: f64, target: f64, power: f64) -> u64 {
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
