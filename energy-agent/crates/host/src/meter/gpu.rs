//! NVIDIA GPUs through NVML: energy, state and processes of each, read on threads that may hang while the tick does not.
//!
//! Each GPU is read by a thread of its own, and another one opens the library, because any NVML call may hang for minutes. The tick asks
//! all of them at its start and takes what has come after the other meters; it waits at most 50 ms, and not at all for a GPU that
//! was slow. A GPU that does not answer for three seconds is `hanging`: its thread is left alone, the others go on, and when it
//! returns its counter has the energy meanwhile. The library is closed when its last thread ends, so that a new driver is loaded.
//! GPUs keep their series by UUID, whatever index they come back with.

mod call;
mod clocks;
mod device;
mod doubt;
mod energy;
mod fault;
mod integral;
mod knobs;
mod mig;
mod pending;
mod probe;
mod processes;
mod reader;
mod samples;
mod session;
mod superchip;
mod worker;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use energy_model::advice::Advice;
use energy_model::capping::knob::Knob;
use energy_model::capping::stated::StatedClocks;
use energy_model::gpu::{GpuHealth, GpuReading, GpuUp, Ignored};
use energy_model::meter_state::{MeterName, MeterState, Reason};
use tracing::{info, warn};

use self::device::{MeteredGpu, WorkerHandle};
use self::fault::{GpuFailure, GpuFault};
use self::pending::Pending;
pub use self::pending::Written;
pub use self::probe::probe;
use self::session::{GpuMessage, KnownGpu, KnownGpus, Opener, Session, SessionCommand, Started};
use self::worker::{GpuAnswer, GpuRequest};
use super::counter::ZoneCounts;
use super::deadline::{Deadline, PATIENCE};
use super::state_log::StateLog;

/// The library, and GPUs that are missing, are looked for this often; more often where ticks are close.
const RETRY: Duration = Duration::from_secs(10);
/// Intervals between two looks at most.
const RETRY_TICKS: u32 = 10;

/// Where GPUs are read from.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// Name or path of the library.
    pub library: String,
    pub procfs: PathBuf,
    pub interval: Duration,
    /// What the clocks of GPUs were before anything was written.
    pub stated: StatedClocks,
}

/// All GPUs. Owned by the tick; the calls are made by threads that it asks and, beyond a moment, does not wait for.
pub struct GpuMeter {
    /// `None` with `--gpu=off`.
    commands: Option<Sender<SessionCommand>>,
    messages: Receiver<GpuMessage>,
    /// The library's thread.
    session: Deadline,
    open: bool,
    /// When to look again.
    next: Instant,
    retry: Duration,
    patience: Duration,
    state: MeterState,
    devices: BTreeMap<Arc<str>, MeteredGpu>,
    /// GPUs by index that were never readable.
    unreadable: BTreeMap<u32, GpuFault>,
    counts: ZoneCounts,
    ignored: Ignored,
    written: Vec<Written>,
    /// GPUs by UUID that `--capping.gpu-clock-before` names and that were not seen yet.
    named: BTreeSet<String>,
}

impl GpuMeter {
    /// Starts to look for GPUs; `None` reads none (`--gpu=off`).
    #[must_use]
    pub fn open(options: Option<GpuOptions>) -> Self {
        let (send, messages) = channel();
        let (reason, detail) = match &options {
            Some(options) => (Reason::Starting, format!("{} is being loaded", options.library)),
            None => (Reason::Off, "switched off by --gpu=off".to_owned()),
        };
        let named = options.iter().flat_map(|options| options.stated.uuids()).map(str::to_owned).collect();
        let interval = options.as_ref().map_or(RETRY, |options| options.interval);
        let retry = RETRY.min(interval * RETRY_TICKS);
        let commands = options.and_then(|GpuOptions { library, procfs, interval, stated }| {
            let (commands, incoming) = channel();
            let opener =
                Opener { library, procfs, interval, stated, retry, answers: send, nvml: None, found: None, workers: 0 };
            let thread = thread::Builder::new().name("nvml".to_owned()).spawn(move || opener.run(&incoming));
            thread.inspect_err(|error| warn!(%error, "no thread for NVML, GPUs are not read")).ok().map(|_| commands)
        });
        let mut meter = Self {
            commands,
            messages,
            session: Deadline::default(),
            open: false,
            next: Instant::now(),
            retry,
            patience: PATIENCE.min(interval / 4),
            state: MeterState::down(MeterName::Nvml, reason, detail),
            devices: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            counts: ZoneCounts::default(),
            ignored: Ignored::default(),
            written: Vec::new(),
            named,
        };
        meter.command(Instant::now());
        meter
    }

