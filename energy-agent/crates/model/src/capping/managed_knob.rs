//! One knob: what it was, what was written, what shows, and what is to be done next. Pure: the actuator does it and says
//! how it went.

pub mod change;
mod clock;
pub mod fault;
pub mod floor;
mod lock;
mod outcome;
mod rival;
mod view;

use std::collections::VecDeque;
use std::time::Duration;

use self::change::{Change, ChangeKind};
use self::clock::Clock;
use self::fault::Fault;
use self::floor::fit;
use self::rival::Rival;
use super::journal_entry::Entry;
use super::knob::{Found, Knob, KnobError, Limit, Value};
use super::observation::{ClockLook, KnobState};
use super::policy::PolicyName;
use super::quantity::Quantity;
use super::stated::Stated;
use super::status::Writes;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Writes of one knob in a minute; a cut is never put off.
const WRITES_A_MINUTE: usize = 20;
/// A write that is not answered for so long by a device that answers otherwise was lost.
const LOST_AFTER: Duration = Duration::from_secs(30);

/// One knob.
#[derive(Clone, Debug)]
pub struct Track {
    pub knob: Knob,
    /// As it was seen last; `None`: it is not there.
    pub found: Option<Found>,
    /// It is in the journal.
    pub held: Option<Held>,
    /// Of the last decision.
    pub wanted: Option<Limit>,
    /// The kernel itself holds it lower than was written (heat, firmware): nobody else's value.
    pub lowered: bool,
    /// A quota whose pod is read now and then; it is dropped where that ends and nothing is to be given back.
    pub followed: bool,
    /// What a GPU runs at, MHz.
    pub clock_mhz: Option<u32>,
    /// A new reading of that; `None`: none since the last tick.
    pub look: Option<ClockLook>,
    pub restore_failures: u64,
    /// A write that was sent and is not answered yet, and since when.
    pending: Option<(Value, Duration)>,
    clamped: bool,
    writes: Writes,
    written_at: VecDeque<Duration>,
    deferred: Option<u64>,
    fault: Option<Fault>,
    restore_fault: Option<Fault>,
    rival: Rival,
    clock: Clock,
}

/// What was done to a knob that is in the journal.
#[derive(Clone, Debug)]
pub struct Held {
    pub original: Option<u64>,
    pub original_raw: String,
    /// `None`: of an earlier run, and not comparable.
    epoch: Option<u64>,
    pub written: u64,
    ours: Vec<u64>,
    pub policy: PolicyName,
    /// It was seen to be as written.
    confirmed: bool,
    /// Something was or may have been written.
    touched: bool,
}

impl Held {
    /// Whether this may be what the agent wrote, or what the device made of it.
    #[must_use]
    pub fn is_ours(&self, value: u64) -> bool {
        self.ours.contains(&value)
    }
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

impl Track {
    #[must_use]
    pub fn new(knob: Knob) -> Self {
        Self {
            knob,
            found: None,
            held: None,
            wanted: None,
            lowered: false,
            followed: false,
            clock_mhz: None,
            look: None,
            restore_failures: 0,
            pending: None,
            clamped: false,
            writes: Writes::default(),
            written_at: VecDeque::new(),
            deferred: None,
            fault: None,
            restore_fault: None,
            rival: Rival::default(),
            clock: Clock::default(),
        }
    }

    /// A knob that an earlier run wrote.
    #[must_use]
    pub fn adopt(entry: &Entry) -> Self {
        let mut track = Self::new(entry.knob.clone());
        let epoch = (!is_gpu(&entry.knob)).then_some(entry.epoch);
        track.held = Some(Held {
            original: entry.original,
            original_raw: entry.original_raw.clone(),
            epoch,
            written: entry.written,
            ours: entry.ours.clone(),
            policy: entry.policy.clone(),
            confirmed: false,
            touched: true,
        });
        track
    }

    /// Something was written, or may have been, or would be.
    #[must_use]
    pub const fn is_in_use(&self) -> bool {
        self.held.is_some() || self.wanted.is_some() || self.pending.is_some()
    }

    /// It could not be read; what was seen before may have changed.
    pub fn unreadable(&mut self, error: &KnobError) {
        let blank = Found { min: 0, max: 0, step: 1, value: None, raw: String::new(), state: error.state, epoch: 0 };
        let found = self.found.get_or_insert(blank);
        found.state = error.state;
        found.raw.clear();
    }

    /// It was set above this value by the agent.
    #[must_use]
    pub fn is_above(&self, value: u64) -> bool {
        self.held.as_ref().is_some_and(|held| held.written > value)
    }

    #[must_use]
    pub const fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// It cannot be given back for a reason that does not pass by itself.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.restore_fault
            .as_ref()
            .is_some_and(|fault| !matches!(fault.error.state, KnobState::Unreachable | KnobState::Error))
    }

