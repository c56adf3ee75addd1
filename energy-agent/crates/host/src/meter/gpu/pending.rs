//! The knobs of one GPU as last found, and the writes to them that are pending.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Found, Knob, KnobError, KnobValue};

use super::knobs::Probed;
use crate::meter::deadline::Deadline;

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub knob: Knob,
    pub value: KnobValue,
    /// The knob as it was read back. As [`Found::state`] says, the driver may have kept the old value.
    pub result: Result<Found, KnobError>,
}

/// Knobs and pending writes of one GPU.
#[derive(Default)]
pub struct Pending {
    found: BTreeMap<Knob, Found>,
    /// At most one for each knob.
    outstanding: BTreeMap<Knob, KnobValue>,
    /// Of the oldest of them.
    pub watch: Deadline,
}

impl Pending {
    /// The knobs as last found; the clock with what was last written in its epoch.
    #[must_use]
    pub const fn found(&self) -> &BTreeMap<Knob, Found> {
        &self.found
    }

    #[must_use]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Takes what a probe found. A knob begins a new epoch with a new handle, unless it shows what it showed before.
    pub fn probed(&mut self, probed: Probed) {
        let Probed { found, anew } = probed;
        for (knob, mut found) in found {
            if let Some(before) = self.found.get(&knob) {
                let kept = !anew || (found.value.is_some() && found.value == before.value);
                found.epoch = if kept { before.epoch } else { before.epoch + 1 };
                if kept && found.value.is_none() {
                    found.value = before.value;
                }
            }
            self.found.insert(knob, found);
        }
    }

    /// Takes the power limit as it was read.
    pub fn read(&mut self, knob: &Knob, limit_mw: u32) {
        let Some(found) = self.found.get_mut(knob) else { return };
        if found.value != Some(limit_mw.into()) {
            (found.value, found.raw) = (Some(limit_mw.into()), limit_mw.to_string());
            // Whoever set it, it can be set.
            if found.state == KnobState::NotEffective {
                found.state = KnobState::Ok;
            }
        }
    }

    /// Whether a write of the knob can be sent: it is there, and no other one is pending.
    #[must_use]
    pub fn is_free(&self, knob: &Knob) -> bool {
        self.found.contains_key(knob) && !self.outstanding.contains_key(knob)
    }

    /// A write was sent.
    pub fn sent(&mut self, knob: &Knob, value: KnobValue, now: Instant) {
        self.outstanding.insert(knob.clone(), value);
        if !self.watch.is_waiting() {
            self.watch.ask(now);
        }
    }

    /// Takes the outcome of a write.
    pub fn written(&mut self, knob: Knob, mut result: Result<Found, KnobError>, now: Instant) -> Option<Written> {
        let value = self.outstanding.remove(&knob)?;
        self.watch.answered(Duration::ZERO);
        if self.is_waiting() {
            self.watch.ask(now);
        }
        let before = self.found.get_mut(&knob);
        match (&mut result, before) {
            (Ok(found), before) => {
                found.epoch = before.as_ref().map_or(0, |before| before.epoch);
                self.found.insert(knob.clone(), found.clone());
            }
            (Err(KnobError { state, .. }), Some(before)) => {
                if matches!(state, KnobState::Unsupported | KnobState::NoPermission) {
                    before.state = *state;
                }
            }
            (Err(_), None) => {}
        }
        Some(Written { knob, value, result })
    }

    /// The thread has ended: no pending write is answered.
    pub(crate) fn abandon(&mut self) -> Vec<Written> {
        self.watch = Deadline::default();
        let lost = |(knob, value)| {
            let detail = "the GPU's thread has ended, so it is not known whether the value was written".to_owned();
            Written { knob, value, result: Err(KnobError { state: KnobState::Unreachable, detail }) }
        };
        std::mem::take(&mut self.outstanding).into_iter().map(lost).collect()
    }
}