    /// Asks every GPU for a reading; [`take`](Self::take) has them. Never waits.
    ///
    /// Returns what had come too late for the tick before.
    pub fn ask(&mut self, now: Instant) -> Vec<GpuReading> {
        while let Ok(message) = self.messages.try_recv() {
            self.receive(message, now);
        }
        if self.session.begins_to_hang(now) && !self.open {
            let detail = Advice::new("no answer from the library", GpuFault::Hanging.remedy());
            self.fail(&GpuFailure { fault: GpuFault::Hanging, detail, reopen: true });
        }
        if now >= self.next && !self.session.is_waiting() {
            self.command(now);
        }
        let mut late = Vec::new();
        let mut gone = false;
        for device in self.devices.values_mut() {
            let Some(worker) = &mut device.worker else { continue };
            if worker.thread.is_finished() {
                // As it should where the library was closed.
                if worker.requests.is_some() {
                    warn!(gpu = device.gpu.index, uuid = %device.gpu.uuid, "the GPU's thread has ended");
                    device.fault = Some(GpuFault::Error);
                    _ = device.told.due(device.fault, now);
                }
                (device.worker, device.reachable) = (None, false);
                gone = true;
                continue;
            }
            let hangs = worker.watch.begins_to_hang(now) | device.pending.watch.begins_to_hang(now);
            if hangs && device.fault != Some(GpuFault::Hanging) {
                device.fault = Some(GpuFault::Hanging);
                if device.told.due(device.fault, now).is_some() {
                    warn!(
                        gpu = device.gpu.index,
                        uuid = %device.gpu.uuid,
                        "a call on the GPU hangs, its series do not change until it returns; {}",
                        GpuFault::Hanging.remedy()
                    );
                }
            }
            let reading = device.ready.take();
            // One reading a tick: where a late one is there and the next will be in time, that one has to wait.
            let due = !worker.watch.is_waiting() && (reading.is_none() || !worker.watch.is_prompt());
            if due && worker.requests.as_ref().is_some_and(|requests| requests.send(GpuRequest::Read).is_ok()) {
                worker.watch.ask(now);
            }
            late.extend(reading);
        }
        if gone {
            self.next = now;
            self.abandon_writes(now);
        }
        late
    }

    /// The readings asked for. Waits a moment for those that have always come at once; `late` is what `ask` returned.
    #[must_use]
    pub fn take(&mut self, asked: Instant, late: Vec<GpuReading>) -> Vec<GpuReading> {
        let until = asked + self.patience;
        while self.devices.values().any(|it| it.worker.as_ref().is_some_and(|worker| worker.watch.is_awaited())) {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) => self.receive(message, Instant::now()),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let mut readings = late;
        for device in self.devices.values_mut() {
            if let Some(worker) = &mut device.worker {
                worker.watch.give_up();
            }
            if readings.iter().all(|reading| reading.gpu.uuid != device.gpu.uuid) {
                readings.extend(device.ready.take());
            }
        }
        readings
    }

    #[must_use]
    pub fn state(&self) -> MeterState {
        self.state.clone()
    }

    #[must_use]
    pub const fn counts(&self) -> ZoneCounts {
        self.counts
    }

    #[must_use]
    pub fn health(&self) -> GpuHealth {
        let known = self.devices.values().map(|device| GpuUp {
            index: device.gpu.index,
            uuid: Arc::clone(&device.gpu.uuid),
            up: device.fault.is_none(),
            reason: device.fault.map_or(if device.doubtful { Reason::Doubtful } else { Reason::Ok }, Reason::from),
            xids: device.xids,
            took: device.took,
        });
        let unreadable = self.unreadable.iter().map(|(&index, fault)| GpuUp {
            index,
            uuid: Arc::from(""),
            up: false,
            reason: (*fault).into(),
            xids: 0,
            took: None,
        });
        GpuHealth { gpus: known.chain(unreadable).collect(), ignored: self.ignored }
    }

