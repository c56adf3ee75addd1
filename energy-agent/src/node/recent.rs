//! Powers of budgets and of the node as they were measured last, for those who look once in several ticks: a GPU that answers
//! late is measured in the next tick, and until then its budget draws what it drew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use energy_model::capping::policy::PolicyName;
use energy_model::capping::status::{CappingStatus, SubjectState};
use energy_model::units::Watts;

/// After this time, nobody knows what is drawn. Controllers read reports as often.
const STAYS: Duration = Duration::from_secs(5);

/// A policy and the uid of a pod; the node itself has neither.
type PowerKey = (Option<PolicyName>, Option<Arc<str>>);

#[derive(Debug, Default)]
pub struct RecentPowers(HashMap<PowerKey, (Duration, Watts)>);

impl RecentPowers {
    /// Keeps the powers of the status, and puts those of a short time ago where it has none.
    pub fn fill(&mut self, now: Duration, status: &mut CappingStatus) {
        self.0.retain(|_, (measured, _)| now.saturating_sub(*measured) < STAYS);
        self.fill_one(now, (None, None), &mut status.node.power);
        for policy in &mut status.policies {
            for subject in &mut policy.subjects {
                if !matches!(subject.state, SubjectState::Off | SubjectState::TelemetryLost) {
                    let uid = subject.pod.as_ref().map(|pod| Arc::clone(&pod.uid));
                    self.fill_one(now, (Some(policy.name.clone()), uid), &mut subject.power);
                }
            }
        }
    }

    fn fill_one(&mut self, now: Duration, key: PowerKey, power: &mut Option<Watts>) {
        match power {
            Some(power) => {
                self.0.insert(key, (now, *power));
            }
            None => *power = self.0.get(&key).map(|(_, power)| *power),
        }
    }
}

#[cfg(test)]
mod tests {
    use energy_model::capping::status::NodePower;

    use super::*;

    #[test]
    fn a_power_that_is_missing_for_a_moment_is_as_it_was_and_then_unknown() {
        let mut recent = RecentPowers::default();
        let mut at = |seconds, power: Option<f64>| {
            let node = NodePower { power: power.map(Watts), ..NodePower::default() };
            let mut status = CappingStatus { node, ..CappingStatus::default() };
            recent.fill(Duration::from_secs(seconds), &mut status);
            status.node.power.map(|power| power.0)
        };
        assert_eq!(at(0, None), None, "never measured");
        assert_eq!(at(1, Some(640.0)), Some(640.0));
        assert_eq!(at(2, None), Some(640.0));
        assert_eq!(at(5, None), Some(640.0));
        assert_eq!(at(6, None), None, "not measured for five seconds");
        assert_eq!(at(7, Some(500.0)), Some(500.0));
        assert_eq!(at(8, None), Some(500.0));
    }
}
