//! An agent of the program itself with GPUs, beside the simulated nodes: what it reports is understood, and it follows.

use serde_json::{Value, json};

use crate::api::{Api, NAMESPACE, says};
use crate::common::agent::{Agent, wait_for};
use crate::dice::{Dice, kills};
use crate::gpu_world::World;

struct Machine<'a> {
    api: &'a Api,
    world: World,
    name: String,
}

impl Machine<'_> {
    /// An agent that listens.
    fn start(&self) -> Agent {
        let namespace = format!("--capping.resources-namespace={NAMESPACE}");
        self.world.spawn(&["--capping=on", "--capping.resources=enforce", &namespace])
    }

    fn agent(&self) -> Agent {
        let agent = self.start();
        agent.wait_until_ready();
        agent
    }

    fn addresses(&self) -> Vec<(String, String)> {
        vec![(self.name.clone(), "127.0.0.1".to_owned())]
    }

    fn watts(&self) -> f64 {
        self.world.watts("GPU-train") + self.world.watts("GPU-vip")
    }

    fn wait_until_all_open(&self) {
        self.world.wait_until_open("GPU-train");
        self.world.wait_until_open("GPU-vip");
    }
}

fn port(agent: &Agent) -> u16 {
    agent.address.rsplit_once(':').unwrap().1.parse().unwrap()
}

pub fn real_agent(api: &Api, node_of: impl Fn(&str) -> Option<Value>) {
    let mut world = World::new();
    let name = world.node.name.clone();
    // Two GPUs of 700 W.
    let pods = world.busy(["train", "vip"]);
    let mut machine = Machine { api, world, name };
    api.create("/api/v1/nodes", &json!({"metadata": {"name": machine.name, "labels": {"real": "yes"}}}));
    let mut agent = machine.agent();
    api.create_addresses("energy-agent-2", &machine.addresses(), port(&agent));
    let node = wait_for("a report of the agent", || {
        let node = node_of(&machine.name)?;
        (node["state"] == "reporting" && node["power_watts"].as_f64()? > 1300.0).then_some(node)
    });
    let (floor, most) = (node["floor_watts"].as_f64().unwrap(), node["most_watts"].as_f64().unwrap());
    assert!(floor > 0.0 && (1400.0..1450.0).contains(&most), "{node}");
    protected_pods(&machine);
    agent = killed_under_a_node_budget(&mut machine, agent);
    agent = killed_under_a_budget(&mut machine, agent);
    api.delete(&format!("nodefrequencies/{}", machine.name));
    agent.assert_well();
    drop(pods);
}

/// The GPU of a protected pod is left alone, and the other one carries the load.
fn protected_pods(machine: &Machine<'_>) {
    let budget = |watts: u32| {
        json!({
            "mode": "Enforce", "watts": watts, "nodes": {"matchLabels": {"real": "yes"}},
            "protect": {"matchLabels": {"app": "vip"}}, "control": {"holdSeconds": 1},
        })
    };
    let api = machine.api;
    api.apply("clusterpowerbudgets/real", &budget(1150));
    machine.world.wait_for_lock("GPU-train");
    machine.world.wait("the node within its budget", || machine.watts() < 1150.0);
    assert!(machine.world.is_open("GPU-vip"));
    api.wait_for_status("within its budget", "real", |status| {
        says(status, "InBudget", "True", "UnderBudget") && status["limitedNodes"] == 1
    });
    // Less than the 700 W of the protected pod and the floor of the other one.
    api.apply("clusterpowerbudgets/real", &budget(700));
    api.wait_for_status("floors", "real", |status| says(status, "InBudget", "False", "FloorsExceedBudget"));
    assert!(machine.world.is_open("GPU-vip"));
    api.delete("clusterpowerbudgets/real");
    machine.wait_until_all_open();
}

