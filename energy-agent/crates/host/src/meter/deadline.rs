//! Whether one thread's answer is due, late or overdue: pure, on the caller's clock.

use std::time::{Duration, Instant};

/// An answer that takes longer is not waited for.
pub const PATIENCE: Duration = Duration::from_millis(50);
/// An answer that takes longer hangs. A little less than three seconds, so that three ticks a second apart are enough.
pub const DEADLINE: Duration = Duration::from_millis(2900);

/// One request at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    asked: Option<Instant>,
    slow: bool,
    hanging: bool,
}

impl Deadline {
    /// A request was sent.
    pub fn ask(&mut self, now: Instant) {
        self.asked = Some(now);
    }

    /// A request is out.
    #[must_use]
    pub(crate) const fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// A request is out whose answer should be here in a moment.
    #[must_use]
    pub(crate) const fn is_awaited(&self) -> bool {
        self.asked.is_some() && !self.slow
    }

    /// Answers come within [`PATIENCE`].
    #[must_use]
    pub(crate) const fn is_prompt(&self) -> bool {
        !self.slow
    }

    #[must_use]
    pub(crate) const fn is_hanging(&self) -> bool {
        self.hanging
    }

    /// The answer came, `took` after the thread began with it. Returns whether it had been hanging.
    pub fn answered(&mut self, took: Duration) -> bool {
        *self = Self { asked: None, slow: took >= PATIENCE, hanging: self.hanging };
        std::mem::take(&mut self.hanging)
    }

    /// Nobody waits any longer.
    pub(crate) fn give_up(&mut self) {
        self.slow |= self.asked.is_some();
    }

    /// Whether it hangs since this moment.
    pub(crate) fn begins_to_hang(&mut self, now: Instant) -> bool {
        let overdue = self.asked.is_some_and(|asked| now.saturating_duration_since(asked) >= DEADLINE);
        overdue && !std::mem::replace(&mut self.hanging, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_call_is_noticed_once_and_forgiven_when_it_returns() {
        let start = Instant::now();
        let mut watch = Deadline::default();
        watch.ask(start);
        assert!(watch.is_awaited());
        watch.give_up();
        assert!(watch.is_waiting() && !watch.is_awaited());
        assert!(!watch.begins_to_hang(start + Duration::from_secs(2)));
        assert!(watch.begins_to_hang(start + Duration::from_secs(3)));
        assert!(!watch.begins_to_hang(start + Duration::from_secs(4)), "said already");
        assert!(watch.answered(Duration::from_secs(120)));
        assert!(!watch.is_waiting() && !watch.is_hanging() && !watch.is_prompt());

        watch.ask(start + Duration::from_secs(121));
        assert!(!watch.is_awaited(), "it was slow the last time");
        assert!(!watch.answered(Duration::from_millis(3)));
        assert!(watch.is_prompt());
    }
}
