//! What the agent asks of a kubelet: the list of the node's pods, over plain HTTP.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::bench::world::Pod;

/// Answers until the benchmark ends.
pub struct Kubelet {
    pub url: String,
    pods: Arc<Mutex<Vec<Value>>>,
}

impl Kubelet {
    /// # Errors
    /// When no port is free.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("a port for /pods")?;
        let url = format!("http://{}", listener.local_addr()?);
        let pods = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&pods);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away in the middle asks again.
                let _ = answer(stream, &told);
            }
        });
        Ok(Self { url, pods })
    }

    /// From now on the pod is one of the node's, in the namespace `bench`.
    pub fn tell(&self, name: &str, pod: &Pod) {
        let statuses = pod.containers.iter().enumerate().map(|(number, container)| {
            json!({
                "name": format!("c{number}"), "containerID": format!("containerd://{}", container.id), "image": "load",
                "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}},
            })
        });
        let containers = (0..pod.containers.len()).map(|number| json!({"name": format!("c{number}"), "image": "load"}));
        let pod = json!({
            "metadata": {"name": name, "namespace": "bench", "uid": pod.uid},
            "spec": {"nodeName": "bench", "containers": containers.collect::<Vec<_>>()},
            "status": {"phase": "Running", "containerStatuses": statuses.collect::<Vec<_>>()},
        });
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).push(pod);
    }
}

fn answer(mut stream: TcpStream, pods: &Mutex<Vec<Value>>) -> Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let pods = pods.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let body = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}).to_string();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    Ok(())
}
