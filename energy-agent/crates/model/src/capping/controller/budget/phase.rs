//! What a budget does at present, and what brings it from one phase to the next. Every transition is in [`BudgetPhase::after`].

use std::time::Duration;

/// How long power limits stay set after the ceilings are open.
pub(crate) const PROBATION: Duration = Duration::from_secs(60);

/// What a budget does at present, with the data of this phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BudgetPhase {
    /// Mode Off: power is compared with the budget, and nothing else is done.
    Off,
    /// Nothing is lowered.
    Open,
    /// Mode Recommend: nothing is written. This ceiling would be set, until then at least.
    Recommending { ceiling: f64, until: Duration },
    /// Mode Enforce: ceilings are lowered, or power limits hold their devices back.
    Lowered(Cap),
    /// Mode Enforce: the ceilings have been open since then. The power limits stay for [`PROBATION`].
    Probation { cap: Cap, since: Duration },
}

/// What is known of a cap while something is lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cap {
    /// The last cut, whose effect has to be measured before the next. `None`: an earlier run made it.
    pub cut_at: Option<Duration>,
    /// The budget that the power limits were set for; watts. `None`: an earlier run set them.
    pub limits_for: Option<f64>,
    /// A cap of an earlier run is not raised before.
    pub hold_until: Duration,
}

/// What can happen to a budget within a tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BudgetEvent {
    /// Limits of an earlier run were taken over.
    Adopted { hold_until: Duration },
    /// The power was above the budget, and something was lowered.
    Cut { budget: f64 },
    /// The power was above the budget, and nothing more could be lowered.
    CutInVain { budget: f64 },
    /// The power limits were brought to a budget that was edited.
    Edited { budget: f64 },
    /// All ceilings are open, and no power limit holds its device back.
    CeilingsOpen,
    /// A ceiling is lowered, or a power limit holds its device back.
    CeilingsLowered,
    /// Power is not measured, and the policy wants the floor then.
    Floored,
    /// Mode Recommend: the power is above the budget, or was and is not far enough below it.
    Recommended { ceiling: f64, until: Duration },
    /// Mode Recommend: the power is far enough below the budget.
    Below,
    /// Everything is to be as it was before.
    Released,
}

impl BudgetPhase {
    /// The phase after an event.
    #[must_use]
    pub fn after(self, event: BudgetEvent, now: Duration) -> Self {
        let cap = self.cap().unwrap_or_default();
        match (self, event) {
            (Self::Off, _) => Self::Off,
            (_, BudgetEvent::Released) => Self::Open,
            (_, BudgetEvent::Adopted { hold_until }) => {
                Self::Lowered(Cap { hold_until: cap.hold_until.max(hold_until), ..cap })
            }
            (_, BudgetEvent::Cut { budget }) => {
                Self::Lowered(Cap { cut_at: Some(now), limits_for: Some(budget), ..cap })
            }
            (Self::Lowered(_) | Self::Probation { .. }, BudgetEvent::CutInVain { budget }) => {
                Self::Lowered(Cap { limits_for: Some(budget), ..cap })
            }
            (Self::Lowered(_), BudgetEvent::Edited { budget }) => {
                Self::Lowered(Cap { limits_for: Some(budget), ..cap })
            }
            (Self::Probation { since, .. }, BudgetEvent::Edited { budget }) => {
                Self::Probation { cap: Cap { limits_for: Some(budget), ..cap }, since }
            }
            (Self::Lowered(_), BudgetEvent::CeilingsOpen) => Self::Probation { cap, since: now },
            (Self::Probation { since, .. }, BudgetEvent::CeilingsOpen) if now >= since + PROBATION => Self::Open,
            (Self::Probation { .. }, BudgetEvent::CeilingsLowered) | (_, BudgetEvent::Floored) => Self::Lowered(cap),
            (_, BudgetEvent::Recommended { ceiling, until }) => Self::Recommending { ceiling, until },
            (Self::Recommending { until, .. }, BudgetEvent::Below) if now >= until => Self::Open,
            (
                phase,
                BudgetEvent::CutInVain { .. }
                | BudgetEvent::Edited { .. }
                | BudgetEvent::CeilingsOpen
                | BudgetEvent::CeilingsLowered
                | BudgetEvent::Below,
            ) => phase,
        }
    }

