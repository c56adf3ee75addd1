//! A node as the dashboards are made for: pods that work on CPUs and GPUs, energy counters that follow, policies, and a
//! Prometheus server that scrapes the agent each second.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use energy_model::attribution::idle::IdleModel;
use energy_model::zone::{Source, Zone, ZoneKind};
use fake_nvml::plant::Plant;
use serde_json::json;

use super::owners;
use crate::common::agent::Agent;
use crate::common::cgroup::{Cgroup, Load, ids};
use crate::common::kubernetes::controller::{Controller, install_kinds, publish_agent, put, serve_endpoint_slices};
use crate::common::kubernetes::node::{Node, Pod, container, running};
use crate::common::kubernetes::server::Server;
use crate::common::nvml::{FakeNvml, Gpu, gpu, process};
use crate::common::powercap::Powercap;
use crate::common::prometheus::Prometheus;
use crate::common::quota::QuotaPod;

const STEP: Duration = Duration::from_millis(100);

pub struct World {
    pub prometheus: Prometheus,
    pub agent: Agent,
    /// Where there is a real API server.
    pub controller: Option<Controller>,
    powercap: Powercap,
    policies: PathBuf,
    busy: Busy,
    last: Instant,
    _loads: Vec<Load>,
    _alone: Cgroup,
    _owners: Server,
    _pods: Vec<Pod>,
    _quota: QuotaPod,
    _nvml: FakeNvml,
    _node: Node,
}

