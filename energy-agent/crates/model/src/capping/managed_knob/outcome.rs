//! What becomes of a knob by a write, and by how it went.

use std::time::Duration;

use super::change::{Change, ChangeKind};
use super::fault::Fault;
use super::{Held, Track, before, text};
use crate::capping::journal_entry::add_own;
use crate::capping::knob::{Found, Knob, KnobError, Value};
use crate::capping::observation::KnobState;

impl Track {
    /// A write goes out; the journal has it.
    pub fn begin(&mut self, now: Duration, value: &Value) {
        if let (Value::Set(set), Some(found), Some(limit)) = (value, &self.found, &self.wanted) {
            let held = self.held.get_or_insert_with(|| Held {
                original: before(&self.knob, found),
                original_raw: found.raw.clone(),
                epoch: Some(found.epoch),
                written: *set,
                ours: Vec::new(),
                policy: limit.policy.clone(),
                confirmed: false,
                touched: false,
            });
            add_own(&mut held.ours, *set, found.value);
            held.written = *set;
            held.policy = limit.policy.clone();
            held.confirmed = false;
            self.written_at.push_back(now);
        }
        self.pending = Some((value.clone(), now));
    }

    /// The write was not taken after all.
    pub fn unsent(&mut self) {
        if let Some((Value::Set(_), _)) = self.pending.take() {
            self.written_at.pop_back();
        }
    }

    /// How a write went. Returns whether the knob leaves the journal.
    pub fn done(
        &mut self,
        now: Duration,
        value: &Value,
        result: Result<Found, KnobError>,
        changes: &mut Vec<Change>,
    ) -> bool {
        self.pending = None;
        self.clock.lock.wrote(now);
        let result = result.and_then(|found| {
            self.found = Some(found.clone());
            let shows = text(&self.knob, found.value);
            let shows = format!("it shows {shows} after the write; firmware or another program holds it");
            let error = KnobError { state: KnobState::NotEffective, detail: shows };
            if found.state == KnobState::NotEffective { Err(error) } else { Ok(found) }
        });
        match value {
            Value::Set(set) => self.was_set(now, *set, result, changes),
            Value::Restore(_) => self.was_restored(now, result, changes),
        }
    }

    fn was_set(
        &mut self,
        now: Duration,
        set: u64,
        result: Result<Found, KnobError>,
        changes: &mut Vec<Change>,
    ) -> bool {
        let shown = self.found.as_ref().and_then(|found| found.value);
        let Some(held) = &mut self.held else { return false };
        match result {
            Ok(_) => {
                held.ours = vec![set];
                held.ours.extend(shown.filter(|shown| *shown != set));
                (held.confirmed, held.touched) = (true, true);
                self.writes.ok += 1;
                // That a lock was taken says nothing of whether it is obeyed.
                let proven = !matches!(self.knob, Knob::GpuClock(_));
                if self.fault.take_if(|fault| proven || fault.error.state != KnobState::NotEffective).is_some() {
                    self.say(ChangeKind::Recovered, format!("set to {}", text(&self.knob, Some(set))), changes);
                }
                false
            }
            Err(error) => {
                self.writes.failed += 1;
                let untouched =
                    matches!(error.state, KnobState::Unsupported | KnobState::NoPermission | KnobState::Rejected);
                // The kernel keeps a quota as it is written: another one is a resize by the kubelet in between.
                if error.state == KnobState::NotEffective && !matches!(self.knob, Knob::CpuQuota(_)) {
                    // What it was stays what it was, also where that is what it shows.
                    held.ours.extend(shown.filter(|shown| Some(*shown) != held.original));
                }
                held.touched |= !untouched;
                let forget = !held.touched;
                self.fail(now, error, changes);
                if forget {
                    self.held = None;
                }
                forget
            }
        }
    }

    fn was_restored(&mut self, now: Duration, result: Result<Found, KnobError>, changes: &mut Vec<Change>) -> bool {
        let Some(held) = &self.held else { return true };
        let back = self.found.as_ref().is_some_and(|found| found.raw == held.original_raw);
        match result {
            Err(error) if error.state == KnobState::NotEffective && back => self.given_back(changes),
            Ok(_) => self.given_back(changes),
            // What cannot be reset could not be set either.
            Err(error) if error.state == KnobState::Unsupported && matches!(self.knob, Knob::GpuClock(_)) => {
                self.held = None;
                self.restore_fault = None;
                true
            }
            // The pod ended between the look and the write; the next look finds it gone.
            Err(error) if error.state == KnobState::Unreachable && matches!(self.knob, Knob::CpuQuota(_)) => false,
            Err(error) => {
                self.restore_failures += 1;
                let detail = error.detail.clone();
                let first = self.restore_fault.is_none();
                self.restore_fault = Some(Fault::restoring(self.restore_fault.as_ref(), now, error));
                if first {
                    self.say(ChangeKind::RestoreFailed, detail, changes);
                }
                false
            }
        }
    }

    fn given_back(&mut self, changes: &mut Vec<Change>) -> bool {
        self.writes.restored += 1;
        let shows = self.held.as_ref().map_or_else(String::new, |held| match (held.original, &self.knob) {
            (None, Knob::GpuClock(_)) => "clocks are reset".to_owned(),
            (Some(_), Knob::GpuClock(_)) => format!("clocks are locked to {} MHz, as stated", held.original_raw),
            (Some(value), _) => format!("back at {}", text(&self.knob, Some(value))),
            (None, _) => "open again".to_owned(),
        });
        self.say(ChangeKind::Restored, shows, changes);
        self.held = None;
        self.restore_fault = None;
        (self.clock.over, self.clock.within) = (0, 0);
        true
    }
}
