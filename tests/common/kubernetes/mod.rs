//! A Kubernetes cluster for tests: an API server, a proxy with faults in front of it, a kubelet, nodes and pods.
#![allow(dead_code, reason = "each test crate uses a part of this")]
#![allow(clippy::unwrap_used, reason = "tests panic")]

pub mod cluster;
pub mod controller;
pub mod kubelet;
pub mod node;
pub mod proxy;
pub mod real_api;
pub mod rights;
pub mod server;
pub mod stub_api;

use std::convert::Infallible;
use std::fs;
use std::path::Path;

use axum::body::{Body, Bytes};
use axum::http::{Response, Uri};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

/// A field case, by its number such as `FC-026`.
pub fn case(number: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases");
    let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(number));
    serde_json::from_str(&fs::read_to_string(file.unwrap()).unwrap()).unwrap()
}

/// The parameters of a request.
#[derive(Clone, Debug)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn of(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(name, value)| (decoded(name), decoded(value))).collect())
    }

    /// Empty if it is not there.
    pub fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name).parse().ok()
    }

    pub fn is_watch(&self) -> bool {
        matches!(self.get("watch"), "true" | "1")
    }

    /// Whether the selectors let an object through; one of fields may only name the node of a pod, or the object, one of
    /// labels one label.
    pub fn selects(&self, pod: &Value) -> bool {
        if let Some((label, value)) = self.get("labelSelector").split_once('=')
            && pod["metadata"]["labels"][label] != value
        {
            return false;
        }
        match self.get("fieldSelector").split_once('=') {
            None => true,
            Some(("spec.nodeName", node)) => pod["spec"]["nodeName"] == node.trim_start_matches('='),
            Some(("metadata.name", name)) => pod["metadata"]["name"] == name.trim_start_matches('='),
            Some((field, _)) => panic!("a field selector for {field}"),
        }
    }
}

/// Percent decoding.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().replace('+', " ").into_bytes();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(part[2..].replace('+', " ").bytes());
    }
    String::from_utf8(bytes).unwrap()
}

/// What a Kubernetes server says when it refuses.
pub fn status_object(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn status(code: u16, reason: &str, message: &str) -> Response<Body> {
    let body = status_object(code, reason, message).to_string();
    Response::builder().status(code).header("content-type", "application/json").body(Body::from(body)).unwrap()
}

/// A watch event that only tells how far the server has come.
pub fn bookmark(version: u64) -> Value {
    let metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    json!({"type": "BOOKMARK", "object": {
        "kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": null}, "status": {},
    }})
}

/// A body that ends when the sender does.
fn stream(receiver: Receiver<Bytes>) -> Body {
    Body::from_stream(futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|bytes| (Ok::<_, Infallible>(bytes), receiver))
    }))
}
