//! A node with GPUs, pods on them and a file of policies.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use axum::http::Request;
use fake_nvml::plant::{Bounds, Plant};
use fake_nvml::state::Clocks;
use serde_json::{Value, json};

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::cgroup::{Load, ids};
use crate::common::kubernetes::cluster::Cluster;
use crate::common::kubernetes::node::{Node, Pod, container, running};
use crate::common::kubernetes::server::runtime;
use crate::common::nvml::{self, FakeNvml, Gpu, Process};
use crate::common::page::Page;

pub const LOCK: &str = "nvmlDeviceSetGpuLockedClocks";
pub const RESET: &str = "nvmlDeviceResetGpuLockedClocks";
pub const LIMIT: &str = "nvmlDeviceSetPowerManagementLimit";

pub struct World {
    pub node: Node,
    pub nvml: FakeNvml,
    /// Of the agent; the plant's time is real.
    pub interval: &'static str,
    file: PathBuf,
    /// Given back last.
    _turn: Turn,
}

/// A place among the worlds that are measured at the same time: more agents than CPUs, each with a plant, and readings of GPUs
/// come late.
struct Turn;

const TURNS: usize = 2;
static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN: Condvar = Condvar::new();

impl Turn {
    fn wait() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        *GIVEN.wait_while(taken, |taken| *taken >= TURNS).unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        GIVEN.notify_one();
    }
}

/// A pod with a process for GPUs to name.
pub struct GpuPod {
    pub pod: Pod,
    load: Load,
}

impl GpuPod {
    pub fn pid(&self) -> u32 {
        self.load.0.id()
    }

    /// As a process of a GPU that would use so much of it, 0 to 1.
    pub fn process(&self, load: f64) -> Process {
        Process { load, ..nvml::process(self.pid()) }
    }

    /// Its end: in the API, and on the node.
    pub fn delete(self, world: &World) {
        world.node.cluster.delete(&self.pod.object);
        drop(self.load);
        self.pod.cgroup.remove();
    }
}

/// A write to a GPU, as the driver received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Of the monotonic clock.
    pub at_us: u64,
    pub call: String,
    pub arguments: Vec<u32>,
}

impl World {
    pub fn new() -> Self {
        Self::with(Node::new)
    }

    pub fn in_cluster(cluster: Arc<Cluster>) -> Self {
        Self::with(|| Node::in_cluster(cluster))
    }

    fn with(node: impl FnOnce() -> Node) -> Self {
        let turn = Turn::wait();
        let node = node();
        let file = node.folder().join("policies.yaml");
        Self { node, nvml: FakeNvml::new(), interval: "500ms", file, _turn: turn }
    }

    /// A pod that exists in the API and as cgroups, with the label `app` that is its name.
    pub fn pod(&self, name: &str) -> GpuPod {
        self.pod_with(name, &[("app", name)])
    }

    pub fn pod_with(&self, name: &str, labels: &[(&str, &str)]) -> GpuPod {
        self.pod_of(&self.node.name, name, labels)
    }

