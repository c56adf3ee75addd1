//! The contract between the kernel side and user space: what the maps hold, byte for byte.
//!
//! `start_ns` is CLOCK_MONOTONIC (`bpf_ktime_get_ns`); closed run times are differences of the scheduler's own
//! `sum_exec_runtime`, what cpu.stat adds up as well; both in nanoseconds. All structs are `repr(C)`, without padding.
#![cfg_attr(target_arch = "bpf", no_std)]

/// Stands for every kernel thread (`PF_KTHREAD`) in place of a cgroup id. No cgroup has the id 0.
pub const KERNEL_THREADS: u64 = 0;

/// Key of the map `USAGE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// cgroup v2 id (`kn->id`, the inode number of its directory), or [`KERNEL_THREADS`].
    pub cgroup: u64,
    /// User space's number for the CPU's package; copied from [`Slot::domain`].
    pub domain: u64,
}

/// Value of the map `USAGE`: what a cgroup did in a package, except for what still lies in the slots.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub runtime_ns: u64,
    /// Times one of its tasks was switched out.
    pub switches: u64,
    pub cycles: u64,
}

/// Which process: its id may be used again after its end, together with its start it is not.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// Process id (`tgid`) in the initial PID namespace; 0: none.
    pub pid: u64,
    /// `start_boottime` of the thread-group leader, CLOCK_BOOTTIME; it outlives an exec. `/proc/PID/stat` shows it in ticks.
    pub start_ns: u64,
}

/// Key of the map `PROCESSES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessKey {
    pub start_ns: u64,
    pub cgroup: u64,
    pub pid: u32,
    pub domain: u32,
}

/// Value of the map `PROCESSES`: what a process ran in a cgroup and package, except for what still lies in the slots.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    pub runtime_ns: u64,
    /// Name of the thread-group leader when the process was first charged, ended by zeros.
    pub comm: Comm,
}

/// Bytes of a name in memory order; in words, which the kernel side copies without a call.
pub type Comm = [u64; 2];

/// One CPU's element of the array map `SLOTS`: what was run there and is not in `USAGE` yet. Only that CPU writes to it (but
/// for `domain`), and user space reads it through a memory mapping, without waking the CPU. What a switch within one cgroup
/// changes lies in its first 64 bytes.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// Odd while the kernel side rewrites the fields below.
    pub seq: u64,
    /// Whose tasks run, or ran last.
    pub cgroup: u64,
    /// Since when tasks of `cgroup` have been running, one after the other: the current stretch. 0 while the CPU is idle
    /// and before its first switch.
    pub start_ns: u64,
    /// Closed run time of the current stretch.
    pub stretch_ns: u64,
    /// `sum_exec_runtime` of the running task when it was switched in.
    pub start_exec: u64,
    /// Thread id of the running task, 0 for the idle task: tells whether the task that leaves is the one that came.
    pub pid: u64,
    /// What `cgroup` did in earlier stretches, and its switches, not yet in `USAGE`.
    pub closed: Usage,
    /// Who ran before `cgroup`, and what of it is not yet in `USAGE`: two that take turns seldom touch the map.
    pub parked_cgroup: u64,
    pub parked: Usage,
    /// Closed run time since `start_ns` was last read from the clock; up to [`SHORT_NS`] a stretch begins where the one before
    /// ended.
    pub unclocked_ns: u64,
    /// Cycle counter when cycles were last charged; 0 before the first reading.
    pub start_cycles: u64,
    /// Closed run time whose cycles have not been read yet; under [`cycles::UNREAD_NS`] while the CPU is idle.
    pub unread_ns: u64,
    /// Written by user space before the programs are attached, and when a CPU comes online.
    pub domain: u64,
    /// Run time that found `USAGE` full and was charged to nobody.
    pub dropped_ns: u64,
    /// Times `USAGE` was full.
    pub drops: u64,
    /// Switches at which the kernel did not run the program, noticed at the next one.
    pub missed_switches: u64,
    /// Cycle readings that failed, or found that the counter had not counted all the time since the one before.
    pub cycles_missed: u64,
    /// Time in which the cycle counter was enabled and did not count, up to its last reading: others needed the hardware.
    pub uncounted_ns: u64,
    /// Moves of tasks to another cgroup that may be running on other CPUs; their slots notice at the next switch.
    pub moves: u64,
    /// cgroup events that found the ring buffer full.
    pub event_drops: u64,
    // What follows stays 0 unless processes are accounted.
    /// Whose `process_ns` is; no process while a kernel thread runs.
    pub process: Process,
    pub comm: Comm,
    /// Closed run time of the process in `cgroup`, not yet in `PROCESSES`.
    pub process_ns: u64,
    /// Times `PROCESSES` was full; the time is in `USAGE` all the same.
    pub process_drops: u64,
    /// Process events that found their ring buffer full.
    pub process_event_drops: u64,
}

/// Clock and map are most of what a switch to another cgroup costs where no cycles are read. Less run time than this is not
/// charged when its cgroup comes again next, and the clock is not read again before as much: it goes on in interrupts and
/// while the host has the CPU, where the scheduler's account may stand still.
pub const SHORT_NS: u64 = 100_000;

/// Values of the global `CYCLES`.
pub mod cycles {
    /// No counter: cycles are not read.
    pub const NONE: u64 = 0;
    /// The counter stands still while the CPU is halted: it is read when the charged cgroup changes, and when idle
    /// begins after [`UNREAD_NS`] of work, so that user space need not wake the CPU to read the rest.
    pub const HALTING: u64 = 1;
    /// The counter runs on in idle (a clock): it is also read whenever idle begins and ends.
    pub const RUNNING: u64 = 2;
    /// Reading a counter takes about half a microsecond; once per this much run time costs at most half a percent.
    pub const UNREAD_NS: u64 = 100_000;
}

/// Longest path of a cgroup event including the final zero; longer ones are found by walking the tree.
pub const PATH_LEN: usize = 512;

/// Record of the ring buffer `EVENTS` when a cgroup was made.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CgroupCreated {
    pub id: u64,
    /// Bytes of `path` including the final zero; negative: errno of the read.
    pub len: i64,
    pub path: [u8; PATH_LEN],
}

/// Record of the ring buffer `EVENTS` when a cgroup was removed. Told from [`CgroupCreated`] by its size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CgroupRemoved {
    pub id: u64,
}

/// Longest path of [`ProcessExecuted`] including the final zero; longer ones are cut.
pub const EXE_LEN: usize = 256;

/// Record of the ring buffer `PROCESS_EVENTS` when the last thread of a process ends.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessExited {
    pub process: Process,
}

/// Record of the ring buffer `PROCESS_EVENTS` when a process (its thread-group leader) takes another name; in an exec
/// too. Told from the others by its size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessRenamed {
    pub process: Process,
    pub comm: Comm,
}

/// Record of the ring buffer `PROCESS_EVENTS` when a process begins another program. Told from the others by its size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessExecuted {
    pub process: Process,
    /// Bytes of `path` including the final zero; negative: errno of the read.
    pub len: i64,
    /// The binary, as exec was asked for it: not always absolute.
    pub path: [u8; EXE_LEN],
}
