//! The highest power of a time that is long past only in part: what a budget in percent of the peak is a part of.

use std::collections::VecDeque;
use std::time::Duration;

/// Parts that the time is divided into: the peak is forgotten one part at a time.
const PARTS: u32 = 60;

/// The highest power while nothing was capped. Time stands still while something is: a capped peak is not the
/// workload's, and what was seen before must not be forgotten because of the cap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peak {
    /// Highest power of each part, the oldest first; watts.
    parts: VecDeque<f64>,
    /// Open time in the newest part, and in all since the start.
    newest: Duration,
    total: Duration,
}

impl Peak {
    /// Adds an interval in which nothing was capped.
    pub fn add(&mut self, power: f64, interval: Duration, lookback: Duration) {
        let part = lookback / PARTS;
        if self.parts.is_empty() || self.newest + interval > part {
            self.parts.push_back(0.0);
            self.newest = Duration::ZERO;
        }
        self.newest += interval;
        self.total = self.total.saturating_add(interval);
        if let Some(newest) = self.parts.back_mut() {
            *newest = newest.max(power);
        }
        // Parts shorter than a tick hold one tick each.
        let ticks = lookback.as_nanos().div_ceil(interval.max(Duration::from_nanos(1)).as_nanos());
        while self.parts.len() > usize::try_from(ticks.min(u128::from(PARTS))).unwrap_or(1).max(1) {
            self.parts.pop_front();
        }
    }

    /// `None` until the whole time has been seen: a pod that starts idle would otherwise be held to a part of that.
    #[must_use]
    pub fn watts(&self, lookback: Duration) -> Option<f64> {
        (self.total >= lookback).then(|| self.parts.iter().copied().fold(0.0, f64::max)).filter(|watts| *watts > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LOOKBACK: Duration = Duration::from_secs(600);

    #[test]
    fn a_peak_is_known_after_the_whole_time_and_forgotten_after_it() {
        let mut peak = Peak::default();
        peak.add(500.0, SECOND, LOOKBACK);
        for _ in 1..599 {
            peak.add(100.0, SECOND, LOOKBACK);
            assert_eq!(peak.watts(LOOKBACK), None);
        }
        peak.add(100.0, SECOND, LOOKBACK);
        assert_eq!(peak.watts(LOOKBACK), Some(500.0));
        // A part is 10 s: it is gone 600 s after its end at the latest.
        for _ in 0..11 {
            peak.add(100.0, SECOND, LOOKBACK);
        }
        assert_eq!(peak.watts(LOOKBACK), Some(100.0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut peak = Peak::default();
        for _ in 0..100_000 {
            peak.add(1.0, SECOND, LOOKBACK);
        }
        assert_eq!(peak.parts.len(), 60);
    }

    #[test]
    fn a_time_of_few_ticks_is_counted_in_ticks() {
        let lookback = Duration::from_secs(3);
        let mut peak = Peak::default();
        for power in [9.0, 1.0, 2.0] {
            peak.add(power, SECOND, lookback);
        }
        assert_eq!(peak.watts(lookback), Some(9.0));
        peak.add(1.0, SECOND, lookback);
        assert_eq!(peak.watts(lookback), Some(2.0));
    }
}