    /// Opens the library, or looks for GPUs that are missing.
    fn command(&mut self, now: Instant) {
        self.next = now + self.retry;
        // With every GPU out of reach there is nothing to lose, and a driver that came back is found by opening only.
        let out_of_reach =
            |device: &MeteredGpu| device.fault.is_some_and(|fault| fault != GpuFault::Hanging) && !device.reachable;
        let opening = !self.open || self.devices.values().all(out_of_reach);
        let missing = !self.unreadable.is_empty()
            || self.devices.values().any(|device| device.worker.is_none() || out_of_reach(device));
        if opening {
            self.close();
        }
        let known: KnownGpus = self
            .devices
            .iter()
            .map(|(uuid, device)| {
                (Arc::clone(uuid), KnownGpu { running: device.worker.is_some(), chosen: device.source })
            })
            .collect();
        let command = match (opening, missing) {
            (true, _) => SessionCommand::Open(known),
            (false, true) => SessionCommand::Look(known),
            (false, false) => SessionCommand::Count(known),
        };
        if self.commands.as_ref().is_some_and(|commands| commands.send(command).is_ok()) {
            self.session.ask(now);
        }
    }

    /// Lets all threads end, so that the library can be closed. One that hangs is left alone until its call returns.
    fn close(&mut self) {
        self.open = false;
        for device in self.devices.values_mut() {
            device.worker.take_if(|worker| !worker.watch.is_waiting() && !device.pending.is_waiting());
            if let Some(worker) = &mut device.worker {
                worker.requests = None;
            }
        }
    }

    fn receive(&mut self, message: GpuMessage, now: Instant) {
        match message {
            GpuMessage::Session(result) => {
                self.session.answered(Duration::ZERO);
                match result {
                    Ok(session) => self.opened(session),
                    // While GPUs are read the library works, whatever became of one.
                    Err(failure) if self.open && self.devices.values().any(MeteredGpu::is_in_reach) => {
                        let lost = |device: &&mut MeteredGpu| !device.reachable && device.fault == Some(failure.fault);
                        self.devices.values_mut().filter(lost).for_each(|device| device.set_fault(&failure));
                    }
                    Err(failure) => self.fail(&failure),
                }
            }
            GpuMessage::Device(answer) => self.answered(*answer, now),
            GpuMessage::Written(answer) => self.wrote(*answer, now),
        }
    }

    /// The library as a whole does not work.
    fn fail(&mut self, failure: &GpuFailure) {
        let GpuFailure { fault, detail, reopen: _ } = failure;
        if self.state.reason != (*fault).into() {
            // No NVIDIA GPU is the usual case, not a fault.
            if *fault == GpuFault::Absent && self.devices.is_empty() {
                info!("no NVIDIA GPU can be read: {detail}");
            } else {
                warn!(error = %detail, "NVIDIA GPUs cannot be read");
            }
        }
        self.state = MeterState::down(MeterName::Nvml, (*fault).into(), detail.clone());
        self.unreadable.clear();
        self.close();
        for device in self.devices.values_mut() {
            device.fault = Some(if device.hangs() { GpuFault::Hanging } else { *fault });
            _ = device.told.due(device.fault, Instant::now());
            device.reachable = false;
        }
    }