/// kill -9 under the budget of its node, and the start of another: the clocks stay where they are, and open with the budget.
fn killed_under_a_node_budget(machine: &mut Machine<'_>, agent: Agent) -> Agent {
    let path = "clusterpowerbudgets/real";
    let api = machine.api;
    let spec = json!({"mode": "Enforce", "watts": 900, "nodes": {"matchLabels": {"real": "yes"}}, "control": {"holdSeconds": 1}});
    api.apply(path, &spec);
    machine.world.wait_for_lock("GPU-train");
    machine.world.wait("the node within its budget", || machine.watts() < 900.0);
    agent.send("KILL");
    drop(agent);
    let locks = |world: &World| ["GPU-train", "GPU-vip"].map(|gpu| world.lock(gpu));
    let held = locks(&machine.world);
    assert!(held.iter().any(Option::is_some));
    api.wait_for_status_of("a silent node", path, |status| status["silentNodes"] == 1);
    assert_eq!(locks(&machine.world), held, "the limits stand");
    let next = machine.agent();
    api.replace_addresses("energy-agent-2", &machine.addresses(), port(&next));
    api.wait_for_status_of("the next agent's report", path, |status| {
        status["silentNodes"] == 0 && status["limitedNodes"] == 1 && says(status, "InBudget", "True", "UnderBudget")
    });
    let next = random_kills(machine, next, || {
        assert!(
            machine.watts() < 900.0 && locks(&machine.world).iter().any(Option::is_some),
            "{:?}",
            locks(&machine.world)
        );
    });
    api.delete(path);
    machine.wait_until_all_open();
    next
}

/// kill -9 of the agent again and again, every second time maybe while it starts; `holds` before and after each.
fn random_kills(machine: &Machine<'_>, mut agent: Agent, holds: impl Fn()) -> Agent {
    let mut dice = Dice::new();
    for kill in 0..kills() {
        dice.wait();
        holds();
        agent.send("KILL");
        holds();
        agent = machine.start();
        if kill % 2 == 0 {
            agent.wait_until_ready();
        }
    }
    agent.wait_until_ready();
    machine.api.replace_addresses("energy-agent-2", &machine.addresses(), port(&agent));
    holds();
    agent
}

/// kill -9 under the budget of a service: its limits stand, and the next agent goes on with them.
fn killed_under_a_budget(machine: &mut Machine<'_>, agent: Agent) -> Agent {
    let api = machine.api;
    let policy = format!("namespaces/{}/powercappingpolicies/train", machine.name);
    api.apply(&format!("nodefrequencies/{}", machine.name), &json!({}));
    api.apply(
        &policy,
        &json!({
            "mode": "Enforce", "selector": {"matchLabels": {"app": "train"}},
            "budget": {"watts": 400, "scope": "Total", "components": ["gpu"]},
        }),
    );
    machine.world.wait("the service within its budget", || machine.world.watts("GPU-train") <= 400.0);
    let status = api.wait_for_status_of("a limited pod", &policy, |status| {
        status["cappedPods"] == 1 && says(status, "InBudget", "True", "UnderBudget")
    });
    assert_eq!((&status["pods"], &status["nodes"]), (&json!(1), &json!(1)), "{status}");
    let path = format!("nodefrequencies/{}", machine.name);
    let status = api.wait_for_status_of("a lowered GPU", &path, |status| status["loweredGpus"] == 1);
    assert_eq!(status["gpus"], 2, "{status}");
    // Power may be a little above the limits of the boards.
    assert!((1400..1450).contains(&status["mostWatts"].as_i64().unwrap()), "{status}");
    assert!(says(&status, "Applied", "True", "NothingAsked"), "{status}");
    let gpus = status["gpuFrequencies"].as_array().unwrap();
    let train = gpus.iter().find(|gpu| gpu["uuid"] == "GPU-train").unwrap();
    assert_eq!(train["limitedBy"], format!("PowerCappingPolicy {}/train", machine.name));

    agent.send("KILL");
    let before = machine.world.lock("GPU-train");
    assert!(before.is_some());
    let next = machine.agent();
    api.replace_addresses("energy-agent-2", &machine.addresses(), port(&next));
    assert!(machine.world.lock("GPU-train").is_some(), "the limits stood");
    api.wait_for_status_of("the next agent's report", &policy, |status| {
        status["cappedPods"] == 1 && says(status, "Ready", "True", "Running")
    });
    machine.world.wait("the service within its budget", || machine.world.watts("GPU-train") <= 400.0);
    api.delete(&policy);
    machine.wait_until_all_open();
    next
}
