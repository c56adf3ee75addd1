//! One GPU on a thread of its own: each request becomes one reading, and a call that hangs stops nobody else.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};
use tracing::{info, warn};

use super::energy::{EnergyWay, POWER_SAMPLES, POWER_USAGE, TOTAL_ENERGY};
use super::fault::{Calls, Failure, Fault};
use super::mig;
use super::processes::Processes;
use super::reading::{Evidence, Gpu, GpuInstance, GpuProcess, GpuProcessKind, GpuReading, GpuState};
use super::samples::{Cursor, Ignored, UtilSample};
use crate::meter::Source;
use crate::meter::counter::ZoneCounts;
use crate::units::{Watts, micros, ratio};

/// How long waiting for an event may take; milliseconds. They are asked for, not waited for.
const EVENT_WAIT_MS: u32 = 1;
/// Most events taken in one reading.
const MAX_EVENTS: usize = 16;

const UTILIZATION: &str = "nvmlDeviceGetProcessUtilization";

/// What a thread is started with.
pub struct Task {
    /// Tells this thread's answers from those of one before it for the same GPU.
    pub worker: u64,
    pub nvml: Arc<Nvml>,
    pub gpu: Arc<Gpu>,
    /// What the GPU's energy series began with.
    pub chosen: Option<Source>,
    pub procfs: PathBuf,
    pub interval: Duration,
    /// How long a GPU that was lost is left alone.
    pub retry: Duration,
}

/// What a request led to.
pub struct Answer {
    pub worker: u64,
    pub gpu: Arc<Gpu>,
    /// From the request to the answer.
    pub took: Duration,
    pub reading: Result<GpuReading, Failure>,
    pub source: Option<Source>,
    /// Why energy could not be read although the GPU offers it.
    pub trouble: Option<Fault>,
    /// Noticed since the last answer.
    pub counts: ZoneCounts,
    pub ignored: Ignored,
    /// Critical XID errors since the last answer.
    pub xids: u64,
}

impl Task {
    /// Answers requests until their sender is gone.
    pub fn run<T: From<Answer>>(self, requests: &Receiver<()>, answers: &Sender<T>) {
        let mut reader: Option<Reader<'_>> = None;
        let mut failed: Option<(Failure, Instant)> = None;
        while requests.recv().is_ok() {
            let began = Instant::now();
            let (mut counts, mut ignored, mut xids) = (ZoneCounts::default(), Ignored::default(), 0);
            let reading = match failed.take_if(|(_, at)| at.elapsed() >= self.retry) {
                None if failed.is_some() => Err(failed.as_ref().map(|(failure, _)| failure.clone()).expect("is some")),
                _ => {
                    self.handle(&mut reader).and_then(|reader| reader.read(&self, &mut counts, &mut ignored, &mut xids))
                }
            };
            if let (Err(failure), None) = (&reading, &failed) {
                reader = None;
                failed = Some((failure.clone(), Instant::now()));
            }
            let answer = Answer {
                worker: self.worker,
                gpu: Arc::clone(&self.gpu),
                took: began.elapsed(),
                reading,
                source: reader.as_ref().and_then(|reader| reader.energy.source()),
                trouble: reader.as_ref().and_then(Reader::trouble),
                counts,
                ignored,
                xids,
            };
            if answers.send(answer.into()).is_err() {
                break;
            }
        }
    }

    /// The handle, fetched anew where there is none.
    fn handle<'r, 'n>(&'n self, reader: &'r mut Option<Reader<'n>>) -> Result<&'r mut Reader<'n>, Failure> {
        if reader.is_none() {
            let failure = |call: &'static str| move |error: NvmlError| Failure::new(call, &error);
            let device = self.nvml.device_by_index(self.gpu.index).map_err(failure("nvmlDeviceGetHandleByIndex_v2"))?;
            let uuid = device.uuid().map_err(failure("nvmlDeviceGetUUID"))?;
            if uuid != *self.gpu.uuid {
                let detail = format!("index {} is now {uuid}", self.gpu.index);
                return Err(Failure { fault: Fault::Absent, detail, reopen: true });
            }
            *reader = Some(Reader::new(device, self));
        }
        Ok(reader.as_mut().expect("just made"))
    }
}

/// A GPU that can be read.
struct Reader<'n> {
    device: Device<'n>,
    calls: Calls,
    energy: EnergyWay,
    cursor: Cursor,
    processes: Processes,
    /// Of the previous reading, for those that end.
    kinds: Vec<GpuProcess>,
    events: Option<EventSet<'n>>,
    mig: bool,
    instances: Vec<GpuInstance>,
    /// When MIG was looked at.
    mig_seen: Option<Instant>,
    /// When energy was read.
    last: Option<Instant>,
}

impl<'n> Reader<'n> {
    fn new(device: Device<'n>, task: &Task) -> Self {
        let mut calls = Calls::default();
        Self {
            events: xid_events(&device, &mut calls),
            device,
            calls,
            energy: EnergyWay::new(task.chosen, task.interval),
            cursor: Cursor::default(),
            processes: Processes::new(task.procfs.clone()),
            kinds: Vec::new(),
            mig: false,
            instances: Vec::new(),
            mig_seen: None,
            last: None,
        }
    }