    /// It is to be given back, and is not yet.
    #[must_use]
    pub const fn is_restore_pending(&self) -> bool {
        self.held.is_some() && self.wanted.is_none() && self.pending.is_none()
    }

    /// Why it could not be given back the last time.
    #[must_use]
    pub fn restore_error(&self) -> Option<&KnobError> {
        self.restore_fault.as_ref().map(|fault| &fault.error)
    }

    /// A policy that may write it anew, whatever happened, because it was changed.
    pub fn policy_changed(&mut self, policy: &PolicyName) {
        self.rival.policy_changed(policy);
        if self.wanted.as_ref().is_none_or(|limit| limit.policy == *policy) {
            self.fault = None;
        }
    }

    /// What is to be done so that the knob becomes what `limit` says, or what it was. `now` does not go backwards.
    pub fn decide(&mut self, now: Duration, limit: Option<&Limit>, changes: &mut Vec<Change>) -> Action {
        self.wanted = limit.cloned();
        self.clamped = false;
        self.rival.look(now, limit.map(|limit| &limit.policy));
        forget_before(&mut self.written_at, now, MINUTE);
        if let Some(action) = self.watch_lock(now, changes) {
            return action;
        }
        if limit.is_none() && !self.is_in_use() {
            self.deferred = None;
            return Action::Nothing;
        }
        let Some(found) = self.found.clone() else { return Action::Nothing };
        let readable = !matches!(self.knob, Knob::GpuClock(_));
        if let Some((_, since)) = self.pending {
            if found.state != KnobState::Ok || now.saturating_sub(since) < LOST_AFTER {
                return Action::Nothing;
            }
            self.pending = None;
        }
        // What the owner of the node states counts for more than what an earlier run knew.
        if let Some(held) = self.held.as_mut().filter(|held| !readable && held.original_raw != found.raw)
            && !found.raw.is_empty()
        {
            (held.original, held.original_raw) = (before(&self.knob, &found), found.raw.clone());
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

    /// Whether what shows is the agent's, what was before, or somebody else's.
    fn examine(&mut self, now: Duration, found: &Found, changes: &mut Vec<Change>) -> Option<Action> {
        let held = self.held.as_mut()?;
        let readable = !matches!(self.knob, Knob::GpuClock(_));
        let is_ours = found.value.is_some_and(|value| held.ours.contains(&value));
        if *held.epoch.get_or_insert(found.epoch) != found.epoch {
            held.epoch = Some(found.epoch);
            if readable && (!is_ours || matches!(self.knob, Knob::CpuQuota(_))) {
                // The device began anew: what it shows now is what it was before anything was written.
                if self.wanted.is_some() {
                    self.say(ChangeKind::Reverted, "the device began anew".to_owned(), changes);
                }
                self.held = None;
                return Some(Action::Forget);
            }
            if !readable && std::mem::replace(&mut held.confirmed, false) && self.wanted.is_some() {
                self.say(ChangeKind::Reverted, "the driver was loaded anew".to_owned(), changes);
            }
            return None;
        }
        if !readable {
            return None;
        }
        if is_ours {
            held.confirmed = true;
            return None;
        }
        let is_quota = matches!(self.knob, Knob::CpuQuota(_));
        // A quota in another period is another limit.
        if found.raw == held.original_raw || (!is_quota && found.value == held.original) {
            if std::mem::replace(&mut held.confirmed, false) && self.wanted.is_some() {
                let often = self.rival.reverted(now);
                let shown = format!("it went back to {}", text(&self.knob, found.value));
                if often {
                    return Some(self.give_way(now, &format!("{shown} again and again"), changes));
                }
                self.say(ChangeKind::Reverted, shown, changes);
            }
            return None;
        }
        // A run that was killed may not have noted what the device made of its value.
        // The kernel keeps a quota as it is written, and one in another period is a thousandth of a CPU off at most.
        let off = |ours: u64| if is_quota { 1 } else { found.step.max(ours / 64) };
        let close = |value: u64| held.ours.iter().any(|&ours| value.abs_diff(ours) <= off(ours));
        if self.lowered || (!held.confirmed && found.value.is_some_and(close)) {
            return None;
        }
        let [shown, written] = [found.value, Some(held.written)].map(|value| text(&self.knob, value));
        let detail = format!("{shown} shows where {written} was written");
        if is_quota {
            return Some(self.resized(now, &detail, changes));
        }
        Some(self.give_way(now, &detail, changes))
    }

    /// The kubelet resizes pods in place: a quota that somebody else writes is the pod's new limit. That is what comes back
    /// later, and what the budget holds the pod below from the next tick on.
    fn resized(&mut self, now: Duration, detail: &str, changes: &mut Vec<Change>) -> Action {
        if self.wanted.is_some() && self.rival.reverted(now) {
            return self.give_way(now, &format!("{detail}, again and again"), changes);
        }
        self.say(ChangeKind::Resized, detail.to_owned(), changes);
        self.held = None;
        (self.restore_fault, self.fault) = (None, None);
        Action::Forget
    }

    /// Somebody else writes it: what they wrote stands, and is what it was if it is ever written again.
    fn give_way(&mut self, now: Duration, detail: &str, changes: &mut Vec<Change>) -> Action {
        let Some(Held { policy, written, .. }) = self.held.clone() else { return Action::Nothing };
        self.rival.wrote(now, policy, self.found.as_ref().and_then(|found| found.value), written);
        // Without a limit nothing is written over it.
        let rule = self.wanted.as_ref().and_then(|_| self.why_theirs(now)).unwrap_or_else(|| "it stays".to_owned());
        self.say(ChangeKind::Foreign, format!("{detail}; {rule}"), changes);
        self.held = None;
        self.restore_fault = None;
        Action::Forget
    }

    fn release(&mut self, now: Duration, found: &Found) -> Action {
        self.deferred = None;
        let Some(held) = &self.held else { return Action::Nothing };
        let readable = !matches!(self.knob, Knob::GpuClock(_));
        if !held.touched || (readable && found.raw == held.original_raw) {
            self.held = None;
            self.restore_fault = None;
            return Action::Forget;
        }
        if self.restore_fault.as_ref().is_some_and(|fault| now < fault.retry) || self.doubts_lock(now) {
            return Action::Nothing;
        }
        Action::Restore
    }

    fn hold(&mut self, now: Duration, found: &Found, limit: &Limit) -> Action {
        let (mut value, clamped) = fit(&self.knob, found, limit.value);
        self.clamped = clamped;
        // Nothing is ever set above what it was.
        let original = self.held.as_ref().map_or_else(|| before(&self.knob, found), |held| held.original);
        value = original.map_or(value, |original| value.min(original));
        let usable = matches!(found.state, KnobState::Ok | KnobState::NotEffective);
        if !usable || self.rival.stands() || self.clock.lock.is_foreign() {
            return Action::Nothing;
        }
        let current = self.current();
        let stands = self.held.as_ref().is_some_and(|held| held.confirmed && held.written == value);
        let low_enough = self.held.is_none() && current.is_some_and(|current| current <= value);
        if stands || low_enough || current == Some(value) {
            self.deferred = None;
            return Action::Nothing;
        }
        if self.fault.as_ref().is_some_and(|fault| now < fault.retry) {
            return Action::Nothing;
        }
        let raise = current.is_some_and(|current| value > current);
        if raise && self.written_at.len() >= WRITES_A_MINUTE {
            if self.deferred.replace(value) != Some(value) {
                self.writes.deferred += 1;
            }
            return Action::Nothing;
        }
        self.deferred = None;
        if self.doubts_lock(now) {
            return Action::Nothing;
        }
        Action::Set(value)
    }

    /// The knob as it is, or is said to be, before it is written for the first time.
    #[must_use]
    pub fn before(&self) -> Option<Found> {
        self.found.clone().map(|found| Found { value: before(&self.knob, &found), ..found })
    }

    /// What is set now, as far as it is known; `None`: open.
    fn current(&self) -> Option<u64> {
        match (&self.knob, &self.held, &self.found) {
            (Knob::GpuClock(_), held, _) => held.as_ref().filter(|held| held.confirmed).map(|held| held.written),
            (_, _, found) => found.as_ref()?.value,
        }
    }

    fn fail(&mut self, now: Duration, error: KnobError, changes: &mut Vec<Change>) {
        let (state, detail) = (error.state, error.detail.clone());
        let before = self.fault.as_ref().map(|fault| fault.error.state);
        self.fault = Some(Fault::writing(self.fault.as_ref(), now, error));
        if before != Some(state) {
            self.say(ChangeKind::Refused(state), detail, changes);
        }
    }

    fn say(&self, kind: ChangeKind, detail: String, changes: &mut Vec<Change>) {
        let limit = self.wanted.as_ref().map(|limit| &limit.policy);
        let policy = self.held.as_ref().map(|held| &held.policy).or(limit).cloned();
        changes.push(Change { knob: self.knob.clone(), policy, kind, detail });
    }
}

const fn is_gpu(knob: &Knob) -> bool {
    matches!(knob, Knob::GpuClock(_) | Knob::GpuPower(_))
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

/// Drops the moments older than that.
fn forget_before(moments: &mut VecDeque<Duration>, now: Duration, time: Duration) {
    while moments.front().is_some_and(|at| now.saturating_sub(*at) >= time) {
        moments.pop_front();
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
