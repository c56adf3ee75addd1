//! The walk of docs/cluster.md: its commands are run, in an API server of their own, with a controller, an agent and a GPU; what
//! they print is compared with the page, but for numbers. The test does what the kubelet and the load do. After it a level of
//! one's own, by the script in deploy/examples.

use std::fs;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use energy_model::resources::api_version;
use regex::Regex;
use serde_json::{Value, json};

use super::kubectl::Person;
use super::{ROOT, has_api_server};
use crate::capping::world::{GpuPod, World};
use crate::common::agent::{Agent, wait_for};
use crate::common::kubernetes::cluster::Cluster;
use crate::common::kubernetes::controller::{Controller, publish_agent, put, serve_endpoint_slices};

const NODE: &str = "worker-1";
const NAMESPACE: &str = "energy-agent";
const GPU: &str = "GPU-train";

/// A script that is killed on drop.
struct Script(Child);

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the cluster of the walk is made of.
struct Rack {
    world: World,
    pod: GpuPod,
    person: Person,
    agent: Agent,
    controller: Controller,
}

impl Rack {
    fn start() -> Self {
        let mut world = World::in_cluster(Cluster::own());
        NODE.clone_into(&mut world.node.name);
        let cluster = &world.node.cluster;
        put(cluster, "/api/v1/nodes", &json!({"metadata": {"name": NODE}}));
        let set = json!({"metadata": {"name": "energy-agent"}, "spec": {
            "selector": {"matchLabels": {"app": "energy-agent"}},
            "template": {"metadata": {"labels": {"app": "energy-agent"}}, "spec": {"containers": [
                {"name": "energy-agent", "image": "a", "env": [{"name": "ENERGY_AGENT_CAPPING_RESOURCES", "value": "recommend"}]},
            ]}},
        }});
        put(cluster, &format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"), &set);
        serve_endpoint_slices(cluster);
        // That of the node's agent, to which the API server's proxy leads.
        world.node.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "energy-agent-x", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": "energy-agent"},
            },
            "spec": {"containers": [{"name": "agent", "image": "a", "ports": [{"name": "metrics", "containerPort": 9102}]}]},
        }));
        let pod = world.pod("train");
        world.gpu(GPU, 2.0, &[(&pod, 0.3)]);
        let person = Person::new(world.node.kubeconfig.clone());
        let controller = Controller::start(&world.node.kubeconfig, NAMESPACE);
        let agent = agent(&world, "recommend");
        Self { world, pod, person, agent, controller }
    }

    /// The pods of the DaemonSet are replaced.
    fn enforce(&mut self) {
        self.agent.end("TERM");
        self.wait_for_status("the node to be silent", |status| status["silentNodes"] == 1);
        self.agent = agent(&self.world, "enforce");
        // For the silence the level was cut.
        self.wait_for_status("the node to be heard again", |status| {
            let level = status["levelPermille"].as_u64().unwrap_or_default();
            status["silentNodes"] == 0 && level > 500 && level < 1000 && status["watts"].as_u64() > Some(600)
        });
    }

    fn wait_for_status(&self, what: &str, check: impl Fn(&Value) -> bool) {
        let path = format!("/apis/{}/clusterpowerbudgets/rack-r17", api_version());
        wait_for(what, || check(&self.world.node.cluster.get(&path)?["status"]).then_some(()));
    }

    /// The load steps up: 700 W, if nothing holds the GPU.
    fn step(&mut self) {
        let process = self.pod.process(1.0);
        self.world.change(GPU, |gpu| gpu.processes = Some(vec![process]));
    }

    /// What happens in the cluster before a command.
    fn before(&mut self, command: &str) {
        if command.contains("condition=InBudget=false") {
            self.step();
        }
    }

    /// What is true after it, and what the cluster does.
    fn after(&mut self, command: &str) {
        if command.contains("set env") {
            self.enforce();
        } else if command.contains("condition=InBudget ") {
            self.world.wait_for_lock(GPU);
            self.world.wait("the GPU to be held", || self.world.watts(GPU) < 600.0);
        } else if command.contains("energy release") || command.contains("delete cpb") {
            self.world.wait_until_open(GPU);
        } else if command.contains("energy resume") {
            self.world.wait_for_lock(GPU);
        }
    }
}

/// The pod of the DaemonSet on the node, and what the cluster knows of it.
fn agent(world: &World, resources: &str) -> Agent {
    let (cluster, node) = (&world.node.cluster, &world.node);
    let resources = format!("--capping.resources={resources}");
    let agent = world.spawn(&["--capping=on", &resources, &format!("--capping.resources-namespace={NAMESPACE}")]);
    agent.wait_until_ready();
    publish_agent(cluster, NAMESPACE, NODE, &agent.address);
    node.proxy.faults().pods_lead_to = Some(agent.address.clone());
    agent
}

/// A command of the page, with what it prints there.
struct Step {
    command: String,
    expected: String,
}

