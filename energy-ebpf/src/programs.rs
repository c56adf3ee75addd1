//! The kernel side: charges every CPU's run time to the cgroup that ran, at each scheduler switch, and reports cgroups
//! that come and go. The hot path reads no clock and touches no map but its slot while the cgroup stays the same.

use core::arch::asm;
use core::mem::MaybeUninit;
use core::ptr::{addr_of, addr_of_mut};

use aya_ebpf::bindings::{BPF_F_CURRENT_CPU, BPF_F_MMAPABLE, BPF_NOEXIST, BPF_RB_NO_WAKEUP, bpf_perf_event_value};
use aya_ebpf::helpers::generated::{bpf_perf_event_read_value, bpf_probe_read_kernel_str};
use aya_ebpf::helpers::{
    bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns,
};
use aya_ebpf::macros::{btf_tracepoint, map, raw_tracepoint};
use aya_ebpf::maps::{Array, HashMap, PerfEventArray, RingBuf};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use aya_ebpf::{EbpfContext, Global};
use aya_log_ebpf::warn;
use energy_ebpf::{CgroupCreated, CgroupRemoved, KERNEL_THREADS, Key, Slot, Usage, cycles};

/// `task_struct.flags`: a kernel thread. <https://github.com/torvalds/linux/blob/v6.12/include/linux/sched.h>
const PF_KTHREAD: u32 = 0x0020_0000;

// Offsets from the running kernel's BTF, in bytes. User space sets them before loading; the loader freezes them, so the
// verifier knows them as constants and checks each load against the kernel's own types.
#[unsafe(no_mangle)]
static TASK_PID: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_FLAGS: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_ON_CPU: Global<u64> = Global::new(0);
/// `se.sum_exec_runtime`: how long the task has run so far; brought up to date before the tracepoint for the task that
/// leaves.
#[unsafe(no_mangle)]
static TASK_EXEC: Global<u64> = Global::new(0);
/// `se.prev_sum_exec_runtime`: `sum_exec_runtime` when the task was last picked; kept by the fair scheduling class only.
#[unsafe(no_mangle)]
static TASK_PREV_EXEC: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_CGROUPS: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static CSS_SET_DFL_CGRP: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static CGROUP_KN: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static CGROUP_ROOT: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static ROOT_HIERARCHY_ID: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static KN_ID: Global<u64> = Global::new(0);
/// One of [`cycles`].
#[unsafe(no_mangle)]
static CYCLES: Global<u64> = Global::new(cycles::NONE);

#[map]
static USAGE: HashMap<Key, Usage> = HashMap::with_max_entries(8192, 0);
#[map]
static SLOTS: Array<Slot> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static CYCLE_COUNTERS: PerfEventArray<u32> = PerfEventArray::new(0);
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(512 * 1024, 0);

/// A pointer-sized (or smaller) field at a byte offset.
///
/// # Safety
/// `base` is a kernel pointer the verifier knows the type of, and a `T` lies at `offset` in that type.
#[inline(always)]
unsafe fn field<T: Copy>(base: *const u8, offset: &Global<u64>) -> T {
    unsafe { *base.add(offset.load() as usize).cast::<T>() }
}

#[inline(always)]
fn slot() -> Option<*mut Slot> {
    SLOTS.get_ptr_mut(unsafe { bpf_get_smp_processor_id() })
}

/// Closes the slot for the task that leaves and opens it for `next`.
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    let Some(slot) = slot() else { return 0 };
    // SAFETY: arguments of sched_switch are (preempt, prev, next, ..); the verifier types words 1 and 2 as task_struct and
    // follows the loads below through css_set, cgroup and kernfs_node. `slot` is this CPU's own map element, and the
    // tracepoint runs with preemption off.
    unsafe {
        let arguments = ctx.as_ptr().cast::<*const u8>();
        let (prev, next) = (*arguments.add(1), *arguments.add(2));
        if u64::from(field::<u32>(prev, &TASK_PID)) != (*slot).pid {
            catch_up(slot, prev);
        } else if (*slot).start_ns != 0 {
            // A reused pid after a missed switch is another task, with another account.
            (*slot).stretch_ns += field::<u64>(prev, &TASK_EXEC).saturating_sub((*slot).start_exec);
            (*slot).switches += 1;
        }
        let was_idle = (*slot).start_ns == 0;
        let next_pid = u64::from(field::<u32>(next, &TASK_PID));
        (*slot).pid = next_pid;
        if next_pid == 0 {
            if !was_idle {
                close_for_idle(slot);
            }
            return 0;
        }
        let cgroup = charged_cgroup(next);
        if cgroup == (*slot).cgroup {
            (*slot).start_exec = field(next, &TASK_EXEC);
            if was_idle {
                (*slot).start_ns = bpf_ktime_get_ns();
                if CYCLES.load() == cycles::RUNNING {
                    (*slot).start_cycles = read_cycles(slot);
                }
            }
            return 0;
        }
        begin_write(slot);
        close_stretch(slot);
        close_cycles(slot, was_idle);
        charge(slot);
        (*slot).cgroup = cgroup;
        (*slot).start_exec = field(next, &TASK_EXEC);
        (*slot).start_ns = bpf_ktime_get_ns();
        end_write(slot);
    }
    0
}