    /// A pod of another namespace, which the nodes of all tests share.
    pub fn pod_of(&self, namespace: &str, name: &str, labels: &[(&str, &str)]) -> GpuPod {
        let labels: serde_json::Map<_, _> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let pod = self.node.adopt(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "labels": labels},
            "spec": {"nodeName": self.node.name, "containers": [container("main")]},
            "status": {"phase": "Running", "containerStatuses": [running("main", &format!("containerd://{}", ids().1))]},
        }));
        let load = pod.load("main", &["sleep", "0"]);
        GpuPod { pod, load }
    }

    /// Adds a GPU whose power follows the loads of these pods and what is set.
    pub fn gpu(&mut self, uuid: &str, exponent: f64, loads: &[(&GpuPod, f64)]) {
        let processes = loads.iter().map(|&(pod, load)| pod.process(load)).collect();
        self.add(Gpu { processes: Some(processes), ..nvml::gpu(uuid) }, Plant { exponent, ..Plant::default() });
    }

    pub fn add(&mut self, gpu: Gpu, plant: Plant) {
        self.nvml.state.gpus.push(Gpu { plant: Some(plant), ..gpu });
        self.nvml.play();
    }

    /// Pods of these names, each with a GPU `GPU-NAME` for itself that draws 700 W until something is lowered.
    pub fn busy<const N: usize>(&mut self, names: [&str; N]) -> [GpuPod; N] {
        names.map(|name| {
            let pod = self.pod(name);
            self.gpu(&format!("GPU-{name}"), 2.0, &[(&pod, 1.0)]);
            pod
        })
    }

    /// Changes the GPU of that UUID.
    pub fn change(&mut self, uuid: &str, change: impl FnOnce(&mut Gpu)) {
        let at = self.index(uuid);
        self.nvml.set(|state| change(&mut state.gpus[at]));
    }

    pub fn index(&self, uuid: &str) -> usize {
        self.nvml.state.gpus.iter().position(|gpu| gpu.uuid == uuid).unwrap()
    }

    /// Replaces the file as an editor does: in one step.
    pub fn policies(&self, text: &str) {
        self.text(&document(text));
    }

    /// The same with a whole document.
    pub fn text(&self, document: &str) {
        let next = self.file.with_extension("next");
        fs::write(&next, document).unwrap();
        fs::rename(next, &self.file).unwrap();
    }

    pub fn no_policies(&self) {
        fs::remove_file(&self.file).unwrap();
    }

    /// An agent that caps by the file; the next one takes over what it leaves.
    pub fn agent(&self, more: &[&str]) -> Agent {
        let agent =
            self.spawn(&[&["--capping=on", &format!("--capping.policy={}", self.file.display())], more].concat());
        agent.wait_until_ready();
        agent
    }

    /// An agent that listens, and has not necessarily ticked.
    pub fn spawn(&self, more: &[&str]) -> Agent {
        let interval = format!("--interval={}", self.interval);
        let mut flags = vec!["--meter.cpu=none".to_owned(), self.nvml.flag(), "--pods.source=api".to_owned()];
        flags.push(format!("--kubeconfig={}", self.node.kubeconfig.display()));
        flags.push(format!("--node.name={}", self.node.name));
        flags.push(format!("--state.directory={}", self.node.folder().join("state").display()));
        flags.push(format!("--run.directory={}", self.node.folder().join("run").display()));
        if more.iter().all(|flag| !flag.starts_with("--interval")) {
            flags.push(interval);
        }
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        Agent::spawn(&[PROGRAM], &flags.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// What the agent has noted to be given back; empty where there is no journal.
    pub fn journal(&self) -> String {
        fs::read_to_string(self.node.folder().join("state/capping-journal.jsonl")).unwrap_or_default()
    }

    /// Power of the plant when it was last read; watts.
    pub fn watts(&self, uuid: &str) -> f64 {
        self.nvml.held().gpus[uuid].running.as_ref().map_or(f64::NAN, |running| running.power_w)
    }

    /// The lock that the driver holds.
    pub fn lock(&self, uuid: &str) -> Option<(u32, u32)> {
        self.nvml.held().gpus.get(uuid).and_then(|held| held.locked_mhz)
    }

    /// The power limit that the driver holds; `None`: never set.
    pub fn limit_mw(&self, uuid: &str) -> Option<u32> {
        self.nvml.held().gpus.get(uuid).and_then(|held| held.power_limit_mw)
    }

    /// It is as it was: clocks free, and the power limit of the board.
    pub fn is_open(&self, uuid: &str) -> bool {
        self.lock(uuid).is_none() && self.limit_mw(uuid).is_none_or(|limit_mw| limit_mw == 700_000)
    }

    /// What the driver accepted for a GPU, oldest first. Panics where it received something that it does not take.
    pub fn writes(&self, uuid: &str) -> Vec<Write> {
        let of_gpu = self.nvml.writes().into_iter().filter(|line| line["uuid"] == uuid);
        let write = of_gpu.map(|line| {
            assert_eq!(line["answer"], "SUCCESS", "{line}");
            let arguments = line["arguments"].as_array().unwrap().iter();
            Write {
                at_us: line["at_us"].as_u64().unwrap(),
                call: line["call"].as_str().unwrap().to_owned(),
                arguments: arguments.map(|number| u32::try_from(number.as_u64().unwrap()).unwrap()).collect(),
            }
        });
        write.collect()
    }

    pub fn wait_for_lock(&self, uuid: &str) -> (u32, u32) {
        wait_for(&format!("a lock of the clocks of {uuid}"), || self.lock(uuid))
    }

    pub fn wait_for_limit(&self, uuid: &str, limit_mw: u32) {
        self.wait(&format!("a limit of {limit_mw} mW on {uuid}"), || self.limit_mw(uuid) == Some(limit_mw));
    }

    pub fn wait_until_open(&self, uuid: &str) {
        self.wait(&format!("{uuid} to be as it was"), || self.is_open(uuid));
    }

    /// Events that this node's agent has sent to the cluster, by reason.
    pub fn events(&self, reason: &str) -> Vec<Value> {
        let request = Request::get("/apis/events.k8s.io/v1/events").body(Vec::new()).unwrap();
        let list: Value = runtime().block_on(self.node.cluster.client.request(request)).unwrap();
        let mut all = list["items"].as_array().unwrap().clone();
        all.retain(|event| event["reportingInstance"] == *self.node.name && event["reason"] == reason);
        all
    }

    pub fn wait_for_event(&self, reason: &str) -> Value {
        wait_for(reason, || self.events(reason).first().cloned())
    }

    /// The one event of this reason whose note contains `text`; waits for it, and panics where there are more.
    pub fn one_event(&self, reason: &str, text: &str) -> Value {
        let about = |event: &Value| event["note"].as_str().unwrap().contains(text);
        let found = wait_for(&format!("an event {reason} about {text}"), || {
            Some(self.events(reason).into_iter().filter(about).collect::<Vec<_>>()).filter(|found| !found.is_empty())
        });
        assert_eq!(found.len(), 1, "{found:#?}");
        found[0].clone()
    }

    pub fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        wait_for(what, || Some(()).filter(|()| is_so()));
    }
}

