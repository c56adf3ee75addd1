//! One GPU through a handle that works: energy, processes, state, knobs and events by the calls that it and its driver offer.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use energy_model::advice::Advice;
use energy_model::capping::knob::KnobError;
use energy_model::capping::stated::Stated;
use energy_model::gpu::{Evidence, Gpu, GpuInstance, GpuProcess, GpuProcessKind, GpuReading, GpuState, Ignored};
use energy_model::units::{Watts, micros, ratio};
use energy_model::zone::Source;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet};
use tracing::{info, warn};

use super::call::NvmlCall;
use super::clocks;
use super::doubt::{Doubt, Verdict};
use super::energy::{EnergyWay, ModuleWay};
use super::fault::{Calls, GpuFailure, GpuFault};
use super::knobs::{Knobs, Probed};
use super::mig;
use super::processes::GpuProcesses;
use super::samples::{Cursor, UtilSample};
use super::superchip;
use crate::meter::counter::ZoneCounts;

/// How long waiting for an event may take; milliseconds. They are asked for, not waited for.
const EVENT_WAIT_MS: u32 = 1;
/// Most events taken in one reading.
const MAX_EVENTS: usize = 16;

/// A driver that refuses a call is asked again after this time, whatever mode it is in.
const ASK_ALL_EVERY: Duration = Duration::from_secs(300);

/// What is read, and how.
pub struct GpuTarget {
    pub gpu: Arc<Gpu>,
    /// What the GPU's energy series began with.
    pub chosen: Option<Source>,
    /// What the clocks were before anything was written, where the owner of the node says it.
    pub stated: Option<Stated>,
    pub procfs: PathBuf,
    pub interval: Duration,
    /// How long a GPU that was lost is left alone.
    pub retry: Duration,
}

/// A GPU that can be read.
pub struct GpuReader<'n> {
    device: Device<'n>,
    calls: Calls,
    energy: EnergyWay,
    cursor: Cursor,
    processes: GpuProcesses,
    /// Of the previous reading, for those that end.
    kinds: Vec<GpuProcess>,
    events: Option<EventSet<'n>>,
    mig: bool,
    instances: Vec<GpuInstance>,
    /// When MIG was looked at.
    mig_seen: Option<Instant>,
    /// When all that was refused was asked last.
    asked_all: Instant,
    doubt: Doubt,
    /// Of a superchip.
    module: Option<ModuleWay>,
    /// When energy was read.
    last: Option<Instant>,
    /// `None` before the first reading.
    knobs: Option<Knobs>,
    /// Knobs, where they were probed since the last answer.
    pub probed: Option<Probed>,
    /// The power limit that is set; milliwatts.
    pub limit_mw: Option<u32>,
}

/// What outlives the handle.
#[derive(Default)]
pub struct ReaderMemory {
    /// The last failure, and when it was.
    pub failed: Option<(GpuFailure, Instant)>,
    /// Critical XID errors since the last answer.
    pub xids: u64,
    /// Those that the log has named.
    named: BTreeSet<u64>,
}

impl<'n> GpuReader<'n> {
    /// By a handle that was just fetched.
    pub fn new(device: Device<'n>, target: &GpuTarget) -> Self {
        let mut calls = Calls::default();
        let superchip = superchip::is_part_of_one(&device, &target.gpu.name).unwrap_or(false);
        let module = superchip.then(|| ModuleWay::new(&device));
        Self {
            events: xid_events(&device, &mut calls),
            device,
            calls,
            energy: EnergyWay::new(target.chosen, target.interval, superchip),
            cursor: Cursor::default(),
            processes: GpuProcesses::new(target.procfs.clone()),
            kinds: Vec::new(),
            mig: false,
            instances: Vec::new(),
            mig_seen: None,
            asked_all: Instant::now(),
            doubt: Doubt::default(),
            module,
            last: None,
            knobs: None,
            probed: None,
            limit_mw: None,
        }
    }

