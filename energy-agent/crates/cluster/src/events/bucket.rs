//! How many events may be sent: some at once, then one every few seconds.

use std::time::{Duration, Instant};

const BURST: u32 = 25;
const EVERY: Duration = Duration::from_secs(5);

/// A token bucket.
#[derive(Debug)]
pub struct Bucket {
    /// When it is full again.
    full: Instant,
}

impl Bucket {
    pub const fn new(now: Instant) -> Self {
        Self { full: now }
    }

    /// Whether there is one more to take. `now` does not go backwards.
    pub fn take(&mut self, now: Instant) -> bool {
        let full = self.full.max(now) + EVERY;
        let may = full <= now + EVERY * BURST;
        if may {
            self.full = full;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_five_at_once_then_one_every_five_seconds() {
        let begin = Instant::now();
        let mut bucket = Bucket::new(begin);
        let mut taken = |seconds| (0..100).filter(|_| bucket.take(begin + Duration::from_secs(seconds))).count();
        assert_eq!([0, 4, 5, 10, 25].map(&mut taken), [25, 0, 1, 1, 3]);
        assert_eq!(taken(3_600), 25);
    }
}
