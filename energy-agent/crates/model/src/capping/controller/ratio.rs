//! The law: a ceiling follows the ratio of the target to the measured power, fast down and slowly up.
//!
//! Power rises with about the 1.5th power of a clock (1.2 to 3.0 on real devices) and in proportion to a quota. A cut
//! that took the exponent too high or too low is put right by the next tick's ratio; it is never smaller than 8 %, so
//! that a power just above the budget is left at once, and never larger than one half.

/// The smallest and the largest cut of a tick, as what is left.
const LEFT: (f64, f64) = (0.50, 0.92);

/// How power follows the ceiling of a device, and how fast the ceiling may rise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Law {
    pub exponent: f64,
    /// The highest exponent there is: a raise that is right for this one is too large for none.
    pub steepest: f64,
    /// Share of the full range a second.
    pub rise: f64,
}

/// The ceiling after an excess: `from` is where the device is now, at most its ceiling.
#[must_use]
pub fn cut(from: f64, power: f64, target: f64, law: Law) -> f64 {
    from * factor(power, target, law).clamp(LEFT.0, LEFT.1)
}

/// The ceiling after `seconds` under the budget; at most 1.
#[must_use]
pub(crate) fn raise(ceiling: f64, power: f64, target: f64, law: Law, seconds: f64) -> f64 {
    let steepest = Law { exponent: law.steepest, ..law };
    (ceiling + law.rise * seconds).min(ceiling * factor(power, target, steepest)).clamp(ceiling, 1.0)
}

/// By what the ceiling is to be multiplied for `power` to become `target`.
#[must_use]
pub fn factor(power: f64, target: f64, law: Law) -> f64 {
    if power > 0.0 { (target.max(0.0) / power).powf(1.0 / law.exponent) } else { f64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: Law = Law { exponent: 1.5, steepest: 3.0, rise: 30.0 / 1980.0 };

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-6
    }

    #[test]
    fn a_cut_follows_the_ratio_within_its_bounds() {
        // 512 is 8 cubed, and 343 is 7 cubed: (343 / 512)^(2/3) = 49 / 64.
        assert!(near(cut(1.0, 512.0, 343.0, CLOCK), 0.765_625));
        assert!(near(cut(0.8, 512.0, 343.0, CLOCK), 0.6125));
        // Hardly above: still 8 %. Far above: one half.
        assert!(near(cut(1.0, 381.0, 380.0, CLOCK), 0.92));
        assert!(near(cut(1.0, 4000.0, 100.0, CLOCK), 0.5));
        assert!(near(cut(1.0, 4000.0, -10.0, CLOCK), 0.5));
        // A quota goes in proportion: 60 / 80.
        assert!(near(cut(1.0, 80.0, 60.0, Law { exponent: 1.0, steepest: 1.0, rise: 0.05 }), 0.75));
    }

    #[test]
    fn a_raise_is_30_mhz_a_second_unless_the_target_is_near() {
        // An idle device: 5 s of 30 MHz are 150 of 1980 MHz.
        assert!(near(raise(0.5, 0.0, 380.0, CLOCK, 5.0), 0.5 + 150.0 / 1980.0));
        // 343 and 375 are 7 and 7.2 cubed nearly: at most 0.5 * (373.248 / 343)^(1/3) = 0.5 * 7.2 / 7.
        assert!(near(raise(0.5, 343.0, 373.248, CLOCK, 5.0), 0.5 * 7.2 / 7.0));
        assert!(near(raise(0.99, 0.0, 380.0, CLOCK, 5.0), 1.0));
        // Above the target nothing is raised, and nothing cut either.
        assert!(near(raise(0.5, 390.0, 380.0, CLOCK, 5.0), 0.5));
    }
}
