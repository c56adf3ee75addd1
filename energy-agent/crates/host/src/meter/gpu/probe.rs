//! What `doctor` says about GPUs: the library and its driver, and what each GPU offers.

use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use energy_model::advice::Advice;
use energy_model::meter_state::{MeterName, MeterState, Reason};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::error::NvmlError;

use super::fault::GpuFault;
use super::{mig, session};

/// How long all calls together may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Loads NVML: the first state is that of the library, then one for each GPU.
#[must_use]
pub fn probe(library: &str, procfs: &Path) -> Vec<MeterState> {
    let (send, found) = channel();
    let (name, procfs) = (library.to_owned(), procfs.to_owned());
    let thread = thread::Builder::new().name("nvml".to_owned()).spawn(move || send.send(look(&name, &procfs)));
    match (thread, found.recv_timeout(DEADLINE)) {
        (Ok(_), Ok(states)) => states,
        _ => {
            let what = format!("{library}: no answer within {} s", DEADLINE.as_secs());
            let detail = Advice::new(what, GpuFault::Hanging.remedy());
            vec![MeterState::down(MeterName::Nvml, Reason::Hanging, detail)]
        }
    }
}

fn look(library: &str, procfs: &Path) -> Vec<MeterState> {
    let nvml = match session::open(library, procfs) {
        Ok(nvml) => nvml,
        Err(failure) => return vec![MeterState::down(MeterName::Nvml, failure.fault.into(), failure.detail)],
    };
    let driver = nvml.sys_driver_version().unwrap_or_else(|_| "unknown".to_owned());
    let count = match nvml.device_count() {
        Ok(0) => return vec![MeterState::down(MeterName::Nvml, Reason::Absent, format!("no GPU, driver {driver}"))],
        Ok(count) => count,
        Err(error) => return vec![MeterState::down(MeterName::Nvml, Reason::Error, format!("{library}: {error}"))],
    };
    let plural = if count == 1 { "" } else { "s" };
    let detail = format!("{count} GPU{plural}, driver {driver}");
    let mut states = vec![MeterState::up(MeterName::Nvml, detail)];
    states.extend((0..count).map(|index| gpu(&nvml, index)));
    states
}

fn gpu(nvml: &Nvml, index: u32) -> MeterState {
    let failed = |detail: Advice, fault: GpuFault| MeterState::down(MeterName::Gpu, fault.into(), detail.of(index));
    let gpu = match session::identify(nvml, index) {
        Ok(gpu) => gpu,
        Err(failure) => return failed(failure.detail, failure.fault),
    };
    let device = match nvml.device_by_index(index) {
        Ok(device) => device,
        Err(error) => return failed(error.to_string().into(), GpuFault::Error),
    };
    let mig = mig::is_on(&device).unwrap_or(false);
    let energy = match (device.total_energy_consumption(), device.samples(Sampling::Power, 0), device.power_usage()) {
        (Ok(_), _, _) => Ok("energy counter".to_owned()),
        (Err(NvmlError::NotSupported), Ok(samples), _) if !samples.is_empty() => {
            Ok("no energy counter, buffered power is integrated".to_owned())
        }
        (Err(NvmlError::NotSupported), _, Ok(_)) => Ok("no energy counter, power is integrated".to_owned()),
        (Err(error), _, _) => Err(error),
    };
    let processes = match device.process_utilization_stats(0) {
        _ if mig => match mig::instances(&device) {
            Ok(instances) => format!("MIG with {} instances, no utilisation of processes", instances.len()),
            Err(error) => format!("MIG, instances unreadable: {error}"),
        },
        Ok(_) | Err(NvmlError::NotFound) => "utilisation of processes".to_owned(),
        Err(error) => format!("no utilisation of processes: {error}"),
    };
    let name = format!("{index}: {} {}", gpu.name, gpu.uuid);
    match energy {
        Ok(energy) => MeterState::up(MeterName::Gpu, format!("{name}: {energy}, {processes}")),
        Err(NvmlError::NotSupported) => {
            let remedy = "a vGPU or an integrated GPU does not report its energy, only the host can";
            let detail = Advice::new(format!("{name}: neither energy nor power, {processes}"), remedy);
            MeterState::down(MeterName::Gpu, Reason::Absent, detail)
        }
        Err(error) => {
            let detail = format!("{name}: energy counter: {error}, {processes}");
            MeterState::down(MeterName::Gpu, Reason::Error, detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_absent_and_named_fc_044() {
        let states = probe("/nonexistent/libnvidia-ml.so.1", Path::new("/proc"));
        assert_eq!((states.len(), states[0].meter, states[0].reason), (1, MeterName::Nvml, Reason::Absent));
        assert!(states[0].detail.what.contains("/nonexistent/libnvidia-ml.so.1"));
    }
}
