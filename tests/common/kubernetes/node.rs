//! A node of the cluster: its name in the API, the proxy through which its agent asks, and its pods, which are objects in
//! the API and cgroups of this machine.

use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::cluster::{Cluster, TOKEN, kubeconfig};
use super::proxy::Proxy;
use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::{self, Driver, Load, ids};
use crate::common::page::Page;

pub const POD_JOULES: &str = "kepler_pod_cpu_joules_total";
pub const POD_SECONDS: &str = "energy_agent_pod_cpu_seconds_total";
pub const CONTAINER_JOULES: &str = "kepler_container_cpu_joules_total";
pub const CONTAINER_SECONDS: &str = "kepler_container_cpu_seconds_total";

pub struct Node {
    pub name: String,
    pub cluster: Arc<Cluster>,
    pub proxy: Proxy,
    /// Names the proxy.
    pub kubeconfig: PathBuf,
    folder: TempDir,
}

impl Node {
    pub fn new() -> Self {
        Self::in_cluster(Cluster::shared())
    }

    pub fn in_cluster(cluster: Arc<Cluster>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("node-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let (proxy, folder) = (Proxy::start(&cluster), TempDir::new().unwrap());
        let server = format!("http://{}", proxy.address());
        let kubeconfig = kubeconfig(folder.path(), &server, None, &json!({"token": TOKEN}));
        Self { name, cluster, proxy, kubeconfig, folder }
    }

    /// A folder of the node's own.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Starts an agent that asks the API through the proxy; it is ready, and knows the pods if it can.
    pub fn agent(&self, flags: &[&str]) -> Agent {
        let agent = self.agent_without_names(flags);
        wait_for_source(&agent, "1");
        agent
    }

    /// Starts the agent without waiting for the API.
    pub fn agent_without_names(&self, flags: &[&str]) -> Agent {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig.display());
        let name = format!("--node.name={}", self.name);
        let interval =
            if flags.iter().any(|flag| flag.starts_with("--interval")) { None } else { Some("--interval=250ms") };
        let interval: Vec<&str> = interval.into_iter().collect();
        Agent::start(&[&interval, &["--pods.source=api", &kubeconfig, &name][..], flags].concat())
    }

    /// A running pod with these containers, in the API and as cgroups. Its namespace is the node's name: tests share the
    /// cluster.
    pub fn pod(&self, name: &str, containers: &[&str]) -> Pod {
        let ids: Vec<String> = containers.iter().map(|_| ids().1).collect();
        let statuses: Vec<Value> =
            containers.iter().zip(&ids).map(|(name, id)| running(name, &format!("containerd://{id}"))).collect();
        let specs: Vec<Value> = containers.iter().map(|name| container(name)).collect();
        self.adopt(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": self.name, "name": name},
            "spec": {"nodeName": self.name, "containers": specs},
            "status": {"phase": "Running", "containerStatuses": statuses},
        }))
    }

    /// Creates the pod of a field case or any other in the API, on this node, and its cgroups: that of the sandbox and
    /// one for each container that has an id.
    pub fn adopt(&self, object: &Value) -> Pod {
        let object = self.create(object);
        let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
        Pod::with_cgroups(object, &uid, Driver::Systemd)
    }

    /// A mirror pod with this node as its owner, as kubelets make them since Kubernetes 1.17.
    pub fn mirror(&self, object: &Value) -> Value {
        let mut object = object.clone();
        let uid = "19687d12-0294-4c67-9b92-da99bb928665";
        object["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": uid, "controller": true}]);
        object
    }

    /// Creates the object on this node. A real server sets its own fields itself.
    pub fn create(&self, object: &Value) -> Value {
        let mut object = object.clone();
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.retain(|key, _| !["uid", "resourceVersion"].contains(&key.as_str()));
        object["spec"]["nodeName"] = json!(self.name);
        self.cluster.create(&object)
    }
}

/// What the API tells of a container.
pub fn container(name: &str) -> Value {
    json!({"name": name, "image": "registry.example/image:1"})
}

