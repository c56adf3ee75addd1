//! The processes on a device and what each did.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t,
    nvmlProcessesUtilizationInfo_t,
};

use super::device::versioned;
use crate::abi::{put, put_list, take};
use crate::clock;
use crate::returns::Return;
use crate::state::{Process, ProcessKind, Sample};
use crate::units::{whole, whole32};
use crate::world::{Device, device, whole_gpu};

super::export! {
    fn nvmlDeviceGetComputeRunningProcesses_v3(handle: nvmlDevice_t, size: *mut c_uint, infos: *mut nvmlProcessInfo_t) {
        let device = device(NAME, handle)?;
        put_list(size, infos, &running(&device, |kind| kind != ProcessKind::Graphics)?)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(handle: nvmlDevice_t, size: *mut c_uint, infos: *mut nvmlProcessInfo_t) {
        let device = device(NAME, handle)?;
        put_list(size, infos, &running(&device, |kind| kind == ProcessKind::Graphics)?)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        handle: nvmlDevice_t,
        size: *mut c_uint,
        infos: *mut nvmlProcessInfo_t,
    ) {
        let device = device(NAME, handle)?;
        put_list(size, infos, &running(&device, |kind| kind == ProcessKind::Mps)?)
    }

    fn nvmlDeviceGetProcessUtilization(
        handle: nvmlDevice_t,
        samples: *mut nvmlProcessUtilizationSample_t,
        size: *mut c_uint,
        last_seen_us: c_ulonglong,
    ) {
        let new: Vec<_> = samples_of(&whole_gpu(NAME, handle)?, last_seen_us)?
            .into_iter()
            .map(|sample| nvmlProcessUtilizationSample_t {
                pid: sample.pid,
                timeStamp: sample.at_us,
                smUtil: sample.sm,
                memUtil: sample.memory,
                encUtil: 0,
                decUtil: 0,
            })
            .collect();
        put_list(size, samples, &new)
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(handle: nvmlDevice_t, info: *mut nvmlProcessesUtilizationInfo_t) {
        let device = whole_gpu(NAME, handle)?;
        let mut asked = take(info)?;
        if asked.version != versioned::<nvmlProcessesUtilizationInfo_t>(1) {
            return Err(Return::ArgumentVersionMismatch);
        }
        let new: Vec<_> = samples_of(&device, asked.lastSeenTimeStamp)?
            .into_iter()
            .map(|sample| nvmlProcessUtilizationInfo_v1_t {
                timeStamp: sample.at_us,
                pid: sample.pid,
                smUtil: sample.sm,
                memUtil: sample.memory,
                encUtil: 0,
                decUtil: 0,
                jpgUtil: 0,
                ofaUtil: 0,
            })
            .collect();
        let answer = put_list(&raw mut asked.processSamplesCount, asked.procUtilArray, &new);
        put(info, asked)?;
        answer
    }
}

fn running(device: &Device, wanted: fn(ProcessKind) -> bool) -> Result<Vec<nvmlProcessInfo_t>, Return> {
    let instance = device.instance().map(|instance| (instance.gpu_instance, instance.compute_instance));
    let here = |process: &&Process| {
        instance.is_none_or(|(gpu, compute)| {
            process.gpu_instance == Some(gpu) && process.compute_instance.unwrap_or(0) == compute
        })
    };
    let processes = device.gpu().processes.as_ref().ok_or(Return::NotSupported)?;
    let mig = device.gpu().mig.as_ref().is_some_and(|mig| mig.enabled);
    let info = |process: &Process| nvmlProcessInfo_t {
        pid: process.pid,
        usedGpuMemory: process.memory_bytes.unwrap_or(u64::MAX),
        gpuInstanceId: process.gpu_instance.unwrap_or(u32::MAX),
        computeInstanceId: process.compute_instance.unwrap_or(if mig { 0 } else { u32::MAX }),
    };
    Ok(processes.iter().filter(|process| wanted(process.kind)).filter(here).map(info).collect())
}

/// How far back the driver's samples reach; microseconds.
const BUFFER_US: u64 = 10_000_000;

/// The samples the caller has not seen.
fn samples_of(device: &Device, last_seen_us: u64) -> Result<Vec<Sample>, Return> {
    let gpu = device.gpu();
    let played = gpu.samples.as_ref().ok_or(Return::NotSupported)?;
    let samples = if gpu.plant.is_some() { plant_samples(device, last_seen_us) } else { played.clone() };
    let new: Vec<_> =
        samples.into_iter().filter(|sample| sample.at_us > last_seen_us || gpu.ignore_last_seen).collect();
    if new.is_empty() { Err(Return::NotFound) } else { Ok(new) }
}

/// What a driver of today answers: it looks at the GPU at times that are the same for all processes, and gives for each
/// process that did anything the mean of the looks since the caller's last, stamped with the newest.
fn plant_samples(device: &Device, last_seen_us: u64) -> Vec<Sample> {
    let gpu = device.gpu();
    let (Some(plant), Some(running)) = (gpu.plant.as_ref(), device.running()) else { return Vec::new() };
    let since_1970_us = clock::wall_us().saturating_sub(running.at_us);
    let spacing_us = whole(plant.spacing_s * 1e6).max(1);
    let at_us = running.at_us - running.at_us % spacing_us;
    let asked_us = last_seen_us.saturating_sub(since_1970_us).max(at_us.saturating_sub(BUFFER_US)).min(at_us);
    let span_us = if last_seen_us == 0 { spacing_us } else { at_us - asked_us };
    let sample = |process: &Process| {
        let parts = 20;
        let middle = |part: u64| at_us.saturating_sub(span_us * (2 * part + 1) / (2 * parts));
        let load: f64 = (0..parts).map(|part| gpu.load_of(process, middle(part))).sum::<f64>() / 20.0;
        let sm = whole32(load * 100.0);
        (sm > 0).then_some(Sample { pid: process.pid, at_us: since_1970_us + at_us, sm, memory: 0 })
    };
    gpu.processes.iter().flatten().filter_map(sample).collect()
}
