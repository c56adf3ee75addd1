//! A node whose package draws more than a policy allows, and is held by the package's own limit.

use crate::common::agent::{Agent, wait_for};
use crate::common::busy_node::{World, text};
use crate::common::kubernetes::node::Pod;
use crate::common::plant::{Machine, Plant};
use crate::common::tree::Tree;

pub struct Package {
    pub world: World,
    pub machine: Machine,
    /// Its limit while nothing is lowered; microwatts.
    open: String,
    _plant: Plant,
    _pod: Pod,
}

/// A budget for the package.
pub fn policy(watts: u32) -> String {
    format!(
        "- name: package
  mode: Enforce
  selector: {{selectAll: true}}
  budget: {{watts: {watts}, scope: PerNode, components: [cpu]}}
  actuators: {{cpu: {{use: [RaplLimit]}}}}
"
    )
}

impl Package {
    /// A node that draws 140 W under this limit in microwatts, with this budget in watts.
    pub fn new(limit_uw: u64, watts: u32) -> Self {
        let machine = Machine::of(Tree::new(), 1, limit_uw, limit_uw);
        let plant = machine.draw(|| 140.0);
        let world = World::new();
        let pod = world.node.pod("batch-0", &["main"]);
        world.policies(&policy(watts));
        Self { world, machine, open: limit_uw.to_string(), _plant: plant, _pod: pod }
    }

    pub fn flags(&self) -> Vec<String> {
        let [sysfs, trust] = self.machine.flags();
        vec![sysfs, trust, "--meter.cpu=rapl".to_owned(), "--gpu=off".to_owned()]
    }

    pub fn agent(&self) -> Agent {
        self.world.bare_agent(&self.flags().iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn limit(&self) -> String {
        text(&self.machine.limit_file(0))
    }

    pub fn wait_until_capped(&self) -> String {
        wait_for("a limit", || Some(self.limit()).filter(|limit| !limit.is_empty() && *limit != self.open))
    }

    pub fn wait_until_open(&self) {
        wait_for("the limit to be as it was", || (self.limit() == self.open).then_some(()));
    }

    /// An agent that was killed while it capped.
    pub fn crash(&self) {
        let mut agent = self.agent();
        self.wait_until_capped();
        // The last write is over.
        agent.after_ticks(4);
        agent.end("KILL");
        assert_ne!(self.limit(), self.open);
    }

    pub fn restore(&self) -> (Option<i32>, String) {
        self.world.try_restore(&[&self.machine.flags()[0], "--gpu=off"])
    }
}
