//! Who ran: cgroup ids become workloads (containers, pods, units, the kernel).

pub mod allocation;
pub mod cgroup;
pub mod device_id;
pub mod holder;
pub mod labels;
pub mod mirrors;
pub mod names;
pub mod places;
pub mod sandbox;
pub mod units;

use std::fmt;
use std::sync::Arc;

use self::cgroup::{Container, Placement};

/// Name of the sandbox (pause container), as cAdvisor has it, and of what runs in a pod's own cgroup beside containers.
pub const POD_OVERHEAD: &str = "POD";

/// Container runtime by the cgroup path; the value of Kepler's label `runtime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runtime {
    Containerd,
    Crio,
    Docker,
    Podman,
    /// The path does not say (cgroupfs driver).
    Unknown,
}

crate::as_str!(Runtime {
    Containerd => "containerd",
    Crio => "crio",
    Docker => "docker",
    Podman => "podman",
    Unknown => "unknown",
});

/// Something that energy is charged to. The order is the stable key that breaks ties in an exact division.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Workload {
    /// Threads of the kernel itself, and interrupts that are in no task's run time.
    Kernel,
    /// A service, scope, slice or other cgroup outside pods and containers.
    Unit { unit: Arc<str> },
    /// A container outside any pod (docker, podman, buildkit), part of the unit it runs under.
    Container { unit: Arc<str>, id: Arc<str>, runtime: Runtime },
    /// A pod's own cgroup outside its containers (conmon, the pod slice itself); exported as its container `POD`.
    PodOverhead { uid: Arc<str> },
    /// A container of a pod.
    PodContainer { uid: Arc<str>, id: Arc<str>, runtime: Runtime },
    /// What ended instances of a living pod's containers used, by container name where that is known: keeps the totals
    /// of the pod and of the named container from falling when a container restarts. Made by the ledger alone; without
    /// a name it is part of the pod's sum, and no container of its own.
    PodEnded { uid: Arc<str>, name: Option<Arc<str>> },
}

impl Workload {
    /// The uid of the pod it belongs to.
    #[must_use]
    pub fn pod_uid(&self) -> Option<&Arc<str>> {
        match self {
            Self::PodOverhead { uid } | Self::PodContainer { uid, .. } | Self::PodEnded { uid, .. } => Some(uid),
            Self::Kernel | Self::Unit { .. } | Self::Container { .. } => None,
        }
    }

    /// The id of a container outside pods.
    #[must_use]
    pub fn container_id(&self) -> Option<&Arc<str>> {
        if let Self::Container { id, .. } = self { Some(id) } else { None }
    }

    /// The unit it is summed under when it is not part of a pod; the value of the label `unit`.
    #[must_use]
    pub fn unit(&self) -> Option<&str> {
        match self {
            Self::Kernel => Some("kernel"),
            Self::Unit { unit } | Self::Container { unit, .. } => Some(unit),
            Self::PodOverhead { .. } | Self::PodContainer { .. } | Self::PodEnded { .. } => None,
        }
    }
}

impl From<Placement> for Workload {
    fn from(placement: Placement) -> Self {
        match placement {
            Placement::Kernel => Self::Kernel,
            Placement::Pod { uid, container: None } => Self::PodOverhead { uid: Arc::from(uid) },
            Placement::Pod { uid, container: Some(Container { id, runtime }) } => {
                Self::PodContainer { uid: Arc::from(uid), id: Arc::from(id), runtime }
            }
            Placement::System { unit, container: None } | Placement::Unresolved { unit, container: None } => {
                Self::Unit { unit: Arc::from(unit) }
            }
            Placement::System { unit, container: Some(Container { id, runtime }) }
            | Placement::Unresolved { unit, container: Some(Container { id, runtime }) } => {
                Self::Container { unit: Arc::from(unit), id: Arc::from(id), runtime }
            }
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("kernel"),
            Self::Unit { unit } => f.write_str(unit),
            Self::Container { id, .. } => write!(f, "container {id}"),
            Self::PodOverhead { uid } => write!(f, "pod {uid}"),
            Self::PodContainer { uid, id, .. } => write!(f, "pod {uid} container {id}"),
            Self::PodEnded { uid, name: None } => write!(f, "pod {uid} ended containers"),
            Self::PodEnded { uid, name: Some(name) } => write!(f, "pod {uid} container {name}, ended"),
        }
    }
}
