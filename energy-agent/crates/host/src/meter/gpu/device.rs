//! A GPU as the tick knows it, and its end of the GPU's thread.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use energy_model::gpu::{Gpu, GpuReading};
use energy_model::zone::Source;
use tracing::warn;

use super::fault::{GpuFailure, GpuFault};
use super::pending::Pending;
use super::worker::GpuRequest;
use crate::meter::deadline::Deadline;
use crate::meter::state_log::StateLog;

/// A GPU that was readable at some time.
pub struct MeteredGpu {
    pub gpu: Arc<Gpu>,
    pub worker: Option<WorkerHandle>,
    pub fault: Option<GpuFault>,
    /// The fault as the log has it.
    pub told: StateLog<Option<GpuFault>>,
    /// It is read, and its energy can't be right.
    pub doubtful: bool,
    pub source: Option<Source>,
    pub xids: u64,
    pub took: Option<Duration>,
    pub ready: Option<GpuReading>,
    pub pending: Pending,
    /// The last reading came from the GPU.
    pub reachable: bool,
}

/// The thread that reads and writes it.
pub struct WorkerHandle {
    pub id: u64,
    /// `None` once the library was closed while a request was out.
    pub requests: Option<Sender<GpuRequest>>,
    pub thread: JoinHandle<()>,
    pub watch: Deadline,
}

impl MeteredGpu {
    /// Whether it was read the last time, and can be asked again.
    pub(crate) fn is_in_reach(&self) -> bool {
        self.reachable && !self.hangs() && self.worker.as_ref().is_some_and(|worker| worker.requests.is_some())
    }

    /// A call has not returned in time.
    pub fn hangs(&self) -> bool {
        self.pending.watch.is_hanging() || self.worker.as_ref().is_some_and(|worker| worker.watch.is_hanging())
    }

    /// Lets the thread of a library that was closed go, and another take over, once nothing of it is awaited.
    pub fn let_go(&mut self) -> bool {
        let waits = self.pending.is_waiting();
        self.worker.take_if(|worker| worker.requests.is_none() && !worker.watch.is_waiting() && !waits).is_some()
    }

    pub(crate) fn set_fault(&mut self, failure: &GpuFailure) {
        self.reachable = false;
        self.fault = Some(failure.fault);
        if self.told.due(self.fault, Instant::now()).is_some() {
            warn!(gpu = self.gpu.index, uuid = %self.gpu.uuid, error = %failure.detail, "the GPU cannot be read");
        }
    }
}
