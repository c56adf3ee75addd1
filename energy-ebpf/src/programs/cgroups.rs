//! Cgroups that come and go, and tasks that move between them.

use core::ptr::addr_of_mut;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use aya_ebpf::macros::{btf_tracepoint, map};
use aya_ebpf::maps::RingBuf;
use aya_ebpf::programs::BtfTracePointContext;
use aya_log_ebpf::warn;
use energy_ebpf::{CgroupCreated, CgroupRemoved, KERNEL_THREADS};

use super::kernel::{TASK_EXEC, TASK_ON_CPU, TASK_PID, cgroup_id, field, is_v2};
use super::processes::charge_process;
use super::slot::{begin_write, close_cycles, close_stretch, end_write, slot, start_clock, turn_to};

#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(512 * 1024, 0);

/// A task was moved to another cgroup. If it is the one that runs here (it moved itself, as a shell does before it starts
/// a job), what it has run so far is closed for the old cgroup; the rest belongs to the new one, as in cpu.stat.
#[btf_tracepoint(function = "cgroup_attach_task")]
pub fn cgroup_attach_task(ctx: BtfTracePointContext) -> i32 {
    moved::<false>(&ctx)
}

/// The same beside `sched_switch_processes`.
#[btf_tracepoint(function = "cgroup_attach_task")]
pub fn cgroup_attach_task_processes(ctx: BtfTracePointContext) -> i32 {
    moved::<true>(&ctx)
}

#[inline(always)]
fn moved<const PROCESSES: bool>(ctx: &BtfTracePointContext) -> i32 {
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
        let ran_ns = exec.saturating_sub((*slot).start_exec);
        begin_write(slot);
        (*slot).stretch_ns += ran_ns;
        close_stretch(slot);
        close_cycles(slot, false);
        if PROCESSES {
            (*slot).process_ns += ran_ns;
            charge_process(slot);
        }
        turn_to(slot, cgroup_id(cgroup));
        (*slot).start_exec = exec;
        start_clock(slot);
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
