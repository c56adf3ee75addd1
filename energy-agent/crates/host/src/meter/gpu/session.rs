//! The library on a thread of its own: loads it, finds the GPUs, and starts a thread for each. It may hang as any call
//! may, and nobody waits for it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use energy_model::advice::Advice;
use energy_model::capping::stated::StatedClocks;
use energy_model::gpu::Gpu;
use energy_model::zone::Source;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::call::NvmlCall;
use super::fault::{GpuFailure, GpuFault};
use super::reader::GpuTarget;
use super::worker::{GpuAnswer, GpuRequest, Worker, WriteAnswer};
use crate::static_build::IS_STATIC;

/// How long the threads of a library that is closed may take to end, in steps.
const CLOSING_STEPS: u32 = 50;
const CLOSING_STEP: Duration = Duration::from_millis(10);

/// What the meter asks for.
pub enum SessionCommand {
    /// Close what is open, load the library and look for GPUs.
    Open(KnownGpus),
    /// Look for GPUs that are not read yet.
    Look(KnownGpus),
    /// The same, if the driver lists another number of GPUs than before.
    Count(KnownGpus),
}

/// The GPUs that were seen before.
pub type KnownGpus = BTreeMap<Arc<str>, KnownGpu>;

#[derive(Clone, Copy, Debug)]
pub struct KnownGpu {
    /// A thread reads it, or hangs in it.
    pub running: bool,
    pub chosen: Option<Source>,
}

/// What comes back from all threads.
pub enum GpuMessage {
    Session(Result<Session, GpuFailure>),
    Device(Box<GpuAnswer>),
    Written(Box<WriteAnswer>),
}

impl From<GpuAnswer> for GpuMessage {
    fn from(answer: GpuAnswer) -> Self {
        Self::Device(Box::new(answer))
    }
}

impl From<WriteAnswer> for GpuMessage {
    fn from(answer: WriteAnswer) -> Self {
        Self::Written(Box::new(answer))
    }
}

/// What a look at the library found.
pub struct Session {
    pub driver: String,
    pub count: u32,
    /// GPUs for which a thread was started.
    pub started: Vec<Started>,
    /// GPUs by index that cannot be read.
    pub failed: Vec<(u32, GpuFailure)>,
}

pub struct Started {
    pub gpu: Arc<Gpu>,
    pub worker: u64,
    pub requests: Sender<GpuRequest>,
    pub thread: JoinHandle<()>,
}

/// The thread's own state.
pub struct Opener {
    pub library: String,
    pub procfs: PathBuf,
    pub interval: Duration,
    pub stated: StatedClocks,
    pub retry: Duration,
    pub answers: Sender<GpuMessage>,
    pub nvml: Option<Arc<Nvml>>,
    /// Driver and number of GPUs at the last look.
    pub found: Option<(String, u32)>,
    pub workers: u64,
}

impl Opener {
    /// Follows commands until their sender is gone.
    pub fn run(mut self, commands: &Receiver<SessionCommand>) {
        while let Ok(command) = commands.recv() {
            let result = match command {
                SessionCommand::Open(known) => {
                    self.close();
                    open(&self.library, &self.procfs).and_then(|nvml| {
                        self.nvml = Some(Arc::new(nvml));
                        self.look(&known)
                    })
                }
                SessionCommand::Look(known) => self.look(&known),
                SessionCommand::Count(known) => match self.recount() {
                    Ok(Some(same)) => Ok(same),
                    Ok(None) => self.look(&known),
                    Err(failure) => Err(failure),
                },
            };
            if self.answers.send(GpuMessage::Session(result)).is_err() {
                return;
            }
        }
    }

    /// The library is shut down with its last user; only then does loading it anew find another driver. A thread that hangs
    /// keeps it.
    fn close(&mut self) {
        let Some(nvml) = self.nvml.take() else { return };
        let users = Arc::downgrade(&nvml);
        drop(nvml);
        for _ in 0..CLOSING_STEPS {
            if users.strong_count() == 0 {
                break;
            }
            thread::sleep(CLOSING_STEP);
        }
    }

