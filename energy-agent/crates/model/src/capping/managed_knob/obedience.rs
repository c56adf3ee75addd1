//! A GPU's locked clocks cannot be read back: whether the ceiling is obeyed shows in what the GPU runs at.

use std::time::Duration;

use super::change::{KnobChange, KnobChangeKind};
use super::{KnobEvent, ManagedKnob};
use crate::capping::knob::KnobState;
use crate::capping::knob::{Found, Knob, KnobError};

/// Clocks take effect at once; what is shown may be a second old.
const CLOCK_SETTLES: Duration = Duration::from_secs(3);
/// A clock above the ceiling at so many looks in a row is not obeying it.
const CLOCK_LOOKS: u32 = 5;

/// Whether a GPU keeps to its ceiling, which cannot be read back: looks in a row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Obedience {
    over: u32,
    within: u32,
    /// It was set again already because it was over.
    insisted: bool,
}

impl Obedience {
    /// Looks of before say nothing any more.
    pub fn forget(&mut self) {
        (self.over, self.within) = (0, 0);
    }
}

impl ManagedKnob {
    /// A lock that a GPU does not obey is set once more. If that does not help, it has no effect.
    pub(super) fn watch_clock(&mut self, now: Duration, found: &Found, changes: &mut Vec<KnobChange>) {
        let (Knob::GpuClock(_), Some(held), Some(clock_mhz)) = (&self.knob, self.phase.held(), self.observed.clock_mhz)
        else {
            return;
        };
        let (written, clock) = (held.written, u64::from(clock_mhz));
        let settled = self.pace.last().is_none_or(|at| now.saturating_sub(at) >= CLOCK_SETTLES);
        if !held.is_confirmed() || !settled || self.wanted.is_none() {
            return self.obedience.forget();
        }
        let Obedience { over, within, insisted } = &mut self.obedience;
        if clock <= written + found.step {
            // An idle GPU says nothing about its ceiling.
            (*over, *within) = (0, *within + u32::from(clock * 4 >= written * 3));
            if *within >= CLOCK_LOOKS && self.refusal.take().is_some() {
                *insisted = false;
                self.report(KnobChangeKind::Recovered, format!("it runs at {clock_mhz} MHz"), changes);
            }
            return;
        }
        (*over, *within) = (*over + 1, 0);
        if *over < CLOCK_LOOKS || self.refusal.as_ref().is_some_and(|fault| now < fault.retry) {
            return;
        }
        *over = 0;
        *insisted = !*insisted;
        let detail = format!("it runs at {clock_mhz} MHz where {written} MHz was set without an error");
        if !*insisted {
            return self.refuse(now, KnobError { state: KnobState::NotEffective, detail }, changes);
        }
        self.phase.on(KnobEvent::Undone);
        if self.refusal.is_none() {
            self.report(KnobChangeKind::Reverted, detail, changes);
        }
    }
}
