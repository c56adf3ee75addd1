//! One budget and what it is compared with: a pod, or all pods of a policy on the node. Each tick turns its power into
//! events of its [`BudgetPhase`] and into cuts of its devices, and what is shown follows from these.
//!
//! An excess cuts at once; the ceiling rises again when the power has been below `release` for the hold, in steps some
//! seconds apart so that a device is written seldom. Power limits are set behind the clocks from the first cut until a
//! minute after the clocks are open: they alone can hold the first second of the next step.

mod cut;
mod external;
mod floor;
mod history;
mod hold;
mod phase;
mod reading;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::cut::Cuts;
use self::external::External;
use self::floor::Floor;
use self::history::History;
use self::hold::Hold;
use self::phase::{BudgetEvent, BudgetPhase, Cap};
use self::reading::{BudgetReading, Sight};
use super::past::Excess;
use super::peak::Peak;
use super::view::BudgetView;
use crate::capping::knob::{Knob, Limits};
use crate::capping::policy::{Algorithm, Amount, Authority, BudgetScope, Mode, Policy, TelemetryLoss};
use crate::capping::status::SubjectState;
use crate::units::Watts;

/// Power that is older than this many ticks is not known.
const STALE_TICKS: u32 = 3;

/// When a step takes place.
#[derive(Clone, Copy, Debug)]
pub struct StepTime {
    pub now: Duration,
    /// Since the step before.
    pub elapsed: Duration,
    /// The configured distance of two.
    pub interval: Duration,
}

/// One budget that is kept.
#[derive(Clone, Debug)]
pub struct Budget {
    pub mode: Mode,
    pub shown: Shown,
    /// Of this and earlier budgets of the name.
    pub excess: Excess,
    phase: BudgetPhase,
    cuts: Cuts,
    hold: Hold,
    floor: Floor,
    external: External,
    history: History,
    peak: Peak,
    amount: Amount,
}

/// What people and metrics see of a budget after a tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub state: SubjectState,
    /// Why nothing can be done, or why it does not help.
    pub reason: Option<String>,
    /// Watts; `None`: not known yet.
    pub budget: Option<f64>,
    /// The mean over the budget's window, watts; `None`: not measured in this interval.
    pub power: Option<f64>,
}

impl Budget {
    #[must_use]
    pub fn new(policy: &Policy, now: Duration, excess: Excess) -> Self {
        Self {
            mode: policy.mode,
            shown: Shown { state: SubjectState::Open, reason: None, budget: None, power: None },
            excess,
            phase: if policy.mode == Mode::Off { BudgetPhase::Off } else { BudgetPhase::Open },
            cuts: Cuts::default(),
            hold: Hold::new(policy.control.hold),
            floor: Floor::UNKNOWN,
            external: External::default(),
            history: History::new(now),
            peak: Peak::default(),
            amount: policy.budget.amount,
        }
    }

    /// One tick. What `adopted` says of a device that is seen for the first time is taken from there.
    pub fn step(&mut self, policy: &Policy, view: &mut BudgetView, tick: StepTime, adopted: &mut Limits) {
        if self.amount != policy.budget.amount {
            self.amount = policy.budget.amount;
            self.floor.forget();
            if policy.control.standing {
                self.cuts.release();
            }
            // A level that moves is no edit: it would else shorten each hold.
            if policy.name.authority != Authority::Budget && policy.budget.scope != BudgetScope::Total {
                self.hold.forget_length(policy.control.hold);
            }
        }
        let adopts = self.mode == Mode::Enforce && !adopted.is_empty();
        if adopts && self.cuts.adopt(&policy.name, view, adopted) {
            self.pass(BudgetEvent::Adopted { hold_until: tick.now + self.hold.length() }, tick.now);
        }
        self.cuts.refresh(view, tick.now);
        let ticks = policy.budget.window.as_nanos().div_ceil(tick.interval.as_nanos().max(1)).max(1);
        let mean = self.history.add(view.power, ticks, tick.now);
        let budget = self.budget(mean, tick);
        if let (Some(mean), Some(budget)) = (mean, budget)
            && mean > budget
        {
            self.excess.time += tick.elapsed;
            self.excess.energy_uj += Watts(mean - budget).during(tick.elapsed).0;
        }
        let lost = self.history.unmeasured(tick.now) > tick.interval * STALE_TICKS;
        let sight = match (budget, view.power.zip(mean)) {
            _ if lost => Sight::Lost,
            (None, _) => Sight::NoBudget,
            (Some(budget), None) => Sight::NoPower { budget },
            (Some(budget), Some((power, mean))) => {
                Sight::Both(BudgetReading::new(&policy.control, power, mean, budget))
            }
        };
        match (self.mode, sight) {
            // A peak is learned only while nothing is lowered: a cap that waited for it would never end.
            (Mode::Enforce, Sight::NoBudget) if self.is_capped() => self.pass(BudgetEvent::Released, tick.now),
            (Mode::Off, _) | (_, Sight::NoBudget | Sight::NoPower { .. }) => {}
            (Mode::Recommend | Mode::Enforce, Sight::Lost) => self.lose(policy, view, tick),
            (Mode::Recommend, Sight::Both(reading)) => self.recommend(policy, view, reading, tick),
            (Mode::Enforce, Sight::Both(reading)) => self.enforce(policy, view, reading, tick),
        }
        if let (Mode::Enforce, true, Some(budget)) = (self.mode, policy.control.standing, budget)
            && self.cuts.stand(&policy.control, view, budget)
        {
            self.pass(BudgetEvent::Floored, tick.now);
        }
        let (state, reason) = self.judge(view, sight, tick.now);
        self.shown = Shown { state, reason, budget, power: mean };
    }

