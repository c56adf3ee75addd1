//! The devices of a budget: a relative ceiling turned into the values of knobs, on their steps and in their ranges.

use std::sync::Arc;

use super::ratio::{self, Law};
use super::table;
use crate::capping::knob::Knob;
use crate::capping::knob::KnobState;
use crate::capping::observation::KnobNow;
use crate::capping::policy::Algorithm;
use crate::units::{floor_u64, ratio as share};

/// Exponent of power over a clock, in between those of real devices.
const CLOCK_EXPONENT: f64 = 1.5;
const STEEPEST_CLOCK: f64 = 3.0;
const CLOCK_RISE_KHZ: u64 = 30_000;
const QUOTA_RISE: f64 = 0.05;
/// A quota moves in steps of a twentieth.
const QUOTA_STEPS: u64 = 20;

/// What one relative ceiling is kept for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKey {
    Gpu(Arc<str>),
    /// The CPUs of a pod, by uid; `None`: of the node.
    Cpu(Option<Arc<str>>),
}

/// A device of a budget, as it is at this tick.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetDevice {
    pub key: DeviceKey,
    /// The part of its power that counts in the budget; watts.
    pub power: f64,
    /// Power of others on it.
    pub others: f64,
    /// What follows the relative ceiling; `None`: nothing usable.
    pub lever: Option<Lever>,
    /// Power limits, which stand behind the lever or, where there is none, in its place.
    pub limits: Vec<Range>,
    /// How a limit follows from the budget.
    pub sharing: Sharing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// By power, at least an equal part.
    ByPower,
    /// All limits together are the target, of which each has one of so many parts.
    EqualParts(u32),
}

/// Knobs that share a relative ceiling.
#[derive(Clone, Debug, PartialEq)]
pub struct Lever {
    pub kind: LeverKind,
    pub ranges: Vec<Range>,
    pub law: Law,
    /// Where the device is now, relative to the full range: its clock, or the CPUs used. `None`: not known.
    pub at: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeverKind {
    GpuClock,
    CpuFrequency,
    Quota,
}

/// What a knob may be set to. Both bounds hold whatever is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    pub knob: Knob,
    /// The larger of the device's minimum and the policy's.
    pub floor: u64,
    /// The floor is the device's: the policy has none that is higher.
    pub own_floor: bool,
    /// What it was before anything was written, or the device's maximum: relative ceiling 1.
    pub top: u64,
    /// Values lie on `from + n * step`.
    pub from: u64,
    pub step: u64,
    /// Nothing was set before: `top` is only what the device can do.
    pub open: bool,
}

impl Range {
    /// `None`: the knob cannot be used. `least` is the policy's minimum in the knob's unit.
    #[must_use]
    pub fn new(knob: &Knob, now: &KnobNow, least: u64) -> Option<Self> {
        let top = now.original.unwrap_or(now.max).min(now.max);
        let floor = now.min.max(least).min(top);
        let usable = match now.state {
            KnobState::Ok => true,
            // What is lowered stays wanted while the device cannot be reached for a moment.
            KnobState::Error | KnobState::Unreachable => now.current.is_some_and(|current| current < top),
            KnobState::Unsupported
            | KnobState::NoPermission
            | KnobState::Rejected
            | KnobState::NotEffective
            | KnobState::Yielded => false,
        };
        let open = now.original.is_none();
        let own_floor = least <= now.min;
        let (from, step) = (now.min, now.step.max(1));
        (usable && top > 0).then(|| Self { knob: knob.clone(), floor, own_floor, top, from, step, open })
    }

    /// The value for a relative ceiling: the step below it, at least the floor. `None`: open.
    #[must_use]
    pub fn value(&self, ceiling: f64) -> Option<u64> {
        self.at_most(self.exactly(ceiling))
    }

    /// Whether its device is what keeps the value above a relative ceiling.
    #[must_use]
    pub(crate) fn clamps(&self, ceiling: f64) -> bool {
        self.own_floor && self.value(ceiling).is_some_and(|value| value > self.exactly(ceiling))
    }

    /// A relative ceiling in the knob's unit. What a value is exactly must not become the step below it by rounding.
    fn exactly(&self, ceiling: f64) -> u64 {
        floor_u64(ceiling.max(0.0) * share(self.top, 1) + 1e-6)
    }

    /// The highest value that is not above `wanted` and at least the floor. `None`: nothing is lowered by it.
    #[must_use]
    pub fn at_most(&self, wanted: u64) -> Option<u64> {
        if wanted >= self.top {
            return None;
        }
        let below = |value: u64| value.saturating_sub(self.from) / self.step * self.step + self.from;
        let least = match below(self.floor) {
            value if value < self.floor => value + self.step,
            value => value,
        };
        let value = if wanted <= least { least } else { below(wanted) };
        Some(value).filter(|value| *value < self.top)
    }

    /// The relative ceiling of a value.
    #[must_use]
    pub fn relative(&self, value: u64) -> f64 {
        share(value, self.top).min(1.0)
    }
}

impl Lever {
    /// `ranges` are of one kind; `at` in their unit.
    #[must_use]
    pub fn new(kind: LeverKind, ranges: Vec<Range>, at: Option<u64>) -> Option<Self> {
        let first = ranges.first()?;
        let law = match kind {
            LeverKind::GpuClock => Law {
                exponent: CLOCK_EXPONENT,
                steepest: STEEPEST_CLOCK,
                rise: share(CLOCK_RISE_KHZ / 1000, first.top),
            },
            LeverKind::CpuFrequency => {
                Law { exponent: CLOCK_EXPONENT, steepest: STEEPEST_CLOCK, rise: share(CLOCK_RISE_KHZ, first.top) }
            }
            LeverKind::Quota => Law { exponent: 1.0, steepest: 1.0, rise: QUOTA_RISE },
        };
        let at = at.filter(|at| *at > 0).map(|at| first.relative(at));
        Some(Self { kind, ranges, law, at })
    }