    /// What is known, where the driver lists as many GPUs as before.
    fn recount(&self) -> Result<Option<Session>, GpuFailure> {
        let Some(nvml) = &self.nvml else { return Ok(None) };
        let count = nvml.device_count().map_err(|error| GpuFailure::new(NvmlCall::DeviceCount, &error))?;
        let same = self.found.as_ref().filter(|(_, before)| *before == count);
        Ok(same.map(|(driver, count)| Session {
            driver: driver.clone(),
            count: *count,
            started: Vec::new(),
            failed: Vec::new(),
        }))
    }

    fn look(&mut self, known: &KnownGpus) -> Result<Session, GpuFailure> {
        let Some(nvml) = self.nvml.clone() else {
            return Err(GpuFailure { fault: GpuFault::Error, detail: "the library is not open".into(), reopen: true });
        };
        let driver = nvml.sys_driver_version().unwrap_or_else(|_| "unknown".to_owned());
        let count = nvml.device_count().map_err(|error| GpuFailure::new(NvmlCall::DeviceCount, &error))?;
        self.found = Some((driver.clone(), count));
        let mut session = Session { driver, count, started: Vec::new(), failed: Vec::new() };
        for index in 0..count {
            match identify(&nvml, index) {
                Err(failure) if failure.reopen => return Err(failure),
                Err(failure) => session.failed.push((index, failure)),
                Ok(gpu) => {
                    let before = known.get(&gpu.uuid);
                    if before.is_none_or(|before| !before.running) {
                        let chosen = before.and_then(|before| before.chosen);
                        match self.start(Arc::clone(&nvml), gpu, chosen) {
                            Ok(started) => session.started.push(started),
                            Err(failure) => session.failed.push((index, failure)),
                        }
                    }
                }
            }
        }
        Ok(session)
    }

    fn start(&mut self, nvml: Arc<Nvml>, gpu: Gpu, chosen: Option<Source>) -> Result<Started, GpuFailure> {
        let gpu = Arc::new(gpu);
        self.workers += 1;
        let stated = self.stated.of(&gpu.uuid);
        let target = GpuTarget {
            gpu: Arc::clone(&gpu),
            chosen,
            stated,
            procfs: self.procfs.clone(),
            interval: self.interval,
            retry: self.retry,
        };
        let worker = Worker { id: self.workers, nvml, target };
        let (requests, incoming) = channel();
        let answers = self.answers.clone();
        let thread = thread::Builder::new()
            .name(format!("gpu{}", gpu.index))
            .spawn(move || worker.run(&incoming, &answers))
            .map_err(|error| GpuFailure {
                fault: GpuFault::Error,
                detail: format!("thread: {error}").into(),
                reopen: false,
            })?;
        Ok(Started { gpu, worker: self.workers, requests, thread })
    }
}

/// Loads and initialises the library.
///
/// # Errors
/// When it is not there, lacks a function that is needed in any case, or the driver refuses; in a static build always.
pub fn open(library: &str, procfs: &Path) -> Result<Nvml, GpuFailure> {
    if IS_STATIC {
        return Err(GpuFailure::of_static_build(procfs));
    }
    let nvml = Nvml::builder().lib_path(OsStr::new(library)).init().map_err(|error| {
        let failure = GpuFailure::new(NvmlCall::Init, &error);
        match error {
            NvmlError::LibloadingError(_) => failure,
            _ => GpuFailure { detail: failure.detail.of(library), ..failure },
        }
    })?;
    if nvml.lib().nvmlShutdown.is_err() {
        // Dropping it would panic.
        std::mem::forget(nvml);
        let detail = Advice::new(format!("{library}: nvmlShutdown is missing"), GpuFault::Symbol.remedy());
        return Err(GpuFailure { fault: GpuFault::Symbol, detail, reopen: true });
    }
    Ok(nvml)
}

/// The identity of the GPU at `index`.
///
/// # Errors
/// As NVML says.
pub fn identify(nvml: &Nvml, index: u32) -> Result<Gpu, GpuFailure> {
    let device = nvml.device_by_index(index).map_err(|error| GpuFailure::new(NvmlCall::HandleByIndex, &error))?;
    let uuid = device.uuid().map_err(|error| GpuFailure::new(NvmlCall::Uuid, &error))?;
    let name = device.name().unwrap_or_else(|_| "NVIDIA GPU".to_owned());
    Ok(Gpu { uuid: Arc::from(uuid), index, minor: device.minor_number().ok(), name: Arc::from(name) })
}