    /// Whether something is lowered, or was within the last minute.
    #[must_use]
    pub(crate) const fn is_capped(&self) -> bool {
        self.phase.cap().is_some()
    }

    /// What is wanted of each knob. Counts what has changed.
    pub fn limits(&mut self, view: &BudgetView, now: Duration) -> BTreeMap<Knob, u64> {
        if self.mode == Mode::Enforce { self.cuts.values(view, now) } else { BTreeMap::new() }
    }

    /// Knobs that were wanted lower than their device allows.
    #[must_use]
    pub const fn clamped(&self) -> &BTreeSet<Knob> {
        &self.cuts.clamped
    }

    /// The lowest relative ceiling of its devices.
    #[must_use]
    pub fn ceiling(&self, view: &BudgetView) -> f64 {
        match self.phase {
            BudgetPhase::Recommending { ceiling, .. } => ceiling,
            BudgetPhase::Off | BudgetPhase::Open | BudgetPhase::Lowered(_) | BudgetPhase::Probation { .. } => {
                self.cuts.lowest(view)
            }
        }
    }

    /// The budget in watts. A peak is learned only while nothing is lowered.
    fn budget(&mut self, mean: Option<f64>, tick: StepTime) -> Option<f64> {
        match self.amount {
            Amount::Watts(watts) => Some(watts),
            Amount::PercentOfPeak { percent, lookback } => {
                if let Some(power) = mean.filter(|_| !self.is_capped()) {
                    self.peak.add(power, tick.elapsed, lookback);
                }
                self.peak.watts(lookback).map(|watts| watts * percent / 100.0)
            }
        }
    }

    fn enforce(&mut self, policy: &Policy, view: &mut BudgetView, reading: BudgetReading, tick: StepTime) {
        let BudgetReading { power, mean, budget, target, release, .. } = reading;
        let now = tick.now;
        // A hold that was learned before `holdSeconds` was lowered goes on.
        let longest = Hold::longest(policy.control.hold).max(self.hold.length());
        self.history.note(mean.max(power), longest, now);
        // Power from before the last cut says nothing about it.
        let cut_at = self.phase.cap().and_then(|cap| cap.cut_at);
        if cut_at.is_some_and(|at| now.saturating_sub(view.age) <= at) {
            return;
        }
        if policy.control.algorithm == Algorithm::External
            && let Some(ceilings) = self.external.ceilings(view, reading.is_above(), now)
        {
            let lowered = self.cuts.follow(view, &ceilings);
            self.pass(if lowered { BudgetEvent::Floored } else { BudgetEvent::Released }, now);
            return;
        }
        if reading.is_above() {
            self.cut(policy, view, reading, now);
            return;
        }
        let Some(Cap { limits_for, hold_until, .. }) = self.phase.cap() else { return };
        if power > 0.0 && limits_for != Some(budget) {
            self.cuts.limit_anew(view, reading);
            self.pass(BudgetEvent::Edited { budget }, now);
        }
        // A load that comes and goes is as high as it was within the hold.
        let highest = self.history.highest(self.hold.length(), now).max(power);
        let below = highest < release && now >= hold_until;
        if below && self.hold.may_raise(now) {
            let time = Hold::raise_time(tick.interval);
            if self.cuts.raise(&policy.control.algorithm, view, target / highest, time) {
                self.hold.raised(now);
            }
        }
        let held_back = !below && view.devices.iter().any(|device| device.lever.is_none());
        let open = self.cuts.ceilings_are_open(view) && !held_back;
        self.pass(if open { BudgetEvent::CeilingsOpen } else { BudgetEvent::CeilingsLowered }, now);
    }

