//! A GPU as a controller meets it: power follows clocks and load, locked clocks and the power limit act on the clock, and
//! what the power meter shows is a mean of the past.
//!
//! P = idle + (max - idle) * u * (f / f_max)^e, and as long as u is not 0 what work draws at every clock. It ranks control laws; it predicts no hardware.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::state::Clocks;
use crate::units::{float, whole, whole32};

/// Resolution of the simulation.
const STEP_US: u64 = 10_000;
/// Distance and number of the points kept of the energy: the driver's buffer of power samples.
const POINT_US: u64 = 50_000;
const POINTS: usize = 120;

/// What the GPU is like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plant {
    pub idle_w: f64,
    /// In addition while there is any load, whatever the clock is.
    pub working_w: f64,
    /// At full load and the highest clock, without `working_w`.
    pub max_w: f64,
    /// 1.2 to 3.0 on real devices.
    pub exponent: f64,
    /// Over how long the power meter averages; seconds.
    pub average_s: f64,
    /// Between a change of load, lock or limit and the clock; seconds.
    pub delay_s: f64,
    /// Between two looks at what the processes do; seconds, 1/6 to 1.
    pub spacing_s: f64,
}

/// Where it has got to. Times are microseconds of the monotonic clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Running {
    pub at_us: u64,
    /// True energy since the driver was loaded; microjoules.
    pub energy_uj: f64,
    pub clock_mhz: u32,
    /// Power of the moment.
    pub power_w: f64,
    /// Clocks that will be in force at a time.
    pending: VecDeque<(u64, u32)>,
    /// Energy at times past.
    points: VecDeque<(u64, f64)>,
    /// Whether the power limit or a lock holds the clock down.
    pub limited: bool,
    pub locked: bool,
}

/// What acts on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    pub locked_mhz: Option<(u32, u32)>,
    pub limit_w: Option<f64>,
}

impl Default for Plant {
    fn default() -> Self {
        Self {
            idle_w: 70.0,
            working_w: 0.0,
            max_w: 700.0,
            exponent: 1.5,
            average_s: 1.0,
            delay_s: 0.1,
            spacing_s: 0.25,
        }
    }
}

impl Plant {
    /// Power at a load (0 to 1) and clock; watts.
    #[must_use]
    pub fn power(&self, load: f64, clock_mhz: u32, clocks: &Clocks) -> f64 {
        let part = f64::from(clock_mhz) / f64::from(clocks.max_mhz);
        let working_w = if load > 0.0 { self.working_w } else { 0.0 };
        self.idle_w + working_w + (self.max_w - self.idle_w) * load * part.powf(self.exponent)
    }

    /// The clock that load and bounds lead to, and whether the limit or the lock is why it is not the highest.
    #[must_use]
    pub fn clock(&self, load: f64, clocks: &Clocks, bounds: Bounds) -> (u32, bool, bool) {
        let (low, high) = bounds.locked_mhz.unwrap_or((clocks.min_mhz, clocks.max_mhz));
        if load <= 0.0 {
            return (clocks.at_most(low), false, false);
        }
        let ceiling = clocks.at_most(high);
        let locked = ceiling < clocks.max_mhz;
        let Some(limit_w) = bounds.limit_w else { return (ceiling, false, locked) };
        let part = (limit_w - self.idle_w - self.working_w).max(0.0) / ((self.max_w - self.idle_w) * load);
        let allowed = f64::from(clocks.max_mhz) * part.powf(1.0 / self.exponent);
        // What a step allows exactly must not become the step below it by rounding.
        let allowed = clocks.at_most(whole32((allowed + 0.01).floor()));
        if allowed < ceiling { (allowed, true, false) } else { (ceiling, false, locked) }
    }

    fn delay_us(&self) -> u64 {
        whole(self.delay_s * 1e6)
    }
}

impl Clocks {
    /// The highest supported clock up to `mhz`, else the lowest.
    #[must_use]
    pub fn at_most(&self, mhz: u32) -> u32 {
        let mhz = mhz.clamp(self.min_mhz, self.max_mhz);
        mhz - (mhz - self.min_mhz) % self.step_mhz.max(1)
    }
}

