//! A sweep over the values of a knob: which to try, which of those tried is best, and which to try next between them.

use std::str::FromStr;

use crate::number::{float, nearest};

/// Values of a range that says no number of them.
const POINTS: u64 = 8;
const MOST_POINTS: u64 = 64;
/// The part of a gap in which the next point lies, seen from the best: 2 less the golden ratio.
const GOLDEN: f64 = 0.381_966;

/// `LOW..HIGH/N`: so many values from the lowest to the highest, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepRange {
    pub low: u64,
    pub high: u64,
    pub count: u64,
}

impl FromStr for SweepRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected LOW..HIGH/N, such as 600..1980/8".to_owned();
        let (ends, count) = text.split_once('/').map_or((text, None), |(ends, count)| (ends, Some(count)));
        let (low, high) = ends.split_once("..").ok_or_else(expected)?;
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| expected());
        let (low, high) = (number(low)?, number(high)?);
        let count = count.map_or(Ok(POINTS), number)?;
        if low >= high {
            return Err(format!("{low} is not below {high}; {}", expected()));
        }
        if !(2..=MOST_POINTS).contains(&count) {
            return Err(format!("{count} values: from 2 to {MOST_POINTS} are possible"));
        }
        Ok(Self { low, high, count })
    }
}

/// What a device can be set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnobSteps {
    /// The least value that is ever set.
    pub floor: u64,
    pub max: u64,
    pub step: u64,
}

impl KnobSteps {
    /// The values of a range on the device's steps, ascending, each once.
    ///
    /// # Errors
    /// When the range leaves the device's.
    pub fn values(&self, range: SweepRange, unit: &str) -> Result<Vec<u64>, String> {
        let SweepRange { low, high, count } = range;
        let Self { floor, max, .. } = *self;
        if low < floor || high > max {
            return Err(format!("{low}..{high} {unit} leaves what this GPU may be set to: {floor} to {max} {unit}"));
        }
        let mut values: Vec<u64> =
            (0..count).map(|number| self.at_most(low + (high - low) * number / (count - 1))).collect();
        values.dedup();
        Ok(values)
    }

    /// The step at or below a value of the device's range.
    #[must_use]
    fn at_most(&self, value: u64) -> u64 {
        if value >= self.max {
            return self.max;
        }
        self.floor + value.saturating_sub(self.floor) / self.step.max(1) * self.step.max(1)
    }

    /// What to try next to come nearer to the least cost: a step in the wider gap beside the best so far. `None`: the best has
    /// both its neighbours, or its neighbour and an end of the range. `tried`: values on steps and their costs; where costs fall to
    /// one least and rise again, it is found.
    #[must_use]
    pub fn next(&self, tried: &[(u64, f64)]) -> Option<u64> {
        let (best, _) = *tried.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        let values = || tried.iter().map(|(value, _)| *value);
        let below = values().filter(|value| *value < best).max().map_or(0, |below| best - below);
        let above = values().filter(|value| *value > best).min().map_or(0, |above| above - best);
        let gap = below.max(above);
        let step = self.step.max(1);
        if gap <= step {
            return None;
        }
        // At least a step away from both ends.
        let away = (nearest((float(gap) * GOLDEN).floor()) / step).max(1) * step;
        let next = if above >= below { best + away } else { best - away };
        let next = self.at_most(next);
        (values().all(|value| value != next)).then_some(next)
    }
}

/// What a user wants of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    Energy,
    /// Energy-delay product.
    Edp,
    Time,
    /// The least energy that takes at most so many times as long as without a limit.
    Slowdown(f64),
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected energy, edp, time or slowdown:FACTOR, such as slowdown:1.05".to_owned();
        match text.split_once(':') {
            None if text == "energy" => Ok(Self::Energy),
            None if text == "edp" => Ok(Self::Edp),
            None if text == "time" => Ok(Self::Time),
            Some(("slowdown", factor)) => match factor.parse::<f64>() {
                Ok(factor) if factor.is_finite() && factor >= 1.0 => Ok(Self::Slowdown(factor)),
                _ => Err(format!("{factor:?} is no factor from 1 on; {}", expected())),
            },
            _ => Err(expected()),
        }
    }
}