    /// The lowest relative ceiling: all its knobs are at their floors.
    #[must_use]
    pub fn floor(&self) -> f64 {
        self.ranges.iter().map(|range| range.relative(range.floor)).fold(1.0, f64::min)
    }

    /// A quota moves in twentieths of what it was or, where there was none, of what the pod used when it was first cut.
    pub(crate) fn quantise(&mut self, reference: u64) {
        if self.kind == LeverKind::Quota {
            for range in &mut self.ranges {
                (range.from, range.step) = (0, range.step.max(reference / QUOTA_STEPS));
            }
        }
    }

    /// What a relative ceiling comes to on the steps of the knob that goes down the furthest: the others stop at their
    /// floors before. Cuts are quantised so that each one shows.
    #[must_use]
    pub(crate) fn on_step(&self, ceiling: f64) -> f64 {
        let floor = |range: &Range| range.relative(range.floor);
        let furthest = self.ranges.iter().min_by(|a, b| floor(a).total_cmp(&floor(b)));
        furthest.and_then(|range| Some(range.relative(range.value(ceiling)?))).unwrap_or(1.0)
    }

    /// The relative ceiling that is wanted after an excess; the floors are not looked at.
    #[must_use]
    pub fn cut(&self, algorithm: &Algorithm, ceiling: f64, power: f64, target: f64) -> f64 {
        // A quota is cut from what was used, or it would take many ticks to bite. A clock is read at one moment and may be
        // low by chance: no reason for more than half.
        let least = if self.kind == LeverKind::Quota { 0.0 } else { ceiling * 0.5 };
        let from = self.at.map_or(ceiling, |at| at.clamp(least, ceiling));
        let wanted = match (algorithm, self.mhz()) {
            (Algorithm::Table(points), Some(top_mhz)) => {
                table::cut(points, from * top_mhz, power, target).map(|mhz| mhz / top_mhz)
            }
            (Algorithm::Ratio | Algorithm::External | Algorithm::Table(_), _) => None,
        };
        wanted.unwrap_or_else(|| ratio::cut(from, power, target, self.law))
    }

    /// The relative ceiling at which what draws `power` while it is open would draw `target`.
    #[must_use]
    pub fn fitting(&self, algorithm: &Algorithm, power: f64, target: f64) -> f64 {
        let wanted = match (algorithm, self.mhz()) {
            (Algorithm::Table(points), Some(top_mhz)) => {
                table::cut(points, top_mhz, power, target).map(|mhz| mhz / top_mhz)
            }
            (Algorithm::Ratio | Algorithm::External | Algorithm::Table(_), _) => None,
        };
        wanted.unwrap_or_else(|| ratio::factor(power, target, self.law)).clamp(self.floor(), 1.0)
    }

    /// The relative ceiling after `seconds` under the budget.
    #[must_use]
    pub(crate) fn raise(&self, algorithm: &Algorithm, ceiling: f64, power: f64, target: f64, seconds: f64) -> f64 {
        let most = (ceiling + self.law.rise * seconds).min(1.0);
        let wanted = match (algorithm, self.mhz()) {
            (Algorithm::Table(points), Some(top_mhz)) => {
                table::raise(points, ceiling * top_mhz, power, target).map(|mhz| (mhz / top_mhz).min(most))
            }
            (Algorithm::Ratio | Algorithm::External | Algorithm::Table(_), _) => None,
        };
        wanted.unwrap_or_else(|| ratio::raise(ceiling, power, target, self.law, seconds))
    }

    /// The full range in MHz, where the lever is a clock.
    fn mhz(&self) -> Option<f64> {
        let top = self.ranges[0].top;
        match self.kind {
            LeverKind::GpuClock => Some(share(top, 1)),
            LeverKind::CpuFrequency => Some(share(top, 1000)),
            LeverKind::Quota => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(policy: u32, floor: u64, top: u64) -> Range {
        let knob = Knob::CpuFrequency(policy);
        Range { knob, floor, own_floor: true, top, from: floor, step: 1, open: false }
    }

    #[test]
    fn the_clocks_of_two_kinds_of_cores_each_reach_their_own_floor_fc_088() {
        let ranges = vec![clock(0, 1_000_000, 1_766_400), clock(4, 1_000_000, 2_956_800)];
        let lever = Lever::new(LeverKind::CpuFrequency, ranges, None).unwrap();
        let lowest = lever.on_step(lever.floor());
        let values: Vec<Option<u64>> = lever.ranges.iter().map(|range| range.value(lowest)).collect();
        assert_eq!(values, [Some(1_000_000), Some(1_000_000)]);
        // The little cores have been at theirs from 100 / 176.64 = 0.57 on.
        let half: Vec<Option<u64>> = lever.ranges.iter().map(|range| range.value(lever.on_step(0.5))).collect();
        assert_eq!(half, [Some(1_000_000), Some(1_478_400)]);
        let clamped = |ceiling: f64| [&lever.ranges[0], &lever.ranges[1]].map(|range| range.clamps(ceiling));
        assert_eq!((clamped(0.6), clamped(0.5), clamped(0.3)), ([false, false], [true, false], [true, true]));
    }
}
