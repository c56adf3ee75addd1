//! Whether a GPU's energy counter can be believed: pure. One that stands still gives no energy; one that shows far less or more
//! than the GPU's power makes in a minute is doubtful, which is said.

use std::time::{Duration, Instant};

use energy_model::gpu::GpuEnergy;
use energy_model::units::Watts;
use energy_model::zone::Source;

use crate::meter::state_log::StateLog;
use crate::meter::still::Still;

/// Over which energy and power are compared. Both are means of about a second on some boards.
const WINDOW: Duration = Duration::from_secs(60);
/// What the one may be of the other: boards are measured to 5 %, and a load may change between two readings.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 0.7..=1.3;

/// What is thought of one counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    #[default]
    Plausible,
    Frozen,
    /// It shows this much of the power, in percent.
    Doubtful(u32),
}

#[derive(Debug, Default)]
pub struct Doubt {
    still: Still,
    /// Of the window so far.
    energy: f64,
    expected: f64,
    time: Duration,
    last_power: Option<Watts>,
    verdict: Verdict,
    told: StateLog<Verdict>,
}

impl Doubt {
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The energy of a counter, unless it stands still; energy from elsewhere as it is. `power`: the GPU's at this reading.
    pub fn judge(&mut self, energy: Option<GpuEnergy>, power: Option<Watts>, elapsed: Duration) -> Option<GpuEnergy> {
        let energy = energy?;
        let last = std::mem::replace(&mut self.last_power, power);
        if energy.source != Source::Nvml {
            return Some(energy);
        }
        let stood = self.still.stands();
        let off = power.is_some_and(|power| power.0 <= 0.0);
        if self.still.read(energy.energy.0 > 0 || off || energy.gap && !stood, elapsed) {
            self.verdict = Verdict::Frozen;
            self.begin();
            return None;
        }
        if stood {
            self.verdict = Verdict::Plausible;
        }
        if let (Some(last), Some(power), false) = (last, power, energy.gap || stood) {
            self.energy += energy.energy.over(elapsed).0 * elapsed.as_secs_f64();
            self.expected += (last.0 + power.0) / 2.0 * elapsed.as_secs_f64();
            self.time += elapsed;
        }
        if self.time >= WINDOW {
            let part = if self.expected > 0.0 { self.energy / self.expected } else { 1.0 };
            self.verdict = match PLAUSIBLE.contains(&part) {
                true => Verdict::Plausible,
                false => Verdict::Doubtful(percent(part)),
            };
            self.begin();
        }
        // What it gained when it went on may have been used long before.
        Some(GpuEnergy { gap: energy.gap || stood, ..energy })
    }

    /// What the log should say about it now.
    pub fn news(&mut self, now: Instant) -> Option<String> {
        // Another percentage is no other state.
        let state = if let Verdict::Doubtful(_) = self.verdict { Verdict::Doubtful(0) } else { self.verdict };
        self.told.due(state, now)?;
        Some(match self.verdict {
            Verdict::Plausible => "the energy counter moves again".to_owned(),
            Verdict::Frozen => format!("{}, so the GPU has no energy until it moves", self.still.describe()),
            Verdict::Doubtful(percent) => {
                format!("the energy counter shows {percent} % of the power of the last minute")
            }
        })
    }

    fn begin(&mut self) {
        (self.energy, self.expected, self.time) = (0.0, 0.0, Duration::ZERO);
    }
}

/// Rounded: sums of readings lie a little beside what they stand for.
fn percent(part: f64) -> u32 {
    u32::try_from(energy_model::units::floor_u64(part * 100.0 + 0.5)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use energy_model::units::Microjoules;

    const SECOND: Duration = Duration::from_secs(1);

    fn read(doubt: &mut Doubt, joules: f64, watts: f64) -> Option<GpuEnergy> {
        let energy = GpuEnergy { energy: Watts(joules).during(SECOND), source: Source::Nvml, gap: false };
        doubt.judge(Some(energy), Some(Watts(watts)), SECOND)
    }

    #[test]
    fn a_counter_that_stands_still_gives_no_energy_after_ten_seconds_fc_132() {
        let mut doubt = Doubt::default();
        for second in 1..=30 {
            assert_eq!(read(&mut doubt, 0.0, 650.0).is_some(), second < 10, "{second}");
        }
        assert_eq!(doubt.verdict(), Verdict::Frozen);
        let news = doubt.news(Instant::now()).unwrap();
        assert!(news.contains("gained nothing for 30 s (30 readings)"), "{news}");
        let again = read(&mut doubt, 20_000.0, 650.0).unwrap();
        assert!(again.gap, "what was used in half a minute is no power of a second");
        assert_eq!(again.energy, Microjoules(20_000_000_000));
        assert!(!read(&mut doubt, 650.0, 650.0).unwrap().gap);
        assert_eq!(doubt.verdict(), Verdict::Plausible);
        assert!(doubt.news(Instant::now()).unwrap().contains("again"));
    }

    #[test]
    fn a_counter_that_lags_is_doubtful_after_a_minute_and_said_once_fc_132() {
        let mut doubt = Doubt::default();
        let mut said = Vec::new();
        for second in 1..=240 {
            assert!(read(&mut doubt, 57.0, 100.0).is_some(), "it is all there is");
            said.extend(doubt.news(Instant::now()).map(|text| (second, text)));
        }
        // The first reading has no power before it.
        let expected = "the energy counter shows 57 % of the power of the last minute".to_owned();
        assert_eq!(said, [(61, expected)]);
        assert_eq!(doubt.verdict(), Verdict::Doubtful(57));
    }

    #[test]
    fn what_is_right_is_not_doubted_and_an_integral_neither() {
        let mut doubt = Doubt::default();
        for second in 0..200 {
            read(&mut doubt, if second % 2 == 0 { 100.0 } else { 500.0 }, 300.0);
            assert_eq!((doubt.verdict(), doubt.news(Instant::now())), (Verdict::Plausible, None));
        }
        let integrated = GpuEnergy { energy: Microjoules(0), source: Source::NvmlIntegrated, gap: false };
        for _ in 0..30 {
            assert_eq!(doubt.judge(Some(integrated), Some(Watts(70.0)), SECOND), Some(integrated));
        }
        // A GPU that is off uses nothing.
        let mut off = Doubt::default();
        assert!((0..30).all(|_| read(&mut off, 0.0, 0.0).is_some()));
    }
}
