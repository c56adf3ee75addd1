//! What a budget does at present, and what brings it from one phase to the next. Every transition is in [`Phase::after`].

use std::time::Duration;

/// How long power limits stay set after the ceilings are open.
pub(crate) const PROBATION: Duration = Duration::from_secs(60);

/// What a budget does at present, with the data of this phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
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
pub enum Event {
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

impl Phase {
    /// The phase after an event.
    #[must_use]
    pub fn after(self, event: Event, now: Duration) -> Self {
        let cap = self.cap().unwrap_or_default();
        match (self, event) {
            (Self::Off, _) => Self::Off,
            (_, Event::Released) => Self::Open,
            (_, Event::Adopted { hold_until }) => {
                Self::Lowered(Cap { hold_until: cap.hold_until.max(hold_until), ..cap })
            }
            (_, Event::Cut { budget }) => Self::Lowered(Cap { cut_at: Some(now), limits_for: Some(budget), ..cap }),
            (Self::Lowered(_) | Self::Probation { .. }, Event::CutInVain { budget }) => {
                Self::Lowered(Cap { limits_for: Some(budget), ..cap })
            }
            (Self::Lowered(_), Event::Edited { budget }) => Self::Lowered(Cap { limits_for: Some(budget), ..cap }),
            (Self::Probation { since, .. }, Event::Edited { budget }) => {
                Self::Probation { cap: Cap { limits_for: Some(budget), ..cap }, since }
            }
            (Self::Lowered(_), Event::CeilingsOpen) => Self::Probation { cap, since: now },
            (Self::Probation { since, .. }, Event::CeilingsOpen) if now >= since + PROBATION => Self::Open,
            (Self::Probation { .. }, Event::CeilingsLowered) | (_, Event::Floored) => Self::Lowered(cap),
            (_, Event::Recommended { ceiling, until }) => Self::Recommending { ceiling, until },
            (Self::Recommending { until, .. }, Event::Below) if now >= until => Self::Open,
            (
                phase,
                Event::CutInVain { .. }
                | Event::Edited { .. }
                | Event::CeilingsOpen
                | Event::CeilingsLowered
                | Event::Below,
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
    fn through(events: &[(u64, Event)]) -> Phase {
        events.iter().fold(Phase::Open, |phase, (second, event)| phase.after(*event, at(*second)))
    }

    #[test]
    fn a_cap_ends_a_minute_after_its_ceilings_are_open() {
        let cut = (10, Event::Cut { budget: 400.0 });
        let cap = Cap { cut_at: Some(at(10)), limits_for: Some(400.0), hold_until: at(0) };
        assert_eq!(through(&[cut]), Phase::Lowered(cap));
        assert_eq!(through(&[cut, (20, Event::CeilingsLowered)]), Phase::Lowered(cap));
        let open = [cut, (30, Event::CeilingsOpen), (89, Event::CeilingsOpen)];
        assert_eq!(through(&open), Phase::Probation { cap, since: at(30) });
        assert_eq!(through(&[&open[..], &[(90, Event::CeilingsOpen)]].concat()), Phase::Open);
        // The minute begins anew when something was lowered in between.
        for between in [(60, Event::CeilingsLowered), (60, Event::CutInVain { budget: 400.0 }), (60, Event::Floored)] {
            let again = [&open[..2], &[between, (61, Event::CeilingsOpen), (120, Event::CeilingsOpen)]].concat();
            assert_eq!(through(&again), Phase::Probation { cap, since: at(61) });
        }
    }

    #[test]
    fn a_cut_in_vain_lowers_nothing_that_is_open() {
        assert_eq!(through(&[(1, Event::CutInVain { budget: 400.0 })]), Phase::Open);
    }

    #[test]
    fn a_cap_that_was_adopted_knows_no_cut_and_keeps_the_longest_hold() {
        let adopted = |second, hold_until| (second, Event::Adopted { hold_until: at(hold_until) });
        let cap = Cap { hold_until: at(9), ..Cap::default() };
        assert_eq!(through(&[adopted(1, 6), adopted(2, 9), adopted(3, 8)]), Phase::Lowered(cap));
    }

    #[test]
    fn a_recommendation_stands_until_its_time_is_over() {
        let recommended = (1, Event::Recommended { ceiling: 0.5, until: at(6) });
        let stands = Phase::Recommending { ceiling: 0.5, until: at(6) };
        assert_eq!(through(&[recommended, (5, Event::Below)]), stands);
        assert_eq!(through(&[recommended, (6, Event::Below)]), Phase::Open);
    }

    #[test]
    fn a_release_opens_every_phase_but_mode_off() {
        for events in [
            &[][..],
            &[(1, Event::Cut { budget: 1.0 })],
            &[(1, Event::Floored), (2, Event::CeilingsOpen)],
            &[(1, Event::Recommended { ceiling: 0.5, until: at(9) })],
        ] {
            assert_eq!(through(events).after(Event::Released, at(3)), Phase::Open);
        }
        assert_eq!(Phase::Off.after(Event::Released, at(3)), Phase::Off);
        assert_eq!(Phase::Off.after(Event::Cut { budget: 1.0 }, at(3)), Phase::Off);
    }
}
