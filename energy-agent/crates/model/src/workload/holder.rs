//! Which container was given which device, and which GPU a claimed device is, as the cluster says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::device_id::{Claimed, DeviceId};

/// What the kubelet says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletResources {
    /// The containers that have each device of NVIDIA's.
    pub devices: BTreeMap<DeviceId, Vec<Holder>>,
    /// Namespace and name of pods that the answer has twice, as of one that is ending and the next of that name: nothing
    /// says which of them has what.
    pub doubles: BTreeSet<(String, String)>,
}

impl KubeletResources {
    /// Whether a GPU was given by a claim, whose names say nothing to the driver.
    #[must_use]
    pub fn has_claims(&self) -> bool {
        self.devices.keys().any(|id| matches!(id, DeviceId::Claimed(_)))
    }
}

/// A container that was given a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    pub namespace: String,
    pub pod: String,
    pub container: String,
}

/// The UUID of each device of NVIDIA's drivers on this node.
pub type Uuids = BTreeMap<Claimed, Arc<str>>;
