//! When the log gets a line about a state that may change at every reading: pure, on the caller's clock. A thing that flaps gets one
//! line per state and [`QUIET`], and the last line is true again at the latest that long after the last change.

use std::time::{Duration, Instant};

/// Between two lines about the same state of one thing.
pub const QUIET: Duration = Duration::from_secs(600);

/// What the log says about one thing so far.
#[derive(Clone, Debug)]
pub struct StateLog<S> {
    /// As the log has it.
    said: S,
    /// As it was the last time.
    seen: S,
    /// When each state was said last.
    lines: Vec<(S, Instant)>,
    /// Since the last line.
    changes: u64,
}

impl<S: Copy + PartialEq> StateLog<S> {
    /// `usual` is the state that needs no line until there was another.
    #[must_use]
    pub const fn new(usual: S) -> Self {
        Self { said: usual, seen: usual, lines: Vec::new(), changes: 0 }
    }

    /// The thing is in this state now. Says how often it changed since the last line where a new line is due.
    #[must_use]
    pub fn due(&mut self, state: S, now: Instant) -> Option<u64> {
        if state != self.seen {
            self.seen = state;
            self.changes += 1;
        }
        if state == self.said {
            return None;
        }
        let recent = |at: Instant| now.saturating_duration_since(at) < QUIET;
        if self.lines.iter().any(|&(told, at)| told == state && recent(at)) {
            return None;
        }
        self.lines.retain(|&(told, at)| told != state && recent(at));
        self.lines.push((state, now));
        self.said = state;
        Some(std::mem::take(&mut self.changes))
    }
}

impl<S: Copy + Default + PartialEq> Default for StateLog<S> {
    fn default() -> Self {
        Self::new(S::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_said_at_once_and_a_flapping_thing_once_per_state_and_ten_minutes() {
        let start = Instant::now();
        let mut told = StateLog::new(true);
        let mut lines = Vec::new();
        // Bad in even seconds, good in odd ones, for twenty minutes.
        for second in 0..1200 {
            if let Some(changes) = told.due(second % 2 == 1, start + Duration::from_secs(second)) {
                lines.push((second, changes));
            }
        }
        assert_eq!(lines, [(0, 1), (1, 1), (600, 599), (601, 1)]);
    }

    #[test]
    fn what_it_ends_with_is_said_in_the_end() {
        let start = Instant::now();
        let mut told = StateLog::new(None);
        let mut due = |state: Option<&'static str>, second| told.due(state, start + Duration::from_secs(second));
        assert_eq!(due(None, 0), None);
        assert_eq!(due(Some("gone"), 1), Some(1));
        assert_eq!(due(None, 2), Some(1));
        assert_eq!(due(Some("gone"), 3), None);
        assert_eq!(due(Some("denied"), 4), Some(2), "another state is another line");
        assert_eq!(due(Some("gone"), 5), None);
        assert_eq!(due(Some("gone"), 600), None);
        assert_eq!(due(Some("gone"), 601), Some(1));
        assert_eq!(due(Some("gone"), 9_999), None, "said already");
    }
}
