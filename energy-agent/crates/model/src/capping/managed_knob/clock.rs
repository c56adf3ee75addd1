//! A GPU's locked clocks cannot be read back: whether the ceiling is obeyed shows in what the GPU runs at.

use std::time::Duration;

use super::Track;
use super::change::{Change, ChangeKind};
use super::lock::Lock;
use crate::capping::knob::{Found, Knob, KnobError};
use crate::capping::observation::KnobState;

/// Clocks take effect at once; what is shown may be a second old.
const CLOCK_SETTLES: Duration = Duration::from_secs(3);
/// A clock above the ceiling at so many looks in a row is not obeying it.
const CLOCK_LOOKS: u32 = 5;

/// Whether a GPU keeps to its ceiling, which cannot be read back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    pub over: u32,
    pub within: u32,
    /// It was set again already because it was over.
    pub insisted: bool,
    pub lock: Lock,
}

impl Track {
    /// A lock that a GPU does not obey is set once more, and then said to be without effect.
    pub(super) fn watch_clock(&mut self, now: Duration, found: &Found, changes: &mut Vec<Change>) {
        let (Knob::GpuClock(_), Some(held), Some(clock_mhz)) = (&self.knob, &mut self.held, self.clock_mhz) else {
            return;
        };
        let settled = self.written_at.back().is_none_or(|at| now.saturating_sub(*at) >= CLOCK_SETTLES);
        if !held.confirmed || !settled || self.wanted.is_none() {
            (self.clock.over, self.clock.within) = (0, 0);
            return;
        }
        if u64::from(clock_mhz) <= held.written + found.step {
            // An idle GPU says nothing about its ceiling.
            let near = u64::from(clock_mhz) * 4 >= held.written * 3;
            (self.clock.over, self.clock.within) = (0, self.clock.within + u32::from(near));
            if self.clock.within >= CLOCK_LOOKS && self.fault.take().is_some() {
                self.clock.insisted = false;
                self.say(ChangeKind::Recovered, format!("it runs at {clock_mhz} MHz"), changes);
            }
            return;
        }
        (self.clock.over, self.clock.within) = (self.clock.over + 1, 0);
        if self.clock.over < CLOCK_LOOKS || self.fault.as_ref().is_some_and(|fault| now < fault.retry) {
            return;
        }
        self.clock.over = 0;
        let detail = format!("it runs at {clock_mhz} MHz where {} MHz was set without an error", held.written);
        self.clock.insisted = !self.clock.insisted;
        if !self.clock.insisted {
            self.fail(now, KnobError { state: KnobState::NotEffective, detail }, changes);
        } else {
            held.confirmed = false;
            if self.fault.is_none() {
                self.say(ChangeKind::Reverted, detail, changes);
            }
        }
    }
}
