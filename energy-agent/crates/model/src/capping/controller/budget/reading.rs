//! What a tick measured, beside the budget that it is compared with.

use crate::capping::policy::Control;

/// Power of one tick and where its budget draws lines; watts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetReading {
    /// Of the last tick.
    pub power: f64,
    /// Over the budget's window.
    pub mean: f64,
    pub budget: f64,
    /// Above this, power is lowered.
    pub engage: f64,
    /// To this it is lowered.
    pub target: f64,
    /// Below this, it is raised again.
    pub release: f64,
}

/// What a tick knows of the power.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sight {
    /// It has not been measured for several ticks.
    Lost,
    /// The peak that the budget is a part of is not known yet.
    NoBudget,
    /// It was not measured in this tick.
    NoPower {
        budget: f64,
    },
    Both(BudgetReading),
}

impl Sight {
    #[must_use]
    pub const fn budget(self) -> Option<f64> {
        match self {
            Self::Lost | Self::NoBudget => None,
            Self::NoPower { budget } | Self::Both(BudgetReading { budget, .. }) => Some(budget),
        }
    }
}

impl BudgetReading {
    #[must_use]
    pub fn new(control: &Control, power: f64, mean: f64, budget: f64) -> Self {
        let Control { engage, target, release, .. } = control;
        Self { power, mean, budget, engage: budget * engage, target: budget * target, release: budget * release }
    }

    /// Something has to be lowered. Where the mean of a longer window is above the budget and the last tick is not, the cut
    /// has been made already.
    #[must_use]
    pub fn is_above(self) -> bool {
        self.mean > self.engage && self.power > self.target
    }
}
