//! A write that failed, and when it is tried again.

use std::time::Duration;

use crate::capping::knob::KnobError;
use crate::capping::knob::KnobState;

/// Between two tries to write a limit, doubled each time: what a driver or a firmware refuses, it refuses for long.
const WRITING: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(600));
/// Between two tries to restore something, which matters more, or to write what nobody has refused: a driver that is
/// loaded anew answers in between that the device is out of reach.
const SOON: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The last failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnobFault {
    pub error: KnobError,
    /// When to try again.
    pub retry: Duration,
    wait: Duration,
}

impl KnobFault {
    /// A limit could not be written; `before` is the failure before this one, if none of the tries in between worked.
    #[must_use]
    pub fn writing(before: Option<&Self>, now: Duration, error: KnobError) -> Self {
        let pace = if error.state == KnobState::Unreachable { SOON } else { WRITING };
        Self::after(before.filter(|before| before.error.state == error.state), now, error, pace)
    }

    /// It could not be restored.
    #[must_use]
    pub fn restoring(before: Option<&Self>, now: Duration, error: KnobError) -> Self {
        Self::after(before, now, error, SOON)
    }

    fn after(before: Option<&Self>, now: Duration, error: KnobError, (first, most): (Duration, Duration)) -> Self {
        let wait = before.map_or(first, |before| (before.wait * 2).min(most));
        Self { error, retry: now + wait, wait }
    }
}
