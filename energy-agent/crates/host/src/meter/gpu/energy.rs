//! Energy of one GPU: its counter where it has one, else its power integrated; chosen once.

use std::time::{Duration, Instant};

use energy_model::gpu::GpuEnergy;
use energy_model::units::{floor_u64, micros};
use energy_model::zone::Source;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;

use super::call::NvmlCall;
use super::fault::{Calls, GpuFailure};
use super::integral::{GpuIntegral, PowerSample};
use super::samples::AHEAD_US;
use super::superchip::{self, PowerScope};
use crate::meter::counter::{Counter, Delta, ZoneCounts};

/// Power samples are never joined by a line over more than this, or three intervals.
const HOLE: Duration = Duration::from_secs(10);

/// A call on the driver takes less; a thread that waits for a CPU takes more.
const PROMPT: Duration = Duration::from_millis(10);
/// So often is a counter read at most for one reading.
const ATTEMPTS: u32 = 3;

enum Way {
    Undecided,
    Counter(Counter),
    /// Samples that the driver buffers, with its time stamps.
    Buffered(GpuIntegral),
    /// Power as it is at each reading, on this machine's clock since `Instant`.
    Polled(GpuIntegral, Instant),
    /// The GPU reports neither.
    Nothing,
}

/// Turns what a GPU offers into energy since the previous reading.
pub struct EnergyWay {
    way: Way,
    /// What the GPU's series began with; it never changes while the agent runs, even where the library was opened anew.
    chosen: Option<Source>,
    hole: Duration,
    /// The last reading gave nothing, so the next covers more than its interval.
    missed: bool,
    /// The GPU is part of a superchip, whose counter may be the whole module's: its own power is integrated.
    superchip: bool,
}

impl EnergyWay {
    #[must_use]
    pub fn new(chosen: Option<Source>, interval: Duration, superchip: bool) -> Self {
        Self { way: Way::Undecided, chosen, hole: HOLE.max(interval * 3), missed: false, superchip }
    }

    /// The GPU may offer in its present mode what it did not before.
    pub(crate) fn reconsider(&mut self) {
        if matches!(self.way, Way::Nothing) {
            self.way = Way::Undecided;
        }
    }

    /// `None` while it is not decided, or where the GPU offers nothing.
    #[must_use]
    pub const fn source(&self) -> Option<Source> {
        self.chosen
    }

    /// Reads, and says when; `last` is when it was read before. `None`: not measured this time.
    ///
    /// # Errors
    /// When the device is out of reach.
    pub fn read(
        &mut self,
        device: &Device<'_>,
        calls: &mut Calls,
        last: Option<Instant>,
        now_us: u64,
        counts: &mut ZoneCounts,
    ) -> Result<(Option<GpuEnergy>, Instant), GpuFailure> {
        if matches!(self.way, Way::Undecided) {
            self.decide(device, calls)?;
        }
        let mut now = Instant::now();
        let (source, delta) = match &mut self.way {
            Way::Undecided | Way::Nothing => return Ok((None, now)),
            Way::Counter(counter) => {
                let raw_mj;
                (raw_mj, now) =
                    promptly(Instant::now, || calls.judge(NvmlCall::TotalEnergy, device.total_energy_consumption()))?;
                let elapsed = last.map_or(Duration::ZERO, |last| now.duration_since(last));
                let delta = match raw_mj.and_then(|raw_mj| raw_mj.checked_mul(1000)) {
                    Some(raw_uj) => counter.advance(raw_uj, elapsed, counts),
                    None => {
                        counts.read_errors += 1;
                        counter.miss(elapsed);
                        None
                    }
                };
                (Source::Nvml, delta)
            }
            Way::Buffered(integral) => {
                let after_us = set_forward(integral, now_us);
                let samples = calls.judge(NvmlCall::PowerSamples, power_samples(device, after_us))?.unwrap_or_default();
                let mut samples: Vec<_> =
                    samples.into_iter().filter(|sample| sample.at_us <= now_us.saturating_add(AHEAD_US)).collect();
                (Source::NvmlIntegrated, late(integral.advance(&mut samples), &mut self.missed))
            }
            Way::Polled(integral, since) => {
                let power_mw = calls.judge(NvmlCall::PowerUsage, gpu_power(device, self.superchip))?;
                let mut sample = power_mw.map(|power_mw| PowerSample { at_us: micros(since.elapsed()), power_mw });
                let delta = integral.advance(sample.as_mut_slice());
                (Source::NvmlIntegrated, late(delta, &mut self.missed))
            }
        };
        Ok((delta.map(|Delta { energy, gap }| GpuEnergy { energy, source, gap }), now))
    }

    fn decide(&mut self, device: &Device<'_>, calls: &mut Calls) -> Result<(), GpuFailure> {
        if self.chosen != Some(Source::NvmlIntegrated) && !self.superchip {
            match calls.judge(NvmlCall::TotalEnergy, device.total_energy_consumption())? {
                Some(_) => {
                    self.chosen = Some(Source::Nvml);
                    self.way = Way::Counter(Counter::new(None));
                    return Ok(());
                }
                // A failure is not the absence of a counter.
                None if self.chosen.is_some() || !calls.refuses(NvmlCall::TotalEnergy) => return Ok(()),
                None => {}
            }
        }
        let buffered =
            if self.superchip { None } else { calls.ask(NvmlCall::PowerSamples, || power_samples(device, 0))? };
        if buffered.is_some_and(|samples| !samples.is_empty()) {
            self.way = Way::Buffered(GpuIntegral::new(self.hole));
        } else if calls.ask(NvmlCall::PowerUsage, || gpu_power(device, self.superchip))?.is_some() {
            self.way = Way::Polled(GpuIntegral::new(self.hole), Instant::now());
        } else if calls.refuses(NvmlCall::PowerUsage) {
            self.way = Way::Nothing;
            return Ok(());
        } else {
            return Ok(());
        }
        self.chosen = Some(Source::NvmlIntegrated);
        Ok(())
    }
}