    /// Everything once.
    ///
    /// # Errors
    /// When the GPU or its driver does not answer as it should; what it does not offer is left out.
    pub fn read(
        &mut self,
        target: &GpuTarget,
        memory: &mut ReaderMemory,
        counts: &mut ZoneCounts,
        ignored: &mut Ignored,
    ) -> Result<GpuReading, GpuFailure> {
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros);
        let Self { device, calls, .. } = self;
        let (energy, now) = self.energy.read(device, calls, self.last, now_us, counts)?;
        let elapsed = self.last.map_or(Duration::ZERO, |last| now.duration_since(last));
        self.last = Some(now);
        let module = self.module.as_mut().and_then(|module| module.read(device, elapsed));
        if self.mig_seen.is_none_or(|seen| seen.elapsed() >= target.retry) {
            self.mig_seen = Some(now);
            let mig = calls.ask(NvmlCall::MigMode, || mig::is_on(device))?.unwrap_or(false);
            // A refusal counts for the mode it was given in. There are others than MIG: a licence, confidential computing.
            if std::mem::replace(&mut self.mig, mig) != mig || self.asked_all.elapsed() >= ASK_ALL_EVERY {
                self.asked_all = now;
                calls.forget_refusals();
                self.energy.reconsider();
            }
            self.instances.clear();
            if self.mig {
                self.instances = calls.ask(NvmlCall::MigInstances, || mig::instances(device))?.unwrap_or_default();
            }
        }
        let (processes, evidence) = self.work(elapsed, now_us, ignored)?;
        let state = state(&self.device, &mut self.calls)?;
        let energy = self.doubt.judge(energy, state.power, elapsed);
        self.probe(target)?;
        if self.knobs.as_ref().is_some_and(Knobs::has_limit) {
            let Self { device, calls, limit_mw, .. } = self;
            *limit_mw = calls.ask(NvmlCall::PowerLimit, || device.power_management_limit())?;
        }
        self.take_events(&target.gpu, memory)?;
        if self.calls.any_failed() {
            // After a reload of the driver every call on an old handle fails somehow; then the handle is of no use.
            self.device.uuid().map_err(|error| GpuFailure::new(NvmlCall::Uuid, &error))?;
        }
        let (refused, failing) = self.calls.take_news();
        if !refused.is_empty() {
            let calls = refused.iter().map(|call| call.as_str()).collect::<Vec<_>>().join(", ");
            info!(gpu = target.gpu.index, uuid = %target.gpu.uuid, calls, "not supported by this GPU or driver");
        }
        if let Some(news) = self.doubt.news(now) {
            let remedy = if self.doubt.verdict() == Verdict::Plausible { "" } else { GpuFault::Frozen.remedy() };
            warn!(gpu = target.gpu.index, uuid = %target.gpu.uuid, "{}", Advice::new(news, remedy));
        }
        for error in failing {
            warn!(gpu = target.gpu.index, uuid = %target.gpu.uuid, error, "a call on the GPU fails");
        }
        Ok(GpuReading {
            gpu: Arc::clone(&target.gpu),
            taken: now,
            energy,
            module,
            elapsed,
            state,
            processes,
            evidence,
            instances: self.instances.clone(),
        })
    }

    /// The handle with its knobs, for a write.
    ///
    /// # Errors
    /// When the GPU cannot be asked for its knobs.
    pub fn knobs(&mut self, target: &GpuTarget) -> Result<(&mut Device<'n>, &mut Knobs), GpuFailure> {
        self.probe(target)?;
        Ok((&mut self.device, self.knobs.as_mut().expect("it was probed")))
    }

    /// What energy is read from.
    pub const fn source(&self) -> Option<Source> {
        self.energy.source()
    }

    /// Why energy could not be read although the GPU offers it.
    pub fn trouble(&self) -> Option<GpuFault> {
        let frozen = (self.doubt.verdict() == Verdict::Frozen).then_some(GpuFault::Frozen);
        let energy = [NvmlCall::TotalEnergy, NvmlCall::PowerSamples, NvmlCall::PowerUsage];
        energy.into_iter().find_map(|call| self.calls.failed(call)).or(frozen)
    }

    /// Whether its energy can't be right, measured against its power.
    pub const fn is_doubtful(&self) -> bool {
        matches!(self.doubt.verdict(), Verdict::Doubtful(_))
    }

    /// Processes with their work.
    fn work(
        &mut self,
        elapsed: Duration,
        now_us: u64,
        ignored: &mut Ignored,
    ) -> Result<(Vec<GpuProcess>, Evidence), GpuFailure> {
        let Self { device, calls, .. } = self;
        let idle = |result| if matches!(result, Err(NvmlError::NotFound)) { Ok(Vec::new()) } else { result };
        // In MIG mode the samples are not those of the instances.
        let samples = if self.mig {
            None
        } else {
            let after_us = self.cursor.last_seen_us();
            calls.ask(NvmlCall::ProcessUtilization, || idle(device.process_utilization_stats(after_us)))?
        };
        let samples: Option<Vec<UtilSample>> = samples.map(|samples| {
            let sample = |sample: &nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample| UtilSample {
                pid: sample.pid,
                at_us: sample.timestamp,
                sm: sample.sm_util,
            };
            samples.iter().map(sample).collect()
        });
        let listed = self.processes.read(device, self.mig, calls)?;
        let Some(samples) = samples else {
            return Ok((listed.unwrap_or_default(), Evidence::None));
        };
        let alive: BTreeSet<u32> = match &listed {
            Some(listed) => listed.iter().map(|process| process.pid).collect(),
            None => samples.iter().map(|sample| sample.pid).filter(|pid| *pid != 0).collect(),
        };
        let mut work = self.cursor.advance(&samples, &alive, elapsed, now_us, ignored);
        let mut processes = listed.unwrap_or_default();
        for process in &mut processes {
            process.work = work.remove(&process.pid).unwrap_or_default();
        }
        let before = std::mem::replace(&mut self.kinds, processes.clone());
        // What is left worked and ended since the previous reading, or is on no list.
        processes.extend(work.into_iter().map(|(pid, work)| {
            let kind = before.iter().find(|process| process.pid == pid).map_or(GpuProcessKind::Compute, |it| it.kind);
            GpuProcess { pid, work, memory_bytes: None, kind, instance: None }
        }));
        processes.sort_by_key(|process| (process.pid, process.instance));
        Ok((processes, Evidence::Samples))
    }

    /// Looks for what can be lowered; once, or again where that failed.
    fn probe(&mut self, target: &GpuTarget) -> Result<(), GpuFailure> {
        let anew = self.knobs.is_none();
        if self.knobs.as_ref().is_none_or(|knobs| knobs.is_doubtful(target.retry)) {
            let knobs = Knobs::probe(&self.device, &target.gpu.uuid, target.stated)?;
            for KnobError { state, detail } in knobs.troubles().into_iter().filter(|_| anew) {
                info!(
                    gpu = target.gpu.index,
                    uuid = %target.gpu.uuid,
                    reason = state.as_str(),
                    "one of its limits cannot be set: {detail}"
                );
            }
            self.probed = Some(Probed { found: knobs.found(), anew });
            self.knobs = Some(knobs);
        }
        Ok(())
    }

    /// Counts critical XID errors, and names each kind the first time.
    fn take_events(&mut self, gpu: &Gpu, memory: &mut ReaderMemory) -> Result<(), GpuFailure> {
        let Some(events) = &self.events else { return Ok(()) };
        for _ in 0..MAX_EVENTS {
            let event = match events.wait(EVENT_WAIT_MS) {
                Err(NvmlError::Timeout) => break,
                result => self.calls.judge(NvmlCall::EventSetWait, result)?,
            };
            let Some(event) = event else { break };
            if let Some(xid) = event.event_data {
                let xid = match xid {
                    XidError::Value(number) => number,
                    XidError::Unknown => 999,
                };
                memory.xids += 1;
                if memory.named.insert(xid) {
                    warn!(
                        gpu = gpu.index,
                        uuid = %gpu.uuid,
                        xid,
                        "the driver reports a critical error (XID); further ones with this number are only counted"
                    );
                }
            }
        }
        Ok(())
    }
}

