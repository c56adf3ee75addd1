//! The highest power of the last while.

use std::collections::VecDeque;
use std::time::Duration;

/// Falling values: a value is forgotten when a later one is as high.
#[derive(Debug, Default)]
pub struct Highs(VecDeque<(Duration, f64)>);

impl Highs {
    pub fn add(&mut self, now: Duration, watts: f64) {
        while self.0.pop_back_if(|(_, earlier)| *earlier <= watts).is_some() {}
        self.0.push_back((now, watts));
    }

    /// The highest at or after `since`; what is older is forgotten.
    pub fn since(&mut self, since: Duration) -> f64 {
        while self.0.pop_front_if(|(at, _)| *at < since).is_some() {}
        self.0.front().map_or(0.0, |(_, watts)| *watts)
    }
}
