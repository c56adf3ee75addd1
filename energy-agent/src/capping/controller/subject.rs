//! One budget and what it is compared with: a pod, or all pods of a policy on the node. Power against budget becomes the
//! ceilings of its devices, tick by tick.
//!
//! An excess cuts at once; the ceiling rises again when the power has been below `release` for the hold, in steps some
//! seconds apart so that a device is written seldom. Power limits stand behind the clocks from the first cut until a
//! minute after the clocks are open: they alone can hold the first second of the next step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::device::{Device, DeviceKey, Range, Sharing};
use super::peak::Peak;
use super::ratio;
use super::view::View;
use crate::capping::knob::{Knob, Limits};
use crate::capping::policy::{Amount, Mode, Policy, TelemetryLoss};
use crate::capping::status::SubjectState;
use crate::units::{self, Watts, floor_u64};

/// A power limit stands this far above a device's share of the budget where its clocks are held too.
const BACKSTOP: f64 = 1.10;
/// A limit that stands is not rewritten for less than this part of it.
const BACKSTOP_CHANGE: f64 = 0.05;
/// A device that draws this much of its limit is held back by it.
const LIMITED: f64 = 0.95;
/// How long limits stand after the ceilings are open.
const PROBATION: Duration = Duration::from_secs(60);
const LONGEST_HOLD: Duration = Duration::from_secs(120);
/// An excess this soon after a raise was the raise's fault.
const SOON: Duration = Duration::from_secs(60);
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
/// Ticks over the budget with nothing left to cut.
const STUCK_TICKS: u32 = 3;
/// Power that is older than this many ticks is not known.
const STALE_TICKS: u32 = 3;
/// What is kept of a device that is gone, in case it comes back.
const FORGET_DEVICE: Duration = Duration::from_secs(60);

/// When a step takes place.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    pub now: Duration,
    /// Since the step before.
    pub elapsed: Duration,
    /// The configured distance of two.
    pub interval: Duration,
}

/// State of one budget.
#[derive(Clone, Debug)]
pub struct Subject {
    pub mode: Mode,
    pub state: SubjectState,
    /// Why nothing can be done, or why it does not help.
    pub reason: Option<String>,
    /// Watts; `None`: not known yet, not measured in this interval.
    pub budget: Option<f64>,
    pub power: Option<f64>,
    pub over_budget: Duration,
    pub over_budget_uj: u64,
    /// Something is lowered, or was within [`PROBATION`].
    pub engaged: bool,
    /// Knobs that were wanted lower than their device allows.
    pub clamped: BTreeSet<Knob>,
    recommended: f64,
    amount: Amount,
    devices: BTreeMap<DeviceKey, Held>,
    /// Power of the last ticks, as many as the budget's window has.
    window: VecDeque<f64>,
    /// Power within the last hold, and when.
    recent: VecDeque<(Duration, f64)>,
    peak: Peak,
    measured_at: Duration,
    hold: Duration,
    hold_until: Duration,
    /// The last raise, and the last one that no excess was blamed on.
    paced_at: Option<Duration>,
    raised_at: Option<Duration>,
    excess_at: Option<Duration>,
    open_since: Option<Duration>,
    /// Ticks of excess in which nothing changed.
    stuck: u32,
}

/// What is kept of a device.
#[derive(Clone, Debug)]
struct Held {
    /// Relative; 1 is open.
    ceiling: f64,
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

    fn release(&mut self) {
        self.ceiling = 1.0;
        self.standing.clear();
    }
}

impl Subject {
    #[must_use]
    pub fn new(policy: &Policy, now: Duration) -> Self {
        Self {
            mode: policy.mode,
            state: SubjectState::Open,
            reason: None,
            budget: None,
            power: None,
            over_budget: Duration::ZERO,
            over_budget_uj: 0,
            engaged: false,
            clamped: BTreeSet::new(),
            recommended: 1.0,
            amount: policy.budget.amount,
            devices: BTreeMap::new(),
            window: VecDeque::new(),
            recent: VecDeque::new(),
            peak: Peak::default(),
            measured_at: now,
            hold: policy.control.hold,
            hold_until: Duration::ZERO,
            paced_at: None,
            raised_at: None,
            excess_at: None,
            open_since: None,
            stuck: 0,
        }
    }

