//! The CPUs of a node, as far as energy is divided over them or shown.

/// A set of CPUs that one energy zone can be attributed over: a die where dies are distinct, else a socket, else the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain {
    /// `physical_package_id`; `None` where sysfs shows no topology (then there is one domain, the node).
    pub socket: Option<u32>,
    /// `die_id`; `None` where the socket has one die, where the kernel does not show dies, and where all dies of a
    /// socket share one energy counter (AMD, Hygon).
    pub die: Option<u32>,
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

/// One logical CPU for `kepler_node_cpu_info`; from `/proc/cpuinfo`. Fields that the architecture does not have are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuInfo {
    pub processor: String,
    pub vendor_id: String,
    pub model_name: String,
    pub physical_id: String,
    pub core_id: String,
}
