//! How busy the hardware of a zone was, as an exact part of a whole: CPU time of its CPUs, or millionths of a GPU.

/// `part` of `whole`; never more than all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    part: u64,
    whole: u128,
}

impl Busy {
    #[must_use]
    pub fn new(part: u64, whole: u128) -> Self {
        let part = u64::try_from(u128::from(part).min(whole)).expect("at most `part`");
        Self { part, whole }
    }

    /// `amount` times the busy part, rounded down. CPUs that are all offline were not busy.
    #[must_use]
    pub fn of(self, amount: u64) -> u64 {
        // Both factors are below 2^64, and the quotient is at most `amount`.
        let part = (u128::from(amount) * u128::from(self.part)).checked_div(self.whole).unwrap_or_default();
        u64::try_from(part).unwrap_or(amount)
    }

    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.part == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_rounded_down_and_at_most_the_whole() {
        assert_eq!(Busy::new(1, 3).of(10), 3);
        assert_eq!(Busy::new(7, 3).of(u64::MAX), u64::MAX);
        assert_eq!(Busy::new(u64::MAX, u128::from(u64::MAX)).of(u64::MAX), u64::MAX);
        assert_eq!(Busy::new(5, 0).of(10), 0);
    }
}
