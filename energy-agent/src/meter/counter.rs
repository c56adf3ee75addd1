//! Stand-in until the counter arithmetic is merged: differences of a counter that may wrap at a known range.

use std::ops::AddAssign;
use std::time::Duration;

use crate::units::Microjoules;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneCounts {
    pub wraps: u64,
    pub resets: u64,
    pub gaps: u64,
    pub read_errors: u64,
}

impl AddAssign for ZoneCounts {
    fn add_assign(&mut self, other: Self) {
        self.wraps += other.wraps;
        self.resets += other.resets;
        self.gaps += other.gaps;
        self.read_errors += other.read_errors;
    }
}

pub struct Delta {
    pub energy: Microjoules,
    pub gap: bool,
}

#[derive(Clone, Debug)]
pub struct Counter {
    last: Option<u64>,
}

impl Counter {
    #[must_use]
    pub fn new(_range: Option<u64>) -> Self {
        Self { last: None }
    }

    pub fn advance(&mut self, raw: u64, _elapsed: Duration, counts: &mut ZoneCounts) -> Option<Delta> {
        let last = self.last.replace(raw)?;
        if raw < last {
            counts.resets += 1;
            return None;
        }
        Some(Delta { energy: Microjoules(raw - last), gap: false })
    }

    pub fn miss(&mut self, _elapsed: Duration) {}
}
