//! Whether NVIDIA GPUs can be read: loads NVML and asks for its driver and device count.

pub mod reading;

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::MeterState;

/// Loads the NVML library of that name or path and says what it found, or why there is none.
#[must_use]
pub fn probe(library: &str) -> MeterState {
    let nvml = match Nvml::builder().lib_path(OsStr::new(library)).init() {
        Ok(nvml) => nvml,
        Err(error) => {
            let (reason, remedy) = match error {
                NvmlError::LibloadingError(_) => {
                    ("absent", "; no NVIDIA driver, or name its library by --nvml.library")
                }
                NvmlError::DriverNotLoaded => ("absent", "; load the kernel module nvidia"),
                NvmlError::NoPermission => ("permission", "; give access to /dev/nvidia*"),
                _ => ("error", ""),
            };
            return state(false, reason, format!("{library}: {error}{remedy}"));
        }
    };
    match (nvml.device_count(), nvml.sys_driver_version()) {
        (Ok(count), Ok(driver)) => state(true, "ok", format!("{count} GPUs, driver {driver}")),
        (Err(error), _) | (_, Err(error)) => state(false, "error", format!("{library}: {error}")),
    }
}

fn state(up: bool, reason: &'static str, detail: String) -> MeterState {
    MeterState { meter: "nvml", up, reason, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_absent_and_named() {
        let state = probe("/nonexistent/libnvidia-ml.so.1");
        assert_eq!((state.meter, state.up, state.reason), ("nvml", false, "absent"));
        assert!(state.detail.contains("/nonexistent/libnvidia-ml.so.1"));
    }
}
