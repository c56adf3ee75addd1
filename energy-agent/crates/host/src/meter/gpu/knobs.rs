//! What can be lowered on one GPU: the upper end of its locked clocks, and its power limit. Probed without a write, then
//! written within what was found. A GPU in MIG mode is lowered as a whole; what a vGPU guest has, only its host can lower.

use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Found, Knob, KnobError, KnobValue};
use energy_model::capping::quantity::Quantity;
use energy_model::capping::stated::{ClockRange, Stated};
use energy_model::units::{Watts, ratio};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, GpuVirtualizationMode, PerformanceState};
use nvml_wrapper::enums::device::{DeviceArchitecture, GpuLockedClocksSetting};
use nvml_wrapper::error::NvmlError;

use super::call::NvmlCall;
use super::clocks::{self, Clocks};
use super::fault::{GpuFailure, GpuFault};

const SET_LIMIT: NvmlCall = NvmlCall::SetPowerLimit;
const LOCK: NvmlCall = NvmlCall::LockClocks;
const RESET: NvmlCall = NvmlCall::ResetClocks;

/// Whole watts, as `nvidia-smi` sets them; milliwatts.
const LIMIT_STEP_MW: u64 = 1000;

/// The knobs of one GPU, as they were found at `probed`.
pub struct Knobs {
    uuid: Arc<str>,
    clocks: Result<Clocks, KnobError>,
    limit: Result<PowerLimit, KnobError>,
    /// What the clocks were before anything was written, where the owner of the node says it.
    stated: Option<Stated>,
    probed: Instant,
}

/// Both knobs, as a probe found them.
pub struct Probed {
    pub found: [(Knob, Found); 2],
    /// By a handle that was fetched since they were probed before.
    pub anew: bool,
}

/// Milliwatts.
#[derive(Clone, Copy)]
struct PowerLimit {
    min: u32,
    max: u32,
    default: Option<u32>,
    now: u32,
}

impl Knobs {
    /// Looks what the GPU and the driver offer.
    ///
    /// # Errors
    /// When the device as a whole is out of reach.
    pub fn probe(device: &Device<'_>, uuid: &Arc<str>, stated: Option<Stated>) -> Result<Self, GpuFailure> {
        let mode = judge(NvmlCall::VirtualizationMode, device.virtualization_mode())?;
        let (clocks, limit) = if matches!(mode, Ok(GpuVirtualizationMode::Vgpu)) {
            let error = unsupported("this is a vGPU, which only its host can cap".to_owned());
            (Err(error.clone()), Err(error))
        } else {
            (lockable(device)?.and_then(|clocks| possible(clocks, stated)), limit(device)?)
        };
        Ok(Self { uuid: Arc::clone(uuid), clocks, limit, stated, probed: Instant::now() })
    }

    /// Whether a failure that may pass kept a knob from being probed, `after` which it is worth another look.
    #[must_use]
    pub fn is_doubtful(&self, after: Duration) -> bool {
        let passes = |error: &KnobError| !matches!(error.state, KnobState::Unsupported | KnobState::NoPermission);
        let errors = [self.clocks.as_ref().err(), self.limit.as_ref().err()];
        errors.into_iter().flatten().any(passes) && self.probed.elapsed() >= after
    }

    #[must_use]
    pub(crate) const fn has_limit(&self) -> bool {
        self.limit.is_ok()
    }

    /// As they are without a lock.
    #[must_use]
    pub fn found(&self) -> [(Knob, Found); 2] {
        let clock = self.clock(None);
        let power = self.limit.as_ref().map_or_else(unusable, PowerLimit::found);
        [(Knob::GpuClock(Arc::clone(&self.uuid)), clock), (Knob::GpuPower(Arc::clone(&self.uuid)), power)]
    }

    /// Why knobs cannot be used.
    #[must_use]
    pub fn troubles(&self) -> Vec<&KnobError> {
        [self.clocks.as_ref().err(), self.limit.as_ref().err()].into_iter().flatten().collect()
    }