/// Name and load.
type Container = (&'static str, &'static [&'static str]);

/// Namespace, name and containers.
const PODS: [(&str, &str, &[Container]); 5] = [
    ("ml", "train-0", &[("trainer", &["sleepers", "0", "3000", "30000"])]),
    ("ml", "train-1", &[("trainer", &["sleepers", "0", "2000", "40000"])]),
    ("web", "shop", &[("app", &["sleepers", "0", "4000", "16000"]), ("proxy", &["sleepers", "0", "1000", "15000"])]),
    ("web", "search", &[("app", &["sleepers", "0", "2000", "14000"])]),
    ("batch", "etl", &[("worker", &["sleepers", "0", "20000", "20000"])]),
];

impl World {
    pub fn start() -> Self {
        let mut node = Node::new();
        "worker-1".clone_into(&mut node.name);
        let mut pods: Vec<Pod> =
            PODS.iter().map(|(namespace, name, containers)| pod(&node, namespace, name, containers)).collect();
        let mut loads = Vec::new();
        for ((_, _, containers), pod) in PODS.iter().zip(&pods) {
            loads.extend(containers.iter().map(|(name, load)| pod.load(name, load)));
        }
        // A container that Docker runs, of no pod.
        let alone = Cgroup::slice();
        let container = alone.child(&format!("docker-{}.scope", ids().1));
        loads.push(Load::start(&container, &["sleepers", "0", "1000", "20000"]));
        // The last one, whose CPU time can be limited.
        let quota = QuotaPod::of(pods.pop().unwrap().cgroup).expect("a cpu controller");
        if quota.v1 {
            let worker = loads[loads.len() - 2].0.id().to_string();
            fs::write(quota.container().join("cgroup.procs"), worker).unwrap();
        }
        let nvml = FakeNvml::new().gpu(busy_gpu("GPU-1f2e", &loads[0], 0.9)).gpu(busy_gpu("GPU-2a3b", &loads[1], 0.6));
        nvml.play();
        let mut powercap = Powercap::two_sockets();
        for package in ["intel-rapl:0", "intel-rapl:1"] {
            let folder = format!("sys/devices/virtual/powercap/intel-rapl/{package}");
            powercap.tree.apply(&format!("f {folder}/enabled = 1"));
            powercap.tree.apply(&format!("f {folder}/constraint_0_name = long_term"));
            powercap.tree.apply(&format!("f {folder}/constraint_0_power_limit_uw = 150000000"));
            powercap.tree.apply(&format!("f {folder}/constraint_0_max_power_uw = 150000000"));
            powercap.tree.apply(&format!("f {folder}/constraint_0_time_window_us = 999424"));
        }
        let state = node.folder().join("state");
        fs::create_dir(&state).unwrap();
        fs::write(state.join("idle.json"), learned(&powercap).to_json()).unwrap();
        let policies = node.folder().join("policies.yaml");
        write_policies(&policies, "Recommend");
        let agent = node.agent(&[
            "--interval=500ms",
            "--meter.trust-guest",
            "--attribution.idle-policy=usage",
            "--export.levels=node,pod,container,process",
            "--capping=on",
            &format!("--capping.policy={}", policies.display()),
            &format!("--state.directory={}", state.display()),
            "--capping.resources=recommend",
            &powercap.sysfs_flag(),
            &nvml.flag(),
        ]);
        let owners = owners::server(&PODS.map(|(namespace, name, _)| (namespace, name)));
        let controller = env::var_os("TEST_KUBE_API").map(|_| controlled(&node, &agent));
        let other = controller.as_ref().map(|controller| {
            format!(
                ", {{job_name: energy-agent-controller, static_configs: [{{targets: ['{}']}}]}}",
                controller.address
            )
        });
        let prometheus = Prometheus::scraping(&format!(
            "[{{job_name: energy-agent, static_configs: [{{targets: ['{}']}}]}}, \
             {{job_name: kube-state-metrics, honor_labels: true, static_configs: [{{targets: ['{}']}}]}}{}]",
            agent.address,
            owners.address,
            other.unwrap_or_default()
        ));
        Self {
            prometheus,
            agent,
            controller,
            powercap,
            policies,
            busy: Busy::default(),
            last: Instant::now(),
            _loads: loads,
            _alone: alone,
            _owners: owners,
            _pods: pods,
            _quota: quota,
            _nvml: nvml,
            _node: node,
        }
    }

    /// The policies that recommended until now are enforced.
    pub fn enforce(&self) {
        write_policies(&self.policies, "Enforce");
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(Instant::now() + time);
    }

    pub fn run_until(&mut self, end: Instant) {
        while Instant::now() < end {
            self.step();
        }
    }

    /// Goes on until the server has seen all kinds of limits, whatever else the machine does.
    pub fn run_until_capped(&mut self) {
        let names = ["energy_agent_cap_limit_hertz", "energy_agent_cap_limit_watts", "energy_agent_cap_found_cpus"];
        let deadline = Instant::now() + Duration::from_secs(120);
        while let Some(name) = names.iter().find(|name| self.prometheus.query(name).is_empty()) {
            assert!(Instant::now() < deadline, "no {name}");
            self.step();
        }
    }

    /// The packages draw 18 W and up to 60 W more, their memory a tenth of it, by what the machine is busy with.
    fn step(&mut self) {
        thread::sleep(STEP);
        let busy = self.busy.since_last();
        let elapsed_us = u64::try_from(self.last.elapsed().as_micros()).unwrap();
        self.last += Duration::from_micros(elapsed_us);
        for zone in &self.powercap.zones {
            let milliwatts = 18_000 + 60 * busy;
            let milliwatts = if zone.name == "dram" { milliwatts / 10 } else { milliwatts };
            zone.add(milliwatts * elapsed_us / 1000);
        }
    }
}

/// A hall with a rack of this node alone, and the controller that watches it.
fn controlled(node: &Node, agent: &Agent) -> Controller {
    const NAMESPACE: &str = "energy-agent";
    let cluster = &node.cluster;
    install_kinds(cluster);
    serve_endpoint_slices(cluster);
    put(cluster, "/api/v1/nodes", &json!({"metadata": {"name": node.name, "labels": {"hall": "a", "rack": "r17"}}}));
    publish_agent(cluster, NAMESPACE, &node.name, &agent.address);
    for (name, watts, label, value) in [("hall-a", 1500, "hall", "a"), ("rack-r17", 1000, "rack", "r17")] {
        let budget = json!({
            "apiVersion": "power.energy-agent.io/v1alpha1", "kind": "ClusterPowerBudget", "metadata": {"name": name},
            "spec": {"watts": watts, "nodes": {"matchLabels": {label: value}}},
        });
        put(cluster, "/apis/power.energy-agent.io/v1alpha1/clusterpowerbudgets", &budget);
    }
    Controller::start(&node.kubeconfig, NAMESPACE)
}

fn pod(node: &Node, namespace: &str, name: &str, containers: &[Container]) -> Pod {
    let statuses: Vec<_> =
        containers.iter().map(|(name, _)| running(name, &format!("containerd://{}", ids().1))).collect();
    let specs: Vec<_> = containers.iter().map(|(name, _)| container(name)).collect();
    node.adopt(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"containers": specs},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }))
}