    fn opened(&mut self, session: Session) {
        let Session { driver, count, started, failed } = session;
        self.open = true;
        for Started { gpu, worker, requests, thread } in started {
            let worker =
                Some(WorkerHandle { id: worker, requests: Some(requests), thread, watch: Deadline::default() });
            let device = self.devices.entry(Arc::clone(&gpu.uuid)).or_insert_with(|| MeteredGpu {
                gpu: Arc::clone(&gpu),
                worker: None,
                fault: None,
                told: StateLog::default(),
                doubtful: false,
                source: None,
                xids: 0,
                took: None,
                ready: None,
                pending: Pending::default(),
                reachable: false,
            });
            (device.gpu, device.worker) = (gpu, worker);
        }
        let mut unreadable = BTreeMap::new();
        let read: BTreeSet<u32> =
            self.devices.values().filter(|device| device.worker.is_some()).map(|device| device.gpu.index).collect();
        let mut lacking: Vec<&mut MeteredGpu> =
            self.devices.values_mut().filter(|device| device.worker.is_none()).collect();
        for (index, failure) in failed {
            if let Some(place) = lacking.iter().position(|device| device.gpu.index == index) {
                lacking.remove(place).set_fault(&failure);
            } else if !read.contains(&index) {
                if self.unreadable.get(&index) != Some(&failure.fault) {
                    warn!(gpu = index, error = %failure.detail, "the GPU cannot be read");
                }
                unreadable.insert(index, failure.fault);
            }
        }
        for device in lacking {
            let detail = "the driver no longer lists it".into();
            device.set_fault(&GpuFailure { fault: GpuFault::Absent, detail, reopen: false });
        }
        self.unreadable = unreadable;
        self.named.retain(|uuid| !self.devices.contains_key(&**uuid));
        if self.unreadable.is_empty() {
            for uuid in std::mem::take(&mut self.named) {
                warn!(
                    uuid,
                    "--capping.gpu-clock-before names a GPU that does not exist here (nvidia-smi -L lists them)"
                );
            }
        }
        let plural = if count == 1 { "" } else { "s" };
        let now = match count {
            0 => MeterState::down(MeterName::Nvml, Reason::Absent, format!("no GPU, driver {driver}")),
            _ => MeterState::up(MeterName::Nvml, format!("{count} GPU{plural}, driver {driver}")),
        };
        if (now.is_up(), &now.detail) != (self.state.is_up(), &self.state.detail) {
            info!(gpus = count, driver, "NVML is open");
        }
        self.state = now;
    }

    fn answered(&mut self, answer: GpuAnswer, now: Instant) {
        let GpuAnswer {
            worker: id,
            gpu,
            took,
            reading,
            source,
            trouble,
            doubtful,
            counts,
            ignored,
            xids,
            probed,
            limit_mw,
        } = answer;
        self.counts += counts;
        self.ignored += ignored;
        let others = self.devices.iter().any(|(uuid, device)| *uuid != gpu.uuid && device.is_in_reach());
        let Some(device) = self.devices.get_mut(&gpu.uuid) else { return };
        device.xids += xids;
        device.doubtful = doubtful;
        device.took = Some(took);
        let Some(worker) = device.worker.as_mut().filter(|worker| worker.id == id) else { return };
        let hung = worker.watch.answered(took) || device.fault == Some(GpuFault::Hanging);
        if worker.requests.is_none() {
            if device.let_go() {
                self.next = now;
            }
            return;
        }
        if let Some(probed) = probed {
            device.pending.probed(probed);
        }
        if let Some(limit_mw) = limit_mw {
            device.pending.read(&Knob::GpuPower(Arc::clone(&gpu.uuid)), limit_mw);
        }
        device.source = device.source.or(source);
        match reading {
            Ok(mut reading) => {
                if let Some(energy) = reading.energy.as_mut().filter(|_| hung) {
                    energy.gap = true;
                }
                device.fault = trouble;
                if device.told.due(trouble, now).is_some() && trouble.is_none() {
                    info!(gpu = gpu.index, uuid = %gpu.uuid, "the GPU can be read again");
                }
                device.ready = Some(reading);
                device.reachable = true;
            }
            Err(failure) => {
                if failure.reopen && others {
                    // It may be this GPU alone. If it is the library, the others say so in a moment.
                    (device.fault, device.reachable) = (Some(failure.fault), false);
                } else if failure.reopen {
                    self.next = now;
                    self.fail(&failure);
                } else {
                    device.set_fault(&failure);
                    if failure.fault == GpuFault::Absent {
                        // It is looked for by its UUID, and read by a thread of its own again.
                        device.worker.iter_mut().for_each(|worker| worker.requests = None);
                        device.let_go();
                        self.next = now;
                    }
                }
            }
        }
    }
}
