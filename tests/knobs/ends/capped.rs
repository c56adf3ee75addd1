//! A node whose two clocks are limited, as plain files, and the agent that limits them.

use std::path::PathBuf;

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::busy_node::{World, text};
use crate::common::cgroup::Load;
use crate::common::kubernetes::node::Pod;
use crate::common::plant::{Machine, Plant};
use crate::common::tree::Tree;

/// Nothing is low enough for it: both clocks go to 1 GHz.
pub const POLICY: &str = "- name: node
  mode: Enforce
  selector: {selectAll: true}
  budget: {watts: 1, scope: PerNode, components: [cpu]}
  actuators: {cpu: {use: [Frequency], minFrequencyMHz: 1000}}
";
/// What `tests/cases/FC-088-two-policies.tree` has.
const BEFORE: [&str; 2] = ["1766400", "2956800"];
const CAPPED: [&str; 2] = ["1000000", "1000000"];

pub struct Capped {
    /// Before what it moves.
    _plant: Plant,
    _load: Load,
    _pod: Pod,
    pub world: World,
    pub machine: Machine,
}

impl Capped {
    pub fn new() -> Self {
        let machine = Machine::of(Tree::case("FC-088-two-policies"), 1, 200_000_000, 200_000_000);
        let plant = machine.draw(|| 100.0);
        let world = World::new();
        let pod = world.node.pod("batch-0", &["main"]);
        let load = pod.cgroup.load(&["spin", "0"]);
        world.policies(POLICY);
        Self { world, machine, _plant: plant, _load: load, _pod: pod }
    }

    /// What the agent is started with.
    pub fn flags(&self) -> Vec<String> {
        let node = &self.world.node;
        let [sysfs, trust] = self.machine.flags();
        let policies = node.folder().join("policies.yaml");
        let [state, run] = self.world.folder_flags();
        vec![
            "--pods.source=api".to_owned(),
            format!("--kubeconfig={}", node.kubeconfig.display()),
            format!("--node.name={}", node.name),
            "--capping=on".to_owned(),
            format!("--capping.policy={}", policies.display()),
            state,
            run,
            "--interval=500ms".to_owned(),
            sysfs,
            trust,
            "--meter.cpu=rapl".to_owned(),
            "--gpu=off".to_owned(),
        ]
    }

    /// Starts the agent by `command`, which is followed by its flags, and waits until both clocks are limited.
    pub fn agent_by(&self, command: &[&str]) -> Agent {
        let agent = self.spawn(command);
        self.wait_until_limited();
        agent
    }

    /// The same without waiting.
    pub fn spawn(&self, command: &[&str]) -> Agent {
        let flags = self.flags();
        Agent::spawn(command, &flags.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn agent(&self) -> Agent {
        self.agent_by(&["setsid", PROGRAM])
    }

    pub fn clocks(&self) -> [PathBuf; 2] {
        [0, 4].map(|policy| self.machine.clock_file(policy))
    }

    pub fn now(&self) -> [String; 2] {
        self.clocks().map(|file| text(&file))
    }

    pub fn assert_restored(&self, after: &str) {
        assert_eq!(self.now(), BEFORE, "after {after}");
        assert_eq!(self.world.journal(), "", "after {after}");
    }

    pub fn assert_limited(&self, after: &str) {
        assert_eq!(self.now(), CAPPED, "after {after}");
    }

    /// After the policy was taken away.
    pub fn limit_again(&self) {
        self.world.policies(POLICY);
    }

    pub fn wait_until_limited(&self) {
        self.wait_until("limited", CAPPED);
    }

    pub fn wait_until_restored(&self) {
        self.wait_until("restored", BEFORE);
    }

    fn wait_until(&self, what: &str, wanted: [&str; 2]) {
        wait_for(&format!("the clocks to be {what}"), || Some(()).filter(|()| self.now() == wanted));
    }
}