    /// Sets or restores a knob, and reads it back where it can be read. The driver gets no value out of its range.
    ///
    /// The state of the result is [`KnobState::NotEffective`] where the driver took the value and kept the old one.
    ///
    /// # Errors
    /// When the value is out of range, or the driver refuses it or does not reach the GPU.
    pub fn write(&mut self, device: &mut Device<'_>, knob: &Knob, value: &KnobValue) -> Result<Found, KnobError> {
        match (knob, value) {
            (Knob::GpuClock(_), KnobValue::Set(ceiling_mhz)) => self.lock(device, *ceiling_mhz),
            (Knob::GpuClock(_), KnobValue::Restore(raw)) if raw.is_empty() => self.reset(device),
            (Knob::GpuClock(_), KnobValue::Restore(raw)) => match raw.parse() {
                Ok(Stated::Open) => self.reset(device),
                Ok(Stated::Locked(range)) => self.lock_again(device, range),
                Err(_) => Err(stray(knob, raw)),
            },
            (Knob::GpuPower(_), KnobValue::Set(limit_mw)) => self.set_limit(device, *limit_mw),
            (Knob::GpuPower(_), KnobValue::Restore(raw)) => {
                let default = self.limit.as_ref().map_err(Clone::clone)?.default.filter(|_| raw.is_empty());
                match default.map(u64::from).or_else(|| raw.parse().ok()) {
                    Some(limit_mw) => self.set_limit(device, limit_mw),
                    None => Err(stray(knob, raw)),
                }
            }
            (Knob::CpuFrequency(_) | Knob::CpuQuota(_) | Knob::RaplLimit(_), _) => {
                Err(KnobError { state: KnobState::Error, detail: format!("{knob} is not a limit of a GPU") })
            }
        }
    }

    /// Locks the clocks to a range that is open downwards, so that the GPU can still idle.
    fn lock(&self, device: &mut Device<'_>, ceiling_mhz: u64) -> Result<Found, KnobError> {
        let clocks = self.clocks.as_ref().map_err(Clone::clone)?;
        let range = || format!("the upper end of the clocks is {} to {} MHz here", clocks.min(), clocks.max());
        let Some(ceiling) = clocks.at_most(ceiling_mhz) else {
            return Err(rejected(format!("{LOCK}: {ceiling_mhz} MHz is not written, {}", range())));
        };
        let setting = GpuLockedClocksSetting::Numeric { min_clock_mhz: clocks.lowest(), max_clock_mhz: ceiling };
        match device.set_gpu_locked_clocks(setting) {
            Ok(()) => Ok(self.clock(Some(ceiling))),
            Err(NvmlError::InvalidArg) => {
                Err(rejected(format!("{LOCK}: the driver refuses {} to {ceiling} MHz, {}", clocks.lowest(), range())))
            }
            Err(error) => Err(refusal(LOCK, &error)),
        }
    }

    fn reset(&self, device: &mut Device<'_>) -> Result<Found, KnobError> {
        device.reset_gpu_locked_clocks().map_err(|error| refusal(RESET, &error))?;
        Ok(self.clock(None))
    }

    /// Locks the clocks to what they were locked to before.
    fn lock_again(&self, device: &mut Device<'_>, range: ClockRange) -> Result<Found, KnobError> {
        let ClockRange { min, max } = range;
        let setting = GpuLockedClocksSetting::Numeric { min_clock_mhz: min, max_clock_mhz: max };
        device.set_gpu_locked_clocks(setting).map_err(|error| refusal(LOCK, &error))?;
        Ok(self.clock(None))
    }

    /// The clocks with the upper end that was written; `None`: as they were.
    fn clock(&self, locked: Option<u32>) -> Found {
        let raw = self.stated.map_or_else(String::new, |stated| stated.to_string());
        self.clocks.as_ref().map_or_else(unusable, |clocks| Found {
            min: clocks.min().into(),
            max: clocks.max().into(),
            step: clocks.step().into(),
            value: locked.map(u64::from),
            raw,
            state: KnobState::Ok,
            epoch: 0,
        })
    }