/// What the kubelet tells of a container that runs.
pub fn running(name: &str, id: &str) -> Value {
    json!({
        "name": name, "containerID": id, "restartCount": 0, "ready": true, "image": "", "imageID": "",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    })
}

/// The name and the id, if it has one, of each container that a pod's status tells of.
pub fn container_ids(object: &Value) -> Vec<(String, String)> {
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    let statuses = lists.iter().filter_map(|list| object["status"][list].as_array()).flatten();
    let id = |status: &Value| status["containerID"].as_str()?.split_once("://").map(|(_, id)| id.to_owned());
    statuses.filter_map(|status| Some((status["name"].as_str()?.to_owned(), id(status)?))).collect()
}

/// Waits until `energy_agent_meter_up` of the pods has this value, for another reason than that nobody has answered yet; its
/// reason.
pub fn wait_for_source(agent: &Agent, value: &str) -> String {
    wait_for(&format!("the pods' source to be {value}"), || {
        let page = agent.scrape();
        let up = page.select("energy_agent_meter_up", &[("meter", "pods")]);
        let up = up.first().filter(|up| up.value == value && up.label("reason") != "connecting")?;
        Some(up.label("reason").to_owned())
    })
}

pub struct Pod {
    /// As the API server knows it.
    pub object: Value,
    pub cgroup: cgroup::Pod,
}

impl Pod {
    /// `key` names the pod's cgroup: its uid, or the hash of a static pod. The first container is the sandbox.
    pub fn with_cgroups(object: Value, key: &str, driver: Driver) -> Self {
        let cgroup = cgroup::Pod::named(driver, key, &ids().1);
        for (_, id) in container_ids(&object) {
            cgroup.another(&id);
        }
        Self { object, cgroup }
    }

    pub fn uid(&self) -> &str {
        self.object["metadata"]["uid"].as_str().unwrap()
    }

    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }

    pub fn namespace(&self) -> &str {
        self.object["metadata"]["namespace"].as_str().unwrap()
    }

    /// The present id of a container.
    pub fn id(&self, container: &str) -> String {
        let ids = container_ids(&self.object);
        ids.into_iter().find(|(name, _)| name == container).unwrap_or_else(|| panic!("no id of {container}")).1
    }

    /// Starts `load` in a container.
    pub fn load(&self, container: &str, arguments: &[&str]) -> Load {
        Load::start(&self.cgroup.another(&self.id(container)), arguments)
    }

    /// Lets a container work for so long, which may be less on the CPU; the CPU time of the container since it began, as
    /// the kernel counts it.
    pub fn burn(&self, container: &str, milliseconds: u64) -> u64 {
        self.load(container, &["burn", &(milliseconds * 1000).to_string()]).wait();
        cgroup::cpu_ns(&self.cgroup.another(&self.id(container)))
    }

    pub fn labels(&self) -> [(&str, &str); 3] {
        [("pod_id", self.uid()), ("pod_name", self.name()), ("pod_namespace", self.namespace())]
    }

    /// Whether the pod's energy is on the page, and all of it under its name.
    pub fn is_named(&self, page: &Page) -> bool {
        let by_uid = page.select(POD_JOULES, &[("pod_id", self.uid())]).len();
        by_uid > 0 && page.select(POD_JOULES, &self.labels()).len() == by_uid
    }

    /// The first page that has the pod by its name.
    pub fn wait_for_name(&self, agent: &Agent) -> Page {
        wait_for(&format!("the name {}", self.name()), || Some(agent.scrape()).filter(|page| self.is_named(page)))
    }

    /// Its energy and CPU time on a page.
    pub fn used(&self, page: &Page) -> (u64, u64) {
        let labels = [("pod_id", self.uid())];
        (page.microjoules(POD_JOULES, &labels), page.nanoseconds(POD_SECONDS, &labels))
    }

    /// Energy and CPU time of one container on a page, by its name.
    pub fn container_used(&self, page: &Page, container: &str) -> (u64, u64) {
        let labels = [("pod_id", self.uid()), ("container_name", container)];
        (page.microjoules(CONTAINER_JOULES, &labels), page.nanoseconds(CONTAINER_SECONDS, &labels))
    }
}
