//! Writes without a tick, for a program that has nothing else to do: NVML is opened, written and left again in a bounded time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use energy_model::capping::knob::{Found, Knob, KnobError, Value};
use energy_model::capping::observation::KnobState;
use nvml_wrapper::Nvml;

use super::fault::{Failure, Fault};
use super::knobs::Knobs;
use super::session;

type Outcome = Result<Found, KnobError>;
/// Writes of one GPU, with their places in the answer.
type Writes = Vec<(usize, Knob, Value)>;

/// Makes writes in their order, those of different GPUs at once. What has not come back after `timeout` is
/// [`KnobState::Unreachable`]; the thread of a call that hangs is left behind.
#[must_use]
pub fn write_once(library: &str, writes: &[(Knob, Value)], timeout: Duration) -> Vec<(Knob, Outcome)> {
    let until = Instant::now() + timeout;
    let detail = format!("{library}: no answer within {} s{}", timeout.as_secs_f32(), Fault::Hanging.remedy());
    let nothing: Outcome = Err(KnobError { state: KnobState::Unreachable, detail });
    let mut outcomes: Vec<_> = writes.iter().map(|(knob, _)| (knob.clone(), nothing.clone())).collect();
    let mut by_gpu: BTreeMap<Arc<str>, Writes> = BTreeMap::new();
    for (index, (knob, value)) in writes.iter().enumerate() {
        let device = Arc::from(knob.device());
        by_gpu.entry(device).or_default().push((index, knob.clone(), value.clone()));
    }
    let (send, done) = channel();
    let library = library.to_owned();
    let thread = thread::Builder::new().name("nvml".to_owned()).spawn(move || open(&library, by_gpu, &send));
    let mut left = if thread.is_ok() { writes.len() } else { 0 };
    while left > 0 {
        match done.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((index, outcome)) => {
                outcomes[index].1 = outcome;
                left -= 1;
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    outcomes
}

fn open(library: &str, by_gpu: BTreeMap<Arc<str>, Writes>, done: &Sender<(usize, Outcome)>) {
    let nvml = session::open(library, Path::new("/proc")).map(Arc::new);
    for (uuid, writes) in by_gpu {
        let done = done.clone();
        match &nvml {
            Ok(nvml) => {
                let nvml = Arc::clone(nvml);
                let write = move || write(&nvml, &uuid, &writes, &done);
                // Without a thread nobody answers, which is said.
                drop(thread::Builder::new().name("gpu".to_owned()).spawn(write));
            }
            Err(failure) => fail(failure, &writes, &done),
        }
    }
}

fn write(nvml: &Nvml, uuid: &Arc<str>, writes: &Writes, done: &Sender<(usize, Outcome)>) {
    let device = nvml.device_by_uuid(&**uuid).map_err(|error| Failure::new("nvmlDeviceGetHandleByUUID", &error));
    match device.and_then(|device| Knobs::probe(&device, uuid, None).map(|knobs| (device, knobs))) {
        Ok((mut device, mut knobs)) => {
            for (index, knob, value) in writes {
                let outcome = knobs.write(&mut device, knob, value);
                if done.send((*index, outcome)).is_err() {
                    return;
                }
            }
        }
        Err(failure) => fail(&failure, writes, done),
    }
}

fn fail(failure: &Failure, writes: &Writes, done: &Sender<(usize, Outcome)>) {
    for (index, ..) in writes {
        if done.send((*index, Err(failure.clone().into()))).is_err() {
            return;
        }
    }
}
