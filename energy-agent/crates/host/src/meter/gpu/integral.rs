//! Power samples of a GPU without an energy counter become energy: the trapezoid over the driver's own time stamps.

use std::time::Duration;

use crate::meter::counter::Delta;
use crate::meter::trapezoid::Trapezoid;

/// A milliwatt times a microsecond is a nanojoule; so many of them are a microjoule.
const NANOJOULES: u128 = 1_000;

/// No GPU draws this; milliwatts. A value beyond it is nonsense, as drivers give while a board wakes up.
const IMPOSSIBLE_MW: u32 = 20_000_000;

/// A power reading of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerSample {
    /// Microseconds on the driver's clock.
    pub at_us: u64,
    pub power_mw: u32,
}

/// The running integral.
#[derive(Debug)]
pub struct GpuIntegral {
    /// The longest time between two samples over which a straight line is drawn; a longer one charges nothing.
    hole: Duration,
    last: Option<PowerSample>,
    sum: Trapezoid,
}

impl GpuIntegral {
    #[must_use]
    pub const fn new(hole: Duration) -> Self {
        Self { hole, last: None, sum: Trapezoid::new(NANOJOULES) }
    }

    /// Time of the newest sample used; 0 before the first.
    #[must_use]
    pub(crate) fn last_us(&self) -> u64 {
        self.last.map_or(0, |sample| sample.at_us)
    }

    /// Takes samples in any order. `None` until there are two; samples not newer than the last one used, and impossible
    /// ones, are left out. The delta is a gap where the samples are too far apart.
    pub fn advance(&mut self, samples: &mut [PowerSample]) -> Option<Delta> {
        samples.sort_by_key(|sample| sample.at_us);
        let (mut used, mut gap) = (false, false);
        for &sample in samples.iter().filter(|sample| sample.power_mw < IMPOSSIBLE_MW) {
            if let Some(last) = self.last {
                if sample.at_us <= last.at_us {
                    continue;
                }
                let apart = sample.at_us - last.at_us;
                if u128::from(apart) > self.hole.as_micros() {
                    gap = true;
                } else {
                    self.sum.add(last.power_mw.into(), sample.power_mw.into(), apart);
                }
                used = true;
            }
            self.last = Some(sample);
        }
        let energy = self.sum.take();
        used.then_some(Delta { energy, gap })
    }

    /// The clock was set back: what was read before it is no beginning.
    pub fn restart(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use energy_model::units::Microjoules;

    const fn at(at_us: u64, power_mw: u32) -> PowerSample {
        PowerSample { at_us, power_mw }
    }

    fn integral() -> GpuIntegral {
        GpuIntegral::new(Duration::from_secs(10))
    }

    fn clean(energy: u64) -> Option<Delta> {
        Some(Delta { energy: Microjoules(energy), gap: false })
    }

    #[test]
    fn power_alone_becomes_550_joules_fc_050() {
        let mut integral = integral();
        let watts = [10, 180, 180, 180, 10];
        let joules: Vec<_> = (0..)
            .zip(watts)
            .map(|(second, watts)| integral.advance(&mut [at(second * 1_000_000, watts * 1000)]))
            .collect();
        assert_eq!(joules, [None, clean(95_000_000), clean(180_000_000), clean(180_000_000), clean(95_000_000)]);
    }

    #[test]
    fn buffered_samples_give_the_same_in_any_order_and_only_once() {
        let mut integral = integral();
        let mut buffer = [at(2_000_000, 180_000), at(0, 10_000), at(1_000_000, 180_000)];
        assert_eq!(integral.advance(&mut buffer), clean(275_000_000));
        assert_eq!(integral.advance(&mut buffer), None, "nothing new");
        assert_eq!(integral.last_us(), 2_000_000);
    }

    #[test]
    fn what_is_less_than_a_microjoule_is_kept() {
        let mut integral = integral();
        integral.advance(&mut [at(0, 1)]);
        // 1 mW for 400 us is 0.4 uJ.
        let parts: Vec<u64> =
            (1..=5).map(|step| integral.advance(&mut [at(step * 400, 1)]).unwrap().energy.0).collect();
        assert_eq!(parts, [0, 0, 1, 0, 1]);
    }

    #[test]
    fn no_line_is_drawn_over_a_hole() {
        let mut integral = integral();
        integral.advance(&mut [at(0, 100_000)]);
        let delta = integral.advance(&mut [at(10_000_001, 100_000), at(11_000_001, 100_000)]);
        assert_eq!(delta, Some(Delta { energy: Microjoules(100_000_000), gap: true }));
    }

    #[test]
    fn nonsense_is_left_out() {
        let mut integral = integral();
        integral.advance(&mut [at(0, 100_000)]);
        assert_eq!(integral.advance(&mut [at(500_000, u32::MAX), at(1_000_000, 100_000)]), clean(100_000_000));
    }
}
