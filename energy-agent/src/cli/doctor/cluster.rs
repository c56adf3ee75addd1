//! The row about Kubernetes: where pod names would come from, whether that answers, and what is missing.

use std::time::Duration;

use energy_cluster::kubernetes::ClusterError;
use energy_cluster::pods::PodSource;
use energy_model::meter_state::Reason;

use super::{CheckRow, CheckStatus, Machine, plural};
use crate::node::node_name;

/// A source that takes longer is reported as silent; `run` waits longer and tries again.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn kubernetes(machine: &Machine<'_>) -> CheckRow {
    let name = "kubernetes";
    let source = PodSource::choose(&machine.config.cluster);
    let pods = machine.found.as_ref().map_or(0, |found| found.pods);
    match &source {
        PodSource::None { reason: Reason::Off, detail } => {
            return CheckRow::new(name, CheckStatus::Off, detail.to_string(), "");
        }
        PodSource::None { reason: Reason::Absent, .. } if pods > 0 => {
            let detail =
                format!("not in a cluster, but {} by cgroup: known by uid, without names", plural(pods, "pod"));
            return CheckRow::new(
                name,
                CheckStatus::Fallback,
                detail,
                "run the agent as a DaemonSet, or set KUBECONFIG",
            );
        }
        PodSource::None { reason: Reason::Absent, .. } => {
            return CheckRow::new(
                name,
                CheckStatus::Off,
                "not in a cluster: the workloads are containers and units",
                "",
            );
        }
        PodSource::None { detail, .. } => return CheckRow::missing(name, detail.clone()),
        PodSource::Api(_) | PodSource::Kubelet(_) => {}
    }
    let node = node_name(machine.config);
    match ask(&source, &node) {
        Ok(0) => {
            let detail = format!("{source} answers, but has no pod on node {node}");
            let remedy = "set --node.name to the name of the Node object (in a pod: env NODE_NAME from spec.nodeName)";
            CheckRow::new(name, CheckStatus::Fallback, detail, remedy)
        }
        Ok(told) => CheckRow::ok(name, format!("{source}: {} on node {node}", plural(told, "pod"))),
        Err(ClusterError { reason, advice }) => {
            CheckRow::missing(name, advice.of(format_args!("{source}: {}", reason.as_str())))
        }
    }
}

fn ask(source: &PodSource, node: &str) -> Result<usize, ClusterError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| ClusterError::new(Reason::Error, format!("tokio: {error}")))?;
    let outcome = runtime.block_on(source.probe(node, PATIENCE));
    // A name server that is silent is not waited for.
    runtime.shutdown_background();
    outcome
}
