//! The numeric conversions of this library; the only place with `as`.

/// The nearest whole number, 0 for what is negative or not a number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and NaN becomes 0")]
#[must_use]
pub fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// As [`whole`], for NVML's 32-bit figures; saturates.
#[must_use]
pub fn whole32(value: f64) -> u32 {
    u32::try_from(whole(value)).unwrap_or(u32::MAX)
}

/// The nearest float: exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "times and energies of tests are far below 2^53")]
#[must_use]
pub fn float(value: u64) -> f64 {
    value as f64
}

/// A length or index that NVML counts in 32 bits; saturates.
#[must_use]
pub fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
