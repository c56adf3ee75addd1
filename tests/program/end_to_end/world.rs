//! The node of the story: two pods in containers, a GPU that one of them uses, energy counters that run, the agent, and the
//! Prometheus that scrapes it.

use fake_nvml::plant::Plant;
use serde_json::{Value, json};

use super::container::Container;
use super::kubectl::Kubectl;
use crate::common::agent::{Agent, wait_for};
use crate::common::kubernetes::node::{Node, Pod, container, running};
use crate::common::nvml::{self, FakeNvml, Gpu};
use crate::common::powercap::{Powercap, RunningCounters};
use crate::common::prometheus::Prometheus;

const GPU: &str = "GPU-a";

pub struct World {
    pub prometheus: Prometheus,
    pub agent: Agent,
    /// Busy on the CPU now and then, until [`Self::end_web`].
    pub web: Pod,
    /// Keeps the GPU busy.
    _train: (Pod, Container),
    web_container: Option<Container>,
    pub kubectl: Kubectl,
    _counters: RunningCounters,
    nvml: FakeNvml,
    pub node: Node,
}

impl World {
    pub fn start() -> Self {
        let node = Node::new();
        let (train, web) = (pod(&node, "train"), pod(&node, "web"));
        let train_container = Container::run(&train, "main", &["sleepers", "0", "2000", "8000"]);
        let web_container = Container::run(&web, "main", &["sleepers", "0", "2000", "8000"]);
        let mut nvml = FakeNvml::new();
        let mut process = nvml::process(train_container.pid);
        process.load = 1.0;
        let plant = Some(Plant::default());
        nvml.state.gpus.push(Gpu { plant, processes: Some(vec![process]), ..nvml::gpu(GPU) });
        nvml.play();
        let powercap = Powercap::two_sockets();
        let sysfs = powercap.sysfs_flag();
        let counters = RunningCounters::of(powercap);

        let configmap = format!("--capping.configmap={}/policies", node.name);
        let flags = ["--interval=1s", "--meter.trust-guest", &sysfs, &nvml.flag(), "--capping=on", &configmap];
        let agent = node.agent(&[&flags[..], &["--export.terminated-retention=4s"]].concat());
        let target = format!("[{{job_name: agent, static_configs: [{{targets: [\"{}\"]}}]}}]", agent.address);
        let (prometheus, kubectl) = (Prometheus::scraping(&target), Kubectl::new(&node.cluster, &node.name));
        let (_train, web_container) = ((train, train_container), Some(web_container));
        Self { prometheus, agent, web, _train, web_container, kubectl, _counters: counters, nvml, node }
    }

    /// The pod's container dies and is removed, and then the pod in the API.
    pub fn end_web(&mut self) {
        self.web_container = None;
        self.node.cluster.delete(&self.web.object);
    }

    /// The clocks that the driver was asked to keep; MHz.
    pub fn lock(&self) -> Option<(u32, u32)> {
        self.nvml.held().gpus.get(GPU).and_then(|held| held.locked_mhz)
    }

    pub fn wait_for_no_lock(&self) {
        wait_for("the clocks to be free", || Some(()).filter(|()| self.lock().is_none()));
    }

    /// The value of the one series that a query gives.
    pub fn number(&self, query: &str) -> f64 {
        let found = self.prometheus.query(query);
        assert_eq!(found.len(), 1, "{query}: {found:?}");
        found[0].1
    }

    /// Waits until the query gives one series; its value.
    pub fn wait_for_one(&self, query: &str) -> f64 {
        self.wait(query, |found| found == 1)[0].1
    }

    pub fn wait_for_some(&self, query: &str) {
        self.wait(query, |found| found > 0);
    }

    pub fn wait_for_none(&self, query: &str) {
        self.wait(query, |found| found == 0);
    }

    fn wait(&self, query: &str, holds: impl Fn(usize) -> bool) -> Vec<(Value, f64)> {
        wait_for(query, || Some(self.prometheus.query(query)).filter(|found| holds(found.len())))
    }
}

/// A running pod of one container, labelled by its name.
fn pod(node: &Node, name: &str) -> Pod {
    let id = crate::common::cgroup::ids().1;
    let object: Value = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": node.name, "name": name, "labels": {"app": name}},
        "spec": {"nodeName": node.name, "containers": [container("main")]},
        "status": {"phase": "Running", "containerStatuses": [running("main", &format!("containerd://{id}"))]},
    });
    node.adopt(&object)
}
