//! One GPU on a thread of its own: each request becomes one reading or one write, and a call that hangs stops nobody else.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use energy_model::capping::knob::{Found, Knob, KnobError, KnobValue};
use energy_model::gpu::{Gpu, GpuReading, Ignored};
use energy_model::zone::Source;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::call::NvmlCall;
use super::fault::{GpuFailure, GpuFault};
use super::knobs::Probed;
use super::reader::{GpuReader, GpuTarget, ReaderMemory};
use crate::meter::counter::ZoneCounts;

/// What the thread is asked for.
pub enum GpuRequest {
    Read,
    Write(Knob, KnobValue),
}

/// The thread of one GPU.
pub struct Worker {
    /// Tells this thread's answers from those of one before it for the same GPU.
    pub id: u64,
    pub nvml: Arc<Nvml>,
    pub target: GpuTarget,
}

/// What a reading led to.
pub struct GpuAnswer {
    pub worker: u64,
    pub gpu: Arc<Gpu>,
    /// From the request to the answer.
    pub took: Duration,
    pub reading: Result<GpuReading, GpuFailure>,
    pub source: Option<Source>,
    /// Why energy could not be read although the GPU offers it.
    pub trouble: Option<GpuFault>,
    /// The energy can't be right, measured against the GPU's power.
    pub doubtful: bool,
    /// Noticed since the last answer.
    pub counts: ZoneCounts,
    pub ignored: Ignored,
    /// Critical XID errors since the last answer.
    pub xids: u64,
    /// Knobs, where they were probed since the last answer.
    pub probed: Option<Probed>,
    /// The power limit that is set; milliwatts.
    pub limit_mw: Option<u32>,
}

/// What a write led to.
pub struct WriteAnswer {
    pub gpu: Arc<Gpu>,
    pub knob: Knob,
    pub result: Result<Found, KnobError>,
    pub probed: Option<Probed>,
}

impl Worker {
    /// Answers requests until their sender is gone.
    pub fn run<T: From<GpuAnswer> + From<WriteAnswer>>(self, requests: &Receiver<GpuRequest>, answers: &Sender<T>) {
        let mut reader: Option<GpuReader<'_>> = None;
        let mut memory = ReaderMemory::default();
        while let Ok(request) = requests.recv() {
            let answer = match request {
                GpuRequest::Read => self.read(&mut reader, &mut memory).into(),
                GpuRequest::Write(knob, value) => self.write(&mut reader, &mut memory, knob, &value).into(),
            };
            if answers.send(answer).is_err() {
                break;
            }
        }
    }

    fn read<'n>(&'n self, reader: &mut Option<GpuReader<'n>>, memory: &mut ReaderMemory) -> GpuAnswer {
        let began = Instant::now();
        let (mut counts, mut ignored) = (ZoneCounts::default(), Ignored::default());
        let reading =
            self.with(reader, memory, |reader, memory| reader.read(&self.target, memory, &mut counts, &mut ignored));
        GpuAnswer {
            worker: self.id,
            gpu: Arc::clone(&self.target.gpu),
            took: began.elapsed(),
            reading,
            source: reader.as_ref().and_then(GpuReader::source),
            trouble: reader.as_ref().and_then(GpuReader::trouble),
            doubtful: reader.as_ref().is_some_and(GpuReader::is_doubtful),
            counts,
            ignored,
            xids: std::mem::take(&mut memory.xids),
            probed: reader.as_mut().and_then(|reader| reader.probed.take()),
            limit_mw: reader.as_ref().and_then(|reader| reader.limit_mw),
        }
    }

    /// Does something with the GPU, which is left alone for a while after a failure.
    pub(super) fn with<'n, T>(
        &'n self,
        reader: &mut Option<GpuReader<'n>>,
        memory: &mut ReaderMemory,
        act: impl FnOnce(&mut GpuReader<'n>, &mut ReaderMemory) -> Result<T, GpuFailure>,
    ) -> Result<T, GpuFailure> {
        if let Some((failure, at)) = &memory.failed
            && at.elapsed() < self.target.retry
        {
            return Err(failure.clone());
        }
        memory.failed = None;
        let result = self.handle(reader).and_then(|reader| act(reader, memory));
        if let Err(failure) = &result {
            *reader = None;
            memory.failed = Some((failure.clone(), Instant::now()));
        }
        result
    }

    /// The handle, fetched anew where there is none.
    fn handle<'r, 'n>(&'n self, reader: &'r mut Option<GpuReader<'n>>) -> Result<&'r mut GpuReader<'n>, GpuFailure> {
        if reader.is_none() {
            let failure = |call: NvmlCall| move |error: NvmlError| GpuFailure::new(call, &error);
            let device = self.nvml.device_by_index(self.target.gpu.index).map_err(|error| match error {
                NvmlError::InvalidArg | NvmlError::NotFound => moved("the driver does not list it any more".to_owned()),
                error => failure(NvmlCall::HandleByIndex)(error),
            })?;
            let uuid = device.uuid().map_err(failure(NvmlCall::Uuid))?;
            if uuid != *self.target.gpu.uuid {
                return Err(moved(format!("index {} is now {uuid}", self.target.gpu.index)));
            }
            *reader = Some(GpuReader::new(device, &self.target));
        }
        Ok(reader.as_mut().expect("just made"))
    }
}

/// The GPU is not where it was: gone, or under another index.
fn moved(detail: String) -> GpuFailure {
    GpuFailure { fault: GpuFault::Absent, detail: detail.into(), reopen: false }
}
