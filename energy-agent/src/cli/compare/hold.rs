//! How the clock that a sweep has found is held: a policy for pods, and what to type for a single machine.

use std::fmt::Write as _;
use std::time::Duration;

use energy_model::units::Microjoules;
use energy_report::run::{Part, Run};
use energy_report::stats::Summary;

use super::limiter::GpuSetting;

/// Work draws more at times than in the mean.
const MARGIN: f64 = 1.05;

/// A clock and the GPU's power at it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HeldClock {
    pub clock_mhz: u64,
    pub watts: f64,
}

impl HeldClock {
    /// The mean power over all runs. `None`: the setting limits no clock, or no power was measured.
    pub fn of(setting: GpuSetting, runs: &[Run]) -> Option<Self> {
        let watts: Vec<f64> = runs.iter().map(mean).collect::<Option<_>>()?;
        let watts = Summary::of(&watts)?.mean;
        Some(Self { clock_mhz: setting.clock_mhz?, watts }).filter(|point| point.watts > 0.0)
    }
}

fn mean(run: &Run) -> Option<f64> {
    let gpu = run.energy.iter().find(|energy| energy.part == Part::Gpu)?;
    Some(Microjoules(gpu.microjoules).over(Duration::try_from_secs_f64(run.end - run.start).ok()?).0)
}

/// A policy that holds pods at the clock: the budget is a little more than a GPU draws there, the table says what it draws at others,
/// and the clock is never lower.
pub(super) fn policy(best: HeldClock, mut all: Vec<HeldClock>) -> String {
    all.sort_by_key(|point| point.clock_mhz);
    let mut text = format!(
        "version: 1\npolicies:\n- name: clock-{0}\n  mode: Enforce\n  \
         selector: {{matchLabels: {{app: CHANGE-ME}}}}\n  \
         budget: {{watts: {1}, scope: PerPod, components: [gpu]}}  # of a pod with one GPU\n  control:\n    algorithm: table\n    table:\n",
        best.clock_mhz,
        (best.watts * MARGIN).ceil()
    );
    // A table rises.
    let mut above = 0.0;
    for point in all {
        let watts = point.watts.round();
        if watts > above {
            let _ = writeln!(text, "    - {{clockMHz: {}, watts: {watts}}}", point.clock_mhz);
            above = watts;
        }
    }
    let _ = writeln!(text, "  actuators:\n    gpu: {{use: [LockedClocks], minClockMHz: {}}}", best.clock_mhz);
    text
}

#[cfg(test)]
mod tests {
    use energy_model::capping::policy::document::parse_at;
    use energy_model::capping::policy::{Amount, Mode};

    use super::{HeldClock, policy};

    #[test]
    fn the_policy_is_valid_and_never_goes_below_the_clock() {
        let point = |clock_mhz, watts| HeldClock { clock_mhz, watts };
        let best = point(1200, 350.2);
        let text = policy(best, vec![point(1980, 699.9), point(600, 180.4), best, point(900, 180.3)]);
        let document = parse_at(&text, "", 1);
        assert_eq!(document.problems, [], "{text}");
        let policy = &document.policies[0];
        assert_eq!((policy.mode, policy.budget.amount), (Mode::Enforce, Amount::Watts(368.0)));
        assert_eq!(policy.actuators.gpu.min_clock_mhz, Some(1200));
        // 350.2 W and 5 % more; 900 MHz drew no more than 600 MHz.
        assert!(text.contains(
            "{clockMHz: 600, watts: 180}\n    - {clockMHz: 1200, watts: 350}\n    - {clockMHz: 1980, watts: 700}"
        ));
    }
}
