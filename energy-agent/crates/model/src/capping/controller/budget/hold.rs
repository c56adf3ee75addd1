//! How long nothing is raised after an excess, and how far apart raises are. The hold doubles while raises lead over the
//! budget again.

use std::time::Duration;

const LONGEST: Duration = Duration::from_secs(120);
/// An excess this soon after a raise was caused by it.
const SOON: Duration = Duration::from_secs(60);
const RAISE_EVERY: Duration = Duration::from_secs(5);

/// What earlier excesses and raises have taught. It outlives the cap that they belong to.
#[derive(Clone, Debug)]
pub struct Hold {
    length: Duration,
    last_raise: Option<Raise>,
    excess_at: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Raise {
    at: Duration,
    /// An excess was put down to it.
    blamed: bool,
}

impl Hold {
    /// `usual` is the policy's.
    #[must_use]
    pub const fn new(usual: Duration) -> Self {
        Self { length: usual, last_raise: None, excess_at: None }
    }

    #[must_use]
    pub const fn length(&self) -> Duration {
        self.length
    }

    /// The longest that there may be.
    #[must_use]
    pub fn longest(usual: Duration) -> Duration {
        LONGEST.max(usual)
    }

    /// The budget is another one.
    pub(crate) const fn forget_length(&mut self, usual: Duration) {
        self.length = usual;
    }

    /// The power is above the budget.
    pub fn excess(&mut self, now: Duration, usual: Duration) {
        match &mut self.last_raise {
            Some(Raise { at, blamed }) if !*blamed && now < *at + SOON => {
                self.length = (self.length * 2).min(Self::longest(usual));
                *blamed = true;
            }
            _ if self.excess_at.is_none_or(|at| now > at + self.length + SOON) => self.length = usual,
            _ => {}
        }
        self.excess_at = Some(now);
    }

    /// The last excess.
    #[must_use]
    pub(crate) const fn excess_at(&self) -> Option<Duration> {
        self.excess_at
    }

    /// Whether the last raise is long enough ago.
    #[must_use]
    pub(crate) fn may_raise(&self, now: Duration) -> bool {
        self.last_raise.is_none_or(|raise| now >= raise.at + RAISE_EVERY)
    }

    /// Something was raised.
    pub const fn raised(&mut self, now: Duration) {
        self.last_raise = Some(Raise { at: now, blamed: false });
    }

    /// The time that a raise is for, where ticks are `interval` apart.
    #[must_use]
    pub(crate) fn raise_time(interval: Duration) -> Duration {
        RAISE_EVERY.max(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_secs(5);

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_raise_is_blamed_for_one_excess_within_a_minute() {
        let mut hold = Hold::new(USUAL);
        hold.raised(at(100));
        hold.excess(at(159), USUAL);
        hold.excess(at(159), USUAL);
        assert_eq!(hold.length(), at(10));
        hold.raised(at(160));
        hold.excess(at(220), USUAL);
        assert_eq!(hold.length(), at(10), "the raise was a minute ago");
        for second in [300, 400, 500, 600, 700] {
            hold.raised(at(second));
            hold.excess(at(second + 1), USUAL);
        }
        assert_eq!(hold.length(), at(120));
        // It is as usual after a minute and the hold without an excess.
        hold.excess(at(701 + 180), USUAL);
        assert_eq!(hold.length(), at(120));
        hold.excess(at(881 + 181), USUAL);
        assert_eq!(hold.length(), USUAL);
    }

    #[test]
    fn a_policys_hold_may_be_longer_than_the_longest() {
        let usual = at(600);
        let mut hold = Hold::new(usual);
        hold.raised(at(1));
        hold.excess(at(2), usual);
        assert_eq!(hold.length(), usual);
    }

    #[test]
    fn raises_are_5_s_apart_whether_blamed_or_not() {
        let mut hold = Hold::new(USUAL);
        assert!(hold.may_raise(at(0)));
        hold.raised(at(10));
        hold.excess(at(11), USUAL);
        assert_eq!([14, 15].map(|second| hold.may_raise(at(second))), [false, true]);
    }
}