impl Running {
    /// An idle GPU.
    #[must_use]
    pub fn start(at_us: u64, plant: &Plant, clocks: &Clocks) -> Self {
        Self {
            at_us,
            clock_mhz: clocks.min_mhz,
            power_w: plant.idle_w,
            points: VecDeque::from([(at_us, 0.0)]),
            ..Self::default()
        }
    }

    /// Lets time pass until `to_us`; `load` is the whole load at a time, 0 to 1.
    pub fn advance(&mut self, to_us: u64, plant: &Plant, clocks: &Clocks, bounds: Bounds, load: impl Fn(u64) -> f64) {
        // Hours without a caller are simulated more coarsely.
        let step_us = STEP_US.max(to_us.saturating_sub(self.at_us) / 20_000);
        while self.at_us < to_us {
            let now = self.at_us;
            let load = load(now).clamp(0.0, 1.0);
            let (target, limited, locked) = plant.clock(load, clocks, bounds);
            if self.pending.back().map_or(self.clock_mhz, |&(_, mhz)| mhz) != target {
                self.pending.push_back((now + plant.delay_us(), target));
            }
            while let Some(&(due, mhz)) = self.pending.front()
                && due <= now
            {
                self.clock_mhz = mhz;
                self.pending.pop_front();
            }
            (self.limited, self.locked) = (limited, locked);
            self.power_w = plant.power(load, self.clock_mhz, clocks);
            let next = (now + step_us).min(to_us);
            self.energy_uj += self.power_w * float(next - now);
            self.at_us = next;
            if self.points.back().is_none_or(|&(at, _)| at + POINT_US <= next) {
                self.points.push_back((next, self.energy_uj));
                if self.points.len() > POINTS {
                    self.points.pop_front();
                }
            }
        }
    }

    /// What the power meter shows; watts.
    #[must_use]
    pub fn mean_w(&self, plant: &Plant) -> f64 {
        let from = self.at_us.saturating_sub(whole(plant.average_s * 1e6));
        let (start, energy) = self.energy_at(from);
        if start < self.at_us { (self.energy_uj - energy) / float(self.at_us - start) } else { self.power_w }
    }

    /// The buffer of power samples: the end of each, and the mean power since the one before; watts.
    pub fn power_samples(&self) -> impl Iterator<Item = (u64, f64)> {
        self.points
            .iter()
            .zip(self.points.iter().skip(1))
            .map(|(&(t0, e0), &(t1, e1))| (t1, (e1 - e0) / float(t1 - t0)))
    }

