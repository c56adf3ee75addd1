//! The graphics clocks that a GPU can be locked to: as the driver lists them, or as the range that it reports.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// Between two clocks where only a range is known; MHz. The driver takes the nearest that it has.
const STEP_MHZ: u32 = 15;
/// More clocks than a GPU has: up to two hundred have been seen.
const ROOM: usize = 1024;
/// A step may join so many of the list's own.
const MOST_JOINED: u32 = 4;

/// Ascending, at least three; MHz. The first is the lower end of every lock, so that the GPU can idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clocks(Vec<u32>);

impl Clocks {
    /// Of the driver's list; `None` where there is nothing to choose from.
    #[must_use]
    pub fn listed(mut all: Vec<u32>) -> Option<Self> {
        all.sort_unstable();
        all.dedup();
        (all.len() >= 3).then_some(Self(all))
    }

    /// Of a range.
    #[must_use]
    pub fn between(min: u32, max: u32) -> Option<Self> {
        let mut all = vec![min];
        for mhz in (min..=max).rev().step_by(usize::try_from(STEP_MHZ).ok()?) {
            all.push(mhz);
        }
        Self::listed(all)
    }

    /// Of the highest clock alone: drivers take 0 as the lower end, and below a fifth nothing is known.
    #[must_use]
    pub(crate) fn up_to(max: u32) -> Option<Self> {
        let Self(mut all) = Self::between(max / 5, max)?;
        all.insert(0, 0);
        Some(Self(all))
    }

    /// The lower end of every lock.
    #[must_use]
    pub fn lowest(&self) -> u32 {
        self.0[0]
    }

    /// The least upper end.
    #[must_use]
    pub fn min(&self) -> u32 {
        self.0[1]
    }

    #[must_use]
    pub fn max(&self) -> u32 {
        self.0[self.0.len() - 1]
    }

    /// The highest upper end that is not above `ceiling_mhz`; `None` where that is below all.
    #[must_use]
    pub fn at_most(&self, ceiling_mhz: u64) -> Option<u32> {
        self.0[1..].iter().copied().rev().find(|mhz| u64::from(*mhz) <= ceiling_mhz)
    }

    /// The distance at which all upper ends from the least on are in the list: clocks that lie 7 and 8 MHz apart in turn
    /// have one of 15. Where there is none, the least distance of two.
    #[must_use]
    pub fn step(&self) -> u32 {
        let ends = &self.0[1..];
        let gap = ends.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(1);
        let even = |step: &u32| {
            let mut at = self.min();
            while at < self.max() && ends.binary_search(&at).is_ok() {
                at += step;
            }
            at >= self.max()
        };
        let distances = ends[1..].iter().map(|mhz| mhz - self.min());
        distances.take_while(|step| *step <= gap.saturating_mul(MOST_JOINED)).find(even).unwrap_or(gap)
    }
}

/// The driver's list for a memory clock. The wrapper's own function takes an empty list of zeros where there are more than
/// 128.
///
/// # Errors
/// As NVML says.
pub fn supported(device: &Device<'_>, memory_mhz: u32) -> Result<Vec<u32>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetSupportedGraphicsClocks.as_ref())?;
    let mut all: Vec<c_uint> = vec![0; ROOM];
    let mut count = c_uint::try_from(ROOM).map_err(|_| NvmlError::InvalidArg)?;
    // SAFETY: the handle is of this library, which `device` borrows and so keeps open; the buffer has room for `count`.
    nvml_try(unsafe { call(device.handle(), memory_mhz, &raw mut count, all.as_mut_ptr()) })?;
    all.truncate(usize::try_from(count).unwrap_or(ROOM));
    Ok(all)
}

/// What keeps the clocks down, as NVML's bit mask. The wrapper's own function drops bits that it does not know, and a clock
/// without a reason would be taken for locked.
///
/// # Errors
/// As NVML says.
pub fn reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetCurrentClocksThrottleReasons.as_ref())?;
    let mut reasons: c_ulonglong = 0;
    // SAFETY: the handle is of this library, which `device` borrows and so keeps open; the number is there for the call.
    nvml_try(unsafe { call(device.handle(), &raw mut reasons) })?;
    Ok(reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_a_range_and_its_upper_end_the_nearest_lower_clock_fc_085() {
        let clocks = Clocks::listed((345..=1980).step_by(15).collect()).unwrap();
        assert_eq!((clocks.lowest(), clocks.min(), clocks.max(), clocks.step()), (345, 360, 1980, 15));
        let ends = [0, 345, 359, 360, 1199, 1200, 1214, 1980, 5000].map(|mhz| clocks.at_most(mhz));
        let expected = [None, None, None, Some(360), Some(1185), Some(1200), Some(1200), Some(1980), Some(1980)];
        assert_eq!(ends, expected);
    }

    #[test]
    fn uneven_clocks_have_the_step_that_meets_them_all() {
        // 7.5 MHz apart, as a V100 lists them.
        let clocks = Clocks::listed(vec![135, 142, 150, 157, 165, 172, 180, 187, 195]).unwrap();
        assert_eq!((clocks.min(), clocks.step()), (142, 15));
        // 142, 157, 172, 187 are all there; 195 is reached by asking for more than it.
        let clocks = Clocks::listed(vec![100, 110, 117, 130, 131, 150]).unwrap();
        assert_eq!(clocks.step(), 1, "no distance meets them");
    }

    #[test]
    fn a_range_without_a_list_is_divided_from_above() {
        assert_eq!(Clocks::between(300, 340), Some(Clocks(vec![300, 310, 325, 340])));
        assert_eq!(Clocks::between(300, 300), None);
        assert_eq!(Clocks::between(300, 200), None);
        let clocks = Clocks::up_to(1000).unwrap();
        assert_eq!((clocks.lowest(), clocks.min(), clocks.max()), (0, 200, 1000));
        assert_eq!(Clocks::up_to(0), None);
    }
}
