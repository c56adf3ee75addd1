//! Whether a knob is open, held by the agent, or left to somebody else. Every transition is in [`KnobPhase::after`].

use std::time::Duration;

use super::fault::KnobFault;
use crate::capping::journal_entry::{JournalEntry, add_own};
use crate::capping::knob::Found;
use crate::capping::policy::PolicyName;

/// What the agent has done to a knob, or leaves to somebody else.
#[derive(Clone, Debug, Default)]
pub enum KnobPhase {
    /// It is not in the journal, and the agent may write it.
    #[default]
    Open,
    /// Somebody else has set it. Their value is left alone for a while.
    Yielded(Theirs),
    /// It is in the journal: the agent has written it, or is about to.
    Held(HeldKnob),
}

/// A value of somebody else.
#[derive(Clone, Debug)]
pub enum Theirs {
    /// It shows where the agent had written; left alone until then.
    Value {
        until: Duration,
        /// The policy of the limit that it replaced.
        policy: PolicyName,
        /// `None`: no limit.
        shown: Option<u64>,
        written: u64,
    },
    /// A lock of a GPU's clocks, left alone while the GPU runs no faster than this; MHz.
    Lock { mhz: u32 },
}

/// What was done to a knob that is in the journal.
#[derive(Clone, Debug)]
pub struct HeldKnob {
    pub original: Option<u64>,
    pub original_raw: String,
    /// `None`: of an earlier run, and not comparable.
    pub epoch: Option<u64>,
    pub written: u64,
    /// Values that may show and are the agent's: the one written, the one before, and what the device made of them.
    pub ours: Vec<u64>,
    pub policy: PolicyName,
    /// The last failure to restore it.
    pub restore_fault: Option<KnobFault>,
    stage: Stage,
}

/// How far the last write has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The device has taken no write so far.
    Noted,
    /// A limit is on its way. Where that is the `first`, the device has taken none before.
    Setting { since: Duration, first: bool },
    /// The device has, or may have, a value of the agent, and shows another one or nothing.
    Unconfirmed,
    /// The device shows the value, or has taken it and cannot show it.
    Confirmed,
    /// The original value is on its way.
    Restoring { since: Duration, confirmed: bool },
}

/// What happens to a knob.
#[derive(Clone, Debug)]
pub enum KnobEvent {
    /// A limit is sent. `original` is what the knob is without the agent.
    Set { now: Duration, value: u64, policy: PolicyName, found: Found, original: Option<u64> },
    /// The original value is sent.
    Restore { now: Duration },
    /// What was sent did not reach the device.
    Unsent,
    /// No answer came. The device may have taken it.
    Lost,
    /// The device has taken a limit, and shows this.
    Accepted { value: u64, shown: Option<u64> },
    /// It has not. Where it was `touched` it may have it all the same; `shown` is then also the agent's.
    Refused { touched: bool, shown: Option<u64> },
    /// It has not taken the original value. `None`: that is no fault.
    NotRestored { fault: Option<KnobFault> },
    /// It shows what the agent wrote.
    Shown,
    /// It does not show that any more.
    Undone,
    /// It is another device, or a driver that was loaded again.
    Epoch(u64),
    /// The owner of the node states another original.
    Stated { original: Option<u64>, raw: String },
    /// Somebody else has set it.
    Yield(Theirs),
    /// There is nothing to restore, or nothing of somebody else to be left alone.
    Open,
}

impl KnobPhase {
    /// Of a knob that an earlier run wrote.
    #[must_use]
    pub fn adopted(entry: &JournalEntry) -> Self {
        Self::Held(HeldKnob {
            original: entry.original,
            original_raw: entry.original_raw.clone(),
            epoch: (!entry.knob.is_gpu()).then_some(entry.epoch),
            written: entry.written,
            ours: entry.ours.clone(),
            policy: entry.policy.clone(),
            restore_fault: None,
            stage: Stage::Unconfirmed,
        })
    }

    /// Goes to the phase after `event`.
    pub fn on(&mut self, event: KnobEvent) {
        *self = std::mem::take(self).after(event);
    }

