//! What a run under a budget comes to, from the true power and clocks of its GPUs.

use std::collections::VecDeque;

use fake_nvml::plant::Plant;
use fake_nvml::units::{count, float};

use super::truth::{SLICE_US, Slice, Write};

/// Less than this above the budget is the arithmetic's.
const TOLERANCE_W: f64 = 0.1;
/// Settled is who stays below the budget for so long.
const QUIET_SLICES: usize = 1000;
/// From the first excess on; what comes later counts as over the budget.
const SETTLING_SLICES: usize = 300;
/// A second, over which the budget is meant.
const MEAN_SLICES: usize = 100;
const MINUTE_US: u64 = 60_000_000;

/// Shares are 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// From the first moment above the budget to the first of 10 s without another; seconds, which are ticks. `None`: never
    /// above, or never settled.
    pub settle_s: Option<f64>,
    /// Time above the budget by the power of the moment, from 3 ticks after the first excess on.
    pub over: f64,
    /// The same for means of a second.
    pub mean_over: f64,
    /// Energy above the budget in the whole run; joules, and as a part of what the budget allows from the first excess on.
    pub over_j: f64,
    pub over_part: f64,
    /// Most writes of a device within a minute.
    pub writes: usize,
    /// Work done, as a part of what clocks do that always just fit.
    pub work: f64,
}

/// `gpus`: the slices of those that share `budget_w`, of equal length.
pub fn score(plant: &Plant, max_mhz: u32, gpus: &[Vec<Slice>], budget_w: f64, writes: &[Write]) -> Score {
    let length = gpus.iter().map(Vec::len).min().unwrap_or_default();
    let power: Vec<f64> = (0..length).map(|at| gpus.iter().map(|slices| slices[at].power_w).sum()).collect();
    let above = |watts: f64| watts > budget_w + TOLERANCE_W;
    let mut score = Score { writes: busiest_minute(writes), work: 1.0, ..Score::default() };
    let (mut work, mut best) = (0.0, 0.0);
    for at in 0..length {
        work += gpus.iter().map(|gpu| gpu[at].load * f64::from(gpu[at].clock_mhz) / f64::from(max_mhz)).sum::<f64>();
        best += fitting(plant, budget_w, gpus.iter().map(|gpu| gpu[at].load).collect());
    }
    if best > 0.0 {
        score.work = work / best;
    }
    let Some(first) = power.iter().position(|watts| above(*watts)) else { return score };
    let excess: Vec<usize> = (first..length).filter(|at| above(power[*at])).collect();
    let ends = excess.iter().copied().zip(excess.iter().copied().skip(1).chain([usize::MAX]));
    let settled = ends.into_iter().find(|(at, next)| *next - *at > QUIET_SLICES).map(|(at, _)| at + 1);
    score.settle_s = settled.filter(|at| at + QUIET_SLICES <= length).map(|at| seconds(at - first));
    let later = first + SETTLING_SLICES;
    let counted = length.saturating_sub(later).max(1);
    score.over = part(excess.iter().filter(|at| **at >= later).count(), counted);
    let mut window = VecDeque::new();
    let mut sum = 0.0;
    let mut means_above = 0;
    for (at, watts) in power.iter().enumerate() {
        window.push_back(*watts);
        sum += watts;
        if window.len() > MEAN_SLICES {
            sum -= window.pop_front().unwrap_or_default();
        }
        if at >= later && above(sum / float(u64::from(count(window.len())))) {
            means_above += 1;
        }
    }
    score.mean_over = part(means_above, counted);
    score.over_j = excess.iter().map(|at| (power[*at] - budget_w) * seconds(1)).sum();
    score.over_part = score.over_j / (budget_w * seconds(length - first));
    score
}

/// Work of a moment at one clock of all that just fits the budget, by someone who knows the plant and the loads.
fn fitting(plant: &Plant, budget_w: f64, loads: Vec<f64>) -> f64 {
    let idle = plant.idle_w * f64::from(count(loads.len()));
    let load: f64 = loads.into_iter().sum();
    let part = (budget_w - idle) / ((plant.max_w - plant.idle_w) * load.max(1e-9));
    load * part.max(0.0).powf(1.0 / plant.exponent).min(1.0)
}

/// Most writes of one device within a minute.
fn busiest_minute(writes: &[Write]) -> usize {
    let within = |last: &Write| {
        let same = |write: &&Write| {
            write.uuid == last.uuid && write.at_us <= last.at_us && write.at_us + MINUTE_US > last.at_us
        };
        writes.iter().filter(same).count()
    };
    writes.iter().map(within).max().unwrap_or_default()
}

fn seconds(slices: usize) -> f64 {
    f64::from(count(slices)) * float(SLICE_US) / 1e6
}

fn part(some: usize, all: usize) -> f64 {
    f64::from(count(some)) / f64::from(count(all.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::capping::truth::What;

    fn slices(parts: &[(usize, f64)]) -> Vec<Slice> {
        let slice = |power_w| Slice { load: 1.0, power_w, clock_mhz: 990, ceiling_mhz: 1980 };
        parts.iter().flat_map(|&(count, power_w)| std::iter::repeat_n(slice(power_w), count)).collect()
    }

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-6
    }

    #[test]
    fn an_excess_is_settled_when_ten_seconds_pass_without_another() {
        let plant = Plant { exponent: 2.0, ..Plant::default() };
        // 1 s at 500 W, 0.5 s below, 0.5 s above, 20 s below, 1 s above, 5 s below.
        let course =
            slices(&[(100, 300.0), (100, 500.0), (50, 300.0), (50, 410.0), (2000, 300.0), (100, 450.0), (500, 300.0)]);
        let score = score(&plant, 1980, &[course], 400.0, &[]);
        assert!(near(score.settle_s.unwrap(), 2.0), "{score:?}");
        // From 3 s after the first excess: 1 of 25 s.
        assert!(near(score.over, 100.0 / 2500.0), "{score:?}");
        // A mean of 300 and 450 W is above 400 W when two thirds are above: 1/3 s later, and 1/3 s longer than that.
        assert!((score.mean_over - 67.0 / 2500.0).abs() < 2.0 / 2500.0, "{score:?}");
        assert!(near(score.over_j, 100.0 + 5.0 + 50.0), "{score:?}");
        assert!(near(score.over_part, 155.0 / (400.0 * 28.0)), "{score:?}");
    }

    #[test]
    fn work_is_compared_with_clocks_that_just_fit() {
        let plant = Plant { exponent: 2.0, ..Plant::default() };
        // 227.5 W are half of the clock: the same as was done.
        let score = score(&plant, 1980, &[slices(&[(100, 227.5)])], 227.5, &[]);
        assert!(near(score.work, 1.0) && score.settle_s.is_none(), "{score:?}");
    }

    #[test]
    fn writes_are_counted_by_device_and_minute() {
        let write =
            |at_s: u64, uuid: &str| Write { at_us: at_s * 1_000_000, uuid: uuid.to_owned(), what: What::Lock(None) };
        let writes = [write(1, "a"), write(2, "a"), write(2, "b"), write(60, "a"), write(61, "a"), write(90, "a")];
        // a at 2, 60 and 61; that of second 1 is a minute old at 61.
        assert_eq!(busiest_minute(&writes), 3);
    }
}
