//! What a connection is doing and since when: how well it can be spared, and whether its time is over.

use std::time::{Duration, Instant};

use super::ClientStanding;
use crate::self_metrics::CloseReason;

/// A connection has this long before it is taken for one that does nothing.
const FRESH: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(super) struct ClientProgress {
    doing: Doing,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Nothing has come yet.
    Silent,
    /// The first request is not complete: a handshake, or half of the headers.
    Opening,
    /// A request is being answered, or waits for its password to be checked.
    Asking,
    /// Its password was wrong, and the answer waits.
    HeldBack,
    /// An answer is being sent since then.
    Reading { began: Instant },
    /// Between two requests.
    Idle,
}

impl ClientProgress {
    pub(super) const fn silent(since: Instant) -> Self {
        Self { doing: Doing::Silent, since }
    }

    pub(super) const fn opening(since: Instant) -> Self {
        Self { doing: Doing::Opening, since }
    }

    pub(super) const fn asking(since: Instant) -> Self {
        Self { doing: Doing::Asking, since }
    }

    pub(super) const fn held_back(since: Instant) -> Self {
        Self { doing: Doing::HeldBack, since }
    }

    pub(super) const fn reading(since: Instant) -> Self {
        Self { doing: Doing::Reading { began: since }, since }
    }

    pub(super) const fn idle(since: Instant) -> Self {
        Self { doing: Doing::Idle, since }
    }

    pub(super) const fn goes_on(&mut self, now: Instant) {
        self.since = now;
    }

    pub(super) fn is_silent(&self) -> bool {
        self.doing == Doing::Silent
    }

    /// The lowest is closed first. A probe or a scraper has asked by the time it could be taken for one that does nothing;
    /// one that is between two scrapes comes after those that never had an answer.
    pub(super) fn rank(&self, standing: ClientStanding, now: Instant) -> (u8, Instant) {
        let fresh = now.saturating_duration_since(self.since) < FRESH;
        let class = match self.doing {
            Doing::Silent | Doing::Opening | Doing::HeldBack if !fresh => 0,
            Doing::Idle if standing != ClientStanding::Passed => 0,
            Doing::Idle => 1,
            Doing::Reading { .. } if !fresh => 2,
            _ => 3,
        };
        (class, self.since)
    }

    pub(super) const fn reason(&self) -> CloseReason {
        match self.doing {
            Doing::Reading { .. } => CloseReason::Slow,
            _ => CloseReason::Idle,
        }
    }

    /// Why its time is over, if it is. Between two requests the server's own timer counts.
    pub(super) fn is_late(
        &self,
        now: Instant,
        first_request: Duration,
        unread: Duration,
        longest: Duration,
    ) -> Option<CloseReason> {
        let lasts = |since, limit| now.saturating_duration_since(since) > limit;
        match self.doing {
            Doing::Silent | Doing::Opening => lasts(self.since, first_request).then_some(CloseReason::Idle),
            Doing::Reading { began } => {
                (lasts(self.since, unread) || lasts(began, longest)).then_some(CloseReason::Slow)
            }
            Doing::Asking | Doing::HeldBack | Doing::Idle => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_never_asked_goes_before_who_did_and_who_just_came_goes_last() {
        let start = Instant::now();
        let now = start + 10 * SECOND;
        let places = [
            ("silent for 5 s", ClientProgress::silent(start + 5 * SECOND), ClientStanding::New),
            ("half a request for 3 s", ClientProgress::opening(start + 7 * SECOND), ClientStanding::New),
            ("refused a moment ago", ClientProgress::idle(now), ClientStanding::Failed),
            ("between two scrapes for 9 s", ClientProgress::idle(start + SECOND), ClientStanding::Passed),
            ("between two scrapes for 1 s", ClientProgress::idle(start + 9 * SECOND), ClientStanding::Passed),
            ("reads nothing for 8 s", ClientProgress::reading(start + 2 * SECOND), ClientStanding::Passed),
            ("has asked for 4 s", ClientProgress::asking(start + 6 * SECOND), ClientStanding::New),
            ("came 1 s ago", ClientProgress::silent(start + 9 * SECOND), ClientStanding::New),
        ];
        let mut sorted = places;
        sorted.sort_by_key(|(_, place, standing)| place.rank(*standing, now));
        assert_eq!(sorted.map(|(what, ..)| what), places.map(|(what, ..)| what));
    }

    #[test]
    fn an_answer_is_late_without_progress_or_after_the_longest_time() {
        let start = Instant::now();
        let mut place = ClientProgress::reading(start);
        let late = |place: &ClientProgress, seconds: u32| {
            place.is_late(start + SECOND * seconds, 10 * SECOND, 15 * SECOND, 60 * SECOND)
        };
        assert_eq!((late(&place, 15), late(&place, 16)), (None, Some(CloseReason::Slow)));
        for seconds in [14, 28, 42, 56] {
            place.goes_on(start + SECOND * seconds);
        }
        assert_eq!((late(&place, 60), late(&place, 61)), (None, Some(CloseReason::Slow)));
        let silent = ClientProgress::silent(start);
        assert_eq!((late(&silent, 10), late(&silent, 11)), (None, Some(CloseReason::Idle)));
        assert_eq!(late(&ClientProgress::asking(start), 1000), None);
    }
}
