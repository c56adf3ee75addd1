//! Clocks that a recommender asks for: followed while every device has one and the budget is kept. Else the ratio law decides.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::capping::controller::device::{BudgetDevice, DeviceKey};
use crate::capping::controller::view::BudgetView;

/// How long the power may be above the budget under clocks from elsewhere.
const PATIENCE: Duration = Duration::from_secs(30);

/// Relative ceilings by device.
type Ceilings = BTreeMap<DeviceKey, f64>;

/// What is remembered of them.
#[derive(Clone, Debug, Default)]
pub struct External {
    over_since: Option<Duration>,
    /// Did not keep the budget: others are tried.
    failed: Option<Ceilings>,
}

impl External {
    /// What to follow now; `None`: some device has no clock, or these do not keep the budget.
    pub fn ceilings(&mut self, view: &BudgetView, is_above: bool, now: Duration) -> Option<Ceilings> {
        let of_device = |device: &BudgetDevice| {
            let ranges = &device.lever.as_ref()?.ranges;
            let bounds = ranges.iter().map(|range| Some(range.relative(*view.bounds.get(&range.knob)?)));
            let lowest = bounds.collect::<Option<Vec<f64>>>()?.into_iter().fold(1.0, f64::min);
            Some((device.key.clone(), lowest))
        };
        let asked: Option<Ceilings> = view.devices.iter().map(of_device).collect();
        let asked = asked.filter(|asked| !asked.is_empty() && self.failed.as_ref() != Some(asked));
        let Some(asked) = asked else {
            self.over_since = None;
            return None;
        };
        self.failed = None;
        if !is_above {
            self.over_since = None;
        } else if now.saturating_sub(*self.over_since.get_or_insert(now)) >= PATIENCE {
            self.failed = Some(asked);
            return None;
        }
        Some(asked)
    }
}
