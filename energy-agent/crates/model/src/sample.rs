//! What the hardware and the kernel counted: all meters are read together, within a millisecond or so, into one [`Sample`] of
//! differences since the previous one.

use std::time::Duration;

use crate::cpu::DomainLoad;
use crate::gpu::GpuReading;
use crate::process::{Comm, Process};

use crate::zone::ZoneEnergy;

/// cgroup v2 id: the inode number of the cgroup's directory (`kn->id`).
pub type CgroupId = u64;

/// Stands for all kernel threads (PF_KTHREAD) in place of a cgroup id, whatever cgroup they are in.
pub const KERNEL_THREADS: CgroupId = 0;

/// What one cgroup did on the CPUs of one domain during the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub cgroup: CgroupId,
    /// Index into [`cpu::Topology::domains`]; `None` where the meter does not know it (cgroup files).
    pub domain: Option<u32>,
    pub runtime_ns: u64,
    /// Unhalted CPU cycles; 0 where no counter delivers them.
    pub cycles: u64,
    /// Times a task of this cgroup was switched out.
    pub switches: u64,
}

/// A cgroup appeared or went. `path` is below the cgroup v2 root and begins with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupEvent {
    Created {
        id: CgroupId,
        path: String,
    },
    /// Its path is longer than an event holds; `above` is the path of a cgroup that it lies in, the nearest that is known.
    CreatedDeep {
        id: CgroupId,
        above: String,
    },
    Removed {
        id: CgroupId,
    },
}

/// One reading of everything: differences since the previous reading, taken together.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub elapsed: Duration,
    pub zones: Vec<ZoneEnergy>,
    pub work: Vec<Work>,
    /// Parallel to [`cpu::Topology::domains`].
    pub domains: Vec<DomainLoad>,
    pub events: Vec<CgroupEvent>,
    /// No event was lost since the previous sample.
    pub events_complete: bool,
    /// GPUs that were read since the previous sample.
    pub gpus: Vec<GpuReading>,
    /// Empty unless processes are accounted.
    pub processes: ProcessSample,
}

/// What one process ran in one cgroup on the CPUs of one domain during the interval. Kernel threads are no processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessWork {
    pub process: Process,
    pub cgroup: CgroupId,
    /// As in [`Work::domain`].
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
