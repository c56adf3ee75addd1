//! Values at equal distances as curves of the pictures that `energy-agent report` draws.

use energy_report::chart::{ChartPanel, Line, Shape};
use fake_nvml::units::{count, float};

/// Values that differ by less than this part of the highest are drawn as one.
const SAME: f64 = 0.001;

/// Means of so many values at a time. What stands still is one step.
pub fn curve(name: &str, spacing_s: f64, values: impl Iterator<Item = f64>, many: usize) -> Line {
    let values: Vec<f64> = values.collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / f64::from(count(part.len()));
    let means: Vec<f64> = values.chunks(many).map(mean).collect();
    let highest = means.iter().copied().fold(0.0, f64::max);
    let width_s = spacing_s * f64::from(count(many));
    let mut points: Vec<(f64, f64)> = means.first().map(|first| (0.0, *first)).into_iter().collect();
    for (number, value) in (1..).zip(means) {
        let end_s = width_s * float(number);
        match points.as_mut_slice() {
            // The first point is where the curve begins.
            [_, .., last] if (last.1 - value).abs() < highest * SAME => last.0 = end_s,
            _ => points.push((end_s, value)),
        }
    }
    Line { name: name.to_owned(), points, shape: Shape::Steps }
}

/// A system of axes; `limit` is a value to compare with, and its name.
pub fn panel(axis: &str, height: u32, top: f64, mut lines: Vec<Line>, limit: Option<(f64, String)>) -> ChartPanel {
    lines.extend(limit.map(|(value, name)| Line { name, points: vec![(0.0, value)], shape: Shape::Limit }));
    ChartPanel { axis: axis.to_owned(), height, top, lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_still_is_one_step() {
        let line = curve("a", 0.5, [1.0, 1.0, 1.0, 3.0, 2.0, 2.0, 2.0, 2.0].into_iter(), 2);
        // Means of pairs: 1, 2, 2, 2, a second each.
        assert_eq!(line.points, [(0.0, 1.0), (1.0, 1.0), (4.0, 2.0)]);
        assert_eq!(curve("", 1.0, [].into_iter(), 5).points, []);
    }
}
