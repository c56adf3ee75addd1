//! Power, energy, their limits, and samples and field values of them.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_INSTANT, NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEnableState_t, nvmlFieldValue_t, nvmlSample_t, nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES,
    nvmlSamplingType_t, nvmlValue_t, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, nvmlValueType_t,
};

use crate::abi::{each, put, put_list};
use crate::clock;
use crate::returns::Return;
use crate::state::Limits;
use crate::units::{whole, whole32};
use crate::world::{Device, device, whole_gpu};

super::export! {
    fn nvmlDeviceGetTotalEnergyConsumption(handle: nvmlDevice_t, energy_mj: *mut c_ulonglong) {
        put(energy_mj, energy_of(&device(NAME, handle)?)?)
    }

    fn nvmlDeviceGetPowerUsage(handle: nvmlDevice_t, power_mw: *mut c_uint) {
        put(power_mw, power_of(&device(NAME, handle)?)?)
    }

    fn nvmlDeviceGetSamples(
        handle: nvmlDevice_t,
        kind: nvmlSamplingType_t,
        last_seen_us: c_ulonglong,
        value_type: *mut nvmlValueType_t,
        size: *mut c_uint,
        samples: *mut nvmlSample_t,
    ) {
        let device = whole_gpu(NAME, handle)?;
        let kept = device.gpu().power_samples.as_ref().ok_or(Return::NotSupported)?;
        if kind != nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES {
            return Err(Return::NotSupported);
        }
        put(value_type, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT)?;
        let kept = match device.running() {
            Some(running) => {
                let since_1970_us = clock::wall_us().saturating_sub(running.at_us);
                let samples = running.power_samples();
                samples.map(|(at_us, watts)| (since_1970_us + at_us, whole32(watts * 1000.0))).collect()
            }
            None => kept.clone(),
        };
        let new: Vec<_> = kept
            .into_iter()
            .filter(|(at_us, _)| *at_us > last_seen_us || device.gpu().ignore_last_seen)
            .map(|(at_us, power_mw)| nvmlSample_t { timeStamp: at_us, sampleValue: unsigned(u64::from(power_mw)) })
            .collect();
        if new.is_empty() {
            return Err(Return::NotFound);
        }
        if samples.is_null() {
            return put(size, crate::units::count(new.len()));
        }
        put_list(size, samples, &new)
    }

    fn nvmlDeviceGetFieldValues(handle: nvmlDevice_t, number: c_int, values: *mut nvmlFieldValue_t) {
        let device = device(NAME, handle)?;
        let number = usize::try_from(number).map_err(|_| Return::InvalidArgument)?;
        let timestamp = i64::try_from(clock::wall_us()).map_err(|_| Return::Unknown)?;
        each(number, values, |value| {
            let (kind, answer) = field_of(&device, value.fieldId, value.scopeId);
            value.timestamp = timestamp;
            value.latencyUsec = 0;
            value.valueType = kind;
            match answer {
                Ok(number) => (value.nvmlReturn, value.value) = (0, unsigned(number)),
                Err(error) => value.nvmlReturn = error.code(),
            }
        })
    }

    fn nvmlDeviceGetPowerManagementMode(handle: nvmlDevice_t, mode: *mut nvmlEnableState_t) {
        put(mode, u32::from(whole_gpu(NAME, handle)?.gpu().limits.is_some()))
    }

    fn nvmlDeviceGetPowerManagementLimit(handle: nvmlDevice_t, limit_mw: *mut c_uint) {
        let device = whole_gpu(NAME, handle)?;
        let default_mw = limits_of(&device)?.default_mw;
        put(limit_mw, device.held(|held| held.power_limit_mw.unwrap_or(default_mw)))
    }

    fn nvmlDeviceGetPowerManagementDefaultLimit(handle: nvmlDevice_t, limit_mw: *mut c_uint) {
        put(limit_mw, limits_of(&whole_gpu(NAME, handle)?)?.default_mw)
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(handle: nvmlDevice_t, min_mw: *mut c_uint, max_mw: *mut c_uint) {
        let device = whole_gpu(NAME, handle)?;
        let limits = limits_of(&device)?;
        put(min_mw, limits.min_mw)?;
        put(max_mw, limits.max_mw)
    }

    fn nvmlDeviceGetEnforcedPowerLimit(handle: nvmlDevice_t, limit_mw: *mut c_uint) {
        let device = whole_gpu(NAME, handle)?;
        let limits = limits_of(&device)?;
        let set_mw = device.held(|held| held.power_limit_mw.unwrap_or(limits.default_mw));
        put(limit_mw, limits.enforced_mw.unwrap_or(set_mw))
    }

    fn nvmlDeviceSetPowerManagementLimit(handle: nvmlDevice_t, limit_mw: c_uint) {
        let device = whole_gpu(NAME, handle)?;
        let limits = limits_of(&device)?;
        if !(limits.min_mw..=limits.max_mw).contains(&limit_mw) {
            return device.wrote(NAME, &[limit_mw], Return::InvalidArgument);
        }
        // Until now the old limit acted.
        drop(device.running());
        if !limits.keep {
            device.held(|held| held.power_limit_mw = Some(limit_mw));
        }
        device.wrote(NAME, &[limit_mw], Return::Success)
    }
}

fn limits_of(device: &Device) -> Result<&Limits, Return> {
    device.gpu().limits.as_ref().ok_or(Return::NotSupported)
}

fn energy_of(device: &Device) -> Result<u64, Return> {
    if let Some(instance) = device.instance() {
        return instance.energy_mj.ok_or(Return::NotSupported);
    }
    let played = device.gpu().energy_mj.ok_or(Return::NotSupported)?;
    Ok(device.running().map_or(played, |running| played + whole((running.energy_uj / 1000.0).floor())))
}

fn power_of(device: &Device) -> Result<u32, Return> {
    if let Some(instance) = device.instance() {
        return instance.power_mw.ok_or(Return::NotSupported);
    }
    let gpu = device.gpu();
    let played = gpu.power_mw.ok_or(Return::NotSupported)?;
    let mean_w = gpu.plant.as_ref().zip(device.running()).map(|(plant, running)| running.mean_w(plant));
    Ok(mean_w.map_or(played, |watts| whole32(watts * 1000.0)))
}

/// The type of a field's value, and the value.
fn field_of(device: &Device, id: u32, scope: u32) -> (nvmlValueType_t, Result<u64, Return>) {
    let int = nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
    match id {
        NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION => {
            (nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, energy_of(device))
        }
        // The scope of a module.
        NVML_FI_DEV_POWER_AVERAGE | NVML_FI_DEV_POWER_INSTANT if scope == 1 => {
            (int, device.gpu().module_power_mw.map(u64::from).ok_or(Return::NotSupported))
        }
        NVML_FI_DEV_POWER_AVERAGE => (int, power_of(device).map(u64::from)),
        NVML_FI_DEV_POWER_INSTANT => {
            let running = device.running().map(|running| whole32(running.power_w * 1000.0));
            let played = running.or(device.gpu().power_instant_mw);
            (int, played.map_or_else(|| power_of(device), Ok).map(u64::from))
        }
        _ => (int, Err(Return::NotSupported)),
    }
}

/// The narrower fields of the union are its lower bytes.
fn unsigned(value: u64) -> nvmlValue_t {
    nvmlValue_t { ullVal: value }
}
