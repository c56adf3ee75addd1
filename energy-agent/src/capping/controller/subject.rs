//! One budget and what it is compared with: a pod, or all pods of a policy on the node. Power against budget becomes the
//! ceilings of its devices, tick by tick.
//!
//! An excess cuts at once; the ceiling rises again when the power has been below `release` for the hold, in steps some
//! seconds apart so that a device is written seldom. Power limits stand behind the clocks from the first cut until a
//! minute after the clocks are open: they alone can hold the first second of the next step.

mod held;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use self::held::Held;
use super::device::{Device, DeviceKey, Range};
use super::past::Excess;
use super::peak::Peak;
use super::view::View;
use crate::capping::knob::{Knob, Limits};
use crate::capping::policy::{Amount, Mode, Policy, TelemetryLoss};
use crate::capping::status::SubjectState;
use crate::units::Watts;

/// How long limits stand after the ceilings are open.
const PROBATION: Duration = Duration::from_secs(60);
const LONGEST_HOLD: Duration = Duration::from_secs(120);
/// An excess this soon after a raise was the raise's fault.
const SOON: Duration = Duration::from_secs(60);
/// Ticks over the budget with nothing left to cut.
const STUCK_TICKS: u32 = 3;
/// Power that is older than this many ticks is not known.
const STALE_TICKS: u32 = 3;

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
    /// Watts; `None`: not known yet.
    pub budget: Option<f64>,
    /// The mean over the budget's window, watts; `None`: not measured in this interval.
    pub power: Option<f64>,
    /// Of this and earlier subjects of the name.
    pub excess: Excess,
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
    /// The last cut, whose effect has to be measured before the next.
    cut_at: Option<Duration>,
    open_since: Option<Duration>,
    /// The budget that the power limits stand for; watts.
    stood_for: Option<f64>,
    /// Ticks of excess in which nothing changed.
    stuck: u32,
}

impl Subject {
    #[must_use]
    pub fn new(policy: &Policy, now: Duration, excess: Excess) -> Self {
        Self {
            mode: policy.mode,
            state: SubjectState::Open,
            reason: None,
            budget: None,
            power: None,
            excess,
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
            cut_at: None,
            open_since: None,
            stood_for: None,
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
        if let Some(power) = view.power {
            self.measured_at = tick.now;
            self.window.push_back(power);
        }
        let ticks = policy.budget.window.as_nanos().div_ceil(tick.interval.as_nanos().max(1)).max(1);
        while u128::try_from(self.window.len()).is_ok_and(|len| len > ticks) {
            self.window.pop_front();
        }
        self.power = view.power.map(|_| self.mean());
        self.budget = match policy.budget.amount {
            Amount::Watts(watts) => Some(watts),
            Amount::PercentOfPeak { percent, lookback } => {
                if let Some(power) = self.power.filter(|_| !self.engaged || self.mode == Mode::Recommend) {
                    self.peak.add(power, tick.elapsed, lookback);
                }
                self.peak.watts(lookback).map(|watts| watts * percent / 100.0)
            }
        };
        if let (Some(power), Some(budget)) = (self.power, self.budget)
            && power > budget
        {
            self.excess.time += tick.elapsed;
            self.excess.energy_uj += Watts(power - budget).during(tick.elapsed).0;
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

    fn enforce(&mut self, policy: &Policy, view: &mut View, tick: Tick) {
        let (Some(power), Some(mean), Some(budget)) = (view.power, self.power, self.budget) else { return };
        let (engage, target, release) = bounds(policy, budget);
        self.recent.push_back((tick.now, mean.max(power)));
        // Power from before the last cut says nothing about it.
        if self.cut_at.is_some_and(|at| tick.now.saturating_sub(view.age) <= at) {
            return;
        }
        if mean > engage && power > target {
            self.excess(policy, view, tick, (mean, power));
            return;
        }
        if !self.engaged {
            return;
        }
        self.follow(policy, view, budget, power);
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
        self.stood_for = Some(budget);
        if changed {
            (self.engaged, self.cut_at) = (true, Some(now));
        }
        // Where there is nothing to cut, nothing is at its floor; nor is what is in other hands.
        self.stuck =
            if changed || view.devices.is_empty() || view.blocked.is_some() { 0 } else { self.stuck.saturating_add(1) };
    }

    /// What a ceiling would have to be, from open: nothing follows it, so it does not go down tick by tick.
    fn recommend(&mut self, policy: &Policy, view: &View, tick: Tick) {
        let (Some(power), Some(mean), Some(budget)) = (view.power, self.power, self.budget) else { return };
        let (engage, target, release) = bounds(policy, budget);
        if mean > engage && power > target {
            let algorithm = &policy.control.algorithm;
            let of = |device: &Device| match &device.lever {
                Some(lever) => lever.fitting(algorithm, mean, target),
                None => {
                    let limit = |range: &Range| {
                        range
                            .at_most(held::standing(view, device, range, budget, target, power))
                            .map_or(1.0, |value| range.relative(value))
                    };
                    device.limits.iter().map(limit).fold(1.0, f64::min)
                }
            };
            self.recommended = view.devices.iter().map(of).fold(1.0, f64::min);
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
        if view.blocked.is_none() && (self.stuck >= STUCK_TICKS || stays) {
            let over = self.power.zip(self.budget).is_some_and(|(power, budget)| power > budget);
            let power = if over { "is still" } else { "was within the last minute" };
            self.reason = Some(format!("everything is at its floor, and the power {power} above the budget"));
            return SubjectState::Unreachable;
        }
        // Part of it may be in other hands, or allowed more than the budget.
        self.reason = view.blocked.clone().or_else(|| self.allow_more(view, self.budget?));
        match (self.engaged, policy.mode) {
            (false, _) => SubjectState::Open,
            (true, Mode::Recommend) => SubjectState::Recommending,
            (true, _) => SubjectState::Capping,
        }
    }

    /// Power over the budget's window, once there is some; watts.
    fn mean(&self) -> f64 {
        let count = u32::try_from(self.window.len()).unwrap_or(u32::MAX);
        self.window.iter().sum::<f64>() / f64::from(count)
    }
}

/// Where a budget engages, what it aims at, and below what it lets go; watts.
fn bounds(policy: &Policy, budget: f64) -> (f64, f64, f64) {
    let control = &policy.control;
    (budget * control.engage, budget * control.target, budget * control.release)
}
