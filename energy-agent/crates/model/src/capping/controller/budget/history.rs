//! The power that a budget is compared with: the mean over its window, and the highest within the hold.

use std::collections::VecDeque;
use std::time::Duration;

/// Power of the last ticks.
#[derive(Clone, Debug)]
pub struct History {
    /// As many ticks as the budget's window has; watts.
    window: VecDeque<f64>,
    /// When, and how much; watts.
    recent: VecDeque<(Duration, f64)>,
    measured_at: Duration,
}

impl History {
    #[must_use]
    pub const fn new(now: Duration) -> Self {
        Self { window: VecDeque::new(), recent: VecDeque::new(), measured_at: now }
    }

    /// Adds the power of a tick, and returns the mean over a window of so many ticks. `None`: not measured.
    pub fn add(&mut self, power: Option<f64>, ticks: u128, now: Duration) -> Option<f64> {
        if let Some(power) = power {
            self.measured_at = now;
            self.window.push_back(power);
        }
        while u128::try_from(self.window.len()).is_ok_and(|len| len > ticks) {
            self.window.pop_front();
        }
        let count = u32::try_from(self.window.len()).unwrap_or(u32::MAX);
        power.map(|_| self.window.iter().sum::<f64>() / f64::from(count))
    }

    /// For how long power has not been measured.
    #[must_use]
    pub(crate) const fn unmeasured(&self, now: Duration) -> Duration {
        now.saturating_sub(self.measured_at)
    }

    /// Notes power that [`highest`](Self::highest) will be asked for, within `longest` from now.
    pub fn note(&mut self, power: f64, longest: Duration, now: Duration) {
        self.recent.push_back((now, power));
        self.forget(longest, now);
    }

    /// The highest power that was noted within the hold; 0 where none was.
    pub fn highest(&mut self, hold: Duration, now: Duration) -> f64 {
        self.forget(hold, now);
        self.recent.iter().map(|(_, power)| *power).fold(0.0, f64::max)
    }

    /// Power is not measured any more.
    pub fn clear(&mut self) {
        self.window.clear();
        self.recent.clear();
    }

    fn forget(&mut self, time: Duration, now: Duration) {
        while self.recent.front().is_some_and(|(at, _)| *at + time <= now) {
            self.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_mean_is_of_the_ticks_that_were_measured() {
        let mut history = History::new(at(0));
        let means = [Some(100.0), Some(200.0), None, Some(600.0), Some(100.0)];
        let means: Vec<_> = (1..).zip(means).map(|(second, power)| history.add(power, 3, at(second))).collect();
        assert_eq!(means, [Some(100.0), Some(150.0), None, Some(300.0), Some(300.0)]);
        assert_eq!(history.unmeasured(at(7)), at(2));
    }

    #[test]
    fn the_highest_power_is_forgotten_after_the_hold() {
        let mut history = History::new(at(0));
        for (second, power) in [(1, 500.0), (2, 300.0), (3, 200.0)] {
            history.note(power, at(120), at(second));
        }
        let highest: Vec<_> = (5..9).map(|second| Some(history.highest(at(5), at(second)))).collect();
        assert_eq!(highest, [Some(500.0), Some(300.0), Some(200.0), Some(0.0)]);
    }

    #[test]
    fn power_that_nobody_asks_for_is_not_kept() {
        let mut history = History::new(at(0));
        (0..100_000).for_each(|second| history.note(1.0, at(120), at(second)));
        assert_eq!(history.recent.len(), 120);
    }
}
