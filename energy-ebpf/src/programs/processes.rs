//! The process level: the slot also knows whose process runs, and a second map takes its run time. What processes are
//! called, and when they end, are events.

use core::ptr::addr_of_mut;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{BPF_NOEXIST, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use aya_ebpf::macros::{btf_tracepoint, map};
use aya_ebpf::maps::{HashMap, RingBuf};
use aya_ebpf::programs::BtfTracePointContext;
use energy_ebpf::{
    EXE_LEN, KERNEL_THREADS, Process, ProcessExecuted, ProcessExited, ProcessKey, ProcessRenamed, ProcessUsage, Slot,
};

use super::kernel::{
    BINPRM_INTERP, PF_EXITING, PF_KTHREAD, SIGNAL_LIVE, TASK_COMM, TASK_FLAGS, TASK_LEADER, TASK_PID, TASK_SIGNAL,
    TASK_START, TASK_TGID, field,
};
use super::slot::{add, begin_write, end_write, slot};

// Both as small as can be; user space gives them their size when processes are accounted.
#[map]
static PROCESSES: HashMap<ProcessKey, ProcessUsage> = HashMap::with_max_entries(1, 0);
#[map]
static PROCESS_EVENTS: RingBuf = RingBuf::with_byte_size(4096, 0);

/// `next` comes and its cgroup is the slot's.
///
/// # Safety
/// `slot` is this CPU's map element, `next` the task that comes: no kernel thread.
#[inline(always)]
pub unsafe fn take_next(slot: *mut Slot, next: *const u8) {
    unsafe {
        if process_of(next) != (*slot).process {
            begin_write(slot);
            charge_process(slot);
            open(slot, next);
            end_write(slot);
        }
    }
}

/// `next` comes and its cgroup is another; within `begin_write` and `end_write`.
///
/// # Safety
/// `slot` is this CPU's map element, `next` the task that comes.
#[inline(always)]
pub unsafe fn open_process(slot: *mut Slot, next: *const u8, cgroup: u64) {
    unsafe {
        if cgroup == KERNEL_THREADS {
            (*slot).process = Process { pid: 0, start_ns: 0 };
        } else {
            open(slot, next);
        }
    }
}

/// A task leaves that nobody saw come; within `begin_write` and `end_write`, while the slot has its old cgroup. The leader
/// of a task that is ending may be gone already: its time stays the cgroup's alone.
///
/// # Safety
/// `slot` is this CPU's map element, `prev` the task that leaves.
#[inline(always)]
pub unsafe fn take_leaving(slot: *mut Slot, prev: *const u8, cgroup: u64) {
    unsafe {
        charge_process(slot);
        if field::<u32>(prev, &TASK_FLAGS) & (PF_KTHREAD | PF_EXITING) != 0 || cgroup == KERNEL_THREADS {
            (*slot).process = Process { pid: 0, start_ns: 0 };
        } else {
            open(slot, prev);
        }
    }
}

/// # Safety
/// `slot` is this CPU's map element, `task` one that has not been reaped.
#[inline(always)]
unsafe fn open(slot: *mut Slot, task: *const u8) {
    unsafe {
        (*slot).process = process_of(task);
        (*slot).comm = comm(field(task, &TASK_LEADER));
    }
}

/// # Safety
/// `task` is a `task_struct` that the verifier knows as one, and has not been reaped.
#[inline(always)]
unsafe fn process_of(task: *const u8) -> Process {
    unsafe {
        let leader: *const u8 = field(task, &TASK_LEADER);
        Process { pid: u64::from(field::<u32>(task, &TASK_TGID)), start_ns: field(leader, &TASK_START) }
    }
}

/// # Safety
/// As for [`process_of`].
#[inline(always)]
unsafe fn comm(task: *const u8) -> energy_ebpf::Comm {
    unsafe {
        let words = task.add(TASK_COMM.load() as usize).cast::<u64>();
        [*words, *words.add(1)]
    }
}

/// Moves the process's run time into `PROCESSES` under the slot's process and cgroup.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
pub unsafe fn charge_process(slot: *mut Slot) {
    unsafe {
        let runtime_ns = (*slot).process_ns;
        addr_of_mut!((*slot).process_ns).write_volatile(0);
        let Process { pid, start_ns } = (*slot).process;
        if runtime_ns == 0 || pid == 0 {
            return;
        }
        let key = ProcessKey { start_ns, cgroup: (*slot).cgroup, pid: pid as u32, domain: (*slot).domain as u32 };
        if let Some(usage) = PROCESSES.get_ptr_mut(&key) {
            add(addr_of_mut!((*usage).runtime_ns), runtime_ns);
            return;
        }
        let usage = ProcessUsage { runtime_ns, comm: (*slot).comm };
        if PROCESSES.insert(&key, &usage, u64::from(BPF_NOEXIST)).is_ok() {
            return;
        }
        // Another CPU was first, or the map is full.
        match PROCESSES.get_ptr_mut(&key) {
            Some(usage) => add(addr_of_mut!((*usage).runtime_ns), runtime_ns),
            None => (*slot).process_drops += 1,
        }
    }
}

/// The last thread of a process ends. It goes on running for a moment, and that time is still the process's.
#[btf_tracepoint(function = "sched_process_exit")]
pub fn sched_process_exit(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the first argument of sched_process_exit is the ending task, which is the current one.
    unsafe {
        let task = *ctx.as_ptr().cast::<*const u8>();
        let signal: *const u8 = field(task, &TASK_SIGNAL);
        if field::<u32>(task, &TASK_FLAGS) & PF_KTHREAD != 0 || field::<u32>(signal, &SIGNAL_LIVE) != 0 {
            return 0;
        }
        let Some(mut entry) = PROCESS_EVENTS.reserve::<ProcessExited>(0) else {
            lost_event();
            return 0;
        };
        (*entry.as_mut_ptr()).process = process_of(task);
        entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    }
    0
}

#[btf_tracepoint(function = "sched_process_exec")]
pub fn sched_process_exec(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: arguments of sched_process_exec are (struct task_struct *, pid_t, struct linux_binprm *); the task is the
    // current one.
    unsafe {
        let arguments = ctx.as_ptr().cast::<*const u8>();
        let (task, program) = (*arguments, *arguments.add(2));
        let Some(mut entry) = PROCESS_EVENTS.reserve::<ProcessExecuted>(0) else {
            lost_event();
            return 0;
        };
        let record = entry.as_mut_ptr();
        (*record).process = process_of(task);
        let path: *const u8 = field(program, &BINPRM_INTERP);
        (*record).len =
            bpf_probe_read_kernel_str(addr_of_mut!((*record).path).cast(), EXE_LEN as u32, path.cast()) as i64;
        entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    }
    0
}

/// A name is set, of a process if it is the leader's: by exec, by itself, or through /proc/PID/comm.
#[btf_tracepoint(function = "task_rename")]
pub fn task_rename(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: arguments of task_rename are (struct task_struct *, const char *comm), the new name, which the task does not
    // have yet.
    unsafe {
        let arguments = ctx.as_ptr().cast::<*const u8>();
        let (task, name) = (*arguments, *arguments.add(1));
        if field::<u32>(task, &TASK_PID) != field::<u32>(task, &TASK_TGID)
            || field::<u32>(task, &TASK_FLAGS) & PF_KTHREAD != 0
        {
            return 0;
        }
        let Some(mut entry) = PROCESS_EVENTS.reserve::<ProcessRenamed>(0) else {
            lost_event();
            return 0;
        };
        let record = entry.as_mut_ptr();
        (*record).process = process_of(task);
        // One by one and volatile, or the compiler makes a call to memset out of these.
        addr_of_mut!((*record).comm[0]).write_volatile(0);
        addr_of_mut!((*record).comm[1]).write_volatile(0);
        bpf_probe_read_kernel_str(
            addr_of_mut!((*record).comm).cast(),
            size_of::<energy_ebpf::Comm>() as u32,
            name.cast(),
        );
        entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    }
    0
}

#[inline(always)]
fn lost_event() {
    let Some(slot) = slot() else { return };
    // SAFETY: `slot` is this CPU's map element; a torn count would only be a wrong count.
    unsafe { (*slot).process_event_drops += 1 };
}
