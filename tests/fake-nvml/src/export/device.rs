//! What a device is, and its figures of the moment beside power and clocks.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlBrandType_enum_NVML_BRAND_NVIDIA, nvmlBrandType_t, nvmlComputeMode_t, nvmlDevice_t, nvmlDeviceArchitecture_t,
    nvmlEnableState_t, nvmlGpuVirtualizationMode_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlPstates_t,
    nvmlTemperature_t, nvmlTemperatureSensors_t, nvmlUtilization_t,
};

use crate::abi::{field, put, put_text, take};
use crate::returns::Return;
use crate::units::{count, whole32};
use crate::world::{Device, device, whole_gpu};

super::export! {
    fn nvmlDeviceGetName(handle: nvmlDevice_t, name: *mut c_char, length: c_uint) {
        put_text(name, length, &device(NAME, handle)?.gpu().name)
    }

    fn nvmlDeviceGetUUID(handle: nvmlDevice_t, uuid: *mut c_char, length: c_uint) {
        put_text(uuid, length, &device(NAME, handle)?.uuid())
    }

    fn nvmlDeviceGetIndex(handle: nvmlDevice_t, index: *mut c_uint) {
        put(index, count(device(NAME, handle)?.index()))
    }

    fn nvmlDeviceGetMinorNumber(handle: nvmlDevice_t, minor: *mut c_uint) {
        let device = whole_gpu(NAME, handle)?;
        put(minor, device.gpu().minor.unwrap_or_else(|| count(device.index())))
    }

    fn nvmlDeviceGetSerial(handle: nvmlDevice_t, serial: *mut c_char, length: c_uint) {
        let device = whole_gpu(NAME, handle)?;
        put_text(serial, length, &format!("16520230000{:02}", device.index()))
    }

    fn nvmlDeviceGetBrand(handle: nvmlDevice_t, brand: *mut nvmlBrandType_t) {
        drop(device(NAME, handle)?);
        put(brand, nvmlBrandType_enum_NVML_BRAND_NVIDIA)
    }

    fn nvmlDeviceGetArchitecture(handle: nvmlDevice_t, architecture: *mut nvmlDeviceArchitecture_t) {
        put(architecture, device(NAME, handle)?.gpu().architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(handle: nvmlDevice_t, major: *mut c_int, minor: *mut c_int) {
        drop(device(NAME, handle)?);
        put(major, 9)?;
        put(minor, 0)
    }

    fn nvmlDeviceGetPciInfo_v3(handle: nvmlDevice_t, pci: *mut nvmlPciInfo_t) {
        let device = device(NAME, handle)?;
        let bus_id = &device.gpu().bus_id;
        let number = |part: Option<&str>| part.and_then(|part| u32::from_str_radix(part, 16).ok()).unwrap_or(0);
        let mut parts = bus_id.split([':', '.']);
        let (domain, bus, slot) = (number(parts.next()), number(parts.next()), number(parts.next()));
        put(pci, nvmlPciInfo_t {
            busIdLegacy: field(bus_id.get(4..).unwrap_or(bus_id)),
            domain,
            bus,
            device: slot,
            pciDeviceId: 0x2330_10DE,
            pciSubSystemId: 0x16C1_10DE,
            busId: field(bus_id),
        })
    }

    fn nvmlDeviceGetUtilizationRates(handle: nvmlDevice_t, rates: *mut nvmlUtilization_t) {
        let device = device(NAME, handle)?;
        if let Some(instance) = device.instance() {
            let (gpu, memory) = instance.utilization.ok_or(Return::NotSupported)?;
            return put(rates, nvmlUtilization_t { gpu, memory });
        }
        let (gpu, memory) = device.gpu().utilization.ok_or(Return::NotSupported)?;
        let gpu = match device.running() {
            Some(running) => whole32(device.gpu().load(running.at_us) * 100.0),
            None => gpu,
        };
        put(rates, nvmlUtilization_t { gpu, memory })
    }

    fn nvmlDeviceGetMemoryInfo(handle: nvmlDevice_t, memory: *mut nvmlMemory_t) {
        let (total, used) = memory_of(&device(NAME, handle)?)?;
        put(memory, nvmlMemory_t { total, free: total.saturating_sub(used), used })
    }

    fn nvmlDeviceGetMemoryInfo_v2(handle: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) {
        let (total, used) = memory_of(&device(NAME, handle)?)?;
        let version = take(memory)?.version;
        if version != versioned::<nvmlMemory_v2_t>(2) {
            return Err(Return::ArgumentVersionMismatch);
        }
        put(memory, nvmlMemory_v2_t { version, total, reserved: 0, free: total.saturating_sub(used), used })
    }

    fn nvmlDeviceGetTemperature(handle: nvmlDevice_t, sensor: nvmlTemperatureSensors_t, celsius: *mut c_uint) {
        put(celsius, temperature_of(&device(NAME, handle)?, sensor)?)
    }

    fn nvmlDeviceGetTemperatureV(handle: nvmlDevice_t, temperature: *mut nvmlTemperature_t) {
        let device = device(NAME, handle)?;
        let asked = take(temperature)?;
        if asked.version != versioned::<nvmlTemperature_t>(1) {
            return Err(Return::ArgumentVersionMismatch);
        }
        let celsius = c_int::try_from(temperature_of(&device, asked.sensorType)?).map_err(|_| Return::Unknown)?;
        put(temperature, nvmlTemperature_t { temperature: celsius, ..asked })
    }

    fn nvmlDeviceGetPerformanceState(handle: nvmlDevice_t, state: *mut nvmlPstates_t) {
        drop(device(NAME, handle)?);
        put(state, 0)
    }

    fn nvmlDeviceGetComputeMode(handle: nvmlDevice_t, mode: *mut nvmlComputeMode_t) {
        drop(device(NAME, handle)?);
        put(mode, 0)
    }

    fn nvmlDeviceGetVirtualizationMode(handle: nvmlDevice_t, mode: *mut nvmlGpuVirtualizationMode_t) {
        put(mode, device(NAME, handle)?.gpu().virtualization)
    }

    fn nvmlDeviceGetPersistenceMode(handle: nvmlDevice_t, mode: *mut nvmlEnableState_t) {
        put(mode, whole_gpu(NAME, handle)?.held(|held| u32::from(held.persistence)))
    }

    fn nvmlDeviceSetPersistenceMode(handle: nvmlDevice_t, mode: nvmlEnableState_t) {
        let device = whole_gpu(NAME, handle)?;
        device.held(|held| held.persistence = mode != 0);
        device.wrote(NAME, &[mode], Return::Success)
    }
}

/// Total and used bytes.
fn memory_of(device: &Device) -> Result<(u64, u64), Return> {
    if let Some(instance) = device.instance() {
        return Ok((instance.memory_mb << 20, 0));
    }
    let gpu = device.gpu();
    gpu.memory_total_bytes.zip(gpu.memory_used_bytes).ok_or(Return::NotSupported)
}

fn temperature_of(device: &Device, sensor: nvmlTemperatureSensors_t) -> Result<u32, Return> {
    if sensor != 0 {
        return Err(Return::InvalidArgument);
    }
    device.gpu().temperature_celsius.ok_or(Return::NotSupported)
}

/// NVML's `NVML_STRUCT_VERSION`: size and version in one number.
pub(super) fn versioned<T>(version: u32) -> u32 {
    count(size_of::<T>()) | version << 24
}