/// A GPU that a process uses: half a minute at `load`, then a little less, and so on.
fn busy_gpu(uuid: &str, user: &Load, load: f64) -> Gpu {
    let mut user = process(user.0.id());
    user.load = load;
    let now = energy_host::clock::monotonic_ns() / 1000;
    user.steps = (1..60).map(|step| (now + step * 30_000_000, if step % 2 == 0 { load } else { load * 0.8 })).collect();
    let (memory_used_bytes, temperature_celsius) = (Some(48 << 30), Some(61));
    Gpu {
        plant: Some(Plant::default()),
        processes: Some(vec![user]),
        memory_used_bytes,
        temperature_celsius,
        ..gpu(uuid)
    }
}

/// 16 W for a package, 1.6 W for its memory.
fn learned(powercap: &Powercap) -> IdleModel {
    let mut model = IdleModel::new("a former boot");
    for zone in &powercap.zones {
        let (kind, quiet_uw) =
            if zone.name == "dram" { (ZoneKind::Dram, 1_600_000) } else { (ZoneKind::Package, 16_000_000) };
        let zone =
            Zone { kind, socket: zone.socket.parse().ok(), die: None, source: Source::Rapl, path: zone.path.clone() };
        (0..40).for_each(|_| model.observe(&zone, quiet_uw, 0));
    }
    model
}

/// GPUs of training held to 400 W a pod, CPU time of batch work, and advice for the node as a whole.
fn write_policies(file: &Path, mode: &str) {
    let text = format!(
        "version: 1
policies:
- name: training
  mode: {mode}
  namespace: ml
  selector: {{selectAll: true}}
  budget: {{watts: 400, components: [gpu]}}
- name: batch
  mode: {mode}
  priority: 10
  selector: {{namespaces: [batch]}}
  budget: {{watts: 8, components: [cpu]}}
  actuators:
    cpu: {{use: [Quota], minCPUs: 0.1}}
- name: whole-node
  mode: Recommend
  selector: {{selectAll: true}}
  budget: {{watts: 90, scope: PerNode, components: [cpu]}}
  actuators:
    cpu: {{use: [RaplLimit]}}
"
    );
    let next = file.with_extension("next");
    fs::write(&next, text).unwrap();
    fs::rename(next, file).unwrap();
}

/// How busy the machine is, by its `/proc/stat`.
#[derive(Default)]
struct Busy {
    busy: u64,
    all: u64,
}

impl Busy {
    /// In thousandths since it was asked last.
    fn since_last(&mut self) -> u64 {
        let text = fs::read_to_string("/proc/stat").unwrap();
        let times: Vec<u64> = text
            .lines()
            .next()
            .unwrap()
            .split_whitespace()
            .skip(1)
            .take(8)
            .map(|ticks| ticks.parse().unwrap())
            .collect();
        let all = times.iter().sum::<u64>();
        let busy = all - times[3] - times[4];
        let part = (busy - self.busy) * 1000 / (all - self.all).max(1);
        *self = Self { busy, all };
        part.min(1000)
    }
}