    fn set_limit(&mut self, device: &mut Device<'_>, limit_mw: u64) -> Result<Found, KnobError> {
        let limit = self.limit.as_mut().map_err(|error| error.clone())?;
        let range = format!("the limit is {} to {} here", watts(limit.min), watts(limit.max));
        let Some(wanted) = u32::try_from(limit_mw).ok().filter(|wanted| (limit.min..=limit.max).contains(wanted))
        else {
            return Err(rejected(format!("{SET_LIMIT}: {} is not written, {range}", watts(limit_mw))));
        };
        let before = device.power_management_limit().ok();
        device.set_power_management_limit(wanted).map_err(|error| match error {
            NvmlError::InvalidArg => rejected(format!("{SET_LIMIT}: the driver refuses {}, {range}", watts(wanted))),
            error => refusal(SET_LIMIT, &error),
        })?;
        let after = device.power_management_limit().ok();
        limit.now = after.unwrap_or(wanted);
        let kept = limit.now != wanted && before.is_none_or(|before| before == limit.now);
        let state = if kept { KnobState::NotEffective } else { KnobState::Ok };
        Ok(Found { state, ..limit.found() })
    }
}

/// Milliwatts, as people read them.
fn watts(limit_mw: impl Into<u64>) -> Quantity {
    Quantity::Power(Watts(ratio(limit_mw.into(), 1_000)))
}

impl PowerLimit {
    fn found(&self) -> Found {
        Found {
            min: self.min.into(),
            max: self.max.into(),
            step: if u64::from(self.max - self.min) >= LIMIT_STEP_MW { LIMIT_STEP_MW } else { 1 },
            value: Some(self.now.into()),
            raw: self.now.to_string(),
            state: KnobState::Ok,
            epoch: 0,
        }
    }
}

fn unusable(error: &KnobError) -> Found {
    Found { min: 0, max: 0, step: 1, value: None, raw: String::new(), state: error.state, epoch: 0 }
}

/// The clocks, where the GPU can be locked to what is stated of it.
fn possible(clocks: Clocks, stated: Option<Stated>) -> Result<Clocks, KnobError> {
    let (least, most) = (clocks.lowest(), clocks.max());
    match stated {
        Some(Stated::Locked(ClockRange { min, max })) if !(least..=most).contains(&max) => Err(rejected(format!(
            "--capping.gpu-clock-before: {min}-{max} MHz cannot be restored, the clocks are {least} to {most} MHz here"
        ))),
        _ => Ok(clocks),
    }
}

/// The clocks that the GPU can be locked to.
fn lockable(device: &Device<'_>) -> Result<Result<Clocks, KnobError>, GpuFailure> {
    let library = device.nvml().lib();
    // What could not be taken back is not locked.
    for (call, missing) in [
        (LOCK, library.nvmlDeviceSetGpuLockedClocks.is_err()),
        (RESET, library.nvmlDeviceResetGpuLockedClocks.is_err()),
    ] {
        if missing {
            return Ok(Err(unsupported(format!("{call} is not in the library; {}", GpuFault::Symbol.remedy()))));
        }
    }
    // Older ones list clocks, for applications, and cannot lock them.
    let architecture = judge(NvmlCall::Architecture, device.architecture())?;
    if let Ok(DeviceArchitecture::Kepler | DeviceArchitecture::Maxwell | DeviceArchitecture::Pascal) = architecture {
        return Ok(Err(unsupported(format!("{LOCK}: the GPU is older than Volta"))));
    }
    let memory = judge(NvmlCall::SupportedMemoryClocks, device.supported_memory_clocks())?;
    let listed = match memory.map(|clocks| clocks.into_iter().max()) {
        Ok(Some(memory_mhz)) => {
            judge(NvmlCall::SupportedGraphicsClocks, clocks::supported(device, memory_mhz))?.map(Clocks::listed)
        }
        _ => Ok(None),
    };
    if let Ok(Some(clocks)) = listed {
        return Ok(Ok(clocks));
    }
    let range = device.min_max_clock_of_pstate(Clock::Graphics, PerformanceState::Zero);
    if let Ok(Some(clocks)) = judge(NvmlCall::ClockRangeOfState, range)?.map(|(min, max)| Clocks::between(min, max)) {
        return Ok(Ok(clocks));
    }
    let highest = judge(NvmlCall::MaxClock, device.max_clock_info(Clock::Graphics))?;
    Ok(highest.and_then(|max| {
        Clocks::up_to(max).ok_or_else(|| unsupported(format!("{LOCK}: {max} MHz is the only clock of this GPU")))
    }))
}

