//! A CPU's slot and the shared map: run time and cycles are closed in the slot, and charged to the map.

use core::arch::asm;
use core::mem::MaybeUninit;
use core::ptr::{addr_of, addr_of_mut};

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_F_CURRENT_CPU, BPF_F_MMAPABLE, BPF_NOEXIST, bpf_perf_event_value};
use aya_ebpf::helpers::generated::bpf_perf_event_read_value;
use aya_ebpf::helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerfEventArray};
use energy_ebpf::{Key, SHORT_NS, Slot, Usage, cycles};

/// One of [`cycles`].
#[unsafe(no_mangle)]
pub static CYCLES: Global<u64> = Global::new(cycles::NONE);

#[map]
static USAGE: HashMap<Key, Usage> = HashMap::with_max_entries(8192, 0);
#[map]
static SLOTS: Array<Slot> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static CYCLE_COUNTERS: PerfEventArray<u32> = PerfEventArray::new(0);
#[inline(always)]
pub fn slot() -> Option<*mut Slot> {
    SLOTS.get_ptr_mut(unsafe { bpf_get_smp_processor_id() })
}

/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
pub unsafe fn close_for_idle(slot: *mut Slot) {
    unsafe {
        begin_write(slot);
        let stretch_ns = close_stretch(slot);
        (*slot).start_ns = 0;
        if CYCLES.load() != cycles::NONE {
            (*slot).unread_ns += stretch_ns;
            if CYCLES.load() == cycles::RUNNING || (*slot).unread_ns >= cycles::UNREAD_NS {
                (*slot).closed.cycles += cycles_since_last(slot);
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
pub unsafe fn close_stretch(slot: *mut Slot) -> u64 {
    unsafe {
        let stretch_ns = (*slot).stretch_ns;
        (*slot).closed.runtime_ns += stretch_ns;
        // Volatile for the same reason as in `put`.
        addr_of_mut!((*slot).stretch_ns).write_volatile(0);
        stretch_ns
    }
}

/// Begins a stretch after one of `closed_ns` was closed, or in idle.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
pub unsafe fn open_stretch(slot: *mut Slot, was_idle: bool, closed_ns: u64) {
    unsafe {
        let unclocked_ns = (*slot).unclocked_ns + closed_ns;
        if was_idle || unclocked_ns >= SHORT_NS {
            start_clock(slot);
        } else {
            (*slot).start_ns += closed_ns;
            (*slot).unclocked_ns = unclocked_ns;
        }
    }
}

/// The stretch begins now.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
pub unsafe fn start_clock(slot: *mut Slot) {
    unsafe {
        (*slot).start_ns = bpf_ktime_get_ns();
        (*slot).unclocked_ns = 0;
    }
}

/// Closes the cycles since the counter was last read.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
pub unsafe fn close_cycles(slot: *mut Slot, was_idle: bool) {
    if CYCLES.load() == cycles::NONE {
        return;
    }
    unsafe {
        let since_last = cycles_since_last(slot);
        // A clock that ran on while the CPU was idle has nothing to charge since idle began.
        if CYCLES.load() == cycles::HALTING || !was_idle {
            (*slot).closed.cycles += since_last;
        }
    }
}

/// Tasks of another cgroup run from now on, once the stretch is closed. What the one before did stays in the slot, in place
/// of what a third did.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
pub unsafe fn turn_to(slot: *mut Slot, cgroup: u64) {
    unsafe {
        let (last_cgroup, last) = ((*slot).cgroup, (*slot).closed);
        let (parked_cgroup, parked) = ((*slot).parked_cgroup, (*slot).parked);
        let comes_back = cgroup == parked_cgroup && parked.runtime_ns < SHORT_NS;
        // In this order, whoever looks in between misses something, and sees nothing twice or as another cgroup's.
        let nothing = Usage { runtime_ns: 0, switches: 0, cycles: 0 };
        put(addr_of_mut!((*slot).closed), &nothing);
        put(addr_of_mut!((*slot).parked), &nothing);
        addr_of_mut!((*slot).cgroup).write_volatile(cgroup);
        addr_of_mut!((*slot).parked_cgroup).write_volatile(last_cgroup);
        put(addr_of_mut!((*slot).parked), &last);
        if comes_back {
            put(addr_of_mut!((*slot).closed), &parked);
        } else {
            charge(slot, parked_cgroup, &parked);
        }
    }
}

/// Volatile, so that the order stays, and the compiler makes no call to memset.
///
/// # Safety
/// `place` is a part of this CPU's map element.
#[inline(always)]
unsafe fn put(place: *mut Usage, usage: &Usage) {
    unsafe {
        addr_of_mut!((*place).runtime_ns).write_volatile(usage.runtime_ns);
        addr_of_mut!((*place).switches).write_volatile(usage.switches);
        addr_of_mut!((*place).cycles).write_volatile(usage.cycles);
    }
}

/// Adds to `USAGE` what a cgroup did here.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
unsafe fn charge(slot: *mut Slot, cgroup: u64, used: &Usage) {
    unsafe {
        if used.runtime_ns == 0 {
            return;
        }
        let key = Key { cgroup, domain: (*slot).domain };
        let Some(usage) = USAGE.get_ptr_mut(&key) else {
            if USAGE.insert(&key, used, u64::from(BPF_NOEXIST)).is_ok() {
                return;
            }
            // Another CPU was first, or the map is full.
            let Some(usage) = USAGE.get_ptr_mut(&key) else {
                (*slot).dropped_ns += used.runtime_ns;
                (*slot).drops += 1;
                return;
            };
            add_usage(usage, used);
            return;
        };
        add_usage(usage, used);
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
pub unsafe fn add(counter: *mut u64, amount: u64) {
    unsafe { asm!("lock *(u64 *)({counter} + 0) += {amount}", counter = in(reg) counter, amount = in(reg) amount) }
}

/// Cycles since the counter was last read, which is now; 0 at the first reading and after a reading that failed.
///
/// # Safety
/// `slot` is this CPU's map element.
#[inline(always)]
pub unsafe fn cycles_since_last(slot: *mut Slot) -> u64 {
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
pub unsafe fn read_cycles(slot: *mut Slot) -> u64 {
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
pub unsafe fn begin_write(slot: *mut Slot) {
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
pub unsafe fn end_write(slot: *mut Slot) {
    barrier();
    unsafe { (*slot).seq += 1 };
}
