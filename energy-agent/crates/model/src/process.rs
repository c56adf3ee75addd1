//! What single processes did, as the kernel side accounts for it where that is asked for.

use std::sync::Arc;

pub use energy_ebpf::{Comm, Process};

use crate::sample::CgroupId;

/// What one process ran in one cgroup on the CPUs of one domain during the interval. Kernel threads are no processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessWork {
    pub process: Process,
    pub cgroup: CgroupId,
    /// As in [`crate::sample::Work::domain`].
    pub domain: Option<u32>,
    pub runtime_ns: u64,
    /// Name of the thread-group leader when the process was first charged.
    pub comm: Comm,
}

/// What became of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Its last thread ended.
    Exited,
    /// Its leader took another name; in an exec too.
    Renamed(Comm),
    /// It began another program: the binary, as exec was asked for it; empty where that could not be read.
    Executed(String),
}

/// One reading, as in [`crate::sample::Sample`].
#[derive(Clone, Debug, Default)]
pub struct ProcessSample {
    pub work: Vec<ProcessWork>,
    /// In the order in which they happened.
    pub events: Vec<(Process, ProcessEvent)>,
    /// Every exit, exec and renaming since the previous sample is among the events.
    pub events_complete: bool,
}

/// What a process is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub comm: Arc<str>,
    /// Empty where it is not known.
    pub exe: Arc<str>,
}