    fn read(
        &mut self,
        task: &Task,
        counts: &mut ZoneCounts,
        ignored: &mut Ignored,
        xids: &mut u64,
    ) -> Result<GpuReading, Failure> {
        let now = Instant::now();
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros);
        let elapsed = self.last.map_or(Duration::ZERO, |last| now.duration_since(last));
        self.last = Some(now);
        let Self { device, calls, .. } = self;
        let energy = self.energy.read(device, calls, elapsed, now_us, counts)?;
        if self.mig_seen.is_none_or(|seen| seen.elapsed() >= task.retry) {
            self.mig_seen = Some(now);
            self.mig = calls.ask("nvmlDeviceGetMigMode", || mig::is_on(device))?.unwrap_or(false);
            self.instances.clear();
            if self.mig {
                self.instances = calls.ask("MIG instances", || mig::instances(device))?.unwrap_or_default();
            }
        }
        let (processes, evidence) = self.work(elapsed, now_us, ignored)?;
        let state = state(&self.device, &mut self.calls)?;
        *xids = self.take_events(&task.gpu)?;
        if self.calls.any_failed() {
            // After a reload of the driver every call on an old handle fails somehow; then the handle is of no use.
            self.device.uuid().map_err(|error| Failure::new("nvmlDeviceGetUUID", &error))?;
        }
        let (refused, failing) = self.calls.take_news();
        if !refused.is_empty() {
            info!(gpu = task.gpu.index, uuid = %task.gpu.uuid, calls = refused.join(", "), "not offered by this GPU or driver");
        }
        for error in failing {
            warn!(gpu = task.gpu.index, uuid = %task.gpu.uuid, error, "a call on the GPU fails");
        }
        Ok(GpuReading {
            gpu: Arc::clone(&task.gpu),
            energy,
            elapsed,
            state,
            processes,
            evidence,
            instances: self.instances.clone(),
        })
    }

    fn trouble(&self) -> Option<Fault> {
        [TOTAL_ENERGY, POWER_SAMPLES, POWER_USAGE].iter().find_map(|call| self.calls.failed(call))
    }

    /// Processes with their work.
    fn work(
        &mut self,
        elapsed: Duration,
        now_us: u64,
        ignored: &mut Ignored,
    ) -> Result<(Vec<GpuProcess>, Evidence), Failure> {
        let Self { device, calls, .. } = self;
        let idle = |result| if matches!(result, Err(NvmlError::NotFound)) { Ok(Vec::new()) } else { result };
        // In MIG mode the samples are not those of the instances.
        let samples = if self.mig {
            None
        } else {
            let after_us = self.cursor.last_seen_us();
            calls.ask(UTILIZATION, || idle(device.process_utilization_stats(after_us)))?
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

    /// Counts critical XID errors and says which they were.
    fn take_events(&mut self, gpu: &Gpu) -> Result<u64, Failure> {
        let Some(events) = &self.events else { return Ok(0) };
        let mut count = 0;
        for _ in 0..MAX_EVENTS {
            let event = match events.wait(EVENT_WAIT_MS) {
                Err(NvmlError::Timeout) => break,
                result => self.calls.judge("nvmlEventSetWait_v2", result)?,
            };
            let Some(event) = event else { break };
            if let Some(xid) = event.event_data {
                let xid = match xid {
                    XidError::Value(number) => number,
                    XidError::Unknown => 999,
                };
                warn!(gpu = gpu.index, uuid = %gpu.uuid, xid, "the driver reports a critical error (XID)");
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Asks for XID events where the GPU has them; without, XID errors are not counted.
fn xid_events<'n>(device: &Device<'n>, calls: &mut Calls) -> Option<EventSet<'n>> {
    let nvml = device.nvml();
    nvml.lib().nvmlEventSetFree.as_ref().ok()?;
    let types = calls.ask("nvmlDeviceGetSupportedEventTypes", || device.supported_event_types()).ok()??;
    if !types.contains(EventTypes::CRITICAL_XID_ERROR) {
        return None;
    }
    let set = calls.ask("nvmlEventSetCreate", || nvml.create_event_set()).ok()??;
    let register = || device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|failed| failed.error);
    calls.ask("nvmlDeviceRegisterEvents", register).ok()?
}

fn state(device: &Device<'_>, calls: &mut Calls) -> Result<GpuState, Failure> {
    const HERTZ: u64 = 1_000_000;
    let megahertz = |clock: Option<u32>| clock.map(|megahertz| u64::from(megahertz) * HERTZ);
    let watts = |power_mw: u32| Watts(ratio(power_mw.into(), 1000));
    let utilization = calls.ask("nvmlDeviceGetUtilizationRates", || device.utilization_rates())?;
    let memory = calls.ask("nvmlDeviceGetMemoryInfo_v2", || device.memory_info())?;
    Ok(GpuState {
        utilization_ppm: utilization.filter(|rates| rates.gpu <= 100).map(|rates| rates.gpu * 10_000),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        memory_total_bytes: memory.as_ref().map(|memory| memory.total),
        temperature_celsius: calls.ask("nvmlDeviceGetTemperature", || device.temperature(TemperatureSensor::Gpu))?,
        sm_clock_hertz: megahertz(calls.ask("nvmlDeviceGetClockInfo(NVML_CLOCK_SM)", || device.clock_info(Clock::SM))?),
        memory_clock_hertz: megahertz(
            calls.ask("nvmlDeviceGetClockInfo(NVML_CLOCK_MEM)", || device.clock_info(Clock::Memory))?,
        ),
        power: calls.ask(POWER_USAGE, || device.power_usage())?.map(watts),
        power_limit: calls.ask("nvmlDeviceGetEnforcedPowerLimit", || device.enforced_power_limit())?.map(watts),
        throttle_reasons: calls
            .ask("nvmlDeviceGetCurrentClocksThrottleReasons", || device.current_throttle_reasons())?
            .map(|reasons| reasons.bits()),
    })
}
