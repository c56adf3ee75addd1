//! A node, as a budget that selects it sees it.

use crate::permille::Permille;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Which level is for it: an index into the budget's tiers, in the order in which they are cut.
    pub tier: usize,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    Reporting(Report),
    /// It reported once. It may draw as much as it was allowed until it is heard of again, and may follow what is written now,
    /// between its floor and the most that its devices may draw.
    Silent {
        limit: f64,
        floor: f64,
        most: f64,
    },
    /// It draws this, whatever is written: no agent reports it, or it does not obey.
    Fixed {
        watts: f64,
    },
}

/// What a node said last, in watts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    pub power: f64,
    /// What it can be held at.
    pub floor: f64,
    /// What its devices may draw.
    pub most: f64,
    /// It would draw more if its limit were higher.
    pub held: bool,
    /// The lowest limit that budgets of smaller sets of nodes give it.
    pub ceiling: f64,
}

impl Report {
    /// What it would draw without this budget.
    pub(crate) fn wish(&self) -> f64 {
        let wish = if self.held { self.most } else { self.power * GROWTH };
        wish.min(self.ceiling)
    }
}

/// What a node that is not held may draw more within one round.
const GROWTH: f64 = 1.02;

impl Member {
    /// What it counts with in the power of the budget.
    pub(crate) fn power(&self) -> f64 {
        match self.state {
            State::Reporting(report) => report.power,
            State::Silent { limit, .. } => limit,
            State::Fixed { watts } => watts,
        }
    }

    /// What it may draw at this level.
    pub(crate) fn limit(&self, level: Permille) -> f64 {
        match self.state {
            State::Reporting(Report { floor, most, .. }) => level.limit(floor, most),
            State::Silent { limit, floor, most } => limit.max(level.limit(floor, most)),
            State::Fixed { watts } => watts,
        }
    }
}