/// Asks for XID events where the GPU has them; without, XID errors are not counted.
fn xid_events<'n>(device: &Device<'n>, calls: &mut Calls) -> Option<EventSet<'n>> {
    let nvml = device.nvml();
    nvml.lib().nvmlEventSetFree.as_ref().ok()?;
    let types = calls.ask(NvmlCall::SupportedEventTypes, || device.supported_event_types()).ok()??;
    if !types.contains(EventTypes::CRITICAL_XID_ERROR) {
        return None;
    }
    let set = calls.ask(NvmlCall::EventSetCreate, || nvml.create_event_set()).ok()??;
    let register = || device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|failed| failed.error);
    calls.ask(NvmlCall::RegisterEvents, register).ok()?
}

fn state(device: &Device<'_>, calls: &mut Calls) -> Result<GpuState, GpuFailure> {
    const HERTZ: u64 = 1_000_000;
    let megahertz = |clock: Option<u32>| clock.map(|megahertz| u64::from(megahertz) * HERTZ);
    let watts = |power_mw: u32| Watts(ratio(power_mw.into(), 1000));
    let utilization = calls.ask(NvmlCall::UtilizationRates, || device.utilization_rates())?;
    let memory = calls.ask(NvmlCall::MemoryInfo, || device.memory_info())?;
    let ppm = |percent: u32| (percent <= 100).then(|| percent * 10_000);
    Ok(GpuState {
        utilization_ppm: utilization.as_ref().and_then(|rates| ppm(rates.gpu)),
        memory_utilization_ppm: utilization.as_ref().and_then(|rates| ppm(rates.memory)),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        memory_total_bytes: memory.as_ref().map(|memory| memory.total),
        temperature_celsius: calls.ask(NvmlCall::Temperature, || device.temperature(TemperatureSensor::Gpu))?,
        sm_clock_hertz: megahertz(calls.ask(NvmlCall::SmClock, || device.clock_info(Clock::SM))?),
        memory_clock_hertz: megahertz(calls.ask(NvmlCall::MemoryClock, || device.clock_info(Clock::Memory))?),
        power: calls.ask(NvmlCall::PowerUsage, || device.power_usage())?.map(watts),
        power_limit: calls.ask(NvmlCall::EnforcedPowerLimit, || device.enforced_power_limit())?.map(watts),
        throttle_reasons: calls.ask(NvmlCall::ThrottleReasons, || clocks::reasons(device))?,
    })
}
