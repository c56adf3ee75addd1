//! What the API server or the kubelet says about the node's pods, trimmed to what is used: names, containers, labels and
//! requests by pod uid.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The pods of this node as they were last told. An update replaces the whole value; pods not mentioned are shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    pub by_uid: BTreeMap<Arc<str>, Arc<Pod>>,
}

/// One pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`. For a static pod seen through the API server this is its mirror pod's.
    pub uid: Arc<str>,
    /// Annotation `kubernetes.io/config.hash`: what the cgroup of a static pod is named by in place of the uid.
    pub config_hash: Option<Arc<str>>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub labels: BTreeMap<String, String>,
    /// Of every kind, in the order of the status.
    pub containers: Vec<PodContainer>,
    /// Effective CPU request of the pod (the scheduler's sum), thousandths of a CPU.
    pub cpu_request_milli: u64,
}

/// A container of a pod: main, init, sidecar or ephemeral.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodContainer {
    pub name: Arc<str>,
    /// Id without the scheme (`containerd://`); `None` until the runtime has made it.
    pub id: Option<Arc<str>>,
    /// Id of the instance before, as far as the status tells (`lastState.terminated`).
    pub previous_id: Option<Arc<str>>,
}