/// The blocks of the walk, each a list of steps.
fn blocks(page: &str) -> Vec<Vec<Step>> {
    let walk = page.split("\n## A walk\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let blocks = walk.split("```console\n").skip(1).map(|block| block.split("\n```").next().unwrap());
    blocks.map(steps).collect()
}

fn steps(block: &str) -> Vec<Step> {
    let (mut steps, mut is_input) = (Vec::<Step>::new(), false);
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            is_input = command.ends_with("<<'EOF'");
            steps.push(Step { command: command.to_owned(), expected: String::new() });
            continue;
        }
        let step = steps.last_mut().unwrap();
        if is_input {
            step.command += &format!("\n{line}");
            is_input = line != "EOF";
        } else {
            step.expected += &format!("{line}\n");
        }
    }
    steps
}

/// Without what differs from run to run: numbers, ages, and the width of columns.
fn shape(text: &str) -> String {
    let number = Regex::new(r"\b\d+(\.\d+)?([smh]\d*s?)?\b").unwrap();
    let space = Regex::new(r" +").unwrap();
    let lines = text.lines().map(|line| space.replace_all(&number.replace_all(line, "N"), " ").trim().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn the_walk_of_the_guide_prints_what_the_guide_says_and_a_level_of_ones_own_is_followed() {
    if !has_api_server() {
        return;
    }
    let file = Path::new(ROOT).join("docs/cluster.md");
    let mut page = fs::read_to_string(&file).unwrap();
    let mut rack = Rack::start();
    let (mut wrong, mut at) = (Vec::new(), 0);
    let blocks = blocks(&page);
    assert!(blocks.iter().map(Vec::len).sum::<usize>() >= 12, "the walk has lost its commands");
    for Step { command, expected } in blocks.into_iter().flatten() {
        rack.before(&command);
        let output = rack.person.shell(&command);
        let found = printed(&output);
        assert!(output.status.success(), "{command}: {found}");
        rack.after(&command);
        let before = format!("$ {command}\n{expected}");
        at += page[at..].find(&before).unwrap();
        if shape(&found) == shape(&expected) {
            at += before.len();
        } else {
            let now = format!("$ {command}\n{found}");
            page.replace_range(at..at + before.len(), &now);
            at += now.len();
            wrong.push(now);
        }
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, &page).unwrap();
    } else {
        let again = "run UPDATE_DOCS=1 cargo xtask test --test policies walk";
        assert!(wrong.is_empty(), "docs/cluster.md is old; {again}:\n{}", wrong.join("\n"));
    }
    own_level(&mut rack);
    // What is held is open with the end of the pods, as after `kubectl delete -k`.
    rack.agent.end("TERM");
    assert!(rack.world.is_open(GPU));
}

/// The budget of deploy/examples/own-level.yaml, for this rack of one node.
fn own_level(rack: &mut Rack) {
    let examples = Path::new(ROOT).join("deploy/examples");
    let samples: Vec<Value> =
        serde_saphyr::from_multiple(&fs::read_to_string(examples.join("own-level.yaml")).unwrap()).unwrap();
    let mut budget = samples.into_iter().find(|sample| sample["kind"] == "ClusterPowerBudget").unwrap();
    budget["spec"]["mode"] = json!("Enforce");
    budget["spec"]["watts"] = json!(500);
    put(&rack.world.node.cluster, &format!("/apis/{}/clusterpowerbudgets", api_version()), &budget);
    let page = format!("http://{}/budgets", rack.controller.address);
    wait_for("the budget on the controller's page", || {
        let text = ureq::get(&format!("{page}?format=json")).call().ok()?.body_mut().read_to_string().ok()?;
        let budgets: Value = serde_json::from_str(&text).ok()?;
        (budgets["budgets"][0]["name"] == "rack-r17" && budgets["nodes"][0]["most_watts"].is_number()).then_some(())
    });
    let mut script = rack.person.command("python3");
    script.arg(examples.join("own-level.py")).args(["rack-r17", &page]).env("PAUSE", "1").stdout(Stdio::null());
    let mut script = Script(script.spawn().unwrap());
    rack.world.wait_for_lock(GPU);
    rack.world.wait("the power within the budget", || rack.world.watts(GPU) < 500.0);
    // The level is its own: another writer of it is refused.
    let level = json!({
        "apiVersion": api_version(), "kind": "PowerLevel",
        "metadata": {"name": "budget.rack-r17", "namespace": NAMESPACE}, "spec": {"levels": [{"tier": "", "permille": 1000}]},
    });
    let other = format!("kubectl apply --server-side --field-manager=other -f - <<'EOF'\n{level}\nEOF");
    let refused = rack.person.shell(&other);
    assert!(
        !refused.status.success() && printed(&refused).contains("conflict with \"example.com/share\""),
        "{refused:?}"
    );
    // It has gone on since, and nobody else has taken the level away.
    assert_eq!(script.0.try_wait().unwrap(), None);
    assert!(rack.world.lock(GPU).is_some());
}