fn limit(device: &Device<'_>) -> Result<Result<PowerLimit, KnobError>, GpuFailure> {
    if device.nvml().lib().nvmlDeviceSetPowerManagementLimit.is_err() {
        return Ok(Err(unsupported(format!("{SET_LIMIT} is not in the library; {}", GpuFault::Symbol.remedy()))));
    }
    let constraints = device.power_management_limit_constraints();
    let constraints = judge(NvmlCall::PowerLimitConstraints, constraints)?;
    let now = judge(NvmlCall::PowerLimit, device.power_management_limit())?;
    let default = judge(NvmlCall::DefaultPowerLimit, device.power_management_limit_default())?.ok();
    Ok(constraints.and_then(|constraints| {
        let (min, max) = (constraints.min_limit, constraints.max_limit);
        if min >= max {
            return Err(unsupported(format!("{SET_LIMIT}: {} is the only limit of this GPU", watts(max))));
        }
        Ok(PowerLimit { min, max, default, now: now? })
    }))
}

/// Takes the result of a call that knobs are probed by.
fn judge<T>(call: NvmlCall, result: Result<T, NvmlError>) -> Result<Result<T, KnobError>, GpuFailure> {
    match result.map_err(|error| (GpuFailure::new(call, &error), error)) {
        Ok(value) => Ok(Ok(value)),
        Err((failure, _)) if failure.is_whole() => Err(failure),
        Err((_, error)) => Ok(Err(refusal(call, &error))),
    }
}

impl From<GpuFailure> for KnobError {
    fn from(failure: GpuFailure) -> Self {
        Self { state: KnobState::Unreachable, detail: failure.detail.to_string() }
    }
}

/// What an error of NVML says about a knob.
fn refusal(call: NvmlCall, error: &NvmlError) -> KnobError {
    let (state, detail) = match error {
        NvmlError::NotSupported => (KnobState::Unsupported, format!("{call}: {error}")),
        NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => {
            (KnobState::Unsupported, format!("{call}: {error}; {}", GpuFault::Symbol.remedy()))
        }
        NvmlError::NoPermission => {
            let remedy = "; run as root with CAP_SYS_ADMIN, in Kubernetes with capabilities.add: [SYS_ADMIN]";
            (KnobState::NoPermission, format!("{call}: {error}{remedy}"))
        }
        NvmlError::OperatingSystem => (KnobState::NoPermission, GpuFailure::new(call, error).detail.to_string()),
        NvmlError::InvalidArg => (KnobState::Rejected, format!("{call}: {error}")),
        NvmlError::GpuLost
        | NvmlError::ResetRequired
        | NvmlError::Unknown
        | NvmlError::Uninitialized
        | NvmlError::DriverNotLoaded
        | NvmlError::LibRmVersionMismatch
        | NvmlError::Timeout
        | NvmlError::IrqIssue => (KnobState::Unreachable, GpuFailure::new(call, error).detail.to_string()),
        _ => (KnobState::Error, format!("{call}: {error}")),
    };
    KnobError { state, detail }
}

const fn unsupported(detail: String) -> KnobError {
    KnobError { state: KnobState::Unsupported, detail }
}

const fn rejected(detail: String) -> KnobError {
    KnobError { state: KnobState::Rejected, detail }
}

fn stray(knob: &Knob, raw: &str) -> KnobError {
    KnobError { state: KnobState::Error, detail: format!("{raw:?} is not a value that {knob} can be restored to") }
}
