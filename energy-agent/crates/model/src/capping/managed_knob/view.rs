//! A knob as the controller and people see it.

use std::time::Duration;

use super::floor::floor;
use super::{Track, before};
use crate::capping::knob::Knob;
use crate::capping::observation::{KnobNow, KnobState};
use crate::capping::status::{CapStatus, Writes};

impl Track {
    /// For the controller; `None` where the knob is not there. A fault is over when it is time to try again.
    #[must_use]
    pub fn now(&self, now: Duration) -> Option<KnobNow> {
        let found = self.found.as_ref()?;
        let original = self.held.as_ref().map_or_else(|| before(&self.knob, found), |held| held.original);
        let min = floor(&self.knob, found);
        let fault = self.fault.as_ref().filter(|fault| now < fault.retry);
        let state = match (found.state, fault) {
            _ if self.clock.lock.is_foreign() => KnobState::Yielded,
            _ if self.rival.stands_at(now) => KnobState::Yielded,
            (KnobState::Ok | KnobState::NotEffective, Some(fault)) => fault.error.state,
            (KnobState::NotEffective, None) => KnobState::Ok,
            (state, _) => state,
        };
        // What is on its way to a device that cannot be reached may have been set: it stays wanted.
        let out_of_reach = matches!(state, KnobState::Unreachable | KnobState::Error);
        let lost = self.held.as_ref().filter(|_| out_of_reach).map(|held| held.written);
        Some(KnobNow {
            min: original.map_or(min, |original| min.min(original)),
            max: found.max,
            step: found.step,
            original,
            current: self.current().or(lost),
            state,
        })
    }

    /// Whether it was ever written or wanted.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.is_in_use() || self.rival.stands() || self.fault.is_some() || self.writes != Writes::default()
    }

    /// For people.
    #[must_use]
    pub fn cap(&self, now: Duration) -> CapStatus {
        let state = match (&self.restore_fault, &self.fault, self.now(now)) {
            (Some(fault), _, _) if self.wanted.is_none() => fault.error.state,
            (_, _, Some(KnobNow { state, .. })) if state != KnobState::Ok => state,
            (_, Some(fault), _) => fault.error.state,
            (_, None, Some(_)) => KnobState::Ok,
            (_, None, None) => KnobState::Unreachable,
        };
        // What was written last, and is not in force any more.
        let is_gone = matches!(self.knob, Knob::GpuClock(_)) && self.held.is_none();
        CapStatus {
            knob: self.knob.clone(),
            state,
            wanted: self.wanted.as_ref().map(|limit| limit.value),
            found: self.found.as_ref().filter(|_| !is_gone).and_then(|found| found.value),
            original: self
                .held
                .as_ref()
                .map_or_else(|| self.found.as_ref().and_then(|found| before(&self.knob, found)), |held| held.original),
            policy: self
                .wanted
                .as_ref()
                .map(|limit| limit.policy.clone())
                .or_else(|| self.held.as_ref().map(|held| held.policy.clone())),
            clamped: self.clamped,
            detail: self.why_locked().or_else(|| self.why_theirs(now)),
            writes: self.writes,
        }
    }
}