/// The task that leaves is not the one that came last: the kernel did not run the program at a switch in between (a
/// security module may keep it off some tasks; at the first switch of a CPU nothing was known). The owner of the slot gets
/// the time of the stretch up to when the leaving task was picked, as far as the kernel remembers that, and the leaving
/// task's cgroup the rest.
///
/// # Safety
/// `slot` is this CPU's map element and `prev` the task that leaves.
#[inline(always)]
unsafe fn catch_up(slot: *mut Slot, prev: *const u8) {
    unsafe {
        (*slot).missed_switches += 1;
        let start_ns = (*slot).start_ns;
        if start_ns == 0 {
            // Nothing is known of when the leaving task came.
            return;
        }
        if field::<u32>(prev, &TASK_PID) == 0 {
            // The CPU went idle at an unknown time. The stretch must not go on: its time in flight would be idle time.
            close_for_idle(slot);
            return;
        }
        let open_ns = (bpf_ktime_get_ns() - start_ns).saturating_sub((*slot).stretch_ns);
        let ran_ns = field::<u64>(prev, &TASK_EXEC).saturating_sub(field::<u64>(prev, &TASK_PREV_EXEC)).min(open_ns);
        let cgroup = charged_cgroup(prev);
        begin_write(slot);
        (*slot).stretch_ns += open_ns - ran_ns;
        (*slot).switches += 2;
        if cgroup != (*slot).cgroup {
            close_stretch(slot);
            close_cycles(slot, false);
            charge(slot);
            (*slot).cgroup = cgroup;
        }
        (*slot).stretch_ns += ran_ns;
        end_write(slot);
    }
}

/// Whom a task's time is charged to.
///
/// # Safety
/// `task` is a `task_struct` that the verifier knows as one.
#[inline(always)]
unsafe fn charged_cgroup(task: *const u8) -> u64 {
    unsafe {
        if field::<u32>(task, &TASK_FLAGS) & PF_KTHREAD != 0 {
            return KERNEL_THREADS;
        }
        let css_set: *const u8 = field(task, &TASK_CGROUPS);
        cgroup_id(field(css_set, &CSS_SET_DFL_CGRP))
    }
}

/// The second choice, without the kernel's types: charges the task that leaves, which at this point is still `current`.
/// It cannot know who is running now; user space leaves time in flight out. It reads no cycles: it learns too late whose
/// they are.
#[raw_tracepoint(tracepoint = "sched_switch")]
pub fn sched_switch_raw(_ctx: RawTracePointContext) -> i32 {
    let Some(slot) = slot() else { return 0 };
    // SAFETY: `slot` is this CPU's own map element, and the tracepoint runs with preemption off.
    unsafe {
        let now = bpf_ktime_get_ns();
        begin_write(slot);
        if bpf_get_current_pid_tgid() as u32 != 0 && (*slot).start_ns != 0 {
            let cgroup = bpf_get_current_cgroup_id();
            if cgroup != (*slot).cgroup {
                charge(slot);
                (*slot).cgroup = cgroup;
            }
            (*slot).acc_ns += now - (*slot).start_ns;
            (*slot).switches += 1;
        }
        (*slot).start_ns = now;
        end_write(slot);
    }
    0
}

/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
unsafe fn close_for_idle(slot: *mut Slot) {
    unsafe {
        begin_write(slot);
        let stretch_ns = close_stretch(slot);
        (*slot).start_ns = 0;
        if CYCLES.load() != cycles::NONE {
            (*slot).unread_ns += stretch_ns;
            if CYCLES.load() == cycles::RUNNING || (*slot).unread_ns >= cycles::UNREAD_NS {
                (*slot).acc_cycles += cycles_since_last(slot);
            }
        }
        end_write(slot);
    }
}

/// Ends the stretch: its time is closed but still the slot's. Returns its length.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
unsafe fn close_stretch(slot: *mut Slot) -> u64 {
    unsafe {
        let stretch_ns = (*slot).stretch_ns;
        (*slot).acc_ns += stretch_ns;
        // Volatile for the same reason as in `charge`.
        addr_of_mut!((*slot).stretch_ns).write_volatile(0);
        stretch_ns
    }
}