impl Objective {
    /// What is to be least; infinite for what is not allowed, `None` where it takes an energy that is not known. `open_seconds`: the
    /// time without a limit.
    #[must_use]
    pub(crate) fn cost(self, seconds: f64, joules: Option<f64>, open_seconds: f64) -> Option<f64> {
        match self {
            Self::Energy => joules,
            Self::Edp => joules.map(|joules| joules * seconds),
            Self::Time => Some(seconds),
            Self::Slowdown(factor) if seconds <= open_seconds * factor => joules,
            Self::Slowdown(_) => Some(f64::INFINITY),
        }
    }

    /// For people: `least energy`.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Energy => "least energy".to_owned(),
            Self::Edp => "least energy-delay product".to_owned(),
            Self::Time => "least time".to_owned(),
            Self::Slowdown(factor) => format!("least energy at up to {:.1} % more time", (factor - 1.0) * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    const H100: KnobSteps = KnobSteps { floor: 495, max: 1980, step: 15 };

    #[test]
    fn a_range_is_divided_evenly_and_lies_on_steps() {
        // 600 + 1380 / 7 n: 797.1, 994.3, 1191.4, 1388.6, 1585.7, 1782.9; steps are 495 + 15 n.
        let range: SweepRange = "600..1980/8".parse().unwrap();
        let values = H100.values(range, "MHz").unwrap();
        assert_eq!(values, [600, 795, 990, 1185, 1380, 1575, 1770, 1980]);
        assert_eq!("600..1980".parse::<SweepRange>().unwrap(), range);
        let error = H100.values("300..1980/4".parse().unwrap(), "MHz").unwrap_err();
        assert_eq!(error, "300..1980 MHz leaves what this GPU may be set to: 495 to 1980 MHz");
        for wrong in ["600", "600..", "..", "1980..600/3", "600..1980/1", "600..1980/65", "a..b/3", "600..1980/x"] {
            assert!(wrong.parse::<SweepRange>().is_err(), "{wrong}");
        }
        // More values than steps.
        assert_eq!(H100.values("600..630/9".parse().unwrap(), "MHz").unwrap(), [600, 615, 630]);
    }

    /// Tries the coarse values and then what is next, with a least at `at`.
    fn found(at: u64) -> (u64, usize) {
        let cost =
            |value: u64| (f64::from(u32::try_from(value).unwrap()) - f64::from(u32::try_from(at).unwrap())).powi(2);
        let coarse = H100.values("600..1980/8".parse().unwrap(), "MHz").unwrap();
        let mut tried: Vec<(u64, f64)> = coarse.into_iter().map(|value| (value, cost(value))).collect();
        while let Some(next) = H100.next(&tried) {
            assert!(tried.iter().all(|(value, _)| *value != next) && next.is_multiple_of(15), "{next} of {tried:?}");
            tried.push((next, cost(next)));
        }
        (tried.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0, tried.len() - 8)
    }

    #[test]
    fn the_least_is_found_wherever_it_is() {
        for at in (600..=1980).step_by(15) {
            let (best, more) = found(at);
            assert_eq!(best, at);
            assert!(more <= 9, "{more} more for {at}");
        }
        // Between two steps, either is right.
        assert!([1200, 1215].contains(&found(1207).0));
    }

    #[test]
    fn an_objective_is_read_and_bounds_what_is_allowed() {
        assert_eq!("slowdown:1.05".parse(), Ok(Objective::Slowdown(1.05)));
        for wrong in ["", "Energy", "slowdown", "slowdown:0.9", "slowdown:x", "energy:1"] {
            assert!(wrong.parse::<Objective>().is_err(), "{wrong}");
        }
        let cost = |objective: Objective| objective.cost(11.0, Some(50.0), 10.0).unwrap();
        assert!((cost(Objective::Edp) - 550.0).abs() < 1e-9);
        assert!(cost(Objective::Slowdown(1.05)).is_infinite());
        assert!((cost(Objective::Slowdown(1.1)) - 50.0).abs() < 1e-9);
        assert_eq!(Objective::Energy.cost(11.0, None, 10.0), None);
        assert_eq!(Objective::Time.cost(11.0, None, 10.0), Some(11.0));
    }
}
