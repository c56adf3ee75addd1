//! Somebody else who writes the same knob: how long their value is left alone, and how often it is written over. Two writers that
//! never give way would write without end.

use std::collections::VecDeque;
use std::time::Duration;

use super::pace::forget_before;
use super::{KnobEvent, KnobPhase, MINUTE, ManagedKnob, Theirs, text};
use crate::capping::knob::Knob;

const HOUR: Duration = Duration::from_secs(3600);
/// How long a lower value, which keeps the budget, is left alone.
const LOWER_STANDS: Duration = Duration::from_secs(600);
/// How long a higher one is.
const HIGHER_STANDS: Duration = MINUTE;
/// So often within an hour a higher value is written over.
const OVERWRITES_AN_HOUR: usize = 3;
/// So often a value that went back to what it was is set again, within a minute and within an hour. Then somebody means it.
const REVERTS_A_MINUTE: usize = 5;
const REVERTS_AN_HOUR: usize = 20;

/// What is known of another writer of a knob.
#[derive(Clone, Debug, Default)]
pub struct Rival {
    /// When the last of their values were, or will be, written over.
    overwritten: VecDeque<Duration>,
    reverted: VecDeque<Duration>,
}

impl Rival {
    /// They have set `shown` where `written` was. Until when that is left alone.
    pub fn wrote(&mut self, now: Duration, shown: Option<u64>, written: u64) -> Duration {
        if is_lower(shown, written) {
            return now + LOWER_STANDS;
        }
        let soon = now + HIGHER_STANDS;
        let full = self.overwritten.len() >= OVERWRITES_AN_HOUR;
        let oldest = full.then(|| self.overwritten.pop_front()).flatten();
        let until = oldest.map_or(soon, |oldest| soon.max(oldest + HOUR));
        self.overwritten.push_back(until);
        until
    }

    /// It went back to what it was. Whether that is so often that somebody means it.
    pub(crate) fn reverted(&mut self, now: Duration) -> bool {
        forget_before(&mut self.reverted, now, HOUR);
        self.reverted.push_back(now);
        let lately = self.reverted.iter().filter(|at| now.saturating_sub(**at) < MINUTE).count();
        lately > REVERTS_A_MINUTE || self.reverted.len() > REVERTS_AN_HOUR
    }
}

impl ManagedKnob {
    /// Ends a yield that is over. A limit of another policy than the one that they replaced need not wait.
    pub(super) fn end_yield(&mut self, now: Duration) {
        if let KnobPhase::Yielded(Theirs::Value { until, policy, .. }) = &self.phase
            && (now >= *until || self.wanted.as_ref().is_some_and(|wanted| wanted.limit.policy != *policy))
        {
            self.phase.on(KnobEvent::Open);
        }
    }
}

impl Theirs {
    /// What is done about their value, for people; `None` where its time is over, or it is a lock.
    #[must_use]
    pub fn rule(&self, knob: &Knob, now: Duration) -> Option<String> {
        let Self::Value { until, shown, written, .. } = self else { return None };
        let left = until.checked_sub(now).filter(|left| !left.is_zero())?.as_secs();
        let [theirs, ours] = [*shown, Some(*written)].map(|value| text(knob, value));
        let (comparison, then) = if is_lower(*shown, *written) {
            ("lower", "it stays".to_owned())
        } else {
            let most = "at most three times within an hour (a repeated value: at once, at most twenty times)";
            ("higher", format!("the agent overwrites it after {left} s, {most}"))
        };
        Some(format!(
            "another program has set {theirs}, which is {comparison} than the {ours} that the agent wrote: {then}"
        ))
    }
}

/// No limit is higher than every value.
fn is_lower(shown: Option<u64>, written: u64) -> bool {
    shown.is_some_and(|shown| shown < written)
}
