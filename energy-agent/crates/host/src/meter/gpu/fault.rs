//! NVML's errors as states of the meter: which call is missing for good, which device is out of reach, and when the whole
//! library has to be opened again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use energy_model::advice::Advice;
use energy_model::meter_state::Reason;
use nvml_wrapper::error::NvmlError;

use super::call::NvmlCall;
use crate::meter::state_log::StateLog;

/// Why a GPU, or all of NVML, cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuFault {
    /// No library, no driver, no GPU, or a GPU that was there before and is not any more.
    Absent,
    Permission,
    /// The library and the kernel module are of different drivers, as after an upgrade without a reboot.
    VersionMismatch,
    /// There is a driver, and this is a static build, which can load no library.
    StaticBuild,
    /// The library lacks a function without which nothing can be read.
    Symbol,
    /// The GPU fell off the bus.
    Lost,
    ResetRequired,
    /// A call has not returned in time.
    Hanging,
    /// Its energy counter stands still.
    Frozen,
    Error,
}

impl GpuFault {
    /// What to do about it; empty where nothing is known.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Absent => "load the kernel module nvidia",
            Self::Permission => "give access to /dev/nvidia*",
            // A container keeps the library that was there when it started.
            Self::VersionMismatch => {
                "if the agent is in a pod, delete the pod, so that the next one gets the driver's new library; on a host, reload the kernel module nvidia or reboot the node"
            }
            Self::StaticBuild => "on nodes with GPUs run the package or the image",
            Self::Symbol => "update the NVIDIA driver",
            Self::Lost | Self::ResetRequired => "reset the GPU (nvidia-smi --gpu-reset) or reboot the node",
            Self::Hanging => "see the kernel log for NVRM messages",
            Self::Frozen => "reload the driver or reset the GPU (nvidia-smi --gpu-reset)",
            Self::Error => "",
        }
    }
}

impl From<GpuFault> for Reason {
    fn from(fault: GpuFault) -> Self {
        match fault {
            GpuFault::Absent => Self::Absent,
            GpuFault::Permission => Self::Permission,
            GpuFault::VersionMismatch => Self::VersionMismatch,
            GpuFault::StaticBuild => Self::StaticBuild,
            GpuFault::Symbol => Self::Symbol,
            GpuFault::Lost => Self::Lost,
            GpuFault::ResetRequired => Self::ResetRequired,
            GpuFault::Hanging => Self::Hanging,
            GpuFault::Frozen => Self::Frozen,
            GpuFault::Error => Self::Error,
        }
    }
}

/// A fault with what NVML said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFailure {
    pub fault: GpuFault,
    pub detail: Advice,
    /// The library has to be opened again before anything works.
    pub reopen: bool,
}

impl GpuFailure {
    #[must_use]
    pub fn new(call: NvmlCall, error: &NvmlError) -> Self {
        let (fault, reopen) = match error {
            NvmlError::LibloadingError(_) => (GpuFault::Absent, true),
            NvmlError::DriverNotLoaded | NvmlError::Uninitialized => (GpuFault::Absent, true),
            NvmlError::LibRmVersionMismatch => (GpuFault::VersionMismatch, true),
            NvmlError::NoPermission | NvmlError::OperatingSystem => (GpuFault::Permission, false),
            NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => (GpuFault::Symbol, false),
            NvmlError::GpuLost => (GpuFault::Lost, false),
            NvmlError::ResetRequired => (GpuFault::ResetRequired, false),
            _ => (GpuFault::Error, false),
        };
        let remedy = match error {
            NvmlError::LibloadingError(_) => "no NVIDIA driver, or name its library with --nvml.library",
            _ => fault.remedy(),
        };
        let what = match error {
            // The loader's message names the library.
            NvmlError::LibloadingError(_) => error.to_string(),
            _ => format!("{call}: {error}"),
        };
        Self { fault, detail: Advice::new(what, remedy), reopen }
    }

