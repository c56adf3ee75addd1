//! Somebody else who writes the same knob: how long their value stands, and how often it is written over. Two writers that
//! never give way would write without end.

use std::collections::VecDeque;
use std::time::Duration;

use super::{HOUR, MINUTE, Track, forget_before, text};
use crate::capping::policy::PolicyName;

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
    stands: Option<Stands>,
    /// When the last of their values were, or will be, written over.
    overwritten: VecDeque<Duration>,
    reverted: VecDeque<Duration>,
}

/// A value of theirs that is left alone.
#[derive(Clone, Debug)]
struct Stands {
    until: Duration,
    /// Whose limit it replaced.
    policy: PolicyName,
    /// `None`: no limit.
    shown: Option<u64>,
    written: u64,
}

impl Rival {
    /// Their value is left alone.
    #[must_use]
    pub const fn stands(&self) -> bool {
        self.stands.is_some()
    }

    /// Their value is left alone, whatever policy asks.
    #[must_use]
    pub fn stands_at(&self, now: Duration) -> bool {
        self.stands.as_ref().is_some_and(|stands| now < stands.until)
    }

    /// Ends what is over. A limit of another policy than the one that they replaced need not wait.
    pub fn look(&mut self, now: Duration, limit_of: Option<&PolicyName>) {
        self.stands.take_if(|stands| now >= stands.until || limit_of.is_some_and(|policy| *policy != stands.policy));
    }

    /// A policy that was changed need not wait.
    pub fn policy_changed(&mut self, policy: &PolicyName) {
        self.stands.take_if(|stands| stands.policy == *policy);
    }

    /// They have set `shown` where `written` was.
    pub fn wrote(&mut self, now: Duration, policy: PolicyName, shown: Option<u64>, written: u64) {
        let until = if is_lower(shown, written) {
            now + LOWER_STANDS
        } else {
            let soon = now + HIGHER_STANDS;
            let full = self.overwritten.len() >= OVERWRITES_AN_HOUR;
            let oldest = full.then(|| self.overwritten.pop_front()).flatten();
            let until = oldest.map_or(soon, |oldest| soon.max(oldest + HOUR));
            self.overwritten.push_back(until);
            until
        };
        self.stands = Some(Stands { until, policy, shown, written });
    }

    /// It went back to what it was. Whether that is so often that somebody means it.
    pub fn reverted(&mut self, now: Duration) -> bool {
        forget_before(&mut self.reverted, now, HOUR);
        self.reverted.push_back(now);
        let lately = self.reverted.iter().filter(|at| now.saturating_sub(**at) < MINUTE).count();
        lately > REVERTS_A_MINUTE || self.reverted.len() > REVERTS_AN_HOUR
    }
}

impl Track {
    /// Whose value rules, and until when; `None` where it is the agent's, or no value is set.
    #[must_use]
    pub(super) fn why_theirs(&self, now: Duration) -> Option<String> {
        let Stands { until, shown, written, .. } = self.rival.stands.as_ref().filter(|stands| now < stands.until)?;
        let [theirs, ours] = [*shown, Some(*written)].map(|value| text(&self.knob, value));
        let (comparison, then) = if is_lower(*shown, *written) {
            ("lower", "it stays".to_owned())
        } else {
            let left = until.saturating_sub(now).as_secs();
            let most = "three times within an hour at most (the same value again: at once, twenty times)";
            ("higher", format!("it stands for {left} s more and is then written over, {most}"))
        };
        Some(format!(
            "somebody else has set {theirs}, which is {comparison} than the {ours} that the agent wrote: {then}"
        ))
    }
}

/// No limit is higher than every value.
fn is_lower(shown: Option<u64>, written: u64) -> bool {
    shown.is_some_and(|shown| shown < written)
}
