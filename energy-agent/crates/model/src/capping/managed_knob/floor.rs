//! What no policy can lower: a node or a pod that is capped still has to answer.

use crate::capping::knob::{Found, Knob};

/// Least share of the highest clock or of the package's power. Below a quarter, work takes longer than the power falls
/// (leakage and memory go on), health checks time out, and the cap costs energy instead of saving it.
const LEAST_QUARTERS: u64 = 4;
/// A twentieth of a CPU: 5 ms of each 100 ms, with which a container still passes its probes.
const LEAST_CPU_MILLIS: u64 = 50;

/// The least value that is written: on a step of the device and within its range, and never above its greatest.
#[must_use]
pub fn floor(knob: &Knob, found: &Found) -> u64 {
    let least = match knob {
        Knob::GpuClock(_) | Knob::CpuFrequency(_) | Knob::RaplLimit(_) => found.max.div_ceil(LEAST_QUARTERS),
        // The driver's minimum is one at which the board works.
        Knob::GpuPower(_) => found.min,
        Knob::CpuQuota(_) => LEAST_CPU_MILLIS,
    };
    let step = found.step.max(1);
    let steps = least.saturating_sub(found.min).div_ceil(step);
    found.min.saturating_add(steps.saturating_mul(step)).min(found.max.max(found.min))
}

/// `wanted` on a step of the device, not below the floor and not above the range. Whether it had to be raised, too.
#[must_use]
pub fn fit(knob: &Knob, found: &Found, wanted: u64) -> (u64, bool) {
    let floor = floor(knob, found);
    if wanted < floor {
        return (floor, true);
    }
    if wanted >= found.max {
        return (found.max.max(floor), false);
    }
    let step = found.step.max(1);
    let value = found.min + (wanted - found.min) / step * step;
    (value.max(floor), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capping::knob::KnobState;

    fn found(min: u64, max: u64, step: u64) -> Found {
        Found { min, max, step, value: None, raw: String::new(), state: KnobState::Ok, epoch: 0 }
    }

    #[test]
    fn clocks_keep_a_quarter_on_a_step_of_the_device() {
        let clock = Knob::GpuClock("GPU-1".into());
        // 1980 / 4 = 495 = 210 + 19 x 15.
        assert_eq!(floor(&clock, &found(210, 1980, 15)), 495);
        // 2100 / 4 = 525 = 210 + 21 x 15; with steps of 20 the next one is 210 + 16 x 20.
        assert_eq!(floor(&clock, &found(210, 2100, 20)), 530);
        assert_eq!(floor(&Knob::CpuFrequency(0), &found(800_000, 2_000_000, 1)), 800_000);
        assert_eq!(floor(&Knob::RaplLimit("z".into()), &found(0, 145_000_000, 1)), 36_250_000);
    }

    #[test]
    fn a_value_below_the_minimum_is_raised_to_it_and_one_above_the_maximum_is_the_maximum() {
        // FC-082.
        let power = Knob::GpuPower("GPU-1".into());
        let board = found(200_000, 700_000, 1);
        assert_eq!(fit(&power, &board, 50_000), (200_000, true));
        assert_eq!(fit(&power, &board, 900_000), (700_000, false));
        assert_eq!(fit(&power, &found(150_000, 180_000, 1), 149_400), (150_000, true));
    }

    #[test]
    fn a_value_between_two_steps_is_the_lower_one() {
        // FC-085: the nearest lower supported clock.
        let clock = Knob::GpuClock("GPU-1".into());
        assert_eq!(fit(&clock, &found(210, 1980, 15), 1204), (1200, false));
        assert_eq!(fit(&clock, &found(210, 1980, 15), 1200), (1200, false));
    }

    #[test]
    fn a_quota_leaves_a_twentieth_of_a_cpu() {
        let quota = Knob::CpuQuota("pod".into());
        assert_eq!(fit(&quota, &found(10, 2000, 10), 20), (50, true));
        assert_eq!(fit(&quota, &found(400, 2000, 10), 20), (400, true));
    }
}
