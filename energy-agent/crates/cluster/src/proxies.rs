//! The metrics pages of agents, read through the API server where there is no Prometheus: the proxy of a pod is one GET, which
//! needs `get` on `pods/proxy`. A forwarded port would need another library and the right to reach every port of the pods.

use std::collections::BTreeMap;
use std::time::Duration;

use energy_model::advice::Advice;
use energy_model::meter_state::Reason;
use futures_util::StreamExt as _;
use futures_util::stream;
use hyper::http;
use k8s_openapi::api::core::v1::Pod;
use kube::Error;
use kube::api::ListParams;
use kube::core::Request;
use serde::Deserialize;
use tokio::time::timeout;

use crate::kubernetes::{ClusterError, Credentials, Server};

const ANSWER: Duration = Duration::from_secs(10);
/// The label that the manifests and the chart give an agent.
const SELECTOR: &str = "app.kubernetes.io/name=energy-agent";
/// Pages asked for at the same time.
const AT_ONCE: usize = 32;
/// The port's name in the manifests, and its number there.
const PORT_NAME: &str = "metrics";
const PORT: i32 = 9102;

/// The agents of a cluster.
pub struct AgentProxies {
    server: Server,
    namespace: String,
    /// Name and port of each node's agent.
    known: BTreeMap<String, (String, i32)>,
}

#[derive(Deserialize)]
struct AgentPods {
    items: Vec<Pod>,
}

impl AgentProxies {
    /// # Errors
    /// When the credentials cannot be used.
    pub async fn new(credentials: &Credentials, namespace: &str) -> Result<Self, ClusterError> {
        let server = credentials.client().await?;
        Ok(Self { server, namespace: namespace.to_owned(), known: BTreeMap::new() })
    }

    /// Whether there are any.
    ///
    /// # Errors
    /// When there is none, or the server does not let this account look.
    pub async fn check(&self) -> Result<(), ClusterError> {
        self.find(None).await.map(drop)
    }

    /// The page of a node's agent.
    ///
    /// # Errors
    /// When the node has no agent, or it cannot be asked.
    pub async fn page(&mut self, node: &str) -> Result<String, ClusterError> {
        let (pod, port) = match self.known.get(node) {
            Some(known) => known.clone(),
            None => self.find(Some(node)).await?,
        };
        let page = self.page_of(&pod, port).await;
        match &page {
            Ok(_) => drop(self.known.insert(node.to_owned(), (pod, port))),
            // Another pod may be the node's agent by now.
            Err(_) => drop(self.known.remove(node)),
        }
        page
    }

    /// The pages of all agents, by the names of their nodes.
    ///
    /// # Errors
    /// When there is no agent, or the server does not let this account look.
    pub async fn pages(&self) -> Result<BTreeMap<String, Result<String, ClusterError>>, ClusterError> {
        let pods = self.pods(None).await?;
        if pods.is_empty() {
            return Err(self.absence(None));
        }
        let one = async |pod: Pod| {
            let (name, port) = (pod.metadata.name.clone().unwrap_or_default(), port(&pod));
            let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_else(|| format!("none yet, pod {name}"));
            (node, self.page_of(&name, port).await)
        };
        Ok(stream::iter(pods).map(one).buffer_unordered(AT_ONCE).collect().await)
    }

    async fn page_of(&self, pod: &str, port: i32) -> Result<String, ClusterError> {
        let object = format!("pods/proxy in namespace {}", self.namespace);
        let path = format!("/api/v1/namespaces/{}/pods/{pod}:{port}/proxy/metrics", self.namespace);
        let request = http::Request::get(path)
            .header("Accept", "text/plain")
            .body(Vec::new())
            .map_err(|error| self.server.trouble(&Error::HttpError(error), "get", &object))?;
        let answer = timeout(ANSWER, self.server.client.request_text(request)).await;
        answer
            .unwrap_or_else(|_| {
                // As a proxy says it.
                Err(Error::Service("no answer in time".into()))
            })
            .map_err(|error| {
                let mut trouble = self.server.trouble(&error, "get", &object);
                if trouble.reason == Reason::Error {
                    trouble.advice.remedy =
                        "an agent with TLS or users cannot be read in this way: use --prometheus".to_owned();
                }
                trouble
            })
    }

    /// An agent's pod, that of `node` if one is named.
    async fn find(&self, node: Option<&str>) -> Result<(String, i32), ClusterError> {
        let pod = self.pods(node).await?.into_iter().find_map(|pod| Some((pod.metadata.name.clone()?, port(&pod))));
        pod.ok_or_else(|| self.absence(node))
    }

    fn absence(&self, node: Option<&str>) -> ClusterError {
        let place = node.map(|node| format!(" on node {node}")).unwrap_or_default();
        let what = format!("no agent{place}: no pod with the label {SELECTOR} in namespace {}", self.namespace);
        ClusterError::new(Reason::Absent, Advice::new(what, "--agents.namespace names another one"))
    }

    /// The pods of all agents, or of that of one node.
    async fn pods(&self, node: Option<&str>) -> Result<Vec<Pod>, ClusterError> {
        let object = format!("pods in namespace {}", self.namespace);
        let mut parameters = ListParams::default().labels(SELECTOR);
        if let Some(node) = node {
            parameters = parameters.fields(&format!("spec.nodeName={node}"));
        }
        let request = Request::new(format!("/api/v1/namespaces/{}/pods", self.namespace))
            .list(&parameters)
            .map_err(|error| self.server.trouble(&Error::BuildRequest(error), "list", &object))?;
        let answer = timeout(ANSWER, self.server.client.request::<AgentPods>(request)).await;
        let list = answer
            .map_err(|_| self.server.silence("list", &object, ANSWER))?
            .map_err(|error| self.server.trouble(&error, "list", &object))?;
        Ok(list.items)
    }
}

/// The port of an agent's pod that has its metrics.
fn port(pod: &Pod) -> i32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.find(|port| port.name.as_deref() == Some(PORT_NAME)).map_or(PORT, |port| port.container_port)
}