pub fn document(policies: &str) -> String {
    if policies.is_empty() {
        "version: 1\npolicies: []\n".to_owned()
    } else {
        format!("version: 1\npolicies:\n{policies}")
    }
}

/// A policy for the pods with the label `app=NAME`; `more` are further keys.
pub fn policy(name: &str, mode: &str, budget: &str, more: &str) -> String {
    let selector = format!("{{matchLabels: {{app: {name}}}}}");
    format!("- {{name: {name}, mode: {mode}, selector: {selector}, budget: {{{budget}, components: [gpu]}}{more}}}\n")
}

/// 400 W by all means.
pub fn enforce(name: &str) -> String {
    policy(name, "Enforce", "watts: 400", "")
}

/// By the power limit alone, which is then exactly the budget.
pub fn limit(name: &str, watts: f64) -> String {
    policy(name, "Enforce", &format!("watts: {watts}"), ", actuators: {gpu: {use: [PowerLimit]}}")
}

/// Panics unless the one sample with these labels has this value.
pub fn assert_shows(page: &Page, name: &str, labels: &[(&str, &str)], expected: f64) {
    let value = page.number_of(name, labels);
    assert!((value - expected).abs() <= 1e-9 * expected.abs(), "{name} {labels:?} is {value}, not {expected}");
}

/// The state of a policy's only subject; empty where there is none.
pub fn state(page: &Page, policy: &str) -> String {
    let states = page.select("energy_agent_policy_state", &[("policy", policy)]);
    assert!(states.len() < 2, "{states:?}");
    states.first().map_or_else(String::new, |sample| sample.label("state").to_owned())
}

/// Why a GPU's knob cannot be used, or `ok`; empty where there is no such row.
pub fn reason(page: &Page, actuator: &str, uuid: &str) -> String {
    let up = page.select("energy_agent_cap_up", &[("actuator", actuator), ("device", uuid)]);
    assert!(up.len() < 2, "{up:?}");
    up.first().map_or_else(String::new, |sample| {
        assert_eq!(sample.value == "1", sample.label("reason") == "ok", "{sample:?}");
        sample.label("reason").to_owned()
    })
}

/// Watts that a plant draws under a load once it follows what these writes have left in force.
pub fn settled_watts(plant: &Plant, load: f64, writes: &[Write]) -> f64 {
    let (clocks, mut bounds) = (Clocks::default(), Bounds { locked_mhz: None, limit_w: Some(700.0) });
    for write in writes {
        match (write.call.as_str(), write.arguments.as_slice()) {
            (LOCK, &[low, high]) => bounds.locked_mhz = Some((low, high)),
            (RESET, []) => bounds.locked_mhz = None,
            (LIMIT, &[limit_mw]) => bounds.limit_w = Some(f64::from(limit_mw) / 1000.0),
            _ => panic!("{write:?}"),
        }
    }
    plant.power(load, plant.clock(load, &clocks, bounds).0, &clocks)
}
