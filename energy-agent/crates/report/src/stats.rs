//! Statistics over a few runs: mean with its interval by Student's t, outliers, and the ratio of two groups by Welch's t on
//! logarithms, several of them by Holm's method.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF as _, StudentsT};

use crate::number::count;

/// Of an interval; the rest bounds the chance that a family of claims has one too many.
pub(crate) const CONFIDENCE: f64 = 0.95;
/// Fewer runs give no claim: two always lie somewhere.
pub(crate) const LEAST_RUNS: usize = 3;
/// Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993: a modified z beyond this is an outlier.
const OUTLIER: f64 = 3.5;
/// Of fewer values, one always lies far from two others.
const LEAST_FOR_OUTLIERS: usize = 5;
/// The deviation of a normal distribution by its median and by its mean absolute deviation.
const BY_MEDIAN: f64 = 1.4826;
const BY_MEAN: f64 = 1.253_314;

/// One figure of several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub n: usize,
    pub mean: f64,
    /// Of the sample; `None` with one run.
    pub stddev: Option<f64>,
    /// Half of the 95 % interval of the mean; `None` with one run.
    pub half: Option<f64>,
    pub min: f64,
    pub max: f64,
    /// Which of the values lie far from the others. They are named and not left out.
    pub outliers: Vec<usize>,
}

impl Summary {
    /// `None` without a value, or with one that is no number.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let n = values.len();
        let mean = mean(values);
        let stddev = (n > 1).then(|| variance(values, mean).sqrt());
        let half = stddev.map(|stddev| quantile(CONFIDENCE, count(n) - 1.0) * stddev / count(n).sqrt());
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { n, mean, stddev, half, min, max, outliers: outliers(values) })
    }

    /// Half of the 95 % interval as part of the mean.
    #[must_use]
    pub fn relative(&self) -> Option<f64> {
        self.half.filter(|_| self.mean > 0.0).map(|half| half / self.mean)
    }
}

/// How many times the mean of one group is that of another; geometric means, as the logarithms are compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
}

impl Ratio {
    /// Whether the two may be equal.
    #[must_use]
    pub(crate) fn holds_one(&self) -> bool {
        self.low <= 1.0 && self.high >= 1.0
    }
}

/// The difference of two groups' logarithms: Welch's t, which assumes no equal variances.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Welch {
    difference: f64,
    /// Standard error of the difference; 0 where nothing varies.
    error: f64,
    freedom: f64,
}

impl Welch {
    /// `None` where one has fewer than two values, or one that has no logarithm.
    fn of(a: &[f64], b: &[f64]) -> Option<Self> {
        if a.len() < 2 || b.len() < 2 || a.iter().chain(b).any(|value| !value.is_finite() || *value <= 0.0) {
            return None;
        }
        let part = |values: &[f64]| {
            let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
            let mean = mean(&logs);
            (mean, variance(&logs, mean) / count(logs.len()), count(logs.len()) - 1.0)
        };
        let ((a_mean, a_part, a_freedom), (b_mean, b_part, b_freedom)) = (part(a), part(b));
        let both = a_part + b_part;
        // Welch and Satterthwaite.
        let below = a_part * a_part / a_freedom + b_part * b_part / b_freedom;
        let freedom = if below > 0.0 { both * both / below } else { a_freedom + b_freedom };
        Some(Self { difference: a_mean - b_mean, error: both.sqrt(), freedom })
    }

    /// How probable a difference as large is where there is none.
    fn p(&self) -> f64 {
        if self.error <= 0.0 {
            return if self.difference.abs() > 0.0 { 0.0 } else { 1.0 };
        }
        let t = (self.difference / self.error).abs();
        student(self.freedom).map_or(1.0, |student| 2.0 * student.sf(t))
    }

    fn ratio(&self, confidence: f64) -> Ratio {
        let half = if self.error > 0.0 { quantile(confidence, self.freedom) * self.error } else { 0.0 };
        let [low, ratio, high] = [-half, 0.0, half].map(|off| (self.difference + off).exp());
        Ratio { ratio, low, high }
    }
}

