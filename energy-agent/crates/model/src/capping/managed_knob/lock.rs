//! Locks of a GPU's clocks that somebody else has set. No driver tells them: they show where a GPU that works runs below what
//! it may, and the driver gives no reason.

use std::time::Duration;

use super::change::ChangeKind;
use super::{Action, Change, Track, before};
use crate::capping::knob::{Found, Knob};
use crate::capping::observation::{ClockLook, Why};
use crate::capping::stated::Stated;

/// Clocks follow a write at once; what is shown may be a second old.
const SETTLES: Duration = Duration::from_secs(3);
/// A clock that stays the same at so many looks, over so long, is locked: before the agent writes, and while it caps. A lock
/// that is taken for another's too early would leave the agent's own behind.
const OPEN: (u32, Duration) = (3, Duration::from_secs(2));
const CAPPED: (u32, Duration) = (5, Duration::from_secs(4));
/// For so many looks, and so long, nothing is written while a lock is possible.
const DOUBTS: (u32, Duration) = (8, Duration::from_secs(8));
/// A GPU that ran at the highest clock so recently is not locked because it idles now.
const REMEMBERED: Duration = Duration::from_secs(60);
/// A clock that does not change may be shown on two neighbouring steps; MHz.
const STEP: u32 = 15;
/// Within this part of the highest clock below what is allowed, a GPU runs as fast as it may.
const MARGIN: u64 = 32;

/// What is known of a lock that is not the agent's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lock {
    /// The clock that the GPU is locked to; MHz.
    foreign: Option<u32>,
    /// The clock that was seen without an explanation, since when, and how often in a row.
    below: Option<(u32, Duration, u32)>,
    /// The last look says that there may be a lock.
    possible: bool,
    /// Since when, and how often, a write has waited for that.
    waits: Option<(Duration, u32)>,
    /// It ran as fast as it may.
    free_at: Option<Duration>,
    /// What is seen before has to do with the last write.
    settled_at: Duration,
    /// The driver that all this is of.
    epoch: Option<u64>,
}

impl Lock {
    #[must_use]
    pub const fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// The agent has written the clocks.
    pub fn wrote(&mut self, now: Duration) {
        self.settled_at = now + SETTLES;
        (self.below, self.possible, self.waits) = (None, false, None);
    }

    /// Takes a look at a GPU that may run at `top` and, where that is the agent's own limit, is `capped`. Returns whether a
    /// lock shows for the first time.
    fn take(&mut self, now: Duration, look: ClockLook, top: u64, margin: u64, capped: bool) -> bool {
        let clock = u64::from(look.mhz);
        if self.foreign.is_some_and(|mhz| clock > u64::from(mhz) + margin) {
            self.foreign = None;
        }
        if clock + margin >= top {
            (self.below, self.possible, self.waits, self.free_at) = (None, false, None, Some(now));
            return false;
        }
        let recently = self.free_at.is_some_and(|at| now.saturating_sub(at) < REMEMBERED);
        self.possible = match look.why {
            Why::Unexplained => true,
            Why::Idle => !capped && !recently,
            Why::Explained => false,
        };
        if look.why != Why::Unexplained {
            return false;
        }
        let (mhz, since, looks) =
            self.below.filter(|(mhz, ..)| look.mhz.abs_diff(*mhz) <= STEP).unwrap_or((look.mhz, now, 0));
        self.below = Some((mhz, since, looks + 1));
        let (enough, time) = if capped { CAPPED } else { OPEN };
        let shows = looks + 1 >= enough && now.saturating_sub(since) >= time;
        shows && self.foreign.replace(look.mhz).is_none()
    }

    /// Whether a write has to wait, because there may be a lock that it would replace. Not for long: a GPU of which nothing
    /// can be known is capped.
    fn holds_up(&mut self, now: Duration) -> bool {
        if !self.possible {
            self.waits = None;
            return false;
        }
        let (since, looks) = self.waits.unwrap_or((now, 0));
        self.waits = Some((since, looks + 1));
        looks < DOUBTS.0 || now.saturating_sub(since) < DOUBTS.1
    }
}

impl Track {
    /// Takes what the GPU runs at as evidence of a lock. Where one shows for the first time it is said, and what the agent
    /// wrote is forgotten: the lock has taken its place.
    pub(super) fn watch_lock(&mut self, now: Duration, changes: &mut Vec<Change>) -> Option<Action> {
        let (Knob::GpuClock(_), Some(found)) = (&self.knob, &self.found) else { return None };
        if self.clock.lock.epoch.replace(found.epoch).is_some_and(|epoch| epoch != found.epoch) {
            // A driver that is loaded anew has no locks.
            self.clock.lock = Lock { epoch: Some(found.epoch), ..Lock::default() };
        }
        if self.pending.is_some() || now < self.clock.lock.settled_at || found.raw.parse() == Ok(Stated::Open) {
            return None;
        }
        let look = self.look?;
        let allowed = match &self.held {
            Some(held) if held.confirmed => held.written,
            // Of an earlier run: whether it was written is not known.
            Some(_) => return None,
            None => self.most(found),
        };
        let (capped, was_locked) = (self.held.is_some(), self.clock.lock.is_foreign());
        let shows = self.clock.lock.take(now, look, allowed, margin(found), capped);
        if was_locked && !self.clock.lock.is_foreign() {
            let detail = format!("its clocks are not locked any more, it runs at {} MHz", look.mhz);
            self.say(ChangeKind::Recovered, detail, changes);
        }
        if !shows {
            return None;
        }
        self.say(ChangeKind::Locked, self.why_locked().unwrap_or_default(), changes);
        if !capped {
            return None;
        }
        self.held = None;
        (self.restore_fault, self.fault) = (None, None);
        Some(Action::Forget)
    }

    /// Whether a write would replace a lock that there may be. Asked only when there is something to write.
    pub(super) fn doubts_lock(&mut self, now: Duration) -> bool {
        matches!(self.knob, Knob::GpuClock(_)) && self.clock.lock.holds_up(now)
    }

    /// Nothing waits any more: the agent ends.
    pub fn stop_doubting(&mut self) {
        self.clock.lock.possible = false;
    }

    /// What is seen of another's lock, and what to do; `None` without one.
    #[must_use]
    pub(super) fn why_locked(&self) -> Option<String> {
        let (mhz, found) = (self.clock.lock.foreign?, self.found.as_ref()?);
        let most = self.most(found);
        Some(format!(
            "it runs at {mhz} MHz under load where {most} MHz is the highest, and the driver gives no reason: somebody else has \
             locked its clocks; state what to restore after a cap, --capping.gpu-clock-before=MIN-MAX, or open if {mhz} MHz \
             is all that it can do"
        ))
    }

    /// The highest clock without the agent; MHz.
    fn most(&self, found: &Found) -> u64 {
        before(&self.knob, found).map_or(found.max, |most| most.min(found.max))
    }
}

fn margin(found: &Found) -> u64 {
    (2 * found.step).max(found.max / MARGIN)
}
