//! Whether anything is left to lower. A budget that is out of reach is shown as such until a minute after its last excess, so
//! that a load that comes and goes does not change the state each time.

use std::time::Duration;

/// Excesses with nothing left to lower, after which the floor is reached.
const TICKS: u32 = 3;
const SHOWN: Duration = Duration::from_secs(60);

/// Where the devices are, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// Something is left to lower, or the last excesses were too few to know.
    Above { in_vain: u32 },
    /// Everything was at its floor, within the last minute at least.
    Reached { in_vain: u32 },
}

impl Floor {
    pub(crate) const UNKNOWN: Self = Self::Above { in_vain: 0 };

    /// The power is above the budget. `in_vain`: nothing more could be lowered.
    pub const fn excess(&mut self, in_vain: bool) {
        let (Self::Above { in_vain: ticks } | Self::Reached { in_vain: ticks }) = self;
        *ticks = if in_vain { ticks.saturating_add(1) } else { 0 };
    }

    /// The budget is another one, or everything is open again.
    pub const fn forget(&mut self) {
        self.excess(false);
    }

    /// The end of a tick. `excess_at`: the last one.
    #[must_use]
    pub(crate) fn after_tick(self, excess_at: Option<Duration>, now: Duration) -> Self {
        let shown = excess_at.is_some_and(|at| now < at + SHOWN);
        match self {
            Self::Above { in_vain } | Self::Reached { in_vain } if in_vain >= TICKS => Self::Reached { in_vain },
            Self::Reached { in_vain } if !shown => Self::Above { in_vain },
            floor => floor,
        }
    }

    /// The end of a tick in which something else is in the way.
    #[must_use]
    pub const fn hidden(self) -> Self {
        let (Self::Above { in_vain } | Self::Reached { in_vain }) = self;
        Self::Above { in_vain }
    }

    #[must_use]
    pub(crate) const fn is_reached(self) -> bool {
        matches!(self, Self::Reached { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_reached_after_three_excesses_in_vain_and_left_a_minute_after_the_last() {
        let mut floor = Floor::UNKNOWN;
        let mut reached = Vec::new();
        // Something was lowered at the second excess and at the last one.
        for (second, in_vain) in [(1, true), (2, false), (3, true), (4, true), (5, true), (6, false)] {
            floor.excess(in_vain);
            floor = floor.after_tick(Some(Duration::from_secs(second)), Duration::from_secs(second));
            reached.push(floor.is_reached());
        }
        assert_eq!(reached, [false, false, false, false, true, true]);
        let after = |second| floor.after_tick(Some(Duration::from_secs(6)), Duration::from_secs(second));
        assert_eq!([65, 66].map(|second| after(second).is_reached()), [true, false]);
        assert!(!floor.hidden().is_reached());
    }
}
