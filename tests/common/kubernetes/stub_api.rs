//! A small API server for pods and ConfigMaps over TLS, for machines where a real one can't be built: list, watch, create, update and
//! delete, with resource versions, bookmarks, expiry (410), the node's field selector and token authentication.

use std::collections::BTreeMap;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Method, Request, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::server::{Authority, Server};
use super::{Query, status};

/// Changes that are kept for watches to start from.
const HISTORY: usize = 2000;
/// Time between two bookmarks; a real server takes a minute.
const BOOKMARK_EVERY: Duration = Duration::from_secs(5);

pub struct StubApi {
    pub server: Server,
    pub authority: Authority,
}

#[derive(Default)]
struct Store {
    version: u64,
    pods: BTreeMap<(String, String), Value>,
    /// Version, type and object of each change, oldest first.
    changes: Vec<(u64, &'static str, Value)>,
}

/// One kind of object.
struct Shared {
    list_kind: &'static str,
    store: Mutex<Store>,
    version: watch::Sender<u64>,
    token: String,
    /// Of a custom resource, once it is defined.
    versions: Mutex<Vec<String>>,
}

impl StubApi {
    pub fn start(token: &str) -> Self {
        let authority = Authority::new();
        let kinds = ["PodList", "ConfigMapList", "EventList", "ResourceSliceList"].map(|list_kind| {
            Arc::new(Shared {
                list_kind,
                store: Mutex::default(),
                version: watch::channel(0).0,
                token: format!("Bearer {token}"),
                versions: Mutex::default(),
            })
        });
        let server = Server::start(
            Some(&authority),
            Arc::new(move |request| {
                let is = |kind: &str| request.uri().path().split('/').any(|part| part == kind);
                let kind = match () {
                    () if is("configmaps") => 1,
                    () if is("events") => 2,
                    () if is("resourceslices") || is("customresourcedefinitions") => 3,
                    () => 0,
                };
                let shared = Arc::clone(&kinds[kind]);
                Box::pin(async move { answer(&shared, request).await })
            }),
        );
        Self { server, authority }
    }
}

async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    if parts.headers.get("authorization").is_none_or(|token| token.as_bytes() != shared.token.as_bytes()) {
        return status(401, "Unauthorized", "Unauthorized");
    }
    let query = Query::of(&parts.uri);
    let path: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
    match (&parts.method, path.as_slice()) {
        (&Method::GET, ["api", "v1", "pods"] | ["api", "v1", "namespaces", _, "configmaps"]) if query.is_watch() => {
            follow(shared, &query)
        }
        (&Method::GET, ["api", "v1", "pods"] | ["api", "v1", "namespaces", _, "configmaps"]) => list(shared, &query),
        (&Method::POST, ["apis", "apiextensions.k8s.io", "v1", "customresourcedefinitions"]) => {
            let kind: Value = serde_json::from_slice(&to_bytes(Body::new(body), 1 << 20).await.unwrap()).unwrap();
            let versions = kind["spec"]["versions"].as_array().unwrap().iter();
            *shared.versions.lock().unwrap() = versions.map(|it| it["name"].as_str().unwrap().to_owned()).collect();
            Response::builder().header("content-type", "application/json").body(Body::from(kind.to_string())).unwrap()
        }
        (method, ["apis", "resource.k8s.io", version, "resourceslices"])
            if shared.versions.lock().unwrap().iter().any(|served| served == version) =>
        {
            match *method {
                Method::GET if query.is_watch() => follow(shared, &query),
                Method::GET => list(shared, &query),
                _ => {
                    let bytes = to_bytes(Body::new(body), 1 << 20).await.unwrap();
                    let slice: Value = serde_json::from_slice(&bytes).unwrap();
                    let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
                    shared.change("ADDED", (String::new(), name), slice)
                }
            }
        }
        (&Method::GET, ["apis", "events.k8s.io", "v1", "events"]) => list(shared, &query),
        (
            &Method::POST,
            ["api", "v1", "namespaces", namespace, _] | ["apis", "events.k8s.io", "v1", "namespaces", namespace, _],
        ) => {
            let mut pod: Value = serde_json::from_slice(&to_bytes(Body::new(body), 1 << 20).await.unwrap()).unwrap();
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            let key = ((*namespace).to_owned(), name);
            if shared.store.lock().unwrap().pods.contains_key(&key) {
                return status(409, "AlreadyExists", "pod already exists");
            }
            pod["metadata"]["namespace"] = json!(namespace);
            shared.change("ADDED", key, pod)
        }
        (&Method::PUT, ["api", "v1", "namespaces", namespace, _, name, rest @ ..]) => {
            let new: Value = serde_json::from_slice(&to_bytes(Body::new(body), 1 << 20).await.unwrap()).unwrap();
            let key = ((*namespace).to_owned(), (*name).to_owned());
            let Some(mut pod) = shared.store.lock().unwrap().pods.get(&key).cloned() else {
                return status(404, "NotFound", "pod not found");
            };
            if rest.is_empty() {
                pod["metadata"] = new["metadata"].clone();
                pod["spec"] = new["spec"].clone();
                pod["data"] = new["data"].clone();
            } else {
                pod["status"] = new["status"].clone();
            }
            shared.change("MODIFIED", key, pod)
        }
        (&Method::DELETE, ["api", "v1", "namespaces", namespace, _, name]) => {
            let key = ((*namespace).to_owned(), (*name).to_owned());
            let Some(pod) = shared.store.lock().unwrap().pods.get(&key).cloned() else {
                return status(404, "NotFound", "pod not found");
            };
            shared.change("DELETED", key, pod)
        }
        _ => status(404, "NotFound", "the server could not find the requested resource"),
    }
}

