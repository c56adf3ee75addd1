//! A node with busy pods, an estimate by which a busy CPU draws 100 W, and a file of policies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::cgroup::{Load, cpu_ns};
use crate::common::kubernetes::node::{self, Node};
use crate::common::page::Page;
use crate::common::quota::QuotaPod;

/// What a busy CPU adds to the estimate; watts.
pub const WATTS_PER_CPU: f64 = 100.0;

pub struct World {
    pub node: Node,
    pub state: TempDir,
    /// The folder of the node's lock.
    pub run: TempDir,
    file: PathBuf,
    coefficients: PathBuf,
}

/// A pod of the API. Its quota can be set.
pub struct CpuPod {
    pub object: Value,
    pub quota: QuotaPod,
}

/// A busy pod under a policy, and the agent.
pub struct Busy {
    pub world: World,
    pub pod: CpuPod,
    pub load: Load,
    pub agent: Agent,
}

impl Busy {
    /// The policy may be made for the world. `None`: as [`World::pod`].
    pub fn under(policy: impl FnOnce(&World) -> String) -> Option<Self> {
        let world = World::new();
        let pod = world.pod("batch-0")?;
        let load = pod.spin();
        world.policies(&policy(&world));
        let agent = world.agent(&[]);
        Some(Self { world, pod, load, agent })
    }
}

impl World {
    pub fn new() -> Self {
        let (node, state, run) = (Node::new(), TempDir::new().unwrap(), TempDir::new().unwrap());
        let file = node.folder().join("policies.yaml");
        let coefficients = node.folder().join("coefficients.json");
        fs::write(&coefficients, r#"{"average": {"min_watts": 5, "max_watts": 105}}"#).unwrap();
        Self { node, state, run, file, coefficients }
    }

    /// A pod that exists in the API and as cgroups. `None`, said loudly, where quotas cannot be had.
    pub fn pod(&self, name: &str) -> Option<CpuPod> {
        let node::Pod { object, cgroup } = self.node.pod(name, &["main"]);
        Some(CpuPod { object, quota: QuotaPod::of(cgroup)? })
    }

    /// A policy over CPUs of the pods of this node's namespace, enforced.
    pub fn policy(&self, watts: f64) -> String {
        let namespace = &self.node.name;
        format!(
            "- name: quiet\n  mode: Enforce\n  selector: {{namespaces: [{namespace}]}}\n  budget: {{watts: {watts}, components: [cpu]}}\n"
        )
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

    /// Starts the agent with the estimate; it knows the pods.
    pub fn agent(&self, more: &[&str]) -> Agent {
        let coefficients = format!("--meter.estimate-coefficients={}", self.coefficients.display());
        self.bare_agent(&[&["--meter.cpu=estimate", &coefficients, "--gpu=off"], more].concat())
    }

    /// Starts the agent with these meters.
    pub fn bare_agent(&self, more: &[&str]) -> Agent {
        let interval = if more.iter().any(|flag| flag.starts_with("--interval")) { "" } else { "--interval=500ms" };
        let file = format!("--capping.policy={}", self.file.display());
        let [state, run] = self.folder_flags();
        let mut flags = vec!["--capping=on", &file, &state, &run];
        flags.extend([interval].into_iter().filter(|flag| !flag.is_empty()));
        self.node.agent(&[&flags, more].concat())
    }

    /// What the next run has to share with this one.
    pub fn folder_flags(&self) -> [String; 2] {
        [
            format!("--state.directory={}", self.state.path().display()),
            format!("--run.directory={}", self.run.path().display()),
        ]
    }

    /// Text of the journal; empty without a journal.
    pub fn journal(&self) -> String {
        fs::read_to_string(self.state.path().join("capping-journal.jsonl")).unwrap_or_default()
    }

    /// Runs `energy-agent restore`; what it printed.
    pub fn restore(&self, more: &[&str]) -> String {
        let (code, text) = self.try_restore(more);
        assert_eq!(code, Some(0), "{text}");
        text
    }

    /// The same with its exit code, and with what it wrote to standard error.
    pub fn try_restore(&self, more: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(PROGRAM).arg("restore").args(self.folder_flags()).args(more).output().unwrap();
        let [text, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), text + &errors)
    }
}

impl CpuPod {
    /// Keeps a thread busy, which has its part of a CPU on a machine that is busy otherwise, too.
    pub fn spin(&self) -> Load {
        self.quota.load_with(&["spin", "0"], 1600)
    }

    /// CPUs that it used in this time, as the kernel counts it.
    pub fn cpus_over(&self, time: Duration) -> f64 {
        let (before, start) = (cpu_ns(&self.quota.pod.cgroup.dir), Instant::now());
        thread::sleep(time);
        let used = Duration::from_nanos(cpu_ns(&self.quota.pod.cgroup.dir) - before);
        used.as_secs_f64() / start.elapsed().as_secs_f64()
    }

    pub fn wait_until_capped(&self) -> u64 {
        wait_for("a quota", || self.quota.millicpus())
    }

    pub fn wait_until_quota_is(&self, text: &str) {
        wait_for(&format!("the quota to be {text:?} again"), || Some(()).filter(|()| self.quota.quota() == text));
    }

    /// The label `device` of its quota.
    pub fn device(&self) -> &str {
        self.quota.pod.cgroup.path.trim_start_matches('/')
    }
}

/// A counter of writes of a knob.
pub fn writes(page: &Page, device: &str, result: &str) -> u64 {
    let found = page.select("energy_agent_cap_writes_total", &[("device", device), ("result", result)]);
    found.first().map_or(0, |sample| sample.value.parse().unwrap())
}

/// The state of the only subject of a policy.
pub fn state(agent: &Agent, policy: &str) -> String {
    let page = agent.scrape();
    page.select("energy_agent_policy_state", &[("policy", policy)]).first().map_or("", |s| s.label("state")).to_owned()
}

pub fn wait_for_state(agent: &Agent, policy: &str, wanted: &str) {
    wait_for(&format!("{policy} to be {wanted}"), || Some(()).filter(|()| state(agent, policy) == wanted));
}

/// The text of an attribute.
pub fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap().trim_end().to_owned()
}