    /// What a static build says in place of NVML. Without a driver nothing is missed by it.
    #[must_use]
    pub(crate) fn of_static_build(procfs: &Path) -> Self {
        let (fault, driver) = if procfs.join("driver/nvidia/version").exists() {
            (GpuFault::StaticBuild, "the NVIDIA driver is loaded")
        } else {
            (GpuFault::Absent, "no NVIDIA driver is loaded")
        };
        let what = format!("{driver}, and this is the static build, which cannot load its library");
        let detail = Advice::new(what, GpuFault::StaticBuild.remedy());
        Self { fault, detail, reopen: true }
    }

    /// Whether the device as a whole is out of reach, so that asking on makes no sense.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.reopen || matches!(self.fault, GpuFault::Lost | GpuFault::ResetRequired)
    }
}

/// What is known about the calls on one device.
#[derive(Debug, Default)]
pub struct Calls {
    /// Not offered by this GPU or driver in its present mode; not asked again until [`forget_refusals`](Self::forget_refusals).
    refused: BTreeSet<NvmlCall>,
    /// Refused at any time.
    known: BTreeSet<NvmlCall>,
    /// Refused since the last [`take_news`](Self::take_news).
    refused_now: Vec<NvmlCall>,
    /// Failed the last time, for another reason.
    failing: BTreeMap<NvmlCall, GpuFault>,
    told: BTreeMap<NvmlCall, StateLog<Option<GpuFault>>>,
    failing_now: Vec<String>,
}

impl Calls {
    /// Makes a call unless it is known not to be offered. `None`: there is no such figure, or not this time.
    ///
    /// # Errors
    /// When the device as a whole is out of reach.
    pub fn ask<T>(
        &mut self,
        call: NvmlCall,
        make: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<Option<T>, GpuFailure> {
        if self.refused.contains(&call) { Ok(None) } else { self.judge(call, make()) }
    }

    /// Takes the result of a call that was made.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn judge<T>(&mut self, call: NvmlCall, result: Result<T, NvmlError>) -> Result<Option<T>, GpuFailure> {
        let error = match result {
            Ok(value) => {
                self.refused.remove(&call);
                if self.failing.remove(&call).is_some() {
                    _ = self.told.entry(call).or_default().due(None, Instant::now());
                }
                return Ok(Some(value));
            }
            Err(error) => error,
        };
        match error {
            // Nothing to report: an idle GPU (FC-051), or no sample yet.
            NvmlError::NotFound | NvmlError::NoData => {}
            NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => {
                self.refused.insert(call);
                if self.known.insert(call) {
                    self.refused_now.push(call);
                }
            }
            error => {
                let failure = GpuFailure::new(call, &error);
                if failure.is_whole() {
                    return Err(failure);
                }
                self.failing.insert(call, failure.fault);
                if self.told.entry(call).or_default().due(Some(failure.fault), Instant::now()).is_some() {
                    self.failing_now.push(failure.detail.to_string());
                }
            }
        }
        Ok(None)
    }

    /// What was refused in one mode may be offered in another: everything is asked once more.
    pub(crate) fn forget_refusals(&mut self) {
        self.refused.clear();
    }

    /// Whether `call` is known not to be offered.
    #[must_use]
    pub fn refuses(&self, call: NvmlCall) -> bool {
        self.refused.contains(&call)
    }

    /// Why `call` failed the last time, where it did for another reason than not being offered.
    #[must_use]
    pub fn failed(&self, call: NvmlCall) -> Option<GpuFault> {
        self.failing.get(&call).copied()
    }

    /// Whether any call failed the last time.
    #[must_use]
    pub(crate) fn any_failed(&self) -> bool {
        !self.failing.is_empty()
    }

