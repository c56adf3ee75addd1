//! The API server that the tests of one program share: a real one with etcd where `cargo xtask test` has built it, else
//! the stub, both over TLS with a token.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::{env, fs, io};

use axum::http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::real_api::RealApi;
use super::server::runtime;
use super::stub_api::StubApi;
use crate::common::agent::wait_for;
use crate::common::skip::{API_SERVER, skip};

/// The token that the server takes for an administrator's.
pub const TOKEN: &str = "administrator";

pub struct Cluster {
    /// `https://127.0.0.1:PORT`.
    pub url: String,
    /// File with the certificate of the server's authority.
    pub authority: PathBuf,
    pub client: Client,
    /// The servers, which end with it.
    servers: Servers,
    folder: TempDir,
}

enum Servers {
    Real(RealApi),
    Stub { _server: Box<StubApi> },
}

impl Cluster {
    /// The cluster that other tests of this program use at the moment, else a new one.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let cluster = Arc::new(Self::start());
            *shared = Arc::downgrade(&cluster);
            cluster
        })
    }

    /// One that no other test uses.
    pub fn own() -> Arc<Self> {
        Arc::new(Self::start())
    }

    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        match (env::var_os("TEST_KUBE_API"), env::var_os("TEST_ETCD")) {
            (Some(api), Some(etcd)) => (0..3)
                .find_map(|_| Self::real(Path::new(&api), Path::new(&etcd)))
                .expect("the API server did not start three times"),
            _ => {
                // A stub serves these tests, which is less than they can show.
                skip(&API_SERVER);
                let stub = StubApi::start(TOKEN);
                let (url, authority) = (format!("https://{}", stub.server.address), stub.authority.file());
                let client = client(&folder, &url, &authority);
                Self { url, authority, client, servers: Servers::Stub { _server: Box::new(stub) }, folder }
            }
        }
    }

    /// A server of its own, unless somebody else took its ports.
    fn real(api: &Path, etcd: &Path) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let servers = RealApi::new(folder.path(), api, etcd);
        let (url, authority) = (servers.url.clone(), servers.authority.clone());
        if !servers
            .start(|| authority.metadata().is_ok_and(|file| file.len() > 0) && answers(&folder, &url, &authority))
        {
            servers.print_logs();
            return None;
        }
        let client = client(&folder, &url, &authority);
        Some(Self { url, authority, client, servers: Servers::Real(servers), folder })
    }

    /// Keeps what is there now, as a backup of etcd does.
    pub fn back_up(&self) {
        let Servers::Real(servers) = &self.servers else { panic!("the stub has no backup") };
        servers.back_up();
        wait_for("the API server to have its store again", || {
            answers(&self.folder, &self.url, &self.authority).then_some(())
        });
    }

    /// The servers end, and come back with what the backup has.
    pub fn restore(&self) {
        let Servers::Real(servers) = &self.servers else { panic!("the stub has no backup") };
        servers.restore();
        assert!(
            servers.start(|| answers(&self.folder, &self.url, &self.authority)),
            "the API server does not come back"
        );
    }

    /// Creates a pod, with its status; the object as the server keeps it, which has chosen the uid.
    pub fn create(&self, pod: &Value) -> Value {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap();
        self.ask(Method::POST, &format!("/api/v1/namespaces/{namespace}/pods"), Some(pod))
    }

    /// Gives a pod metadata and spec anew.
    pub fn update(&self, pod: &Value) -> Value {
        self.ask(Method::PUT, &path(pod), Some(&without_version(pod)))
    }

    /// Gives a pod its status anew, as the kubelet does.
    pub fn update_status(&self, pod: &Value) -> Value {
        self.ask(Method::PUT, &format!("{}/status", path(pod)), Some(&without_version(pod)))
    }

    pub fn delete(&self, pod: &Value) {
        self.ask(Method::DELETE, &path(pod), None);
    }

    /// Has the server keep ResourceSlices in these versions of `resource.k8s.io`. The real one has the kind as a custom
    /// resource that takes all fields.
    pub fn serve_resource_slices(&self, versions: &[&str]) {
        let version = |(index, name): (usize, &&str)| {
            json!({
                "name": name, "served": true, "storage": index == 0,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"nodeName": {"type": "string"}},
                }}}},
                "selectableFields": [{"jsonPath": ".spec.nodeName"}],
            })
        };
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": "resourceslices.resource.k8s.io",
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": "resource.k8s.io", "scope": "Cluster",
                "names": {"kind": "ResourceSlice", "plural": "resourceslices"},
                "versions": versions.iter().enumerate().map(version).collect::<Vec<_>>(),
            },
        });
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        match runtime().block_on(self.client.request_text(request(Method::POST, path, Some(&definition)))) {
            Ok(_) => {}
            // Another test of this program.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{path}: {error}"),
        }
        for version in versions {
            let path = format!("/apis/resource.k8s.io/{version}/resourceslices");
            wait_for(&path, || runtime().block_on(self.client.request_text(request(Method::GET, &path, None))).ok());
        }
    }

    /// Creates a ResourceSlice; its name is to be the only one of the cluster.
    pub fn create_slice(&self, version: &str, name: &str, spec: &Value) {
        let slice = json!({
            "apiVersion": format!("resource.k8s.io/{version}"), "kind": "ResourceSlice",
            "metadata": {"name": name}, "spec": spec,
        });
        self.ask(Method::POST, &format!("/apis/resource.k8s.io/{version}/resourceslices"), Some(&slice));
    }

    /// Any object or list; `None` where there is none.
    pub fn get(&self, path: &str) -> Option<Value> {
        match runtime().block_on(self.client.request(request(Method::GET, path, None))) {
            Ok(found) => Some(found),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Writes an object or its status, whatever version it has now.
    pub fn put(&self, path: &str, object: &Value) -> Value {
        self.ask(Method::PUT, path, Some(&without_version(object)))
    }

    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let answer = self.client.request(request(method.clone(), path, body));
        runtime().block_on(answer).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }
}

/// Whatever version the object has now is replaced.
fn without_version(pod: &Value) -> Value {
    let mut pod = pod.clone();
    pod["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    pod
}

fn path(pod: &Value) -> String {
    let metadata = &pod["metadata"];
    let (namespace, name) = (metadata["namespace"].as_str().unwrap(), metadata["name"].as_str().unwrap());
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

fn request(method: Method, path: &str, body: Option<&Value>) -> Request<Vec<u8>> {
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    Request::builder().method(method).uri(path).header("content-type", "application/json").body(body).unwrap()
}

fn client(folder: &TempDir, url: &str, authority: &Path) -> Client {
    let file = kubeconfig(folder.path(), url, Some(authority), &json!({"token": TOKEN}));
    runtime().block_on(async {
        let config = Kubeconfig::read_from(file).unwrap();
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    })
}

/// Writes a kubeconfig file for a server; `user` is what the file says of the user.
pub fn kubeconfig(folder: &Path, server: &str, authority: Option<&Path>, user: &Value) -> PathBuf {
    let mut cluster = json!({"server": server});
    if let Some(authority) = authority {
        cluster["certificate-authority"] = json!(authority);
    }
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    let file = folder.join("kubeconfig");
    fs::write(&file, text.to_string()).unwrap();
    file
}

fn answers(folder: &TempDir, url: &str, authority: &Path) -> bool {
    let asked = client(folder, url, authority);
    runtime().block_on(asked.request_text(request(Method::GET, "/api/v1/pods?limit=1", None))).is_ok()
}
