//! One knob: what it was, what was written, what shows, and what to do next. Pure: the actuator does it and reports how it
//! went.

pub mod change;
mod fault;
mod floor;
mod lock;
mod obedience;
mod ownership;
mod pace;
mod phase;
mod rival;
mod view;
mod write;

use std::time::Duration;

use self::change::{KnobChange, KnobChangeKind};
use self::fault::KnobFault;
use self::floor::fit;
use self::lock::LockEvidence;
use self::obedience::Obedience;
use self::pace::Pace;
pub use self::phase::HeldKnob;
use self::phase::{KnobEvent, KnobPhase, Theirs};
use self::rival::Rival;
use self::view::Writability;
use super::journal_entry::JournalEntry;
use super::knob::{Found, Knob, KnobError, Limit};
use super::observation::ClockLook;
use super::policy::PolicyName;
use super::quantity::Quantity;
use super::stated::Stated;
use super::status::Writes;
use crate::capping::knob::KnobState;

const MINUTE: Duration = Duration::from_secs(60);
/// A write without an answer for so long, by a device that answers otherwise, was lost.
const LOST_AFTER: Duration = Duration::from_secs(30);

/// One knob.
#[derive(Clone, Debug)]
pub struct ManagedKnob {
    pub knob: Knob,
    pub observed: Observed,
    /// Of the last decision; `None`: it is to be as it was.
    wanted: Option<Wanted>,
    phase: KnobPhase,
    /// The last write of a limit failed; until one works.
    refusal: Option<KnobFault>,
    writes: Writes,
    restore_failures: u64,
    pace: Pace,
    rival: Rival,
    obedience: Obedience,
    lock: LockEvidence,
}

/// What was seen of a knob at this tick.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// As it was read last; `None`: it is not there.
    pub found: Option<Found>,
    /// The kernel itself (heat, firmware) holds it lower than what was written; nobody else has set it.
    pub lowered: bool,
    /// What a GPU runs at, MHz.
    pub clock_mhz: Option<u32>,
    /// A new reading of that; `None`: none since the last tick.
    pub look: Option<ClockLook>,
}

/// A limit that was asked for.
#[derive(Clone, Debug)]
struct Wanted {
    limit: Limit,
    /// It is below the floor.
    clamped: bool,
}

/// What is to be done with a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    /// Note it in the journal, then write it.
    Set(u64),
    Restore,
    /// Take it out of the journal; nothing is to be written.
    Forget,
}

impl ManagedKnob {
    #[must_use]
    pub fn new(knob: Knob) -> Self {
        Self {
            knob,
            observed: Observed::default(),
            wanted: None,
            phase: KnobPhase::Open,
            refusal: None,
            writes: Writes::default(),
            restore_failures: 0,
            pace: Pace::default(),
            rival: Rival::default(),
            obedience: Obedience::default(),
            lock: LockEvidence::default(),
        }
    }

    /// A knob that an earlier run wrote.
    #[must_use]
    pub fn adopt(entry: &JournalEntry) -> Self {
        Self { phase: KnobPhase::adopted(entry), ..Self::new(entry.knob.clone()) }
    }

    /// It could not be read; what was seen before may have changed.
    pub fn unreadable(&mut self, error: &KnobError) {
        let blank = Found { min: 0, max: 0, step: 1, value: None, raw: String::new(), state: error.state, epoch: 0 };
        let found = self.observed.found.get_or_insert(blank);
        found.state = error.state;
        found.raw.clear();
    }

    /// A policy that was changed may write at once, whatever happened.
    pub fn policy_changed(&mut self, changed: &PolicyName) {
        if let KnobPhase::Yielded(Theirs::Value { policy, .. }) = &self.phase
            && policy == changed
        {
            self.phase.on(KnobEvent::Open);
        }
        if self.wanted.as_ref().is_none_or(|wanted| wanted.limit.policy == *changed) {
            self.refusal = None;
        }
    }