    /// One tick. What `adopted` says of a device that is met for the first time is taken from there.
    pub fn step(&mut self, policy: &Policy, view: &mut View, tick: Tick, adopted: &mut Limits) {
        if self.amount != policy.budget.amount {
            self.amount = policy.budget.amount;
            (self.hold, self.stuck) = (policy.control.hold, 0);
        }
        self.meet(policy, view, tick, adopted);
        self.power = view.power;
        if let Some(power) = view.power {
            self.measured_at = tick.now;
            self.window.push_back(power);
        }
        let ticks = policy.budget.window.as_nanos().div_ceil(tick.interval.as_nanos().max(1)).max(1);
        while u128::try_from(self.window.len()).is_ok_and(|len| len > ticks) {
            self.window.pop_front();
        }
        self.budget = match policy.budget.amount {
            Amount::Watts(watts) => Some(watts),
            Amount::PercentOfPeak { percent, lookback } => {
                if let Some(power) = view.power.filter(|_| !self.engaged || self.mode == Mode::Recommend) {
                    self.peak.add(power, tick.elapsed, lookback);
                }
                self.peak.watts(lookback).map(|watts| watts * percent / 100.0)
            }
        };
        if let (Some(power), Some(budget)) = (view.power, self.budget)
            && power > budget
        {
            self.over_budget += tick.elapsed;
            self.over_budget_uj += Watts(power - budget).during(tick.elapsed).0;
        }
        let lost = tick.now.saturating_sub(self.measured_at) > tick.interval * STALE_TICKS;
        match policy.mode {
            Mode::Off => {}
            Mode::Recommend | Mode::Enforce if lost => self.lose(policy, view, tick),
            Mode::Recommend => self.recommend(policy, view, tick),
            Mode::Enforce => self.enforce(policy, view, tick),
        }
        self.state = self.judge(policy, view, lost, tick);
    }

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
    fn meet(&mut self, policy: &Policy, view: &mut View, tick: Tick, adopted: &mut Limits) {
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

    fn enforce(&mut self, policy: &Policy, view: &mut View, tick: Tick) {
        let (Some(power), Some(budget)) = (view.power, self.budget) else { return };
        let (engage, target, release) = bounds(policy, budget);
        let mean = self.mean(power);
        self.recent.push_back((tick.now, mean.max(power)));
        if mean > engage && power > target {
            self.excess(policy, view, tick, (mean, power));
            return;
        }
        if !self.engaged {
            return;
        }
        // A load that comes and goes is as high as it was within the hold.
        while self.recent.front().is_some_and(|(at, _)| *at + self.hold <= tick.now) {
            self.recent.pop_front();
        }
        let highest = self.recent.iter().map(|(_, power)| *power).fold(power, f64::max);
        let under = highest < release && tick.now >= self.hold_until;
        if under {
            self.raise(policy, view, tick, target / highest);
        }
        let open = |device: &Device| self.devices.get(&device.key).is_none_or(|held| held.ceiling >= 1.0);
        let held_back = !under && view.devices.iter().any(|device| device.lever.is_none());
        if !view.devices.iter().all(open) || held_back {
            self.open_since = None;
        } else if tick.now >= *self.open_since.get_or_insert(tick.now) + PROBATION {
            self.release();
        }
    }

    fn excess(&mut self, policy: &Policy, view: &mut View, tick: Tick, (mean, power): (f64, f64)) {
        let now = tick.now;
        let blamed = self.raised_at.is_some_and(|at| now < at + SOON);
        if blamed {
            self.hold = (self.hold * 2).min(LONGEST_HOLD.max(policy.control.hold));
            self.raised_at = None;
        } else if self.excess_at.is_none_or(|at| now > at + self.hold + SOON) {
            self.hold = policy.control.hold;
        }
        (self.excess_at, self.open_since) = (Some(now), None);
        let Some(budget) = self.budget else { return };
        let (_, target, _) = bounds(policy, budget);
        let mut changed = self.cut(policy, view, (mean, power), target);
        for device in &view.devices {
            changed |= self.stand(view, device, budget, target, power);
        }
        self.engaged |= changed;
        self.stuck = if changed { 0 } else { self.stuck.saturating_add(1) };
    }

    /// Lowers the ceilings: of the hot devices if there are some, else of all. Whether something changed.
    fn cut(&mut self, policy: &Policy, view: &mut View, (mean, power): (f64, f64), target: f64) -> bool {
        let count = u32::try_from(view.devices.len()).unwrap_or(u32::MAX).max(1);
        let average = view.devices.iter().map(|device| device.power).sum::<f64>() / f64::from(count);
        let held = &self.devices;
        let low = |device: &Device| {
            let lever = device.lever.as_ref();
            let ceiling = held.get(&device.key).map_or(1.0, |held| held.ceiling);
            // A pod that does next to nothing would be choked for nothing.
            device.power < IDLE * average || lever.is_none_or(|lever| lever.on_step(lever.floor()) >= ceiling)
        };
        let hot = |device: &Device| device.power > HOT * average && !low(device);
        let some_hot = view.devices.iter().any(hot);
        let chosen: Vec<bool> =
            view.devices.iter().map(|device| if some_hot { hot(device) } else { !low(device) }).collect();
        let part: f64 =
            view.devices.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(device, _)| device.power).sum();
        // What the others draw stays; the mean of a longer window is divided as the last tick was.
        let part = if power > 0.0 { part * mean / power } else { 0.0 };
        let left = if part > 0.0 { ((target - (mean - part)) / part).max(0.0) } else { 0.0 };
        let mut changed = false;
        for (device, _) in view.devices.iter_mut().zip(&chosen).filter(|(_, chosen)| **chosen) {
            let (Some(held), Some(lever)) = (self.devices.get_mut(&device.key), &mut device.lever) else { continue };
            if held.reference.is_none() && lever.ranges[0].open {
                let top = lever.ranges[0].top;
                let used = lever.at.map_or(top, |at| floor_u64(at * units::ratio(top, 1)));
                held.reference = Some(used.max(1));
                lever.quantise(used.max(1));
            }
            let own = device.power.max(1e-9);
            let ceiling = lever.cut(&policy.control.algorithm, held.ceiling, own, own * left);
            let ceiling = lever.on_step(ceiling).min(held.ceiling);
            changed |= ceiling < held.ceiling;
            held.ceiling = ceiling;
        }
        changed
    }

