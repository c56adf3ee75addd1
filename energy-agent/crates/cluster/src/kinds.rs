//! The objects that the controller follows, each with no more than it uses of them.

use std::collections::BTreeMap;

use energy_model::resources::object::KubeObject;
use energy_model::resources::{
    GROUP, VERSION, climatik, cluster_power_budget, node_frequencies, power_capping_policy, power_level,
};
use serde::Deserialize;
use tokio::sync::watch::Receiver;

use crate::kubernetes::Credentials;
use crate::kubernetes::watch::{Query, Watched};
use crate::objects::{self, Keyed, Known, ObjectKey};

/// A node has some kilobytes that nobody here needs.
const PAGE: u32 = 500;

/// A node of the cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClusterNode {
    pub metadata: NodeMetadata,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeMetadata {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    resource_version: String,
}

/// Some of the addresses of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointSlice {
    metadata: SliceMetadata,
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SliceMetadata {
    name: String,
    namespace: String,
    resource_version: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Endpoint {
    addresses: Vec<String>,
    node_name: Option<String>,
    conditions: Conditions,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
}

/// Where the agent of a node is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentAddress {
    pub node: String,
    /// `HOST:PORT`.
    pub address: String,
    pub ready: bool,
}

impl EndpointSlice {
    /// The agents in this slice, by the port called `metrics`, else its first one.
    pub fn agents(&self) -> impl Iterator<Item = AgentAddress> {
        let ports = self.ports.as_deref().unwrap_or_default();
        let named = ports.iter().find(|port| port.name.as_deref() == Some("metrics"));
        let port = named.or(ports.first()).and_then(|port| port.port);
        self.endpoints.iter().flatten().filter_map(move |endpoint| {
            let (host, node) = (endpoint.addresses.first()?, endpoint.node_name.clone()?);
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            let ready = endpoint.conditions.ready.unwrap_or(true);
            Some(AgentAddress { node, address: format!("{host}:{}", port?), ready })
        })
    }
}

impl Watched for ClusterNode {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Keyed for ClusterNode {
    fn key(&self) -> ObjectKey {
        (String::new(), self.metadata.name.clone())
    }
}

impl Watched for EndpointSlice {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Keyed for EndpointSlice {
    fn key(&self) -> ObjectKey {
        (self.metadata.namespace.clone(), self.metadata.name.clone())
    }
}

impl Keyed for KubeObject {
    fn key(&self) -> ObjectKey {
        (self.metadata.namespace.clone(), self.metadata.name.clone())
    }
}

fn query(path: String, object: String) -> Query {
    Query { path, object, fields: None, labels: None, page: PAGE }
}

#[must_use]
pub fn follow_nodes(credentials: Credentials) -> Receiver<Known<ClusterNode>> {
    objects::start(credentials, query("/api/v1/nodes".to_owned(), "nodes".to_owned()))
}

/// The addresses of the agents, which are behind a headless Service.
#[must_use]
pub fn follow_endpoint_slices(
    credentials: Credentials,
    namespace: &str,
    service: &str,
) -> Receiver<Known<EndpointSlice>> {
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let object = format!("endpointslices.discovery.k8s.io in namespace {namespace}");
    let labels = Some(format!("kubernetes.io/service-name={service}"));
    objects::start(credentials, Query { labels, ..query(path, object) })
}

#[must_use]
pub fn follow_budgets(credentials: Credentials) -> Receiver<Known<KubeObject>> {
    objects::start(credentials, budgets())
}

#[must_use]
pub fn budgets() -> Query {
    own(cluster_power_budget::PLURAL)
}

#[must_use]
pub fn follow_levels(credentials: Credentials) -> Receiver<Known<KubeObject>> {
    objects::start(credentials, levels())
}

#[must_use]
pub fn follow_policies(credentials: Credentials) -> Receiver<Known<KubeObject>> {
    objects::start(credentials, own(power_capping_policy::PLURAL))
}

#[must_use]
pub fn follow_frequencies(credentials: Credentials) -> Receiver<Known<KubeObject>> {
    objects::start(credentials, own(node_frequencies::PLURAL))
}

#[must_use]
pub fn levels() -> Query {
    own(power_level::PLURAL)
}

/// Climatik's policies, of all namespaces.
#[must_use]
pub fn follow_climatik_policies(credentials: Credentials) -> Receiver<Known<KubeObject>> {
    let (group, version, plural) = (climatik::GROUP, climatik::VERSION, power_capping_policy::PLURAL);
    let path = format!("/apis/{group}/{version}/{plural}");
    objects::start(credentials, query(path, format!("{plural}.{group} at cluster scope")))
}

/// Climatik's clocks, of the one namespace where it keeps them.
#[must_use]
pub fn follow_climatik_frequencies(credentials: Credentials, namespace: &str) -> Receiver<Known<KubeObject>> {
    let (group, version, plural) = (climatik::GROUP, climatik::VERSION, node_frequencies::PLURAL);
    let path = format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}");
    objects::start(credentials, query(path, format!("{plural}.{group} in namespace {namespace}")))
}

fn own(plural: &str) -> Query {
    query(format!("/apis/{GROUP}/{VERSION}/{plural}"), format!("{plural}.{GROUP} at cluster scope"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;
    use serde_json::json;

    #[test]
    fn agents_are_found_by_node_and_the_port_for_metrics() {
        let slice = json!({
            "metadata": {"name": "energy-agent-x", "namespace": "energy-agent", "resourceVersion": "7"},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.0.0.1"], "nodeName": "a.example", "conditions": {"ready": true}},
                {"addresses": ["fd00::1"], "nodeName": "b", "conditions": {"ready": false}},
                {"addresses": ["10.0.0.3"]},
                {"addresses": [], "nodeName": "d"},
                {"addresses": ["10.0.0.5"], "nodeName": "e"},
            ],
            "ports": [{"name": "other", "port": 1}, {"name": "metrics", "port": 9102, "protocol": "TCP"}],
        });
        let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
        let agent =
            |node: &str, address: &str, ready| AgentAddress { node: node.into(), address: address.into(), ready };
        assert_eq!(
            slice.agents().collect::<Vec<_>>(),
            [
                agent("a.example", "10.0.0.1:9102", true),
                agent("b", "[fd00::1]:9102", false),
                agent("e", "10.0.0.5:9102", true)
            ]
        );
        // A Service without pods has slices with nulls.
        let empty: EndpointSlice = serde_json::from_value(json!({"endpoints": null, "ports": null})).unwrap();
        assert_eq!(empty.agents().count(), 0);
    }
}
