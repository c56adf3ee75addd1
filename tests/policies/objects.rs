//! Kinds and objects of `power.energy-agent.io`: what the API server takes and what it says of the rest, and agents that
//! follow objects.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod budgets;
mod climatik;
mod follow;
mod kinds;
mod kubectl;
mod own;
mod walk;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use axum::http::{Method, Request};
use energy_model::resources::api_version;
use serde_json::{Value, json};

use crate::common::agent::{PROGRAM, wait_for};
use crate::common::kubernetes::cluster::Cluster;
use crate::common::kubernetes::server::runtime;
use crate::common::skip;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What `energy-agent policy crd` prints.
fn printed() -> String {
    let output = Command::new(PROGRAM).args(["policy", "crd"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Whether there is a real API server. If there is none, a line says so.
fn has_api_server() -> bool {
    let has = env::var_os("TEST_KUBE_API").is_some();
    if !has {
        skip::skip(&skip::API_SERVER);
    }
    has
}

/// A request to the API server, with a body unless it is null: the answer, or its message and code.
fn ask(cluster: &Cluster, method: Method, path: &str, body: &Value) -> Result<Value, (String, u16)> {
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", kind).body(bytes).unwrap();
    match runtime().block_on(cluster.client.request(request)) {
        Ok(answer) => Ok(answer),
        Err(kube::Error::Api(status)) => Err((status.message, status.code)),
        Err(error) => panic!("{path}: {error}"),
    }
}

/// Installs the kinds, unless another test of this program has.
fn install(cluster: &Cluster) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definitions: Vec<Value> = serde_saphyr::from_multiple(&printed()).unwrap();
    for definition in &definitions {
        match ask(cluster, Method::POST, path, definition) {
            Ok(_) | Err((_, 409)) => {}
            Err((message, code)) => panic!("{}: {code} {message}", definition["metadata"]["name"]),
        }
    }
    for definition in &definitions {
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
        let path = format!("/apis/{}/{plural}", api_version());
        wait_for(plural, || ask(cluster, Method::GET, &path, &Value::Null).ok());
    }
}

/// Where objects of this kind are.
fn collection(object: &Value) -> String {
    let plurals = BTreeMap::from([
        ("PowerCappingPolicy", "powercappingpolicies"),
        ("ClusterPowerBudget", "clusterpowerbudgets"),
        ("PowerLevel", "powerlevels"),
        ("NodeFrequencies", "nodefrequencies"),
    ]);
    let plural = plurals[object["kind"].as_str().unwrap()];
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/apis/{}/namespaces/{namespace}/{plural}", api_version()),
        None => format!("/apis/{}/{plural}", api_version()),
    }
}

/// An object of ours by the YAML of its spec.
fn object(kind: &str, namespace: Option<&str>, name: &str, spec: &str) -> Value {
    let spec: Value = serde_saphyr::from_str(spec).unwrap();
    let mut object = json!({"apiVersion": api_version(), "kind": kind, "metadata": {"name": name}, "spec": spec});
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

/// Creates it, or gives it its spec anew.
fn apply(cluster: &Cluster, object: &Value) -> Value {
    let path = collection(object);
    match ask(cluster, Method::POST, &path, object) {
        Ok(created) => created,
        Err((_, 409)) => {
            let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
            let mut now = ask(cluster, Method::GET, &path, &Value::Null).unwrap();
            now["spec"] = object["spec"].clone();
            ask(cluster, Method::PUT, &path, &now).unwrap_or_else(|error| panic!("{path}: {error:?}"))
        }
        Err(error) => panic!("{path}: {error:?}"),
    }
}

fn delete(cluster: &Cluster, object: &Value) {
    let path = format!("{}/{}", collection(object), object["metadata"]["name"].as_str().unwrap());
    ask(cluster, Method::DELETE, &path, &Value::Null).unwrap();
}

/// The samples in the documentation.
fn samples() -> Vec<Value> {
    serde_saphyr::from_multiple(&fs::read_to_string(Path::new(ROOT).join("docs/cluster-example.yaml")).unwrap())
        .unwrap()
}
