//! The kernel's structs, by offsets that user space has looked up in the running kernel's BTF.

use aya_ebpf::Global;

// In bytes. User space sets them before loading; the loader freezes them, so the
// verifier knows them as constants and checks each load against the kernel's own types.
#[unsafe(no_mangle)]
pub static TASK_PID: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_FLAGS: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_ON_CPU: Global<u64> = Global::new(0);
/// `se.sum_exec_runtime`: how long the task has run so far; brought up to date before the tracepoint for the task that
/// leaves.
#[unsafe(no_mangle)]
pub static TASK_EXEC: Global<u64> = Global::new(0);
/// `se.prev_sum_exec_runtime`: `sum_exec_runtime` when the task was last picked; kept by the fair scheduling class only.
#[unsafe(no_mangle)]
pub static TASK_PREV_EXEC: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_CGROUPS: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static CSS_SET_DFL_CGRP: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static CGROUP_KN: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static CGROUP_ROOT: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static ROOT_HIERARCHY_ID: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static KN_ID: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_TGID: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_LEADER: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_START: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_COMM: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_SIGNAL: Global<u64> = Global::new(0);
/// Threads of the process that have not ended.
#[unsafe(no_mangle)]
pub static SIGNAL_LIVE: Global<u64> = Global::new(0);
/// `linux_binprm.interp`: the binary that runs, for a script its interpreter.
#[unsafe(no_mangle)]
pub static BINPRM_INTERP: Global<u64> = Global::new(0);

/// `task_struct.flags`: a kernel thread. <https://github.com/torvalds/linux/blob/v6.12/include/linux/sched.h>
pub const PF_KTHREAD: u32 = 0x0020_0000;
/// `task_struct.flags`: the task is ending.
pub const PF_EXITING: u32 = 0x0000_0004;

/// A pointer-sized (or smaller) field at a byte offset.
///
/// # Safety
/// `base` is a kernel pointer the verifier knows the type of, and a `T` lies at `offset` in that type.
#[inline(always)]
pub unsafe fn field<T: Copy>(base: *const u8, offset: &Global<u64>) -> T {
    unsafe { *base.add(offset.load() as usize).cast::<T>() }
}

/// # Safety
/// `cgroup` is a `struct cgroup` that the verifier knows as one.
#[inline(always)]
pub unsafe fn cgroup_id(cgroup: *const u8) -> u64 {
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
pub unsafe fn is_v2(cgroup: *const u8) -> bool {
    unsafe {
        let root: *const u8 = field(cgroup, &CGROUP_ROOT);
        field::<u32>(root, &ROOT_HIERARCHY_ID) == 0
    }
}