/// How many times `base` each of the others is. An interval without 1 is a difference: each interval is of the level that Holm's method
/// asks of its p, so that the chance of any such interval among groups that are equal is 5 % at most. So it is as wide as the interval
/// of 95 % or wider, and holds by itself with at least 95 %; that all hold together is not said. `None` for a group with fewer than two
/// values, or where one is not above 0.
#[must_use]
pub(crate) fn ratios(base: &[f64], others: &[&[f64]]) -> Vec<Option<Ratio>> {
    let welch: Vec<Option<Welch>> = others.iter().map(|other| Welch::of(other, base)).collect();
    let p: Vec<f64> = welch.iter().flatten().map(Welch::p).collect();
    let mut levels = holm(&p, 1.0 - CONFIDENCE).into_iter();
    welch.into_iter().map(|welch| Some(welch?.ratio(1.0 - levels.next()?))).collect()
}

/// The level that each p has to be below so that its hypothesis is rejected, and `alpha` bounds the chance of any error (Holm, A
/// Simple Sequentially Rejective Multiple Test Procedure, 1979). From the first that is not below on, all have its level.
fn holm(p: &[f64], alpha: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut levels = vec![alpha; p.len()];
    let mut stopped = None;
    for (rank, index) in order.into_iter().enumerate() {
        let level = stopped.unwrap_or_else(|| alpha / count(p.len() - rank));
        if p[index] >= level {
            stopped = Some(level);
        }
        levels[index] = level;
    }
    levels
}

/// Values whose modified z is beyond 3.5, of five values at least. Where more than half are equal, the mean deviation takes the median's place.
fn outliers(values: &[f64]) -> Vec<usize> {
    if values.len() < LEAST_FOR_OUTLIERS {
        return Vec::new();
    }
    let middle = median(values);
    let off: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let by_median = BY_MEDIAN * median(&off);
    let scale = if by_median > 0.0 { by_median } else { BY_MEAN * mean(&off) };
    let far = |index: &usize| off[*index] > OUTLIER * scale && off[*index] > 0.0;
    (0..values.len()).filter(far).collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], sorted[middle]) } else { sorted[middle] }
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / count(values.len())
}

fn variance(values: &[f64], mean: f64) -> f64 {
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count(values.len()) - 1.0)
}

/// The t that so much of the distribution lies within on both sides.
fn quantile(confidence: f64, freedom: f64) -> f64 {
    student(freedom).map_or(f64::INFINITY, |student| student.inverse_cdf(f64::midpoint(1.0, confidence)))
}

