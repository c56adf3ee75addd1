//! The two clocks: one for the plant, one for NVML's time stamps.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds of the monotonic clock, which is the same in every process.
#[must_use]
pub fn monotonic_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000
}

/// Microseconds since 1970, as NVML stamps its samples.
#[must_use]
pub fn wall_us() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
