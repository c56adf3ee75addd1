//! Clocks, what holds them down, and the locks.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlClockId_t, nvmlClockType_enum_NVML_CLOCK_COUNT, nvmlClockType_enum_NVML_CLOCK_MEM, nvmlClockType_t,
    nvmlDevice_t, nvmlPstates_t,
};

use crate::abi::{put, put_list};
use crate::returns::Return;
use crate::world::{Device, device, whole_gpu};

super::export! {
    fn nvmlDeviceGetClockInfo(handle: nvmlDevice_t, kind: nvmlClockType_t, mhz: *mut c_uint) {
        put(mhz, clock_of(&device(NAME, handle)?, kind)?)
    }

    fn nvmlDeviceGetClock(handle: nvmlDevice_t, kind: nvmlClockType_t, id: nvmlClockId_t, mhz: *mut c_uint) {
        let device = device(NAME, handle)?;
        put(mhz, if id == 0 { clock_of(&device, kind)? } else { highest_of(&device, kind)? })
    }

    fn nvmlDeviceGetMaxClockInfo(handle: nvmlDevice_t, kind: nvmlClockType_t, mhz: *mut c_uint) {
        put(mhz, highest_of(&device(NAME, handle)?, kind)?)
    }

    fn nvmlDeviceGetMinMaxClockOfPState(
        handle: nvmlDevice_t,
        kind: nvmlClockType_t,
        _state: nvmlPstates_t,
        min_mhz: *mut c_uint,
        max_mhz: *mut c_uint,
    ) {
        let device = whole_gpu(NAME, handle)?;
        let clocks = &device.gpu().clocks;
        let lowest = if kind == nvmlClockType_enum_NVML_CLOCK_MEM {
            clocks.memory_mhz.iter().min().copied().ok_or(Return::NotSupported)?
        } else {
            clocks.min_mhz
        };
        put(min_mhz, lowest)?;
        put(max_mhz, highest_of(&device, kind)?)
    }

    fn nvmlDeviceGetSupportedMemoryClocks(handle: nvmlDevice_t, size: *mut c_uint, mhz: *mut c_uint) {
        put_list(size, mhz, &whole_gpu(NAME, handle)?.gpu().clocks.memory_mhz)
    }

    fn nvmlDeviceGetSupportedGraphicsClocks(
        handle: nvmlDevice_t,
        memory_mhz: c_uint,
        size: *mut c_uint,
        mhz: *mut c_uint,
    ) {
        let device = whole_gpu(NAME, handle)?;
        let clocks = &device.gpu().clocks;
        if !clocks.memory_mhz.contains(&memory_mhz) {
            return Err(Return::NotFound);
        }
        let step = usize::try_from(clocks.step_mhz.max(1)).map_err(|_| Return::Unknown)?;
        let mut all: Vec<u32> = (clocks.min_mhz..=clocks.max_mhz).step_by(step).collect();
        all.reverse();
        put_list(size, mhz, &all)
    }

    fn nvmlDeviceSetGpuLockedClocks(handle: nvmlDevice_t, min_mhz: c_uint, max_mhz: c_uint) {
        let device = whole_gpu(NAME, handle)?;
        if min_mhz > max_mhz || max_mhz == 0 {
            return device.wrote(NAME, &[min_mhz, max_mhz], Return::InvalidArgument);
        }
        // Until now the old lock acted.
        drop(device.running());
        device.held(|held| held.locked_mhz = Some((min_mhz, max_mhz)));
        device.wrote(NAME, &[min_mhz, max_mhz], Return::Success)
    }

    fn nvmlDeviceResetGpuLockedClocks(handle: nvmlDevice_t) {
        let device = whole_gpu(NAME, handle)?;
        drop(device.running());
        device.held(|held| held.locked_mhz = None);
        device.wrote(NAME, &[], Return::Success)
    }

    fn nvmlDeviceSetMemoryLockedClocks(handle: nvmlDevice_t, min_mhz: c_uint, max_mhz: c_uint) {
        let device = whole_gpu(NAME, handle)?;
        if min_mhz > max_mhz || max_mhz == 0 {
            return device.wrote(NAME, &[min_mhz, max_mhz], Return::InvalidArgument);
        }
        device.held(|held| held.locked_memory_mhz = Some((min_mhz, max_mhz)));
        device.wrote(NAME, &[min_mhz, max_mhz], Return::Success)
    }

    fn nvmlDeviceResetMemoryLockedClocks(handle: nvmlDevice_t) {
        let device = whole_gpu(NAME, handle)?;
        device.held(|held| held.locked_memory_mhz = None);
        device.wrote(NAME, &[], Return::Success)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(handle: nvmlDevice_t, reasons: *mut c_ulonglong) {
        put(reasons, reasons_of(&device(NAME, handle)?)?)
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(handle: nvmlDevice_t, reasons: *mut c_ulonglong) {
        put(reasons, reasons_of(&device(NAME, handle)?)?)
    }

    fn nvmlDeviceGetSupportedClocksThrottleReasons(handle: nvmlDevice_t, reasons: *mut c_ulonglong) {
        drop(device(NAME, handle)?);
        put(reasons, 0x1ff)
    }

    fn nvmlDeviceGetSupportedClocksEventReasons(handle: nvmlDevice_t, reasons: *mut c_ulonglong) {
        drop(device(NAME, handle)?);
        put(reasons, 0x1ff)
    }
}

fn clock_of(device: &Device, kind: nvmlClockType_t) -> Result<u32, Return> {
    if kind >= nvmlClockType_enum_NVML_CLOCK_COUNT {
        return Err(Return::InvalidArgument);
    }
    if kind == nvmlClockType_enum_NVML_CLOCK_MEM {
        return device.gpu().memory_clock_mhz.ok_or(Return::NotSupported);
    }
    let played = device.gpu().sm_clock_mhz.ok_or(Return::NotSupported)?;
    Ok(device.running().map_or(played, |running| running.clock_mhz))
}

fn highest_of(device: &Device, kind: nvmlClockType_t) -> Result<u32, Return> {
    let clocks = &device.gpu().clocks;
    if kind == nvmlClockType_enum_NVML_CLOCK_MEM {
        return clocks.memory_mhz.iter().max().copied().ok_or(Return::NotSupported);
    }
    Ok(clocks.max_mhz)
}

/// 1 idle, 2 the user's clocks, 4 the power limit.
fn reasons_of(device: &Device) -> Result<u64, Return> {
    let played = device.gpu().throttle_reasons.ok_or(Return::NotSupported)?;
    let Some(running) = device.running() else { return Ok(played) };
    let idle = device.gpu().load(running.at_us) <= 0.0;
    Ok(u64::from(idle) | u64::from(running.locked) << 1 | u64::from(running.limited) << 2)
}