    /// The energy at a time that is kept, by interpolation; else at the oldest time kept.
    fn energy_at(&self, at_us: u64) -> (u64, f64) {
        let last = (self.at_us, self.energy_uj);
        let mut before = self.points.front().copied().unwrap_or(last);
        for &point in self.points.iter().chain([&last]) {
            if point.0 >= at_us {
                if before.0 >= at_us || point.0 == before.0 {
                    return before;
                }
                let part = float(at_us - before.0) / float(point.0 - before.0);
                return (at_us, before.1 + (point.1 - before.1) * part);
            }
            before = point;
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square() -> Plant {
        Plant { exponent: 2.0, ..Plant::default() }
    }

    fn near(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-6 * expected.abs().max(1.0)
    }

    #[test]
    fn power_follows_load_and_clock() {
        let clocks = Clocks::default();
        // 70 + 630 * 1 * (990/1980)^2 = 70 + 630/4
        assert!(near(square().power(1.0, 990, &clocks), 227.5));
        assert!(near(square().power(0.5, 1980, &clocks), 385.0));
        assert!(near(square().power(0.0, 1980, &clocks), 70.0));
    }

    #[test]
    fn a_lock_takes_the_step_below() {
        let clocks = Clocks::default();
        // Steps are 345 + 15 n: 1200 = 345 + 57 * 15 is one, 1210 is not.
        assert_eq!(clocks.at_most(1210), 1200);
        assert_eq!((clocks.at_most(100), clocks.at_most(9000)), (345, 1980));
        let bounds = Bounds { locked_mhz: Some((345, 1210)), limit_w: Some(700.0) };
        assert_eq!(square().clock(1.0, &clocks, bounds), (1200, false, true));
        assert_eq!(square().clock(0.0, &clocks, bounds), (345, false, false));
    }

    #[test]
    fn the_limiter_lowers_the_clock() {
        let clocks = Clocks::default();
        // 227.5 W at full load is 990 MHz exactly; a watt less is the step below.
        let limit = |limit_w| Bounds { locked_mhz: None, limit_w: Some(limit_w) };
        assert_eq!(square().clock(1.0, &clocks, limit(227.5)), (990, true, false));
        assert_eq!(square().clock(1.0, &clocks, limit(226.5)), (975, true, false));
        assert_eq!(square().clock(1.0, &clocks, limit(700.0)), (1980, false, false));
        assert_eq!(square().clock(1.0, &clocks, limit(10.0)), (345, true, false));
    }

    #[test]
    fn clocks_follow_after_the_delay_and_energy_is_the_integral() {
        let (plant, clocks) = (square(), Clocks::default());
        let mut gpu = Running::start(5_000_000, &plant, &clocks);
        gpu.advance(6_000_000, &plant, &clocks, Bounds::default(), |_| 0.0);
        assert!(near(gpu.energy_uj, 70e6));
        // For 0.1 s the load runs at 345 MHz: 70 + 630 * (345/1980)^2 = 89.1271... W, then 0.9 s at 700 W.
        gpu.advance(7_000_000, &plant, &clocks, Bounds::default(), |_| 1.0);
        assert_eq!(gpu.clock_mhz, 1980);
        let first = 70.0 + 630.0 * (345.0 * 345.0) / (1980.0 * 1980.0);
        assert!(near(gpu.energy_uj, 70e6 + 0.1e6 * first + 0.9e6 * 700.0), "{}", gpu.energy_uj);
        assert!(near(gpu.mean_w(&plant), 0.1 * first + 0.9 * 700.0));
        // A second later the mean has forgotten it.
        gpu.advance(8_500_000, &plant, &clocks, Bounds::default(), |_| 1.0);
        assert!(near(gpu.mean_w(&plant), 700.0));
    }

    #[test]
    fn the_mean_lags_half_a_step() {
        let (plant, clocks) = (Plant { delay_s: 0.0, ..square() }, Clocks::default());
        let mut gpu = Running::start(0, &plant, &clocks);
        gpu.advance(10_000_000, &plant, &clocks, Bounds::default(), |_| 0.0);
        gpu.advance(10_500_000, &plant, &clocks, Bounds::default(), |_| 1.0);
        assert!(near(gpu.mean_w(&plant), 385.0), "{}", gpu.mean_w(&plant));
        assert!(near(gpu.power_w, 700.0));
        let sum: f64 = gpu.power_samples().map(|(_, watts)| watts * 0.05).sum();
        // 119 samples of 50 ms: 5.45 s idle and 0.5 s loaded.
        assert!(near(sum, 5.45 * 70.0 + 0.5 * 700.0), "{sum}");
    }

    #[test]
    fn a_load_that_changes_is_followed_at_its_own_times() {
        let (plant, clocks) = (Plant { delay_s: 0.0, ..square() }, Clocks::default());
        let mut gpu = Running::start(0, &plant, &clocks);
        let load = |at_us: u64| if at_us % 1_000_000 < 300_000 { 1.0 } else { 0.0 };
        gpu.advance(10_000_000, &plant, &clocks, Bounds::default(), load);
        // 30 % of the time 700 W, else 70 W.
        assert!(near(gpu.energy_uj, 10e6 * (0.3 * 700.0 + 0.7 * 70.0)), "{}", gpu.energy_uj);
    }
}