    /// Calls found not to be offered, and failures that began, since the last time.
    pub(crate) fn take_news(&mut self) -> (Vec<NvmlCall>, Vec<String>) {
        (std::mem::take(&mut self.refused_now), std::mem::take(&mut self.failing_now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_build_says_so_and_complains_only_where_a_driver_is_loaded() {
        let procfs = tempfile::tempdir().unwrap();
        let without = GpuFailure::of_static_build(procfs.path());
        let folder = procfs.path().join("driver/nvidia");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("version"), "NVRM version: 570.124.06\n").unwrap();
        let with = GpuFailure::of_static_build(procfs.path());
        assert_eq!((without.fault, with.fault), (GpuFault::Absent, GpuFault::StaticBuild));
        for (failure, driver) in [(without, "no NVIDIA driver"), (with, "the NVIDIA driver")] {
            assert!(failure.detail.what.starts_with(driver), "{}", failure.detail);
            assert_eq!(failure.detail.remedy, "on nodes with GPUs run the package or the image");
        }
    }

    #[test]
    fn what_is_not_supported_is_said_once_and_not_asked_again_fc_049() {
        let (mut calls, mut asked) = (Calls::default(), 0);
        for _ in 0..3 {
            let answer = calls.ask(NvmlCall::PowerUsage, || {
                asked += 1;
                Err::<u32, _>(NvmlError::NotSupported)
            });
            assert_eq!(answer, Ok(None));
        }
        assert_eq!(asked, 1);
        assert_eq!(calls.take_news(), (vec![NvmlCall::PowerUsage], vec![]));
        // In another mode it is asked again, and not said again.
        calls.forget_refusals();
        assert_eq!(calls.ask(NvmlCall::PowerUsage, || Err::<u32, _>(NvmlError::NotSupported)), Ok(None));
        assert_eq!(calls.ask(NvmlCall::PowerUsage, || Ok(1)), Ok(None));
        calls.forget_refusals();
        assert_eq!(calls.ask(NvmlCall::PowerUsage, || Ok(1)), Ok(Some(1)));
        assert_eq!(calls.ask(NvmlCall::PowerUsage, || Ok(2)), Ok(Some(2)));
        assert_eq!(calls.take_news(), (vec![], vec![]));
    }

    #[test]
    fn a_missing_symbol_is_a_missing_call() {
        let mut calls = Calls::default();
        let missing = || Err::<u32, _>(NvmlError::FailedToLoadSymbol("undefined symbol: nvmlX".to_owned()));
        assert_eq!(calls.ask(NvmlCall::Uuid, missing), Ok(None));
        assert!(calls.refuses(NvmlCall::Uuid));
    }

    #[test]
    fn a_single_failing_call_is_said_once_and_asked_on() {
        let mut calls = Calls::default();
        assert_eq!(calls.ask(NvmlCall::Temperature, || Err::<u32, _>(NvmlError::Unknown)), Ok(None));
        assert_eq!(calls.ask(NvmlCall::Temperature, || Err::<u32, _>(NvmlError::Unknown)), Ok(None));
        assert_eq!(calls.take_news().1, ["nvmlDeviceGetTemperature: an internal driver error occurred"]);
        assert_eq!(calls.ask(NvmlCall::Temperature, || Ok(40)), Ok(Some(40)));
        assert_eq!(calls.ask(NvmlCall::Temperature, || Err::<u32, _>(NvmlError::Unknown)), Ok(None));
        assert_eq!(calls.take_news().1.len(), 0, "it flaps, which is said once in ten minutes");
    }

    #[test]
    fn nothing_found_is_no_fault_fc_051() {
        let mut calls = Calls::default();
        assert_eq!(calls.ask(NvmlCall::ProcessUtilization, || Err::<u32, _>(NvmlError::NotFound)), Ok(None));
        assert_eq!(calls.take_news(), (vec![], vec![]));
    }

    #[test]
    fn a_lost_gpu_and_a_gone_driver_end_the_reading() {
        let failure = |error| Calls::default().ask(NvmlCall::Uuid, || Err::<u32, _>(error)).unwrap_err();
        assert_eq!((failure(NvmlError::GpuLost).fault, failure(NvmlError::GpuLost).reopen), (GpuFault::Lost, false));
        let mismatch = failure(NvmlError::LibRmVersionMismatch);
        assert_eq!((mismatch.fault, mismatch.reopen), (GpuFault::VersionMismatch, true));
        assert!(failure(NvmlError::Uninitialized).reopen);
    }
}
