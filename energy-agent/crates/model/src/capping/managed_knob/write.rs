//! What becomes of a knob by a write, and by how it went.

use std::time::Duration;

use super::change::{KnobChange, KnobChangeKind};
use super::fault::KnobFault;
use super::{HeldKnob, KnobEvent, ManagedKnob, before, text};
use crate::capping::knob::KnobState;
use crate::capping::knob::{Found, Knob, KnobError, KnobValue};

impl ManagedKnob {
    /// A write goes out; the journal has it.
    pub fn begin(&mut self, now: Duration, value: &KnobValue) {
        match (value, &self.observed.found, &self.wanted) {
            (KnobValue::Set(value), Some(found), Some(wanted)) => {
                let (value, policy, found) = (*value, wanted.limit.policy.clone(), found.clone());
                let original = before(&self.knob, &found);
                self.phase.on(KnobEvent::Set { now, value, policy, found, original });
                self.pace.sent(now);
            }
            (KnobValue::Set(_), ..) => {}
            (KnobValue::Restore(_), ..) => self.phase.on(KnobEvent::Restore { now }),
        }
    }

    /// The write was not taken after all.
    pub fn unsent(&mut self) {
        if self.phase.held().is_some_and(HeldKnob::is_being_set) {
            self.pace.unsent();
        }
        self.phase.on(KnobEvent::Unsent);
    }

    /// How a write went. Returns whether the knob leaves the journal.
    pub fn done(
        &mut self,
        now: Duration,
        value: &KnobValue,
        result: Result<Found, KnobError>,
        changes: &mut Vec<KnobChange>,
    ) -> bool {
        self.lock.wrote(now);
        let result = result.and_then(|found| {
            self.observed.found = Some(found.clone());
            let shows = text(&self.knob, found.value);
            let shows = format!("it is {shows} after the write; firmware or another program has locked it");
            let error = KnobError { state: KnobState::NotEffective, detail: shows };
            if found.state == KnobState::NotEffective { Err(error) } else { Ok(()) }
        });
        match (value, result) {
            (KnobValue::Set(set), Ok(())) => self.was_set(*set, changes),
            (KnobValue::Set(_), Err(error)) => return self.was_not_set(now, error, changes),
            (KnobValue::Restore(_), result) => return self.was_restored(now, result, changes),
        }
        false
    }

    fn was_set(&mut self, set: u64, changes: &mut Vec<KnobChange>) {
        if self.phase.held().is_none() {
            return;
        }
        let shown = self.observed.found.as_ref().and_then(|found| found.value);
        self.phase.on(KnobEvent::Accepted { value: set, shown });
        self.writes.ok += 1;
        // That a lock was taken says nothing of whether it is obeyed.
        let proven = self.knob.is_readable();
        if self.refusal.take_if(|fault| proven || fault.error.state != KnobState::NotEffective).is_some() {
            self.report(KnobChangeKind::Recovered, format!("set to {}", text(&self.knob, Some(set))), changes);
        }
    }

    fn was_not_set(&mut self, now: Duration, error: KnobError, changes: &mut Vec<KnobChange>) -> bool {
        let Some(held) = self.phase.held() else { return false };
        let state = error.state;
        let touched = !matches!(state, KnobState::Unsupported | KnobState::NoPermission | KnobState::Rejected);
        // What it was stays what it was, also where that is what it shows. The kernel keeps a quota as it is written: another
        // one is a resize by the kubelet in between.
        let is_own = state == KnobState::NotEffective && !matches!(self.knob, Knob::CpuQuota(_));
        let shown = self.observed.found.as_ref().and_then(|found| found.value);
        let shown = shown.filter(|shown| is_own && Some(*shown) != held.original);
        self.writes.failed += 1;
        // Before it leaves the journal, which knows the policy.
        self.refuse(now, error, changes);
        self.phase.on(KnobEvent::Refused { touched, shown });
        self.phase.held().is_none()
    }

    fn was_restored(&mut self, now: Duration, result: Result<(), KnobError>, changes: &mut Vec<KnobChange>) -> bool {
        let Some(held) = self.phase.held() else { return true };
        let back = self.observed.found.as_ref().is_some_and(|found| found.raw == held.original_raw);
        match result {
            Ok(()) => self.is_restored(changes),
            Err(error) if error.state == KnobState::NotEffective && back => self.is_restored(changes),
            // What cannot be reset could not be set either.
            Err(error) if error.state == KnobState::Unsupported && matches!(self.knob, Knob::GpuClock(_)) => {
                self.phase.on(KnobEvent::Open);
            }
            // The pod ended between the look and the write; the next look finds it gone.
            Err(error) if error.state == KnobState::Unreachable && matches!(self.knob, Knob::CpuQuota(_)) => {
                self.phase.on(KnobEvent::NotRestored { fault: None });
            }
            Err(error) => {
                self.restore_failures += 1;
                if held.restore_fault.is_none() {
                    self.report(KnobChangeKind::RestoreFailed, error.detail.clone(), changes);
                }
                let fault = KnobFault::restoring(held.restore_fault.as_ref(), now, error);
                self.phase.on(KnobEvent::NotRestored { fault: Some(fault) });
            }
        }
        self.phase.held().is_none()
    }

    fn is_restored(&mut self, changes: &mut Vec<KnobChange>) {
        let Some(held) = self.phase.held() else { return };
        let shows = match (held.original, &self.knob) {
            (None, Knob::GpuClock(_)) => "clocks are reset".to_owned(),
            (Some(_), Knob::GpuClock(_)) => format!("clocks are locked to {} MHz, as configured", held.original_raw),
            (Some(value), _) => format!("back at {}", text(&self.knob, Some(value))),
            (None, _) => "no limit".to_owned(),
        };
        self.writes.restored += 1;
        self.report(KnobChangeKind::Restored, shows, changes);
        self.phase.on(KnobEvent::Open);
        self.obedience.forget();
    }
}
