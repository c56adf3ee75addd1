//! How long to wait after a failure: longer after each one in a row, up to some seconds, and not in step with the agents
//! of other nodes.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(1);
/// Names are back this soon after the server is.
const LONGEST: Duration = Duration::from_secs(10);
/// A failure this long after the one before is the first of a new row.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    last: Option<Instant>,
}

impl Backoff {
    pub fn new() -> Self {
        Self { next: FIRST, last: None }
    }

    /// After a failure: the time to wait.
    pub fn pause(&mut self) -> Duration {
        let now = Instant::now();
        if self.last.replace(now).is_some_and(|last| now - last > QUIET) {
            self.next = FIRST;
        }
        // Between two thirds of the time and all of it.
        let longest = self.next;
        self.next = (longest * 2).min(LONGEST);
        let [random, ..] = RandomState::new().hash_one(0).to_ne_bytes();
        longest * 2 / 3 + longest / 3 * u32::from(random) / u32::from(u8::MAX)
    }

    /// After a success.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_ten_seconds_and_begin_again_after_a_success() {
        let mut backoff = Backoff::new();
        for longest in [1, 2, 4, 8, 10, 10, 10].map(Duration::from_secs) {
            let pause = backoff.pause();
            assert!(pause >= longest * 66 / 100 && pause <= longest, "{pause:?} of {longest:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= FIRST);
    }

    #[test]
    fn agents_that_fail_together_do_not_ask_together() {
        let pauses: std::collections::BTreeSet<Duration> = (0..64).map(|_| Backoff::new().pause()).collect();
        assert!(pauses.len() > 8, "{pauses:?}");
    }
}
