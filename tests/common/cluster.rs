//! A small Kubernetes API server over TCP, plain HTTP: lists and watches pods, and refuses when told to. Enough for one
//! client that watches the pods of one node.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use std::{fs, thread};

use serde_json::{Value, json};
use tempfile::TempDir;

#[derive(Default)]
struct State {
    pods: BTreeMap<String, Value>,
    version: u64,
    /// Watch events by version.
    events: Vec<(u64, Value)>,
    /// Versions below it are too old for a watch.
    oldest: u64,
    /// Status code and message of every answer while set.
    refusal: Option<(u16, String)>,
    requests: Vec<String>,
    connections: Vec<TcpStream>,
}

pub struct Cluster {
    address: String,
    state: Arc<(Mutex<State>, Condvar)>,
    folder: TempDir,
}

impl Cluster {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let folder = TempDir::new().unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "test", "user": {"token": "secret"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        fs::write(folder.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                state.0.lock().unwrap().connections.push(stream.try_clone().unwrap());
                thread::spawn(move || serve(stream, &state));
            }
        });
        Self { address, state, folder }
    }

    /// Flags that make the agent ask this server for the pods of the node `node-a`.
    pub fn flags(&self) -> [String; 2] {
        [format!("--kubeconfig={}", self.path("kubeconfig").display()), "--node.name=node-a".to_owned()]
    }

    /// `http://` address of the server, which also answers as a kubelet.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn path(&self, file: &str) -> std::path::PathBuf {
        Path::join(self.folder.path(), file)
    }

    /// Makes or changes a pod.
    pub fn apply(&self, mut pod: Value) {
        self.change(|state| {
            state.version += 1;
            pod["metadata"]["resourceVersion"] = state.version.to_string().into();
            let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
            let kind = if state.pods.insert(uid, pod.clone()).is_some() { "MODIFIED" } else { "ADDED" };
            state.events.push((state.version, json!({"type": kind, "object": pod})));
        });
    }

    pub fn delete(&self, uid: &str) {
        self.change(|state| {
            let mut pod = state.pods.remove(uid).unwrap();
            state.version += 1;
            pod["metadata"]["resourceVersion"] = state.version.to_string().into();
            state.events.push((state.version, json!({"type": "DELETED", "object": pod})));
        });
    }

    /// Forgets a pod without an event, and every version so far, as a server does that compacts its history.
    pub fn delete_and_expire(&self, uid: &str) {
        self.change(|state| {
            state.pods.remove(uid).unwrap();
            state.version += 1;
            (state.oldest, state.events) = (state.version, Vec::new());
        });
    }

    /// Answers everything with this status, and cuts what is under way; `None` answers again.
    pub fn refuse(&self, refusal: Option<(u16, &str)>) {
        self.change(|state| state.refusal = refusal.map(|(code, message)| (code, message.to_owned())));
        self.cut();
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.change(|state| {
            for stream in state.connections.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }

    /// Targets of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.state.0.lock().unwrap().requests.clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.0.lock().unwrap());
        self.state.1.notify_all();
    }
}

/// Answers the requests of one connection until it ends.
fn serve(stream: TcpStream, state: &(Mutex<State>, Condvar)) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
        let target = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let refusal = {
            let mut state = state.0.lock().unwrap();
            state.requests.push(target.clone());
            state.refusal.clone()
        };
        let answered = match refusal {
            Some((code, message)) => answer(&stream, code, &status(code, &message)),
            None if target.contains("watch=true") => return watch(&stream, &target, state),
            None => {
                let state = state.0.lock().unwrap();
                let items: Vec<_> = state.pods.values().collect();
                let version = state.version.to_string();
                answer(
                    &stream,
                    200,
                    &json!({"kind": "PodList", "metadata": {"resourceVersion": version}, "items": items}),
                )
            }
        };
        if answered.is_err() {
            return;
        }
    }
}

fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message})
}

fn answer(mut stream: &TcpStream, code: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Events after the version in the target, until the connection is cut.
fn watch(mut stream: &TcpStream, target: &str, (state, changed): &(Mutex<State>, Condvar)) {
    let version = target.split(['?', '&']).find_map(|pair| pair.strip_prefix("resourceVersion="));
    let mut seen: u64 = version.unwrap().parse().unwrap();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    if stream.write_all(head.as_bytes()).is_err() {
        return;
    }
    let chunk = |mut stream: &TcpStream, text: &str| write!(stream, "{:x}\r\n{text}\r\n", text.len());
    let mut state = state.lock().unwrap();
    loop {
        if seen < state.oldest {
            let _ = chunk(
                stream,
                &format!("{}\n", json!({"type": "ERROR", "object": status(410, "too old resource version")})),
            );
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
        let from = seen;
        for (version, event) in state.events.iter().filter(|(version, _)| *version > from) {
            if chunk(stream, &format!("{event}\n")).is_err() {
                return;
            }
            seen = *version;
        }
        if state.refusal.is_some() {
            return;
        }
        state = changed.wait_timeout(state, Duration::from_secs(1)).unwrap().0;
    }
}
