//! The Pareto front over time and energy: what is not on it, nobody would choose.

use super::columns::GroupRow;

/// Says of each row whether another one is better. Time and energy of a row are of the same runs.
pub(super) fn mark(rows: &mut [GroupRow]) {
    let points: Vec<Option<(f64, f64)>> = rows.iter().map(point).collect();
    let count = points.iter().flatten().count();
    for (row, point) in rows.iter_mut().zip(&points).filter(|_| count > 1) {
        row.is_dominated = point.map(|point| points.iter().flatten().any(|other| is_better(*other, point)));
    }
}

/// Seconds and joules.
fn point(row: &GroupRow) -> Option<(f64, f64)> {
    Some((row.seconds.as_ref()?.mean, row.comparable_joules()?))
}

fn is_better((seconds, joules): (f64, f64), than: (f64, f64)) -> bool {
    seconds <= than.0 && joules <= than.1 && (seconds < than.0 || joules < than.1)
}