impl Shared {
    fn change(&self, kind: &'static str, key: (String, String), mut pod: Value) -> Response<Body> {
        let mut store = self.store.lock().unwrap();
        store.version += 1;
        let version = store.version;
        pod["metadata"]["resourceVersion"] = json!(version.to_string());
        match kind {
            "DELETED" => drop(store.pods.remove(&key)),
            _ => {
                if kind == "ADDED" {
                    pod["metadata"]["uid"] = json!(uid());
                    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
                }
                store.pods.insert(key, pod.clone());
            }
        }
        store.changes.push((version, kind, pod.clone()));
        let surplus = store.changes.len().saturating_sub(HISTORY);
        store.changes.drain(..surplus);
        drop(store);
        self.version.send_replace(version);
        Response::builder().header("content-type", "application/json").body(Body::from(pod.to_string())).unwrap()
    }
}

fn list(shared: &Shared, query: &Query) -> Response<Body> {
    let store = shared.store.lock().unwrap();
    let items: Vec<&Value> = store.pods.values().filter(|pod| query.selects(pod)).collect();
    let list = json!({
        "kind": shared.list_kind, "apiVersion": "v1",
        "metadata": {"resourceVersion": store.version.to_string()},
        "items": items,
    });
    Response::builder().header("content-type", "application/json").body(Body::from(list.to_string())).unwrap()
}

/// A watch: changes after a version, then each as it comes.
fn follow(shared: &Arc<Shared>, query: &Query) -> Response<Body> {
    let (lines, receiver) = tokio::sync::mpsc::channel::<Bytes>(64);
    let (shared, query) = (Arc::clone(shared), query.clone());
    tokio::spawn(async move {
        let end = Instant::now() + Duration::from_secs(query.number("timeoutSeconds").unwrap_or(1800));
        let mut versions = shared.version.subscribe();
        let (mut version, mut batch) = begin(&shared.store.lock().unwrap(), &query);
        let mut bookmark = Instant::now() + BOOKMARK_EVERY;
        loop {
            for line in batch.drain(..) {
                if lines.send(Bytes::from(format!("{line}\n"))).await.is_err() {
                    return;
                }
            }
            if version == u64::MAX || Instant::now() >= end {
                return;
            }
            tokio::select! {
                _ = timeout(bookmark - Instant::now(), versions.changed()) => {}
                () = lines.closed() => return,
            }
            {
                let store = shared.store.lock().unwrap();
                let news = store.changes.iter().filter(|(at, _, pod)| *at > version && query.selects(pod));
                batch.extend(news.map(|(_, kind, pod)| event(kind, pod)));
                version = store.version;
            }
            if Instant::now() >= bookmark {
                bookmark = Instant::now() + BOOKMARK_EVERY;
                if query.get("allowWatchBookmarks") == "true" {
                    batch.push(super::bookmark(version));
                }
            }
        }
    });
    Response::builder().header("content-type", "application/json").body(super::stream(receiver)).unwrap()
}

/// The version a watch starts from and what it tells first. The version is [`u64::MAX`] if it ends then.
fn begin(store: &Store, query: &Query) -> (u64, Vec<Value>) {
    let oldest = store.changes.first().map_or(0, |(version, ..)| version - 1);
    match query.number("resourceVersion") {
        Some(version) if version > 0 && query.get("sendInitialEvents") != "true" => {
            if version < oldest {
                let expired = super::status_object(410, "Expired", &format!("too old resource version: {version}"));
                return (u64::MAX, vec![json!({"type": "ERROR", "object": expired})]);
            }
            let news = store.changes.iter().filter(|(at, _, pod)| *at > version && query.selects(pod));
            (store.version, news.map(|(_, kind, pod)| event(kind, pod)).collect())
        }
        _ => {
            let mut all: Vec<Value> =
                store.pods.values().filter(|pod| query.selects(pod)).map(|pod| event("ADDED", pod)).collect();
            if query.get("sendInitialEvents") == "true" {
                let mut end = super::bookmark(store.version);
                end["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
                all.push(end);
            }
            (store.version, all)
        }
    }
}

fn event(kind: &str, pod: &Value) -> Value {
    json!({"type": kind, "object": pod})
}

/// A uid that no pod of another server has, in this process or another: the cgroups of a machine are for all to see.
fn uid() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{:08x}-57ab-4000-8000-{:012x}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
