//! `perf_event_open`, reduced to counters that are bound to a CPU and read as numbers.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

/// The first published `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0`), which every kernel accepts.
/// Source: <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

/// What a counter counts: `perf_event_attr.type` and `.config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfEvent {
    pub kind: u32,
    pub config: u64,
}

impl PerfEvent {
    /// `PERF_TYPE_HARDWARE`, `PERF_COUNT_HW_CPU_CYCLES`: unhalted core cycles.
    pub const CPU_CYCLES: Self = Self { kind: 0, config: 0 };
    /// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_CPU_CLOCK`: nanoseconds, also while the CPU is idle.
    pub(crate) const CPU_CLOCK: Self = Self { kind: 1, config: 0 };
}

/// One counter on one CPU, for all tasks.
#[derive(Debug)]
pub struct PerfCounter(File);

/// A reading; all of it since the counter was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterReading {
    pub count: u64,
    pub enabled_ns: u64,
    /// How long it really counted; less than `enabled_ns` where counters of others needed the hardware.
    pub running_ns: u64,
}

impl PerfCounter {
    /// Opens and starts the counter.
    ///
    /// # Errors
    /// The kernel's: ENOENT (no such event here, as in most guests), EACCES or EPERM (`CAP_PERFMON` is missing and
    /// `kernel.perf_event_paranoid` forbids), ENODEV (CPU offline), EINVAL.
    pub fn open(event: PerfEvent, cpu: u32) -> io::Result<Self> {
        /// `PERF_FLAG_FD_CLOEXEC`
        const FD_CLOEXEC: libc::c_ulong = 1 << 3;
        const TOTAL_TIME_ENABLED: u64 = 1;
        const TOTAL_TIME_RUNNING: u64 = 2;
        let attr = Attr {
            kind: event.kind,
            size: u32::try_from(size_of::<Attr>()).map_err(io::Error::other)?,
            config: event.config,
            read_format: TOTAL_TIME_ENABLED | TOTAL_TIME_RUNNING,
            ..Attr::default()
        };
        let cpu = libc::c_int::try_from(cpu).map_err(io::Error::other)?;
        // SAFETY: `attr` lives through the call and says its own size; pid -1 with a CPU is the per-CPU form.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, cpu, -1, FD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the kernel has just given us this descriptor.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// # Errors
    /// The kernel's, and `UnexpectedEof` for a counter in error state.
    pub fn read(&self) -> io::Result<CounterReading> {
        let mut buffer = [0; 24];
        (&self.0).read_exact(&mut buffer)?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&buffer[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        Ok(CounterReading { count: word(0), enabled_ns: word(8), running_ns: word(16) })
    }
}

impl AsFd for PerfCounter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_clock_counts_nanoseconds_and_an_unknown_event_is_refused() {
        let counter = PerfCounter::open(PerfEvent::CPU_CLOCK, 0).expect("perf_event_open needs root or CAP_PERFMON");
        let first = counter.read().unwrap();
        let second = counter.read().unwrap();
        assert!(second.count > first.count && second.enabled_ns == second.running_ns);
        assert!(PerfCounter::open(PerfEvent { kind: 0, config: 999 }, 0).is_err());
    }
}