/// Closes the cycles since the counter was last read.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
unsafe fn close_cycles(slot: *mut Slot, was_idle: bool) {
    if CYCLES.load() == cycles::NONE {
        return;
    }
    unsafe {
        let since_last = cycles_since_last(slot);
        // A clock that ran on while the CPU was idle has nothing to charge since idle began.
        if CYCLES.load() == cycles::HALTING || !was_idle {
            (*slot).acc_cycles += since_last;
        }
    }
}

/// Moves what the slot holds into `USAGE` under the slot's cgroup, and empties the slot.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
unsafe fn charge(slot: *mut Slot) {
    unsafe {
        let used = Usage { runtime_ns: (*slot).acc_ns, cycles: (*slot).acc_cycles, switches: (*slot).switches };
        // Volatile, or the compiler makes a call to memset out of these.
        addr_of_mut!((*slot).acc_ns).write_volatile(0);
        addr_of_mut!((*slot).acc_cycles).write_volatile(0);
        addr_of_mut!((*slot).switches).write_volatile(0);
        if used.runtime_ns == 0 {
            return;
        }
        let key = Key { cgroup: (*slot).cgroup, domain: (*slot).domain };
        let Some(usage) = USAGE.get_ptr_mut(&key) else {
            if USAGE.insert(&key, &used, u64::from(BPF_NOEXIST)).is_ok() {
                return;
            }
            // Another CPU was first, or the map is full.
            let Some(usage) = USAGE.get_ptr_mut(&key) else {
                (*slot).dropped_ns += used.runtime_ns;
                (*slot).drops += 1;
                return;
            };
            add_usage(usage, &used);
            return;
        };
        add_usage(usage, &used);
    }
}

/// # Safety
/// `usage` is a value of the map `USAGE`.
#[inline(always)]
unsafe fn add_usage(usage: *mut Usage, used: &Usage) {
    unsafe {
        add(addr_of_mut!((*usage).runtime_ns), used.runtime_ns);
        add(addr_of_mut!((*usage).cycles), used.cycles);
        add(addr_of_mut!((*usage).switches), used.switches);
    }
}

/// Adds without losing the additions of other CPUs. In assembly, because the target has no atomic read-modify-write in
/// `core`; without a result this is the add that kernels before 5.12 know as well.
///
/// # Safety
/// `counter` points into a map value.
#[inline(always)]
unsafe fn add(counter: *mut u64, amount: u64) {
    unsafe { asm!("lock *(u64 *)({counter} + 0) += {amount}", counter = in(reg) counter, amount = in(reg) amount) }
}

/// Cycles since the counter was last read, which is now; 0 at the first reading and after a reading that failed.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
unsafe fn cycles_since_last(slot: *mut Slot) -> u64 {
    unsafe {
        let counter = read_cycles(slot);
        let before = (*slot).start_cycles;
        (*slot).start_cycles = counter;
        (*slot).unread_ns = 0;
        if before != 0 && counter > before { counter - before } else { 0 }
    }
}

/// This CPU's cycle counter; 0 when it has none. That, and a counter that stood still meanwhile, counts as missed.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
unsafe fn read_cycles(slot: *mut Slot) -> u64 {
    let mut value = MaybeUninit::<bpf_perf_event_value>::uninit();
    // SAFETY: the buffer is of the size that is passed, and the helper fills it (with zeros when it fails).
    unsafe {
        let failed = bpf_perf_event_read_value(
            addr_of!(CYCLE_COUNTERS).cast_mut().cast(),
            BPF_F_CURRENT_CPU as u64,
            value.as_mut_ptr(),
            size_of::<bpf_perf_event_value>() as u32,
        );
        let value = value.assume_init();
        if failed != 0 {
            (*slot).cycles_missed += 1;
            return 0;
        }
        let uncounted_ns = value.enabled - value.running;
        if uncounted_ns != (*slot).uncounted_ns {
            (*slot).uncounted_ns = uncounted_ns;
            (*slot).cycles_missed += 1;
        }
        value.counter
    }
}

/// Marks the slot as being rewritten (odd), for a reader on another CPU.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
unsafe fn begin_write(slot: *mut Slot) {
    unsafe { (*slot).seq += 1 };
    barrier();
}

/// Keeps the compiler from moving memory accesses across; the target has no fence instruction for `compiler_fence`.
#[inline(always)]
fn barrier() {
    // SAFETY: emits nothing.
    unsafe { asm!("", options(nostack, preserves_flags)) }
}

/// Marks the slot as whole again (even).
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
unsafe fn end_write(slot: *mut Slot) {
    barrier();
    unsafe { (*slot).seq += 1 };
}

