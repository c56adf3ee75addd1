//! The pods of this node from the API server.

use std::time::Instant;

use energy_model::workload::names::Pod;
use tracing::warn;

use super::PodPublisher;
use super::object::PodObject;
use crate::kubernetes::watch::{self, Heard, Query};
use crate::kubernetes::{ClusterError, Credentials, Server};

/// What is asked for, in the words of RBAC.
pub const OBJECT: &str = "pods at cluster scope";

impl watch::Watched for PodObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

fn query(node: &str) -> Query {
    Query {
        path: "/api/v1/pods".to_owned(),
        object: OBJECT.to_owned(),
        fields: Some(format!("spec.nodeName={node}")),
        labels: None,
        page: 500,
    }
}

/// Follows them for ever.
pub async fn run(credentials: Credentials, node: String, mut teller: PodPublisher) {
    let source = format!("API server, {credentials}");
    let in_pod = credentials == Credentials::ServiceAccount;
    let tell = |heard| match heard {
        Heard::All(objects) => {
            let pods: Vec<Pod> = objects.into_iter().map(|object: PodObject| object.into()).collect();
            if pods.is_empty() && in_pod {
                warn!(
                    node,
                    "the API server has no pod on this node, not even the agent's own: --node.name must be the name of the Node object (env NODE_NAME from spec.nodeName)"
                );
            }
            teller.replace(pods);
        }
        Heard::Applied(object) => teller.book.apply(object.into(), Instant::now()),
        Heard::Deleted(object) => teller.book.delete(&object.metadata.uid, Instant::now()),
        Heard::Answered => teller.answered(&source),
        Heard::Failed(trouble) => teller.failed(&trouble),
    };
    watch::run(credentials, query(&node), tell).await;
}

/// How many there are.
///
/// # Errors
/// When the server does not answer, refuses, or answers with something else.
pub async fn count(server: &Server, node: &str) -> Result<usize, ClusterError> {
    Ok(watch::list::<PodObject>(server, &query(node), watch::Age::Any).await?.0.len())
}
