//! Energy zones: what a counter covers, how its energy was obtained, and what it used in an interval.

use std::sync::Arc;

use crate::units::Microjoules;

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
