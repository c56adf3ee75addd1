//! How often a knob is written.

use std::collections::VecDeque;
use std::time::Duration;

use super::MINUTE;

/// Writes of one knob in a minute. A cut is never put off.
const WRITES_A_MINUTE: usize = 20;

/// The limits of the last minute.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    sent_at: VecDeque<Duration>,
    /// A raise that was put off.
    pub deferred: Option<u64>,
}

impl Pace {
    /// Drops what is over.
    pub fn look(&mut self, now: Duration) {
        forget_before(&mut self.sent_at, now, MINUTE);
    }

    /// A limit was sent.
    pub fn sent(&mut self, now: Duration) {
        self.sent_at.push_back(now);
    }

    /// The last one did not reach the device.
    pub fn unsent(&mut self) {
        self.sent_at.pop_back();
    }

    /// When the last one was sent; `None`: more than a minute ago.
    #[must_use]
    pub fn last(&self) -> Option<Duration> {
        self.sent_at.back().copied()
    }

    /// Nothing is raised now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.sent_at.len() >= WRITES_A_MINUTE
    }
}

/// Drops the moments older than `time`.
pub(crate) fn forget_before(moments: &mut VecDeque<Duration>, now: Duration, time: Duration) {
    while moments.front().is_some_and(|at| now.saturating_sub(*at) >= time) {
        moments.pop_front();
    }
}
