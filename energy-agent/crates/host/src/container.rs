//! Whether the agent itself runs in a container of a cluster.

use std::env;

/// Whether the agent runs in a pod, by its environment.
#[must_use]
pub fn in_cluster() -> bool {
    env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}
