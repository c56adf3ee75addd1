//! The CPUs of this node: which exist and are online, which socket and die each belongs to, and how busy they were.

/// A set of CPUs that one energy zone can be attributed over: a die where dies are distinct, else a socket, else the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain {
    /// `physical_package_id`; `None` where sysfs shows no topology (then there is one domain, the node).
    pub socket: Option<u32>,
    /// `die_id`; `None` where the kernel does not show it.
    pub die: Option<u32>,
}

/// The CPUs as sysfs shows them. Domains are only ever appended, so an index stays valid across hotplug.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub domains: Vec<Domain>,
}

/// One logical CPU for `kepler_node_cpu_info`; from `/proc/cpuinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuInfo {
    pub processor: String,
    pub vendor_id: String,
    pub model_name: String,
    pub physical_id: String,
    pub core_id: String,
}
