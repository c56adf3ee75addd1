//! A measured profile: the ceiling is the highest clock whose power fits, corrected by what the device draws now in
//! comparison with what the profile expects. For people who have measured their workload; else [`super::ratio`].
//!
//! It is the example of how an algorithm is added: a file with a `cut` and a `raise` beside this one, an arm of
//! [`Algorithm`](crate::capping::policy::Algorithm), and an arm each in `Lever::cut`, `Lever::raise` and `Lever::fitting`
//! (`controller/device.rs`). Hold, writes, floors and the rest are the same for all.

use crate::capping::policy::Point;

/// The least that a cut takes away, as in the ratio law: a wrong profile must not stand still above the budget.
const LEFT: f64 = 0.92;

/// The ceiling in MHz after an excess, from a ceiling of `from` MHz. `None`: the profile has no points.
#[must_use]
pub fn cut(points: &[Point], from_mhz: f64, power: f64, target: f64) -> Option<f64> {
    Some(fitting(points, from_mhz, power, target)?.min(from_mhz * LEFT))
}

/// The ceiling in MHz that may be reached from a ceiling of `from` MHz; not below it.
#[must_use]
pub(crate) fn raise(points: &[Point], from_mhz: f64, power: f64, target: f64) -> Option<f64> {
    Some(fitting(points, from_mhz, power, target)?.max(from_mhz))
}

/// The highest clock whose expected power, times measured by expected at `from_mhz`, is at most `target`.
fn fitting(points: &[Point], from_mhz: f64, power: f64, target: f64) -> Option<f64> {
    let scale = power / watts(points, from_mhz)?;
    let fits = |point: &Point| point.watts * scale <= target;
    let above = points.iter().position(|point| !fits(point));
    Some(match above {
        None => f64::from(points.last()?.clock_mhz).max(from_mhz),
        Some(0) => f64::from(points.first()?.clock_mhz),
        Some(above) => {
            let (low, high) = (points[above - 1], points[above]);
            let part = (target / scale - low.watts) / (high.watts - low.watts);
            let (low_mhz, high_mhz) = (f64::from(low.clock_mhz), f64::from(high.clock_mhz));
            low_mhz + (high_mhz - low_mhz) * part
        }
    })
}

/// Expected power at a clock, between points by interpolation, outside as at the nearest.
fn watts(points: &[Point], mhz: f64) -> Option<f64> {
    let above = points.iter().position(|point| f64::from(point.clock_mhz) >= mhz);
    match above {
        None => points.last().map(|point| point.watts),
        Some(0) => points.first().map(|point| point.watts),
        Some(above) => {
            let (low, high) = (points[above - 1], points[above]);
            let part = (mhz - f64::from(low.clock_mhz)) / f64::from(high.clock_mhz - low.clock_mhz);
            Some(low.watts + (high.watts - low.watts) * part)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Vec<Point> {
        [(500, 100.0), (1000, 200.0), (1500, 400.0), (2000, 700.0)]
            .map(|(clock_mhz, watts)| Point { clock_mhz, watts })
            .to_vec()
    }

    fn near(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-6)
    }

    #[test]
    fn the_highest_clock_that_fits_is_taken_at_once() {
        // As expected at 2000 MHz; 300 W is half way between 1000 and 1500.
        assert!(near(cut(&profile(), 2000.0, 700.0, 300.0), 1250.0));
        // Twice what the profile says: 300 W are 150 W of the profile.
        assert!(near(cut(&profile(), 1500.0, 800.0, 300.0), 750.0));
        // Nothing fits: the lowest.
        assert!(near(cut(&profile(), 2000.0, 700.0, 50.0), 500.0));
    }

    #[test]
    fn a_cut_always_takes_something() {
        // The profile says 400 W at 1500 MHz, so 410 W there would mean hardly less.
        assert!(near(cut(&profile(), 1500.0, 401.0, 400.0), 1380.0));
        assert_eq!(cut(&[], 1500.0, 401.0, 400.0), None);
    }

    #[test]
    fn a_raise_goes_to_what_fits() {
        assert!(near(raise(&profile(), 1000.0, 200.0, 300.0), 1250.0));
        // Half the expected power: 300 W are 600 W of the profile.
        assert!(near(raise(&profile(), 1000.0, 100.0, 300.0), 1500.0 + 500.0 * 2.0 / 3.0));
        assert!(near(raise(&profile(), 1250.0, 290.0, 280.0), 1250.0));
        assert!(near(raise(&profile(), 1250.0, 0.0, 280.0), 2000.0));
    }
}
