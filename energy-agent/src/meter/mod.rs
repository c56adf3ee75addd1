//! What the hardware and the kernel counted: energy meters and the usage meter are read together, within a
//! millisecond or so, into one [`Sample`] of differences since the previous one.

pub mod btf;
pub mod cgroupfs;
pub mod counter;
pub mod cpu;
mod denial;
pub mod ebpf;
pub mod energy;
pub mod estimate;
pub mod gpu;
pub mod hwmon;
mod interrupts;
pub mod perf;
pub mod perf_event;
pub mod powercap;
pub mod process;
pub mod rapl;
pub mod sampler;
mod sockets;
mod state;
mod still;
pub mod told;
mod trapezoid;
pub mod watch;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::units::Microjoules;
use gpu::reading::GpuReading;
use process::ProcessSample;
pub use state::{MeterName, MeterState, Program, Reason, UsageMeter, WeightUnit};

/// How an energy figure was obtained; the value of the label `source`. Figures of different sources never share a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// RAPL through the powercap MSR interface (`intel-rapl`, also used for AMD).
    Rapl,
    /// RAPL through memory-mapped registers (`intel-rapl-mmio`).
    RaplMmio,
    /// The kernel's `power` PMU (`perf_event_open`), the same registers by another way.
    Perf,
    /// A GPU's energy counter (`nvmlDeviceGetTotalEnergyConsumption`).
    Nvml,
    /// A GPU's power, integrated over the driver's time stamps.
    NvmlIntegrated,
    /// A hwmon energy counter, or a hwmon power sensor integrated over time.
    Hwmon,
    /// A model of CPU load and published coefficients; not a measurement.
    Estimate,
}

crate::as_str!(Source {
    Rapl => "rapl",
    RaplMmio => "rapl_mmio",
    Perf => "perf",
    Nvml => "nvml",
    NvmlIntegrated => "nvml_integrated",
    Hwmon => "hwmon",
    Estimate => "estimate",
});

/// What part of the node a zone covers; the value of Kepler's label `zone`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZoneKind {
    /// A CPU package (socket or die): cores, caches, integrated memory controller and graphics.
    Package,
    /// The memory of a package. Beside the package, not inside it.
    Dram,
    /// All cores of a package; inside the package, never added to it.
    Core,
    /// Integrated graphics and the like; inside the package, never added to it.
    Uncore,
    /// A GPU with its memory; beside the packages. Its series have names of their own (`kepler_*_gpu_*`).
    Gpu,
    /// The whole platform as RAPL sees it; contains the packages, never added to them.
    Psys,
    /// The whole machine, or one of its modules, as a board sensor sees it; contains packages, never added to them.
    Platform,
}

crate::as_str!(ZoneKind {
    Package => "package",
    Dram => "dram",
    Core => "core",
    Uncore => "uncore",
    Gpu => "gpu",
    Psys => "psys",
    Platform => "platform",
});

impl ZoneKind {
    /// Whether the zone's energy is divided among workloads. The other kinds overlap these and are exported as they are.
    #[must_use]
    pub const fn attributed(self) -> bool {
        matches!(self, Self::Package | Self::Dram | Self::Gpu)
    }
}

/// The identity of one energy counter; constant for the life of its series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone {
    pub kind: ZoneKind,
    /// Socket number from the zone's *name* (or its parent's), never from a path index; `None` where it has none (psys).
    pub socket: Option<u32>,
    /// Die within the socket, on parts that name it.
    pub die: Option<u32>,
    pub source: Source,
    /// Where it is read: a sysfs path without the root prefix, or a name such as `estimate/skylake`.
    pub path: String,
}

/// What one zone used during the interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneEnergy {
    pub zone: Arc<Zone>,
    pub energy: Microjoules,
    /// `energy` is not what this interval used, so no power may be derived from it: it is only the provable part (an unseen
    /// wrap was possible, the counter was reset), or it covers earlier intervals in which the zone was unreadable as well.
    pub gap: bool,
}

/// cgroup v2 id: the inode number of the cgroup's directory (`kn->id`).
pub type CgroupId = u64;

/// Stands for all kernel threads (PF_KTHREAD) in place of a cgroup id, whatever cgroup they are in.
pub const KERNEL_THREADS: CgroupId = 0;

/// What one cgroup did on the CPUs of one domain during the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub cgroup: CgroupId,
    /// Index into [`cpu::Topology::domains`]; `None` where the meter cannot tell (cgroup files).
    pub domain: Option<u32>,
    pub runtime_ns: u64,
    /// Unhalted CPU cycles; 0 where no counter delivers them.
    pub cycles: u64,
    /// Times a task of this cgroup was switched out.
    pub switches: u64,
}

/// How busy the CPUs of one domain were during the interval, from the kernel's own accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainLoad {
    /// Online CPUs.
    pub cpus: u32,
    /// Time not idle, not waiting for I/O and not stolen, over all CPUs of the domain; nanoseconds.
    pub busy_ns: u64,
    /// Time that the usage meter saw but could not charge to any cgroup (map full); nanoseconds.
    pub dropped_ns: u64,
    /// Every CPU of the domain delivered cycles for the whole interval.
    pub cycles: bool,
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

/// Names this boot of the machine; empty where it cannot be read.
#[must_use]
pub fn boot_id(procfs: &Path) -> String {
    fs::read_to_string(procfs.join("sys/kernel/random/boot_id")).unwrap_or_default().trim().to_owned()
}

/// CLOCK_MONOTONIC in nanoseconds, the clock of `bpf_ktime_get_ns`; it stands still while the machine is suspended.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CLOCK_BOOTTIME in nanoseconds, which goes on while the machine is suspended.
#[must_use]
pub fn boottime_ns() -> u64 {
    clock_ns(libc::CLOCK_BOOTTIME)
}

/// CPU time of this process's threads, ended ones included, in nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct lives through the call, and these clocks are always there.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}