    fn cut(&mut self, policy: &Policy, view: &mut BudgetView, reading: BudgetReading, now: Duration) {
        self.hold.excess(now, policy.control.hold);
        let lowered = self.cuts.lower(&policy.control.algorithm, view, reading);
        let limited = self.cuts.limit(view, reading);
        let changed = lowered || limited;
        let budget = reading.budget;
        self.pass(if changed { BudgetEvent::Cut { budget } } else { BudgetEvent::CutInVain { budget } }, now);
        // Where there is nothing to cut, nothing is at its floor; nor is what is in other hands.
        self.floor.excess(!changed && !view.devices.is_empty() && view.blocked.is_none());
    }

    /// What a ceiling would have to be, from open: nothing follows it, so it does not go down tick by tick.
    fn recommend(&mut self, policy: &Policy, view: &BudgetView, reading: BudgetReading, tick: StepTime) {
        let until = tick.now + policy.control.hold;
        let event = match self.phase {
            _ if reading.is_above() && view.devices.is_empty() => BudgetEvent::Released,
            _ if reading.is_above() => {
                BudgetEvent::Recommended { ceiling: cut::fitting(&policy.control.algorithm, view, reading), until }
            }
            BudgetPhase::Recommending { ceiling, .. } if reading.mean >= reading.release => {
                BudgetEvent::Recommended { ceiling, until }
            }
            _ => BudgetEvent::Below,
        };
        self.pass(event, tick.now);
    }

    fn lose(&mut self, policy: &Policy, view: &BudgetView, tick: StepTime) {
        self.history.clear();
        let control = &policy.control;
        match control.on_telemetry_loss {
            TelemetryLoss::Hold if self.history.unmeasured(tick.now) < control.telemetry_timeout => {}
            TelemetryLoss::Hold | TelemetryLoss::Release => self.pass(BudgetEvent::Released, tick.now),
            TelemetryLoss::Floor if self.mode == Mode::Recommend => {
                if let Some(ceiling) = cut::lowest_floor(view) {
                    self.pass(BudgetEvent::Recommended { ceiling, until: tick.now + control.hold }, tick.now);
                }
            }
            TelemetryLoss::Floor => {
                if self.cuts.lower_to_floor(view) {
                    self.pass(BudgetEvent::Floored, tick.now);
                }
            }
        }
    }

    /// Goes on to the phase after an event. What is lowered is released with the phase that it belongs to.
    fn pass(&mut self, event: BudgetEvent, now: Duration) {
        let was_capped = self.is_capped();
        self.phase = self.phase.after(event, now);
        if event == BudgetEvent::Released || (was_capped && !self.is_capped()) {
            self.cuts.release();
            self.floor.forget();
        }
    }

    /// The state that is shown, and why.
    fn judge(&mut self, view: &BudgetView, sight: Sight, now: Duration) -> (SubjectState, Option<String>) {
        let obstacle = match sight {
            _ if self.phase == BudgetPhase::Off => Some((SubjectState::Off, None)),
            Sight::Lost => Some((SubjectState::TelemetryLost, None)),
            _ if view.devices.is_empty() && view.blocked.is_some() => {
                Some((SubjectState::NoActuator, view.blocked.clone()))
            }
            Sight::NoBudget => Some((SubjectState::Learning, None)),
            Sight::NoPower { .. } | Sight::Both(_) => None,
        };
        self.floor = if obstacle.is_some() || view.blocked.is_some() {
            self.floor.hidden()
        } else {
            self.floor.after_tick(self.hold.excess_at(), now)
        };
        if let Some(shown) = obstacle {
            return shown;
        }
        if self.floor.is_reached() {
            let over = matches!(sight, Sight::Both(BudgetReading { mean, budget, .. }) if mean > budget);
            let power = if over { "is still" } else { "was within the last minute" };
            let reason = format!("all limits are at their floors, and the power {power} above the budget");
            return (SubjectState::Unreachable, Some(reason));
        }
        let state = match self.phase {
            BudgetPhase::Off => SubjectState::Off,
            BudgetPhase::Open => SubjectState::Open,
            BudgetPhase::Recommending { .. } => SubjectState::Recommending,
            BudgetPhase::Lowered(_) | BudgetPhase::Probation { .. } => SubjectState::Capping,
        };
        // Part of it may be in other hands, or allowed more than the budget.
        let more = || self.cuts.allow_more(view, sight.budget()?);
        (state, view.blocked.clone().or_else(more))
    }
}
