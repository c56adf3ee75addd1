//! A node with GPUs, pods on them and a file of policies.

use std::fs;
use std::path::PathBuf;

use fake_nvml::plant::Plant;

use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::Load;
use crate::common::nvml::{self, FakeNvml, Gpu};
use crate::kubernetes::node::{Node, Pod};

/// Of the plant's H100.
pub const MAX_MHZ: u32 = 1980;

pub struct World {
    pub node: Node,
    pub nvml: FakeNvml,
    file: PathBuf,
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
}

impl World {
    pub fn new() -> Self {
        let node = Node::new();
        let file = node.folder().join("policies.yaml");
        Self { node, nvml: FakeNvml::new(), file }
    }

    /// A pod that exists in the API and as cgroups.
    pub fn pod(&self, name: &str) -> GpuPod {
        let pod = self.node.pod(name, &["main"]);
        let load = pod.load("main", &["sleep", "0"]);
        GpuPod { pod, load }
    }

    /// Adds a GPU whose power follows the loads of these pods and what is set.
    pub fn gpu(&mut self, uuid: &str, exponent: f64, loads: &[(&GpuPod, f64)]) {
        let processes = loads.iter().map(|&(pod, load)| {
            let mut process = nvml::process(pod.pid());
            process.load = load;
            process
        });
        let plant = Plant { exponent, ..Plant::default() };
        let gpu = Gpu { plant: Some(plant), processes: Some(processes.collect()), ..nvml::gpu(uuid) };
        self.nvml.state.gpus.push(gpu);
        self.nvml.play();
    }

    /// Replaces the file as an editor does: in one step.
    pub fn policies(&self, text: &str) {
        let next = self.file.with_extension("next");
        fs::write(&next, format!("version: 1\npolicies:\n{text}")).unwrap();
        fs::rename(next, &self.file).unwrap();
    }

    pub fn no_policies(&self) {
        fs::remove_file(&self.file).unwrap();
    }

    pub fn agent(&self, more: &[&str]) -> Agent {
        let (nvml, file) = (self.nvml.flag(), format!("--capping.policy={}", self.file.display()));
        let flags = ["--interval=1s", "--meter.cpu=none", "--capping=on", &nvml, &file];
        self.node.agent(&[&flags, more].concat())
    }

    /// Power of the plant at this moment; watts.
    pub fn watts(&self, uuid: &str) -> f64 {
        self.nvml.held().gpus[uuid].running.as_ref().map_or(f64::NAN, |running| running.power_w)
    }

    /// The lock that the driver holds.
    pub fn lock(&self, uuid: &str) -> Option<(u32, u32)> {
        self.nvml.held().gpus.get(uuid).and_then(|held| held.locked_mhz)
    }

    pub fn wait_for_lock(&self, uuid: &str) -> (u32, u32) {
        wait_for("a lock of the clocks", || self.lock(uuid))
    }

    pub fn wait_for_no_lock(&self, uuid: &str) {
        wait_for("the clocks to be free", || Some(()).filter(|()| self.lock(uuid).is_none()));
    }
}