/// The GPU's own power; milliwatts. Of a superchip's GPU by its scope, where the driver has scopes.
fn gpu_power(device: &Device<'_>, superchip: bool) -> Result<u32, NvmlError> {
    match superchip.then(|| superchip::power_mw(device, PowerScope::Gpu)) {
        Some(Ok(power_mw)) => Ok(power_mw),
        Some(Err(_)) | None => device.power_usage(),
    }
}

/// Energy of the module around a superchip's GPU: its power integrated, or the GPU's counter where there is no power.
pub enum ModuleWay {
    Power(GpuIntegral, Instant),
    Counter(Counter),
}

impl ModuleWay {
    pub fn new(device: &Device<'_>) -> Self {
        match superchip::power_mw(device, PowerScope::Module) {
            Ok(_) => Self::Power(GpuIntegral::new(HOLE), Instant::now()),
            Err(_) => Self::Counter(Counter::new(None)),
        }
    }

    /// As [`EnergyWay::read`]. What fails is left out.
    pub fn read(&mut self, device: &Device<'_>, elapsed: Duration) -> Option<GpuEnergy> {
        let (delta, source) = match self {
            Self::Power(integral, since) => {
                let power_mw = superchip::power_mw(device, PowerScope::Module).ok()?;
                let mut sample = [PowerSample { at_us: micros(since.elapsed()), power_mw }];
                (integral.advance(&mut sample), Source::NvmlIntegrated)
            }
            Self::Counter(counter) => {
                let raw_uj = device.total_energy_consumption().ok()?.checked_mul(1000)?;
                // What is counted here is no zone of the node that others are compared with.
                (counter.advance(raw_uj, elapsed, &mut ZoneCounts::default()), Source::Nvml)
            }
        };
        delta.map(|Delta { energy, gap }| GpuEnergy { energy, source, gap })
    }
}

/// Marks what follows a reading that gave nothing.
fn late(delta: Option<Delta>, missed: &mut bool) -> Option<Delta> {
    let bridged = std::mem::replace(missed, delta.is_none());
    delta.map(|delta| Delta { gap: delta.gap || bridged, ..delta })
}

/// The time after which samples are asked for; begins anew where the clock was set back.
fn set_forward(integral: &mut GpuIntegral, now_us: u64) -> u64 {
    if integral.last_us() > now_us.saturating_add(AHEAD_US) {
        integral.restart();
    }
    integral.last_us()
}

fn power_samples(device: &Device<'_>, after_us: u64) -> Result<Vec<PowerSample>, NvmlError> {
    let samples = device.samples(Sampling::Power, after_us)?;
    let sample = |sample: nvml_wrapper::struct_wrappers::device::Sample| {
        let power_mw = match sample.value {
            SampleValue::U32(value) => Some(value),
            SampleValue::U64(value) => u32::try_from(value).ok(),
            SampleValue::I64(value) => u32::try_from(value).ok(),
            SampleValue::F64(value) => u32::try_from(floor_u64(value)).ok(),
        };
        power_mw.map(|power_mw| PowerSample { at_us: sample.timestamp, power_mw })
    };
    Ok(samples.into_iter().filter_map(sample).collect())
}

/// Reads a counter, and says when. A thread that is stopped between the clock and the call would have the energy of a longer
/// time than it says, so a call that took long is made again, and the quickest counts.
fn promptly<T, E>(clock: impl Fn() -> Instant, mut read: impl FnMut() -> Result<T, E>) -> Result<(T, Instant), E> {
    let mut quickest: Option<(Duration, T, Instant)> = None;
    for _ in 0..ATTEMPTS {
        let began = clock();
        let value = read()?;
        let took = clock().duration_since(began);
        if quickest.as_ref().is_none_or(|(least, ..)| took < *least) {
            quickest = Some((took, value, began + took / 2));
        }
        if took <= PROMPT {
            break;
        }
    }
    let (_, value, at) = quickest.expect("there is one attempt at least");
    Ok((value, at))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What is read, and how long after the start, where the calls take so many milliseconds one after another.
    fn read_in(calls_ms: &[u64]) -> (usize, Duration) {
        let (start, clock_ms, calls) = (Instant::now(), Cell::new(0), Cell::new(0));
        let read = || -> Result<usize, ()> {
            clock_ms.set(clock_ms.get() + calls_ms[calls.get()]);
            calls.set(calls.get() + 1);
            Ok(calls.get())
        };
        let (value, at) = promptly(|| start + Duration::from_millis(clock_ms.get()), read).unwrap();
        (value, at.duration_since(start))
    }

    #[test]
    fn a_counter_that_was_read_late_is_read_again_and_the_quickest_reading_counts() {
        let ms = Duration::from_millis;
        assert_eq!(read_in(&[4]), (1, ms(2)), "in the middle of the call");
        assert_eq!(read_in(&[500, 2]), (2, ms(501)));
        assert_eq!(read_in(&[500, 60, 100]), (2, ms(530)), "a driver that is always slow is asked three times");
    }

    #[test]
    fn an_error_of_the_device_is_not_tried_again() {
        let calls = Cell::new(0);
        let failed: Result<((), _), &str> = promptly(Instant::now, || {
            calls.set(calls.get() + 1);
            Err("gone")
        });
        assert_eq!((failed.unwrap_err(), calls.get()), ("gone", 1));
    }
}
