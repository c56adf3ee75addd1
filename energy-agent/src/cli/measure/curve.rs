//! A curve of bounded length: where it grows too long, every second point is left out.

use energy_report::run::MeanMax;

/// Most points of a curve. A picture is not wider.
const MAX_POINTS: usize = 2_000;

/// Points in the order of their times, with the mean and maximum of all that were ever added.
#[derive(Clone, Debug)]
pub struct RunCurve {
    points: Vec<(f64, f64)>,
    /// One of so many is kept.
    every: u32,
    skipped: u32,
    count: u32,
    sum: f64,
    max: f64,
}

impl Default for RunCurve {
    fn default() -> Self {
        Self { points: Vec::new(), every: 1, skipped: 0, count: 0, sum: 0.0, max: f64::NEG_INFINITY }
    }
}

impl RunCurve {
    pub fn add(&mut self, at: f64, value: f64) {
        (self.count, self.sum, self.max) = (self.count.saturating_add(1), self.sum + value, self.max.max(value));
        self.skipped += 1;
        if self.skipped < self.every {
            return;
        }
        self.skipped = 0;
        self.points.push((at, value));
        if self.points.len() > MAX_POINTS {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every = self.every.saturating_mul(2);
        }
    }

    pub fn mean_max(&self) -> Option<MeanMax> {
        (self.count > 0).then(|| MeanMax { mean: self.sum / f64::from(self.count), max: self.max })
    }

    pub fn into_points(self) -> Vec<(f64, f64)> {
        self.points
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests panic; whole numbers are exact")]

    use super::*;

    #[test]
    fn a_long_curve_keeps_its_mean_and_its_peak() {
        let mut curve = RunCurve::default();
        for at in 0..10_000_u32 {
            curve.add(f64::from(at), if at == 4_321 { 50.0 } else { 10.0 });
        }
        let MeanMax { mean, max } = curve.mean_max().unwrap();
        // 9,999 times 10 and once 50.
        assert_eq!((mean, max), (10.004, 50.0));
        let points = curve.into_points();
        assert!(points.len() <= MAX_POINTS && points.len() > MAX_POINTS / 3, "{}", points.len());
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(points[0].0 < 10.0 && points.last().unwrap().0 > 9_980.0);
    }

    #[test]
    fn a_curve_without_points_has_no_mean() {
        assert_eq!(RunCurve::default().mean_max(), None);
    }
}
