//! A knob as the actuator, the controller and people see it: all from its phase.

use std::time::Duration;

use super::fault::KnobFault;
use super::floor::floor;
use super::{HeldKnob, KnobPhase, ManagedKnob, Theirs, before};
use crate::capping::knob::KnobState;
use crate::capping::knob::{Found, KnobError};
use crate::capping::observation::KnobNow;
use crate::capping::status::{CapStatus, Writes};

/// Whether a limit can be written.
#[derive(Clone, Copy, Debug)]
pub enum Writability<'k> {
    /// The knob is not there.
    Absent,
    /// It is left to somebody else.
    Yielded,
    /// A write was refused, and it is not yet time to try again.
    Refused(&'k KnobFault),
    /// The device cannot be used.
    Unusable(KnobState),
    Usable,
}

impl ManagedKnob {
    /// Whether a limit can be written at that time.
    #[must_use]
    pub(super) fn standing(&self, now: Duration) -> Writability<'_> {
        let Some(found) = &self.observed.found else { return Writability::Absent };
        if self.phase.is_yielded_at(now) {
            return Writability::Yielded;
        }
        match found.state {
            // A write that had no effect says so itself, for some time.
            KnobState::Ok | KnobState::NotEffective => {
                self.waiting_refusal(now).map_or(Writability::Usable, Writability::Refused)
            }
            state => Writability::Unusable(state),
        }
    }

    fn waiting_refusal(&self, now: Duration) -> Option<&KnobFault> {
        self.refusal.as_ref().filter(|fault| now < fault.retry)
    }

    /// What was done to it, where it is in the journal.
    #[must_use]
    pub const fn held(&self) -> Option<&HeldKnob> {
        self.phase.held()
    }

    /// What it is without the agent; `None`: open, or not known.
    #[must_use]
    pub(super) fn original(&self) -> Option<u64> {
        match self.phase.held() {
            Some(held) => held.original,
            None => self.observed.found.as_ref().and_then(|found| before(&self.knob, found)),
        }
    }

    /// What is set now, as far as it is known; `None`: open.
    #[must_use]
    pub(super) fn current(&self) -> Option<u64> {
        if self.knob.is_readable() {
            return self.observed.found.as_ref()?.value;
        }
        self.phase.held().filter(|held| held.is_confirmed()).map(|held| held.written)
    }

    /// The knob as it is, or is said to be, before it is written for the first time.
    #[must_use]
    pub fn before(&self) -> Option<Found> {
        let found = self.observed.found.as_ref()?;
        Some(Found { value: before(&self.knob, found), ..found.clone() })
    }

    /// It was written, or may have been, or should be.
    #[must_use]
    pub const fn is_in_use(&self) -> bool {
        self.phase.held().is_some() || self.wanted.is_some()
    }

    /// It was set above this value by the agent.
    #[must_use]
    pub fn is_above(&self, value: u64) -> bool {
        self.phase.held().is_some_and(|held| held.written > value)
    }

    /// A write is on its way.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.phase.held().is_some_and(|held| held.pending_since().is_some())
    }

    /// It is to be restored, and is not yet.
    #[must_use]
    pub fn is_restore_pending(&self) -> bool {
        self.phase.held().is_some() && self.wanted.is_none() && !self.is_pending()
    }

    /// Why it could not be restored the last time.
    #[must_use]
    pub fn restore_error(&self) -> Option<&KnobError> {
        Some(&self.phase.held()?.restore_fault.as_ref()?.error)
    }

    /// It cannot be restored for a reason that does not pass by itself.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.restore_error().is_some_and(|error| !matches!(error.state, KnobState::Unreachable | KnobState::Error))
    }

    /// Tries to restore it that failed, since the start.
    #[must_use]
    pub const fn restore_failures(&self) -> u64 {
        self.restore_failures
    }

    /// It was ever written or wanted.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        let is_yielded = matches!(self.phase, KnobPhase::Yielded(Theirs::Value { .. }));
        self.is_in_use() || is_yielded || self.refusal.is_some() || self.writes != Writes::default()
    }

    /// For the controller; `None` where the knob is not there. A refusal is over when it is time to try again.
    #[must_use]
    pub fn now(&self, now: Duration) -> Option<KnobNow> {
        let found = self.observed.found.as_ref()?;
        let (min, original) = (floor(&self.knob, found), self.original());
        let state = self.standing(now).state();
        // What is on its way to a device that cannot be reached may have been set: it stays wanted.
        let out_of_reach = matches!(state, KnobState::Unreachable | KnobState::Error);
        let lost = self.phase.held().filter(|_| out_of_reach).map(|held| held.written);
        Some(KnobNow {
            min: original.map_or(min, |original| min.min(original)),
            max: found.max,
            step: found.step,
            original,
            current: self.current().or(lost),
            state,
        })
    }

    /// For people.
    #[must_use]
    pub fn cap(&self, now: Duration) -> CapStatus {
        let state = match (self.restore_error(), self.standing(now), &self.refusal) {
            (Some(error), ..) if self.wanted.is_none() => error.state,
            // Until a write works.
            (_, Writability::Usable | Writability::Absent, Some(refusal)) => refusal.error.state,
            (_, standing, _) => standing.state(),
        };
        // The last write to a GPU's clocks no longer holds.
        let is_gone = !self.knob.is_readable() && self.phase.held().is_none();
        let wanted = self.wanted.as_ref();
        let detail = match &self.phase {
            KnobPhase::Yielded(theirs) => self.why_locked().or_else(|| theirs.rule(&self.knob, now)),
            KnobPhase::Open | KnobPhase::Held(_) => None,
        };
        CapStatus {
            knob: self.knob.clone(),
            state,
            wanted: wanted.map(|wanted| wanted.limit.value),
            found: self.observed.found.as_ref().filter(|_| !is_gone).and_then(|found| found.value),
            original: self.original(),
            policy: wanted
                .map(|wanted| &wanted.limit.policy)
                .or_else(|| self.phase.held().map(|held| &held.policy))
                .cloned(),
            clamped: wanted.is_some_and(|wanted| wanted.clamped),
            detail,
            writes: self.writes,
        }
    }
}

impl Writability<'_> {
    const fn state(self) -> KnobState {
        match self {
            Self::Absent => KnobState::Unreachable,
            Self::Yielded => KnobState::Yielded,
            Self::Refused(fault) => fault.error.state,
            Self::Unusable(state) => state,
            Self::Usable => KnobState::Ok,
        }
    }
}
