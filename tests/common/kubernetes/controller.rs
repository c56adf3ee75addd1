//! `energy-agent controller` as a process, and what it finds agents by.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use axum::http::{Method, Request};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::server::runtime;
use crate::common::agent::{PROGRAM, wait_for};

/// Ended when it goes out of scope.
pub struct Controller {
    child: Child,
    /// Of its pages.
    pub address: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Controller {
    /// One replica, of the agents in this namespace.
    pub fn start(kubeconfig: &Path, namespace: &str) -> Self {
        Self::spawn(kubeconfig, namespace, &["--controller.interval=500ms"])
    }

    /// With these flags; waits until it listens.
    pub fn spawn(kubeconfig: &Path, namespace: &str, flags: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["controller", "--web.listen-address=127.0.0.1:0"])
            .args([format!("--controller.namespace={namespace}"), format!("--kubeconfig={}", kubeconfig.display())])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, kept) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&log));
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| kept.lock().unwrap().push(line)));
        let mut controller = Self { child, address: String::new(), log };
        controller.address = wait_for("the controller's address in its log", || {
            let log = controller.log();
            let listens = log.iter().find_map(|line| line.split_once(" listening address="));
            if listens.is_none()
                && let Some(status) = controller.child.try_wait().unwrap()
            {
                panic!("the controller ended with {status}: {log:#?}");
            }
            Some(listens?.1.split_once(' ')?.0.to_owned())
        });
        controller
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub fn send(&self, signal: &str) {
        let sent = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -s {signal}");
    }

    /// Ends it without a word.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("log of the controller at {}: {:#?}", self.address, self.log());
        }
    }
}

/// Creates an object, or gives one that is there these keys.
pub fn put(cluster: &Cluster, collection: &str, object: &Value) {
    let ask = |method: Method, path: &str, kind: &str, body: &Value| {
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let answer = cluster.client.request::<Value>(request.body(body.to_string().into_bytes()).unwrap());
        runtime().block_on(answer)
    };
    match ask(Method::POST, collection, "application/json", object) {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let path = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap());
            ask(Method::PATCH, &path, "application/merge-patch+json", object)
                .unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        Err(error) => panic!("{collection}: {error}"),
    }
}

/// The kind, as a custom resource that takes all fields.
const ENDPOINT_SLICES: &str = include_str!("endpoint_slices.json");

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The kinds, as the program prints them.
pub fn install_kinds(cluster: &Cluster) {
    let printed = Command::new(PROGRAM).args(["policy", "crd"]).output().unwrap();
    let kinds: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(printed.stdout).unwrap()).unwrap();
    for kind in &kinds {
        put(cluster, DEFINITIONS, kind);
    }
    for kind in kinds {
        let plural = kind["spec"]["names"]["plural"].as_str().unwrap();
        wait_for(plural, || cluster.get(&format!("/apis/power.energy-agent.io/v1alpha1/{plural}")));
    }
}

/// The API server of the tests has no EndpointSlices of its own.
pub fn serve_endpoint_slices(cluster: &Cluster) {
    let kind = serde_json::from_str(ENDPOINT_SLICES).unwrap();
    put(cluster, DEFINITIONS, &kind);
    let path = "/apis/discovery.k8s.io/v1/endpointslices";
    wait_for(path, || cluster.get(path));
}

/// The one agent behind the Service, by its address.
pub fn publish_agent(cluster: &Cluster, namespace: &str, node: &str, address: &str) {
    let (host, port) = address.rsplit_once(':').unwrap();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "energy-agent-1", "labels": {"kubernetes.io/service-name": "energy-agent"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [host], "nodeName": node, "conditions": {"ready": true}}],
        "ports": [{"name": "metrics", "port": port.parse::<u16>().unwrap(), "protocol": "TCP"}],
    });
    put(cluster, &format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"), &slice);
}
