//! The kernel's clocks in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC in nanoseconds, the clock of `bpf_ktime_get_ns`; it stands still while the machine is suspended.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// CLOCK_BOOTTIME in nanoseconds, which goes on while the machine is suspended.
#[must_use]
pub(crate) fn boottime_ns() -> u64 {
    clock_ns(ClockId::Boottime)
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}
