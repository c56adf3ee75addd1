//! A write that failed, and when it is tried again.

use std::time::Duration;

use super::super::knob::KnobError;

/// Between two tries to write a limit, doubled each time: what a driver or a firmware refuses, it refuses for long.
const WRITING: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(600));
/// Between two tries to give something back, which matters more.
const RESTORING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The last failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub error: KnobError,
    /// When to try again.
    pub retry: Duration,
    wait: Duration,
}

impl Fault {
    /// A limit could not be written; `before` is the failure before this one, if none of the tries in between worked.
    #[must_use]
    pub fn writing(before: Option<&Self>, now: Duration, error: KnobError) -> Self {
        Self::after(before, now, error, WRITING)
    }

    /// It could not be given back.
    #[must_use]
    pub fn restoring(before: Option<&Self>, now: Duration, error: KnobError) -> Self {
        Self::after(before, now, error, RESTORING)
    }

    fn after(before: Option<&Self>, now: Duration, error: KnobError, (first, most): (Duration, Duration)) -> Self {
        let wait = before.map_or(first, |before| (before.wait * 2).min(most));
        Self { error, retry: now + wait, wait }
    }
}