    /// What is to be done so that the knob becomes what `limit` says, or what it was. `now` does not go backwards.
    pub fn decide(&mut self, now: Duration, limit: Option<&Limit>, changes: &mut Vec<KnobChange>) -> Action {
        self.wanted = limit.map(|limit| Wanted { limit: limit.clone(), clamped: false });
        self.end_yield(now);
        self.pace.look(now);
        if let Some(action) = self.watch_lock(now, changes) {
            return action;
        }
        if !self.is_in_use() {
            self.pace.deferred = None;
            return Action::Nothing;
        }
        let Some(found) = self.observed.found.clone() else { return Action::Nothing };
        if let Some(since) = self.phase.held().and_then(HeldKnob::pending_since) {
            if found.state != KnobState::Ok || now.saturating_sub(since) < LOST_AFTER {
                return Action::Nothing;
            }
            self.phase.on(KnobEvent::Lost);
        }
        let readable = self.knob.is_readable();
        // What the owner of the node states counts for more than what an earlier run knew.
        if !readable && !found.raw.is_empty() {
            self.phase.on(KnobEvent::Stated { original: before(&self.knob, &found), raw: found.raw.clone() });
        }
        // Where nothing could be read, nothing is known of who wrote it.
        if !(readable && found.raw.is_empty())
            && let Some(action) = self.examine(now, &found, changes)
        {
            return action;
        }
        self.watch_clock(now, &found, changes);
        match limit {
            None => self.release(now, &found),
            Some(limit) => self.hold(now, &found, limit),
        }
    }

    fn release(&mut self, now: Duration, found: &Found) -> Action {
        self.pace.deferred = None;
        let Some(held) = self.phase.held() else { return Action::Nothing };
        if !held.may_be_written() || (self.knob.is_readable() && found.raw == held.original_raw) {
            self.phase.on(KnobEvent::Open);
            return Action::Forget;
        }
        if held.restore_fault.as_ref().is_some_and(|fault| now < fault.retry) || self.doubts_lock(now) {
            return Action::Nothing;
        }
        Action::Restore
    }

    fn hold(&mut self, now: Duration, found: &Found, limit: &Limit) -> Action {
        let (value, clamped) = fit(&self.knob, found, limit.value);
        self.wanted = Some(Wanted { limit: limit.clone(), clamped });
        // Nothing is ever set above what it was.
        let value = self.original().map_or(value, |original| value.min(original));
        let refused = match self.standing(now) {
            Writability::Usable => false,
            Writability::Refused(_) => true,
            Writability::Absent | Writability::Yielded | Writability::Unusable(_) => return Action::Nothing,
        };
        let current = self.current();
        let as_wanted = match self.phase.held() {
            Some(held) => held.is_confirmed() && held.written == value,
            None => current.is_some_and(|current| current <= value),
        };
        if as_wanted || current == Some(value) {
            self.pace.deferred = None;
            return Action::Nothing;
        }
        if refused {
            return Action::Nothing;
        }
        let raise = current.is_some_and(|current| value > current);
        if raise && self.pace.is_full() {
            if self.pace.deferred.replace(value) != Some(value) {
                self.writes.deferred += 1;
            }
            return Action::Nothing;
        }
        self.pace.deferred = None;
        if self.doubts_lock(now) {
            return Action::Nothing;
        }
        Action::Set(value)
    }

    /// Writing a limit failed.
    fn refuse(&mut self, now: Duration, error: KnobError, changes: &mut Vec<KnobChange>) {
        let (state, detail) = (error.state, error.detail.clone());
        let before = self.refusal.as_ref().map(|fault| fault.error.state);
        self.refusal = Some(KnobFault::writing(self.refusal.as_ref(), now, error));
        if before != Some(state) {
            self.report(KnobChangeKind::Refused(state), detail, changes);
        }
    }

    fn report(&self, kind: KnobChangeKind, detail: String, changes: &mut Vec<KnobChange>) {
        changes.push(KnobChange { knob: self.knob.clone(), policy: self.policy().cloned(), kind, detail });
    }

    /// The policy of the limit that is set or, without one, wanted.
    fn policy(&self) -> Option<&PolicyName> {
        let wanted = self.wanted.as_ref().map(|wanted| &wanted.limit.policy);
        self.phase.held().map(|held| &held.policy).or(wanted)
    }
}

/// A value of the knob for people.
fn text(knob: &Knob, value: Option<u64>) -> String {
    value.map_or_else(|| "no limit".to_owned(), |value| Quantity::of(knob, value).to_string())
}

/// What a knob is before it is written for the first time. Of a GPU's clocks that is what the owner of the node states:
/// [`Found::value`] is what the agent wrote last.
fn before(knob: &Knob, found: &Found) -> Option<u64> {
    match (knob, found.raw.parse()) {
        (Knob::GpuClock(_), Ok(Stated::Locked(range))) => Some(range.max.into()),
        (Knob::GpuClock(_), _) => None,
        _ => found.value,
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
