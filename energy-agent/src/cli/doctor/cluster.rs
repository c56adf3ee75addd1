//! The row about Kubernetes: where pod names would come from, whether that answers, and what is missing.

use std::time::Duration;

use energy_cluster::kubernetes::Trouble;
use energy_cluster::pods::Source;
use energy_model::meter_state::Reason;

use super::{Machine, Row, Status, plural};
use crate::node::node_name;

/// A source that takes longer is reported as silent; `run` waits longer and tries again.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn kubernetes(machine: &Machine<'_>) -> Row {
    let name = "kubernetes";
    let source = Source::choose(&machine.config.cluster);
    let pods = machine.found.as_ref().map_or(0, |found| found.pods);
    match &source {
        Source::None { reason: Reason::Off, detail } => return Row::new(name, Status::Off, detail, ""),
        Source::None { reason: Reason::Absent, .. } if pods > 0 => {
            let detail =
                format!("not in a cluster, but {} by cgroup: known by uid, without names", plural(pods, "pod"));
            return Row::new(name, Status::Fallback, detail, "run the agent as a DaemonSet, or set KUBECONFIG");
        }
        Source::None { reason: Reason::Absent, .. } => {
            return Row::new(name, Status::Missing, "not in a cluster: containers and units are the workloads", "");
        }
        _ => {}
    }
    let node = node_name(machine.config);
    match ask(&source, &node) {
        Ok(0) => {
            let detail = format!("{source} answers, but knows no pod on node {node}");
            let remedy = "give --node.name the name of the Node object (in a pod: env NODE_NAME from spec.nodeName)";
            Row::new(name, Status::Fallback, detail, remedy)
        }
        Ok(told) => Row::ok(name, format!("{source}: {} on node {node}", plural(told, "pod"))),
        Err(Trouble { reason, message }) => {
            let names_source = message.contains(&source.to_string());
            let detail = if names_source { message } else { format!("{source}: {}: {message}", reason.as_str()) };
            Row::missing(name, &detail)
        }
    }
}

fn ask(source: &Source, node: &str) -> Result<usize, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Trouble { reason: Reason::Error, message: format!("tokio: {error}") })?;
    let outcome = runtime.block_on(source.probe(node, PATIENCE));
    // A name server that is silent is not waited for.
    runtime.shutdown_background();
    outcome
}