    /// `None`: nothing is lowered.
    #[must_use]
    pub const fn cap(self) -> Option<Cap> {
        match self {
            Self::Off | Self::Open | Self::Recommending { .. } => None,
            Self::Lowered(cap) | Self::Probation { cap, .. } => Some(cap),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The phase after these events, each at its second.
    fn through(events: &[(u64, BudgetEvent)]) -> BudgetPhase {
        events.iter().fold(BudgetPhase::Open, |phase, (second, event)| phase.after(*event, at(*second)))
    }

    #[test]
    fn a_cap_ends_a_minute_after_its_ceilings_are_open() {
        let cut = (10, BudgetEvent::Cut { budget: 400.0 });
        let cap = Cap { cut_at: Some(at(10)), limits_for: Some(400.0), hold_until: at(0) };
        assert_eq!(through(&[cut]), BudgetPhase::Lowered(cap));
        assert_eq!(through(&[cut, (20, BudgetEvent::CeilingsLowered)]), BudgetPhase::Lowered(cap));
        let open = [cut, (30, BudgetEvent::CeilingsOpen), (89, BudgetEvent::CeilingsOpen)];
        assert_eq!(through(&open), BudgetPhase::Probation { cap, since: at(30) });
        assert_eq!(through(&[&open[..], &[(90, BudgetEvent::CeilingsOpen)]].concat()), BudgetPhase::Open);
        // The minute begins anew when something was lowered in between.
        for between in [
            (60, BudgetEvent::CeilingsLowered),
            (60, BudgetEvent::CutInVain { budget: 400.0 }),
            (60, BudgetEvent::Floored),
        ] {
            let again =
                [&open[..2], &[between, (61, BudgetEvent::CeilingsOpen), (120, BudgetEvent::CeilingsOpen)]].concat();
            assert_eq!(through(&again), BudgetPhase::Probation { cap, since: at(61) });
        }
    }

    #[test]
    fn a_cut_in_vain_lowers_nothing_that_is_open() {
        assert_eq!(through(&[(1, BudgetEvent::CutInVain { budget: 400.0 })]), BudgetPhase::Open);
    }

    #[test]
    fn a_cap_that_was_adopted_knows_no_cut_and_keeps_the_longest_hold() {
        let adopted = |second, hold_until| (second, BudgetEvent::Adopted { hold_until: at(hold_until) });
        let cap = Cap { hold_until: at(9), ..Cap::default() };
        assert_eq!(through(&[adopted(1, 6), adopted(2, 9), adopted(3, 8)]), BudgetPhase::Lowered(cap));
    }

    #[test]
    fn a_recommendation_stands_until_its_time_is_over() {
        let recommended = (1, BudgetEvent::Recommended { ceiling: 0.5, until: at(6) });
        let stands = BudgetPhase::Recommending { ceiling: 0.5, until: at(6) };
        assert_eq!(through(&[recommended, (5, BudgetEvent::Below)]), stands);
        assert_eq!(through(&[recommended, (6, BudgetEvent::Below)]), BudgetPhase::Open);
    }

    #[test]
    fn a_release_opens_every_phase_but_mode_off() {
        for events in [
            &[][..],
            &[(1, BudgetEvent::Cut { budget: 1.0 })],
            &[(1, BudgetEvent::Floored), (2, BudgetEvent::CeilingsOpen)],
            &[(1, BudgetEvent::Recommended { ceiling: 0.5, until: at(9) })],
        ] {
            assert_eq!(through(events).after(BudgetEvent::Released, at(3)), BudgetPhase::Open);
        }
        assert_eq!(BudgetPhase::Off.after(BudgetEvent::Released, at(3)), BudgetPhase::Off);
        assert_eq!(BudgetPhase::Off.after(BudgetEvent::Cut { budget: 1.0 }, at(3)), BudgetPhase::Off);
    }
}