    fn after(self, event: KnobEvent) -> Self {
        let held = match (self, event) {
            (_, KnobEvent::Open) => return Self::Open,
            (_, KnobEvent::Yield(theirs)) => return Self::Yielded(theirs),
            (Self::Open | Self::Yielded(_), KnobEvent::Set { now, value, policy, found, original }) => {
                HeldKnob::noted(&found, original, policy.clone()).sent(now, value, policy, &found)
            }
            // All others are about what the agent has written.
            (phase @ (Self::Open | Self::Yielded(_)), _) => return phase,
            (Self::Held(held), KnobEvent::Set { now, value, policy, found, .. }) => {
                held.sent(now, value, policy, &found)
            }
            (Self::Held(held), KnobEvent::Restore { now }) => {
                let confirmed = held.is_confirmed();
                held.at(Stage::Restoring { since: now, confirmed })
            }
            (Self::Held(held), KnobEvent::Unsent) => held.unanswered(),
            (Self::Held(held), KnobEvent::Lost) => match held.unanswered() {
                held if held.stage == Stage::Noted => held.at(Stage::Unconfirmed),
                held => held,
            },
            (Self::Held(mut held), KnobEvent::Accepted { value, shown }) => {
                held.ours = [value].into_iter().chain(shown.filter(|shown| *shown != value)).collect();
                held.at(Stage::Confirmed)
            }
            (Self::Held(mut held), KnobEvent::Refused { touched, shown }) => {
                if !touched && !held.may_be_written() {
                    return Self::Open;
                }
                held.ours.extend(shown);
                held.at(Stage::Unconfirmed)
            }
            (Self::Held(held), KnobEvent::NotRestored { fault }) => {
                let restore_fault = fault.or_else(|| held.restore_fault.clone());
                HeldKnob { restore_fault, ..held.unanswered() }
            }
            (Self::Held(held), KnobEvent::Shown) if held.stage == Stage::Unconfirmed => held.at(Stage::Confirmed),
            (Self::Held(held), KnobEvent::Undone) if held.stage == Stage::Confirmed => held.at(Stage::Unconfirmed),
            (Self::Held(held), KnobEvent::Shown | KnobEvent::Undone) => held,
            (Self::Held(held), KnobEvent::Epoch(epoch)) => HeldKnob { epoch: Some(epoch), ..held },
            (Self::Held(held), KnobEvent::Stated { original, raw }) => HeldKnob { original, original_raw: raw, ..held },
        };
        Self::Held(held)
    }

    #[must_use]
    pub const fn held(&self) -> Option<&HeldKnob> {
        match self {
            Self::Held(held) => Some(held),
            Self::Open | Self::Yielded(_) => None,
        }
    }

    /// The clock that somebody else has locked the GPU to; MHz.
    #[must_use]
    pub(crate) const fn lock_mhz(&self) -> Option<u32> {
        match self {
            Self::Yielded(Theirs::Lock { mhz }) => Some(*mhz),
            Self::Open | Self::Held(_) | Self::Yielded(Theirs::Value { .. }) => None,
        }
    }

    /// Whether it is left to somebody else at that time.
    #[must_use]
    pub(crate) fn is_yielded_at(&self, now: Duration) -> bool {
        match self {
            Self::Yielded(Theirs::Value { until, .. }) => now < *until,
            Self::Yielded(Theirs::Lock { .. }) => true,
            Self::Open | Self::Held(_) => false,
        }
    }
}

impl HeldKnob {
    fn noted(found: &Found, original: Option<u64>, policy: PolicyName) -> Self {
        Self {
            original,
            original_raw: found.raw.clone(),
            epoch: Some(found.epoch),
            written: 0,
            ours: Vec::new(),
            policy,
            restore_fault: None,
            stage: Stage::Noted,
        }
    }

    fn sent(mut self, now: Duration, value: u64, policy: PolicyName, found: &Found) -> Self {
        add_own(&mut self.ours, value, found.value);
        let first = !self.may_be_written();
        Self { written: value, policy, stage: Stage::Setting { since: now, first }, ..self }
    }

    fn at(self, stage: Stage) -> Self {
        Self { stage, ..self }
    }

    /// As before the write that is on its way.
    fn unanswered(self) -> Self {
        let stage = match self.stage {
            Stage::Setting { first: true, .. } => Stage::Noted,
            Stage::Setting { first: false, .. } | Stage::Restoring { confirmed: false, .. } => Stage::Unconfirmed,
            Stage::Restoring { confirmed: true, .. } => Stage::Confirmed,
            stage => stage,
        };
        self.at(stage)
    }

    /// Whether this may be what the agent wrote, or what the device made of it.
    #[must_use]
    pub fn is_ours(&self, value: u64) -> bool {
        self.ours.contains(&value)
    }

    /// The device shows what was written, or has taken it and cannot show it.
    #[must_use]
    pub(crate) const fn is_confirmed(&self) -> bool {
        matches!(self.stage, Stage::Confirmed | Stage::Restoring { confirmed: true, .. })
    }

    /// The device has, or may have, a value of the agent.
    #[must_use]
    pub(crate) const fn may_be_written(&self) -> bool {
        !matches!(self.stage, Stage::Noted | Stage::Setting { first: true, .. })
    }

    /// When the write was sent that is not answered yet.
    #[must_use]
    pub(crate) const fn pending_since(&self) -> Option<Duration> {
        match self.stage {
            Stage::Setting { since, .. } | Stage::Restoring { since, .. } => Some(since),
            Stage::Noted | Stage::Unconfirmed | Stage::Confirmed => None,
        }
    }

    /// A limit is on its way.
    #[must_use]
    pub(crate) const fn is_being_set(&self) -> bool {
        matches!(self.stage, Stage::Setting { .. })
    }
}
