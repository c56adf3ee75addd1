//! The kernel side: charges every CPU's run time to the cgroup that ran, at each scheduler switch, and reports cgroups
//! that come and go. The hot path reads no clock and touches no map but its slot while the cgroup stays the same, and
//! seldom while two take turns.

mod cgroups;
mod kernel;
mod processes;
mod slot;

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::{bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use aya_ebpf::macros::{btf_tracepoint, raw_tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use energy_ebpf::{KERNEL_THREADS, Slot, cycles};

use self::kernel::{
    CSS_SET_DFL_CGRP, PF_KTHREAD, TASK_CGROUPS, TASK_EXEC, TASK_FLAGS, TASK_PID, TASK_PREV_EXEC, cgroup_id, field,
};
use self::processes::{charge_process, open_process, take_leaving, take_next};
use self::slot::{
    CYCLES, begin_write, close_cycles, close_for_idle, close_stretch, cycles_since_last, end_write, open_stretch,
    read_cycles, slot, start_clock, turn_to,
};

/// Closes the slot for the task that leaves and opens it for `next`.
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    switch::<false>(&ctx)
}

/// The same, and accounts for each process besides; a program of its own, so that the other has no instruction for it.
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch_processes(ctx: BtfTracePointContext) -> i32 {
    switch::<true>(&ctx)
}

#[inline(always)]
fn switch<const PROCESSES: bool>(ctx: &BtfTracePointContext) -> i32 {
    let Some(slot) = slot() else { return 0 };
    // SAFETY: arguments of sched_switch are (preempt, prev, next, ..); the verifier types words 1 and 2 as task_struct and
    // follows the loads below through css_set, cgroup and kernfs_node. `slot` is this CPU's own map element, and the
    // tracepoint runs with preemption off.
    unsafe {
        let arguments = ctx.as_ptr().cast::<*const u8>();
        let (prev, next) = (*arguments.add(1), *arguments.add(2));
        if u64::from(field::<u32>(prev, &TASK_PID)) != (*slot).pid {
            catch_up::<PROCESSES>(slot, prev);
        } else if (*slot).start_ns != 0 {
            // A reused pid after a missed switch is another task, with another account.
            let ran_ns = field::<u64>(prev, &TASK_EXEC).saturating_sub((*slot).start_exec);
            (*slot).stretch_ns += ran_ns;
            (*slot).closed.switches += 1;
            if PROCESSES {
                (*slot).process_ns += ran_ns;
            }
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
            if PROCESSES && cgroup != KERNEL_THREADS {
                take_next(slot, next);
            }
            (*slot).start_exec = field(next, &TASK_EXEC);
            if was_idle {
                start_clock(slot);
                if CYCLES.load() == cycles::RUNNING {
                    (*slot).start_cycles = read_cycles(slot);
                }
            }
            return 0;
        }
        begin_write(slot);
        let closed_ns = close_stretch(slot);
        close_cycles(slot, was_idle);
        if PROCESSES {
            charge_process(slot);
            open_process(slot, next, cgroup);
        }
        turn_to(slot, cgroup);
        open_stretch(slot, was_idle, closed_ns);
        (*slot).start_exec = field(next, &TASK_EXEC);
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
unsafe fn catch_up<const PROCESSES: bool>(slot: *mut Slot, prev: *const u8) {
    unsafe {
        // At a CPU's first switch there was none before to miss.
        if (*slot).seq != 0 {
            (*slot).missed_switches += 1;
        }
        let start_ns = (*slot).start_ns;
        if start_ns == 0 {
            // Nothing is known of when the leaving task came.
            return;
        }
        if field::<u32>(prev, &TASK_PID) == 0 {
            // The CPU went idle at an unknown time. The stretch must not go on: its time in flight would be idle time. A
            // clock has counted that time; its part is as long as the stretch.
            begin_write(slot);
            let stretch_ns = close_stretch(slot);
            if CYCLES.load() == cycles::RUNNING {
                (*slot).closed.cycles += stretch_ns;
            }
            (*slot).start_ns = 0;
            end_write(slot);
            return;
        }
        let open_ns = bpf_ktime_get_ns().saturating_sub(start_ns + (*slot).stretch_ns);
        let ran_ns = field::<u64>(prev, &TASK_EXEC).saturating_sub(field::<u64>(prev, &TASK_PREV_EXEC)).min(open_ns);
        let cgroup = charged_cgroup(prev);
        begin_write(slot);
        (*slot).stretch_ns += open_ns - ran_ns;
        (*slot).closed.switches += 2;
        if PROCESSES {
            (*slot).process_ns += open_ns - ran_ns;
            take_leaving(slot, prev, cgroup);
            (*slot).process_ns += ran_ns;
        }
        if cgroup != (*slot).cgroup {
            (*slot).start_ns += close_stretch(slot);
            // The leaving task's part of the cycles is as its part of the time.
            let mut part = 0;
            if CYCLES.load() != cycles::NONE {
                let since_last = cycles_since_last(slot);
                part = since_last / 1024 * (ran_ns * 1024).checked_div(open_ns).unwrap_or(0);
                (*slot).closed.cycles += since_last - part;
            }
            turn_to(slot, cgroup);
            (*slot).closed.cycles += part;
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
                turn_to(slot, cgroup);
            }
            (*slot).closed.runtime_ns += now - (*slot).start_ns;
            (*slot).closed.switches += 1;
        }
        (*slot).start_ns = now;
        end_write(slot);
    }
    0
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The helpers used here are open to GPL programs only; this crate is offered under Apache-2.0 or GPL-2.0.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
