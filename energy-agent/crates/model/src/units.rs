//! Quantities and the only numeric conversions of the program: energy is whole microjoules, power is watts in `f64`,
//! and a float is made from an integer here and nowhere else.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// An amount of energy in microjoules; what RAPL, perf and NVML counters are converted to where they are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Microjoules(pub u64);

impl Microjoules {
    pub const ZERO: Self = Self(0);

    /// Mean power if this energy was used in `elapsed`; zero for an empty interval.
    #[must_use]
    pub fn over(self, elapsed: Duration) -> Watts {
        if elapsed.is_zero() {
            return Watts(0.0);
        }
        Watts(ratio(self.0, 1_000_000) / elapsed.as_secs_f64())
    }

    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Microjoules {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Sub for Microjoules {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl AddAssign for Microjoules {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sum for Microjoules {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::ZERO, Add::add)
    }
}

/// Power in watts.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Watts(pub f64);

impl Watts {
    /// Energy at this power for `elapsed`, rounded down to a whole microjoule; zero for negative or non-finite power.
    #[must_use]
    pub fn during(self, elapsed: Duration) -> Microjoules {
        Microjoules(floor_u64(self.0 * elapsed.as_secs_f64() * 1e6))
    }
}

/// `numerator / denominator` as a float; zero when the denominator is zero.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a ratio for people and for f64 metrics; 53 bits are enough")]
pub fn ratio(numerator: u64, denominator: u64) -> f64 {
    if denominator == 0 { 0.0 } else { numerator as f64 / denominator as f64 }
}

/// The largest whole number not above `value`; zero for negative and non-finite values, `u64::MAX` beyond the range.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "float-to-int `as` saturates and maps NaN to 0; infinity is excluded above it"
)]
pub fn floor_u64(value: f64) -> u64 {
    if value.is_finite() { value as u64 } else { 0 }
}

/// The whole number nearest to `value`; zero for negative and non-finite values, `u64::MAX` beyond the range.
#[must_use]
pub(crate) fn nearest_u64(value: f64) -> u64 {
    floor_u64(value + 0.5)
}

/// Nanoseconds of a duration; saturates after 584 years.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whole microseconds of a duration; saturates after 584,000 years.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_is_energy_over_time() {
        assert_eq!(Microjoules(3_000_000).over(Duration::from_secs(2)), Watts(1.5));
        assert_eq!(Microjoules(3_000_000).over(Duration::ZERO), Watts(0.0));
    }

    #[test]
    fn power_that_is_no_number_yields_no_energy() {
        let second = Duration::from_secs(1);
        assert_eq!(Watts(2.5).during(second), Microjoules(2_500_000));
        for watts in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Watts(watts).during(second), Microjoules::ZERO);
        }
    }
}