fn student(freedom: f64) -> Option<StudentsT> {
    StudentsT::new(0.0, 1.0, freedom).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    /// Student's sleep data: extra hours of sleep by two drugs, ten patients (R, `datasets::sleep`; Student, Biometrika 6, 1908).
    const FIRST: [f64; 10] = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
    const SECOND: [f64; 10] = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= 1e-5 * expected.abs().max(1e-3)
    }

    /// R's manual, `?t.test`: `t.test(extra ~ group, data = sleep)` gives t = -1.8608, df = 17.776, p-value = 0.07939, 95 percent
    /// confidence interval -3.3654832 0.2054832, means 0.75 and 2.33.
    #[test]
    fn welch_is_that_of_r() {
        // Their logarithms are the data.
        let [first, second] = [FIRST, SECOND].map(|group| group.map(f64::exp));
        let welch = Welch::of(&first, &second).unwrap();
        assert!(near(welch.difference, 0.75 - 2.33), "{welch:?}");
        assert!((welch.difference / welch.error + 1.8608).abs() < 5e-5, "{welch:?}");
        assert!((welch.freedom - 17.776).abs() < 5e-4, "{welch:?}");
        assert!((welch.p() - 0.07939).abs() < 5e-6, "{}", welch.p());
        let Ratio { ratio, low, high } = welch.ratio(0.95);
        assert!(
            near(low.ln(), -3.365_483_2) && near(high.ln(), 0.205_483_2) && near(ratio.ln(), -1.58),
            "{low} {high}"
        );
        assert_eq!(ratios(&second, &[&first]), [Some(Ratio { ratio, low, high })]);
    }

    /// R: `t.test(sleep2$extra.1, sleep2$extra.2, paired = TRUE)` gives t = -4.0621, df = 9, p-value = 0.002833, 95 percent
    /// confidence interval -2.4598858 -0.7001142, mean difference -1.58.
    #[test]
    fn the_interval_of_a_mean_is_that_of_r() {
        let mut differences = [0.0; 10];
        for (difference, (first, second)) in differences.iter_mut().zip(FIRST.iter().zip(SECOND)) {
            *difference = first - second;
        }
        let summary = Summary::of(&differences).unwrap();
        let half = summary.half.unwrap();
        assert!(near(summary.mean, -1.58), "{summary:?}");
        assert!(near(summary.mean - half, -2.459_885_8) && near(summary.mean + half, -0.700_114_2), "{summary:?}");
        assert!(near(summary.min, -4.6) && near(summary.max, 0.0), "{summary:?}");
    }

    /// Tables of Student's t, as `qt(0.975, c(1, 2, 4, 9, 29))` in R has them.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, t) in [(1.0, 12.706_205), (2.0, 4.302_653), (4.0, 2.776_445), (9.0, 2.262_157), (29.0, 2.045_230)]
        {
            assert!((quantile(0.95, freedom) - t).abs() < 1e-5, "{freedom}: {}", quantile(0.95, freedom));
        }
    }

    /// The example of <https://en.wikipedia.org/wiki/Holm%E2%80%93Bonferroni_method>: of 0.01, 0.04, 0.03 and 0.005 the first and the
    /// last are rejected, at 0.05/3 and 0.05/4; the test stops at 0.03, which is not below 0.05/2.
    #[test]
    fn holm_stops_at_the_first_that_may_be_chance() {
        let levels = holm(&[0.01, 0.04, 0.03, 0.005], 0.05);
        let expected = [0.05 / 3.0, 0.025, 0.025, 0.0125];
        assert!(levels.iter().zip(expected).all(|(level, expected)| near(*level, expected)), "{levels:?}");
    }

    /// Of two groups, the one that certainly differs is rejected first, at 5 %/2. Then R's interval of 95 % is the other's; where the
    /// surer one may be chance, both have the level of 97.5 %, and the interval of the sleep data is wider than R's.
    #[test]
    fn an_interval_of_several_is_of_holms_level() {
        let [first, second] = [FIRST, SECOND].map(|group| group.map(f64::exp));
        let far = second.map(|value| value * 1e6);
        let [far, near_one] = ratios(&second, &[&far, &first])[..] else { panic!("two") };
        let sleep = near_one.unwrap();
        assert!(near(sleep.low.ln(), -3.365_483_2) && near(sleep.high.ln(), 0.205_483_2), "{sleep:?}");
        assert!(!far.unwrap().holds_one() && sleep.holds_one());
        let [sleep, same] = ratios(&second, &[&first, &second])[..] else { panic!("two") };
        let (sleep, same) = (sleep.unwrap(), same.unwrap());
        assert!(sleep.low.ln() < -3.365_483_2 - 0.1 && sleep.high.ln() > 0.205_483_2 + 0.1, "{sleep:?}");
        assert!(same.holds_one());
    }

    #[test]
    fn one_run_has_no_interval_and_none_has_nothing() {
        let summary = Summary::of(&[5.0]).unwrap();
        assert_eq!((summary.n, summary.stddev, summary.half), (1, None, None));
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(ratios(&[1.0], &[&[2.0, 3.0]]), [None]);
        assert_eq!(ratios(&[1.0, 0.0], &[&[2.0, 3.0]]), [None], "0 has no logarithm");
    }

    #[test]
    fn what_does_not_vary_differs_or_is_equal() {
        let equal = ratios(&[2.0, 2.0, 2.0], &[&[2.0, 2.0], &[4.0, 4.0]]);
        assert!(equal[0].unwrap().holds_one());
        let Ratio { ratio, low, high } = equal[1].unwrap();
        assert!(near(ratio, 2.0) && near(low, 2.0) && near(high, 2.0));
    }

    #[test]
    fn a_value_far_from_the_others_is_named() {
        // The median is 12, the deviations 2 1 0 1 38, their median 1: 50 has a modified z of 38/1.4826 = 25.6, and 10 of 1.35.
        assert_eq!(Summary::of(&[10.0, 11.0, 12.0, 13.0, 50.0]).unwrap().outliers, [4]);
        assert_eq!(Summary::of(&[10.0, 11.0, 12.0, 13.0, 14.0]).unwrap().outliers, [0_usize; 0]);
        // More than half are equal: the mean deviation is 3/6, and 3 / (1.2533 * 0.5) = 4.8.
        assert_eq!(Summary::of(&[7.0, 7.0, 7.0, 10.0, 7.0, 7.0]).unwrap().outliers, [3]);
        assert_eq!(Summary::of(&[7.0; 5]).unwrap().outliers, [0_usize; 0]);
        assert_eq!(Summary::of(&[7.0, 7.01, 9.0]).unwrap().outliers, [0_usize; 0], "three say nothing");
    }
}