/// # Safety
/// `cgroup` is a `struct cgroup` that the verifier knows as one.
#[inline(always)]
unsafe fn cgroup_id(cgroup: *const u8) -> u64 {
    unsafe {
        let kn: *const u8 = field(cgroup, &CGROUP_KN);
        field(kn, &KN_ID)
    }
}

/// Whether a cgroup belongs to the v2 hierarchy, whose number is 0; ids are unique only within a hierarchy.
///
/// # Safety
/// `cgroup` is a `struct cgroup` that the verifier knows as one.
#[inline(always)]
unsafe fn is_v2(cgroup: *const u8) -> bool {
    unsafe {
        let root: *const u8 = field(cgroup, &CGROUP_ROOT);
        field::<u32>(root, &ROOT_HIERARCHY_ID) == 0
    }
}

/// A task was moved to another cgroup. If it is the one that runs here (it moved itself, as a shell does before it starts
/// a job), what it has run so far is closed for the old cgroup; the rest belongs to the new one, as in cpu.stat.
#[btf_tracepoint(function = "cgroup_attach_task")]
pub fn cgroup_attach_task(ctx: BtfTracePointContext) -> i32 {
    let Some(slot) = slot() else { return 0 };
    // SAFETY: arguments of cgroup_attach_task are (struct cgroup *, const char *path, struct task_struct *, bool); it is
    // called under a spin lock, so this stays the slot's CPU and no switch comes between.
    unsafe {
        let arguments = ctx.as_ptr().cast::<*const u8>();
        let (cgroup, task) = (*arguments, *arguments.add(2));
        if !is_v2(cgroup) {
            return 0;
        }
        if u64::from(field::<u32>(task, &TASK_PID)) != (*slot).pid {
            // Of a whole process only its first thread is told; the others may run elsewhere.
            let whole_process = *arguments.add(3) as usize & 1 == 1;
            if whole_process || field::<u32>(task, &TASK_ON_CPU) != 0 {
                (*slot).moves += 1;
            }
            return 0;
        }
        if (*slot).start_ns == 0 || (*slot).cgroup == KERNEL_THREADS {
            return 0;
        }
        let exec = field::<u64>(task, &TASK_EXEC);
        begin_write(slot);
        (*slot).stretch_ns += exec.saturating_sub((*slot).start_exec);
        close_stretch(slot);
        close_cycles(slot, false);
        charge(slot);
        (*slot).cgroup = cgroup_id(cgroup);
        (*slot).start_exec = exec;
        (*slot).start_ns = bpf_ktime_get_ns();
        end_write(slot);
    }
    0
}

#[btf_tracepoint(function = "cgroup_mkdir")]
pub fn cgroup_mkdir(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: arguments of cgroup_mkdir are (struct cgroup *, const char *path).
    unsafe {
        let arguments = ctx.as_ptr().cast::<*const u8>();
        let cgroup = *arguments;
        if !is_v2(cgroup) {
            return 0;
        }
        let path = *arguments.add(1);
        let Some(mut entry) = EVENTS.reserve::<CgroupCreated>(0) else {
            lost_event(&ctx);
            return 0;
        };
        let record = entry.as_mut_ptr();
        (*record).id = cgroup_id(cgroup);
        (*record).len =
            bpf_probe_read_kernel_str(addr_of_mut!((*record).path).cast(), energy_ebpf::PATH_LEN as u32, path.cast())
                as i64;
        entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    }
    0
}

#[btf_tracepoint(function = "cgroup_rmdir")]
pub fn cgroup_rmdir(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: arguments of cgroup_rmdir are (struct cgroup *, const char *path).
    unsafe {
        let cgroup = *ctx.as_ptr().cast::<*const u8>();
        if !is_v2(cgroup) {
            return 0;
        }
        let Some(mut entry) = EVENTS.reserve::<CgroupRemoved>(0) else {
            lost_event(&ctx);
            return 0;
        };
        entry.write(CgroupRemoved { id: cgroup_id(cgroup) });
        entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    }
    0
}

/// Counts a lost event, and logs the first one of each CPU.
#[inline(always)]
fn lost_event(ctx: &BtfTracePointContext) {
    let Some(slot) = slot() else { return };
    // SAFETY: `slot` is this CPU's map element; a torn count would only be a wrong count.
    let drops = unsafe {
        (*slot).event_drops += 1;
        (*slot).event_drops
    };
    if drops == 1 {
        warn!(ctx, "cgroup event lost: ring buffer full");
    }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The helpers used here are open to GPL programs only; this crate is offered under Apache-2.0 or GPL-2.0.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
