//! What a GPU really drew: the plant played once more with the writes that reached the driver. Exact to 10 ms, and it
//! does not disturb the run as reading along would.

use anyhow::{Context as _, Result, ensure};
use fake_nvml::plant::{Bounds, Running};
use fake_nvml::state::Gpu;
use fake_nvml::units::float;
use serde_json::Value;

/// Length of a slice.
pub const SLICE_US: u64 = 10_000;
const DEFAULT_LIMIT_MW: u32 = 700_000;

/// One write to a device that was accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// Microseconds of the monotonic clock.
    pub at_us: u64,
    pub uuid: String,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// `None`: free again.
    Lock(Option<(u32, u32)>),
    LimitMw(u32),
}

/// 10 ms of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slice {
    pub load: f64,
    /// Mean of the slice.
    pub power_w: f64,
    pub clock_mhz: u32,
    /// The highest clock that the lock allows.
    pub ceiling_mhz: u32,
}

impl Write {
    /// A line of the driver's `writes.log`.
    ///
    /// # Errors
    /// When it is another call than those for clocks and limits, or was refused.
    pub fn parse(line: &Value) -> Result<Self> {
        ensure!(line["answer"] == "SUCCESS", "the driver refused {line}");
        let argument = |index: usize| -> Result<u32> {
            Ok(u32::try_from(line["arguments"][index].as_u64().with_context(|| format!("arguments of {line}"))?)?)
        };
        let what = match line["call"].as_str().unwrap_or_default() {
            "nvmlDeviceSetGpuLockedClocks" => What::Lock(Some((argument(0)?, argument(1)?))),
            "nvmlDeviceResetGpuLockedClocks" => What::Lock(None),
            "nvmlDeviceSetPowerManagementLimit" | "nvmlDeviceSetPowerManagementLimit_v2" => What::LimitMw(argument(0)?),
            _ => anyhow::bail!("the benchmark does not know the write {line}"),
        };
        let at_us = line["at_us"].as_u64().context("a write without its time")?;
        Ok(Self { at_us, uuid: line["uuid"].as_str().unwrap_or_default().to_owned(), what })
    }
}

/// What acts on a plant.
pub fn bounds(locked_mhz: Option<(u32, u32)>, limit_mw: Option<u32>) -> Bounds {
    Bounds { locked_mhz, limit_w: Some(f64::from(limit_mw.unwrap_or(DEFAULT_LIMIT_MW)) / 1000.0) }
}

/// A GPU from `from_us`, where it is idle and nothing is lowered, to `to_us`.
///
/// # Errors
/// When it has no plant.
pub fn replay(gpu: &Gpu, writes: &[Write], (from_us, to_us): (u64, u64)) -> Result<Vec<Slice>> {
    let plant = gpu.plant.as_ref().context("no plant")?;
    let mut writes = writes.iter().filter(|write| write.uuid == gpu.uuid).peekable();
    let mut running = Running::start(from_us, plant, &gpu.clocks);
    let mut acting = bounds(None, None);
    let mut slices = Vec::new();
    let mut at_us = from_us;
    while at_us < to_us {
        let (began_uj, end_us) = (running.energy_uj, at_us + SLICE_US);
        while let Some(write) = writes.next_if(|write| write.at_us < end_us) {
            running.advance(write.at_us, plant, &gpu.clocks, acting, |at_us| gpu.load(at_us));
            match write.what {
                What::Lock(locked_mhz) => acting.locked_mhz = locked_mhz,
                What::LimitMw(limit_mw) => acting.limit_w = Some(f64::from(limit_mw) / 1000.0),
            }
        }
        running.advance(end_us, plant, &gpu.clocks, acting, |at_us| gpu.load(at_us));
        slices.push(Slice {
            load: gpu.load(at_us),
            power_w: (running.energy_uj - began_uj) / float(SLICE_US),
            clock_mhz: running.clock_mhz,
            ceiling_mhz: acting.locked_mhz.map_or(gpu.clocks.max_mhz, |(_, high)| gpu.clocks.at_most(high)),
        });
        at_us = end_us;
    }
    Ok(slices)
}

#[cfg(test)]
mod tests {
    use fake_nvml::plant::Plant;
    use fake_nvml::state::Process;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_write_acts_from_its_time_on() {
        let process = Process { load: 1.0, ..Process::default() };
        let plant = Plant { exponent: 2.0, delay_s: 0.0, ..Plant::default() };
        let gpu = Gpu { uuid: "a".to_owned(), plant: Some(plant), processes: Some(vec![process]), ..Gpu::default() };
        let line = json!({
            "at_us": 1_500_000, "uuid": "a", "call": "nvmlDeviceSetGpuLockedClocks", "arguments": [345, 990], "answer": "SUCCESS",
        });
        let slices = replay(&gpu, &[Write::parse(&line).unwrap()], (1_000_000, 2_000_000)).unwrap();
        assert_eq!(slices.len(), 100);
        // 990 MHz are half of the range: 70 + 630 / 4.
        for (slice, watts, ceiling) in [(slices[48], 700.0, 1980), (slices[52], 227.5, 990)] {
            assert!((slice.power_w - watts).abs() < 1e-6 && slice.ceiling_mhz == ceiling, "{slice:?}");
        }
    }

    #[test]
    fn a_refused_write_is_an_error() {
        let line =
            json!({ "at_us": 1, "uuid": "a", "call": "nvmlDeviceResetGpuLockedClocks", "answer": "NO_PERMISSION" });
        assert!(Write::parse(&line).is_err());
    }
}