    /// Sets the power limits of a device for its share of the budget. Whether something changed.
    fn stand(&mut self, view: &View, device: &Device, budget: f64, target: f64, power: f64) -> bool {
        let Some(held) = self.devices.get_mut(&device.key) else { return false };
        let mut changed = false;
        for range in &device.limits {
            let watts = match device.sharing {
                Sharing::EqualParts => {
                    let count = u32::try_from(device.limits.len()).unwrap_or(u32::MAX).max(1);
                    target * device.power / power / f64::from(count)
                }
                Sharing::ByPower => {
                    let alike = view.devices.iter().filter(|device| !device.limits.is_empty());
                    let (sum, count) = alike.fold((0.0, 0_u32), |(sum, count), other| (sum + other.power, count + 1));
                    let share = (budget * sum / power / f64::from(count.max(1))).max(budget * device.power / power);
                    share * if device.lever.is_some() { BACKSTOP } else { 1.0 } + device.others
                }
            };
            let wanted = floor_u64(watts * per_watt(range));
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

    /// Raises the lowest ceilings. `room`: by what the power may be multiplied.
    fn raise(&mut self, policy: &Policy, view: &View, tick: Tick, room: f64) {
        if self.paced_at.is_some_and(|at| tick.now < at + RAISE_EVERY) {
            return;
        }
        let held = &self.devices;
        let ceiling = |device: &Device| held.get(&device.key).map_or(1.0, |held| held.ceiling);
        let lowest = view.devices.iter().map(ceiling).fold(1.0, f64::min);
        let chosen: Vec<&Device> = view.devices.iter().filter(|device| ceiling(device) <= lowest + NEAR).collect();
        for device in chosen {
            let (Some(held), Some(lever)) = (self.devices.get_mut(&device.key), &device.lever) else { continue };
            if held.writes.len() >= WRITES_FOR_RAISES {
                continue;
            }
            // A limit that holds its device back while the subject is below its budget was meant for another load.
            for range in &device.limits {
                let Some(stands) = held.standing.get_mut(&range.knob) else { continue };
                let whole = (device.power + device.others) * per_watt(range);
                if device.sharing == Sharing::ByPower && whole > LIMITED * units::ratio(*stands, 1) {
                    match range.at_most(floor_u64(units::ratio(*stands, 1) * room)) {
                        Some(value) => *stands = value,
                        None => drop(held.standing.remove(&range.knob)),
                    }
                    (self.paced_at, self.raised_at) = (Some(tick.now), Some(tick.now));
                }
            }
            if held.ceiling >= 1.0 {
                continue;
            }
            let seconds = RAISE_EVERY.max(tick.interval).as_secs_f64();
            let own = device.power.max(1e-9);
            let raised = lever.raise(&policy.control.algorithm, held.ceiling, own, own * room, seconds);
            let raised = lever.on_step(raised);
            if raised > held.ceiling {
                held.ceiling = raised;
                (self.paced_at, self.raised_at) = (Some(tick.now), Some(tick.now));
            }
        }
    }

    /// What a ceiling would have to be, from open: nothing follows it, so it does not go down tick by tick.
    fn recommend(&mut self, policy: &Policy, view: &View, tick: Tick) {
        let (Some(power), Some(budget)) = (view.power, self.budget) else { return };
        let (engage, target, release) = bounds(policy, budget);
        let mean = self.mean(power);
        if mean > engage && power > target {
            let of = |device: &Device| {
                let lever = device.lever.as_ref()?;
                Some(ratio::factor(mean, target, lever.law).clamp(lever.floor(), 1.0))
            };
            self.recommended = view.devices.iter().filter_map(of).fold(1.0, f64::min);
            (self.engaged, self.hold_until) = (!view.devices.is_empty(), tick.now + policy.control.hold);
        } else if mean >= release {
            self.hold_until = tick.now + policy.control.hold;
        } else if tick.now >= self.hold_until {
            self.release();
        }
    }

    fn lose(&mut self, policy: &Policy, view: &View, tick: Tick) {
        self.window.clear();
        self.recent.clear();
        let control = &policy.control;
        match control.on_telemetry_loss {
            TelemetryLoss::Hold => {
                if tick.now.saturating_sub(self.measured_at) >= control.telemetry_timeout {
                    self.release();
                }
            }
            TelemetryLoss::Release => self.release(),
            TelemetryLoss::Floor => {
                for device in &view.devices {
                    if let (Some(held), Some(lever)) = (self.devices.get_mut(&device.key), &device.lever) {
                        held.ceiling = lever.on_step(lever.floor());
                        self.engaged = true;
                    }
                }
            }
        }
    }

    fn release(&mut self) {
        self.devices.values_mut().for_each(Held::release);
        (self.engaged, self.recommended, self.open_since, self.stuck) = (false, 1.0, None, 0);
        self.clamped.clear();
    }

    fn judge(&mut self, policy: &Policy, view: &View, lost: bool, tick: Tick) -> SubjectState {
        self.reason = None;
        if policy.mode == Mode::Off {
            return SubjectState::Off;
        }
        if lost {
            return SubjectState::TelemetryLost;
        }
        if view.devices.is_empty() && view.blocked.is_some() {
            self.reason.clone_from(&view.blocked);
            return SubjectState::NoActuator;
        }
        if self.budget.is_none() {
            return SubjectState::Learning;
        }
        let recently = self.excess_at.is_some_and(|at| tick.now < at + PROBATION);
        let stays = self.state == SubjectState::Unreachable && recently;
        if self.stuck >= STUCK_TICKS || stays {
            self.reason = Some("everything is at its floor, and the power is still above the budget".to_owned());
            return SubjectState::Unreachable;
        }
        match (self.engaged, policy.mode) {
            (false, _) => SubjectState::Open,
            (true, Mode::Recommend) => SubjectState::Recommending,
            (true, _) => SubjectState::Capping,
        }
    }

    /// Power over the budget's window; watts.
    fn mean(&self, power: f64) -> f64 {
        let count = u32::try_from(self.window.len()).unwrap_or(u32::MAX);
        if count == 0 { power } else { self.window.iter().sum::<f64>() / f64::from(count) }
    }
}

/// A power limit's unit in a watt.
const fn per_watt(range: &Range) -> f64 {
    match range.knob {
        Knob::RaplLimit(_) => 1e6,
        _ => 1e3,
    }
}

/// Where a budget engages, what it aims at, and below what it lets go; watts.
fn bounds(policy: &Policy, budget: f64) -> (f64, f64, f64) {
    let control = &policy.control;
    (budget * control.engage, budget * control.target, budget * control.release)
}
