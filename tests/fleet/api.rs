//! Objects of the API server, as kubectl would apply them.

use std::sync::Arc;

use axum::http::{Method, Request};
use serde_json::{Value, json};

use crate::common::agent::wait_for;
use crate::common::kubernetes::cluster::Cluster;
use crate::common::kubernetes::server::runtime;

pub const GROUP: &str = "/apis/power.energy-agent.io/v1alpha1";
pub const NAMESPACE: &str = "fleet";

#[derive(Clone)]
pub struct Api(pub Arc<Cluster>);

impl Api {
    /// What the server says; an error is its code and message.
    pub fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, (u16, String)> {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request =
            Request::builder().method(method.clone()).uri(path).header("content-type", kind).body(body).unwrap();
        runtime().block_on(self.0.client.request(request)).map_err(|error| match error {
            kube::Error::Api(status) => (status.code, status.message.clone()),
            other => panic!("{method} {path}: {other}"),
        })
    }

    pub fn create(&self, collection: &str, object: &Value) -> Value {
        self.ask(Method::POST, collection, Some(object)).unwrap_or_else(|error| panic!("{collection}: {error:?}"))
    }

    /// The nodes as objects, and their agents' addresses, which are behind one Service.
    pub fn create_nodes(&self, nodes: &[(String, Value)], addresses: &[(String, String)], port: u16) {
        for (name, labels) in nodes {
            self.create("/api/v1/nodes", &json!({"metadata": {"name": name, "labels": labels}}));
        }
        self.create_addresses("energy-agent-1", addresses, port);
    }

    /// One slice of the agents' addresses.
    pub fn create_addresses(&self, slice: &str, addresses: &[(String, String)], port: u16) {
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|(node, address)| json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}}))
            .collect();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": slice, "labels": {"kubernetes.io/service-name": "energy-agent"}},
            "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "metrics", "port": port, "protocol": "TCP"}],
        });
        self.create(&format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"), &slice);
    }

    /// The agent of a node has another port.
    pub fn replace_addresses(&self, slice: &str, addresses: &[(String, String)], port: u16) {
        let path = format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{slice}");
        self.ask(Method::DELETE, &path, None).unwrap();
        self.create_addresses(slice, addresses, port);
    }

    /// Creates or changes an object of our group at this path below it, `namespaces/NAMESPACE/PLURAL/NAME` or `PLURAL/NAME`.
    pub fn apply(&self, path: &str, spec: &Value) {
        let (collection, name) = path.rsplit_once('/').unwrap();
        let whole = json!({
            "apiVersion": "power.energy-agent.io/v1alpha1", "kind": kind(collection), "metadata": {"name": name}, "spec": spec,
        });
        match self.ask(Method::POST, &format!("{GROUP}/{collection}"), Some(&whole)) {
            Ok(_) => {}
            Err((409, _)) => {
                drop(self.ask(Method::PATCH, &format!("{GROUP}/{path}"), Some(&json!({"spec": spec}))).unwrap())
            }
            Err(error) => panic!("{path}: {error:?}"),
        }
    }

    pub fn delete(&self, path: &str) {
        self.ask(Method::DELETE, &format!("{GROUP}/{path}"), None).unwrap();
    }

    /// `None`: there is none.
    pub fn find(&self, path: &str) -> Option<Value> {
        self.ask(Method::GET, &format!("{GROUP}/{path}"), None).ok()
    }

    /// Waits for a status of the object at this path that `check` is content with.
    pub fn wait_for_status_of(&self, what: &str, path: &str, check: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(&format!("{path}: {what}"), || {
                last = self.find(path)?["status"].take();
                check(&last).then(|| last.clone())
            })
        }));
        found.unwrap_or_else(|_| panic!("{path}: {what}: {last:#}"))
    }

    pub fn create_budget(&self, name: &str, spec: &Value) {
        self.create(
            &format!("{GROUP}/clusterpowerbudgets"),
            &json!({
                "apiVersion": "power.energy-agent.io/v1alpha1", "kind": "ClusterPowerBudget",
                "metadata": {"name": name}, "spec": spec,
            }),
        );
    }

    /// How many Events about an object of the cluster have this reason.
    pub fn events(&self, name: &str, reason: &str) -> usize {
        let events = self.ask(Method::GET, "/apis/events.k8s.io/v1/namespaces/default/events", None).unwrap();
        let events = events["items"].as_array().unwrap().iter();
        events.filter(|event| event["regarding"]["name"] == name && event["reason"] == reason).count()
    }

    pub fn patch_budget(&self, name: &str, spec: &Value) {
        let path = format!("{GROUP}/clusterpowerbudgets/{name}");
        self.ask(Method::PATCH, &path, Some(&json!({"spec": spec}))).unwrap();
    }

    pub fn delete_budget(&self, name: &str) {
        self.ask(Method::DELETE, &format!("{GROUP}/clusterpowerbudgets/{name}"), None).unwrap();
    }

    pub fn status(&self, budget: &str) -> Value {
        let path = format!("{GROUP}/clusterpowerbudgets/{budget}");
        self.ask(Method::GET, &path, None).unwrap()["status"].take()
    }

    /// Waits for a status that `check` is content with.
    pub fn wait_for_status(&self, what: &str, budget: &str, check: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("{budget}: {what}"), || Some(self.status(budget)).filter(|status| check(status)))
    }

    /// `None`: the object does not exist.
    pub fn level(&self, budget: &str) -> Option<Value> {
        self.ask(Method::GET, &self.level_path(budget), None).ok()
    }

    pub fn level_path(&self, budget: &str) -> String {
        format!("{}/budget.{budget}", self.levels_path())
    }

    pub fn levels_path(&self) -> String {
        format!("{GROUP}/namespaces/{NAMESPACE}/powerlevels")
    }

    pub fn all_levels_path(&self) -> String {
        format!("{GROUP}/powerlevels")
    }

    pub fn lease(&self) -> Option<Value> {
        self.ask(Method::GET, &lease_path(), None).ok()
    }

    pub fn holder(&self) -> String {
        self.lease()
            .map_or_else(String::new, |lease| lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
    }

    pub fn delete_lease(&self) {
        self.ask(Method::DELETE, &lease_path(), None).unwrap();
    }
}

fn kind(collection: &str) -> &'static str {
    match collection.rsplit('/').next().unwrap() {
        "powercappingpolicies" => "PowerCappingPolicy",
        "clusterpowerbudgets" => "ClusterPowerBudget",
        "nodefrequencies" => "NodeFrequencies",
        other => panic!("{other}"),
    }
}

fn lease_path() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/energy-agent-controller")
}

/// Whether a condition of the status has this status and reason.
pub fn says(status: &Value, kind: &str, is: &str, reason: &str) -> bool {
    let conditions = status["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == kind && condition["status"] == is && condition["reason"] == reason)
}
