//! Locks of a GPU's clocks that somebody else has set. No driver shows them: a GPU that works then runs below what it may,
//! and the driver gives no reason.

use std::time::Duration;

use super::change::{KnobChange, KnobChangeKind};
use super::{Action, KnobEvent, ManagedKnob, Theirs, before};
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

/// What the clocks of a GPU say of a lock that is not the agent's.
#[derive(Clone, Copy, Debug, Default)]
pub struct LockEvidence {
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

impl LockEvidence {
    /// The agent has written the clocks.
    pub fn wrote(&mut self, now: Duration) {
        self.settled_at = now + SETTLES;
        (self.below, self.possible, self.waits) = (None, false, None);
    }

    /// Takes the driver's epoch. Returns whether it was loaded anew: then it has no locks.
    fn is_anew(&mut self, epoch: u64) -> bool {
        let anew = self.epoch.is_some_and(|before| before != epoch);
        *self = if anew { Self::default() } else { *self };
        self.epoch = Some(epoch);
        anew
    }

    /// Takes a look at a GPU that may run at `top` and, where that is the agent's own limit, is `capped`. Returns whether a
    /// lock shows.
    fn take(&mut self, now: Duration, look: ClockLook, top: u64, margin: u64, capped: bool) -> bool {
        if u64::from(look.mhz) + margin >= top {
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
        looks + 1 >= enough && now.saturating_sub(since) >= time
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

impl ManagedKnob {
    /// Takes what the GPU runs at as evidence of a lock. One that shows for the first time is reported, and what the agent
    /// wrote is forgotten: the lock has taken its place.
    pub(super) fn watch_lock(&mut self, now: Duration, changes: &mut Vec<KnobChange>) -> Option<Action> {
        let (Knob::GpuClock(_), Some(found)) = (&self.knob, &self.observed.found) else { return None };
        if self.lock.is_anew(found.epoch) && self.phase.lock_mhz().is_some() {
            self.phase.on(KnobEvent::Open);
        }
        let held = self.phase.held();
        let is_pending = held.is_some_and(|held| held.pending_since().is_some());
        if is_pending || now < self.lock.settled_at || found.raw.parse() == Ok(Stated::Open) {
            return None;
        }
        let look = self.observed.look?;
        let (most, margin) = (self.most(found), margin(found));
        let allowed = match held {
            Some(held) if held.is_confirmed() => held.written,
            // Of an earlier run: whether it was written is not known.
            Some(_) => return None,
            None => most,
        };
        let capped = held.is_some();
        let shows = self.lock.take(now, look, allowed, margin, capped);
        let known = self.phase.lock_mhz();
        let stays = known.is_some_and(|mhz| u64::from(look.mhz) <= u64::from(mhz) + margin);
        let lock = Theirs::Lock { mhz: look.mhz };
        match (known, shows) {
            (Some(_), false) if !stays => {
                let detail = format!("its clocks are no longer locked, it runs at {} MHz", look.mhz);
                self.report(KnobChangeKind::Recovered, detail, changes);
                self.phase.on(KnobEvent::Open);
            }
            (_, true) if !stays => {
                self.report(KnobChangeKind::Locked, locked(look.mhz, most), changes);
                self.phase.on(KnobEvent::Yield(lock));
                if capped {
                    self.refusal = None;
                    return Some(Action::Forget);
                }
            }
            (_, true) => self.phase.on(KnobEvent::Yield(lock)),
            (_, false) => {}
        }
        None
    }

    /// Whether a write would replace a lock that there may be. Asked only when there is something to write.
    pub(super) fn doubts_lock(&mut self, now: Duration) -> bool {
        matches!(self.knob, Knob::GpuClock(_)) && self.lock.holds_up(now)
    }

    /// Nothing waits any more: the agent ends.
    pub fn stop_doubting(&mut self) {
        self.lock.possible = false;
    }

    /// What is seen of another's lock, and what to do; `None` without one.
    #[must_use]
    pub(super) fn why_locked(&self) -> Option<String> {
        let (mhz, found) = (self.phase.lock_mhz()?, self.observed.found.as_ref()?);
        Some(locked(mhz, self.most(found)))
    }

    /// The highest clock without the agent; MHz.
    fn most(&self, found: &Found) -> u64 {
        before(&self.knob, found).map_or(found.max, |most| most.min(found.max))
    }
}

fn locked(mhz: u32, most: u64) -> String {
    format!(
        "it runs at {mhz} MHz under load, the highest is {most} MHz, and the driver gives no reason: another program has locked its clocks; set the range to restore after a cap with --capping.gpu-clock-before=MIN-MAX, or open if {mhz} MHz is its maximum"
    )
}

fn margin(found: &Found) -> u64 {
    (2 * found.step).max(found.max / MARGIN)
}
