//! Agents that follow ClusterPowerBudgets: the level that a controller writes, and what happens once it is silent.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use axum::http::Method;
use energy_model::resources::power_level::{name_for_budget, name_for_policy};
use energy_model::resources::{LEVELS_LEASE, api_version};
use serde_json::{Value, json};

use super::{ROOT, apply, ask, delete, has_api_server, install, object};
use crate::capping::world::{World, state};
use crate::common::agent::Agent;

/// A budget of the node's own, and who writes its level.
pub(super) struct Hall<'a> {
    world: &'a World,
    budget: Value,
    uid: String,
}

impl<'a> Hall<'a> {
    /// In mode Enforce, for this node alone.
    pub(super) fn new(world: &'a World, loss: &str) -> Self {
        let (cluster, name) = (&world.node.cluster, &world.node.name);
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"rack": name}}});
        ask(cluster, Method::POST, "/api/v1/nodes", &node).unwrap();
        let spec = format!(
            "{{mode: Enforce, watts: 100000, nodes: {{matchLabels: {{rack: {name}}}}}, onControllerLoss: {{limit: {loss}}}}}"
        );
        let budget = object("ClusterPowerBudget", None, name, &spec);
        let uid = apply(cluster, &budget)["metadata"]["uid"].as_str().unwrap().to_owned();
        Self { world, budget, uid }
    }

    fn mode(&mut self, mode: &str) {
        self.budget["spec"]["mode"] = json!(mode);
        apply(&self.world.node.cluster, &self.budget);
    }

    pub(super) fn level(&self, epoch: u32, permille: u32) {
        let name = &self.world.node.name;
        let spec = format!(
            "{{for: {{kind: ClusterPowerBudget, name: {name}, uid: {}, generation: 1}}, epoch: {epoch}, \
             staleAfterSeconds: 10, levels: [{{tier: '', permille: {permille}}}], fallbackPermille: 100}}",
            self.uid
        );
        apply(&self.world.node.cluster, &object("PowerLevel", Some(name), &name_for_budget(name), &spec));
    }

    /// A sign of life.
    pub(super) fn renew(&self, time: &str) {
        let collection = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.world.node.name);
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEVELS_LEASE},
            "spec": {"holderIdentity": "test", "renewTime": time},
        });
        if let Err((_, 409)) = ask(&self.world.node.cluster, Method::POST, &collection, &lease) {
            let path = format!("{collection}/{LEVELS_LEASE}");
            ask(&self.world.node.cluster, Method::PATCH, &path, &json!({"spec": lease["spec"]})).unwrap();
        }
    }

    pub(super) fn agent(&self) -> Agent {
        let namespace = format!("--capping.resources-namespace={}", self.world.node.name);
        let agent = self.world.spawn(&["--capping=on", "--capping.resources=enforce", &namespace]);
        agent.wait_until_ready();
        agent
    }

    /// Watts that the node may draw, once they are what is expected.
    pub(super) fn wait_for_limit(&self, agent: &Agent, what: &str, is_so: impl Fn(f64) -> bool) {
        let labels = [("policy", &*self.world.node.name), ("authority", "budget")];
        self.world.wait(what, || {
            let page = agent.scrape();
            let found = page.select("energy_agent_policy_budget_watts", &labels);
            found.first().is_some_and(|sample| is_so(sample.number()))
        });
    }
}

/// Namespace (empty: everywhere), group and resource, verb, and the object's name (empty: any).
type Right = [String; 4];

/// What an agent has asked for of our kinds, its node and Leases, where `namespace` stands for the agents'.
fn asked(world: &World) -> BTreeSet<Right> {
    let asked = world.node.proxy.asked();
    let rights = asked.iter().filter_map(|asked| {
        let (path, query) = asked.path.split_once('?')?;
        let rest = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"))?;
        let parts: Vec<&str> = rest.split('/').collect();
        let (group, parts) = if path.starts_with("/api/") { ("", &parts[1..]) } else { (parts[0], &parts[2..]) };
        let (namespace, resource) = match parts {
            ["namespaces", _, "leases"] => ("energy-agent", "leases"),
            ["namespaces", _, resource] => ("", *resource),
            [resource] => ("", *resource),
            _ => return None,
        };
        let is_lease = resource == "leases";
        let name = query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=metadata.name%3D"));
        let name = name.filter(|_| is_lease).unwrap_or_default();
        let verb = if asked.is_watch { "watch" } else { "list" };
        let ours = ["power.energy-agent.io", "coordination.k8s.io"].contains(&group) || resource == "nodes";
        ours.then(|| [namespace, &format!("{group}/{resource}"), verb, name].map(str::to_owned))
    });
    rights.collect()
}

/// What the roles of the component allow the agent.
fn granted() -> BTreeSet<Right> {
    let text = fs::read_to_string(Path::new(ROOT).join("deploy/resources/rbac.yaml")).unwrap();
    let roles: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let mut rights = BTreeSet::new();
    for role in roles.iter().filter(|role| role["metadata"]["name"] == "energy-agent-resources") {
        let namespace = if role["kind"] == "Role" { "energy-agent" } else { "" };
        for rule in role["rules"].as_array().into_iter().flatten() {
            let group = rule["apiGroups"][0].as_str().unwrap();
            let name = rule["resourceNames"][0].as_str().unwrap_or_default();
            for resource in rule["resources"].as_array().unwrap() {
                for verb in rule["verbs"].as_array().unwrap() {
                    let resource = format!("{group}/{}", resource.as_str().unwrap());
                    rights.insert([namespace, &resource, verb.as_str().unwrap(), name].map(str::to_owned));
                }
            }
        }
    }
    rights
}

#[test]
fn a_policy_of_the_whole_cluster_and_clocks_from_elsewhere_are_followed_on_the_node() {
    if !has_api_server() {
        return;
    }
    let mut world = World::new();
    install(&world.node.cluster);
    let [_total, _clocks] = world.busy(["total", "clocks"]);
    let (cluster, name) = (&world.node.cluster, world.node.name.clone());
    let total = "{mode: Enforce, selector: {matchLabels: {app: total}}, budget: {watts: 100000, scope: Total, components: [gpu]}}";
    let total = object("PowerCappingPolicy", Some(&name), "total", total);
    let uid = apply(cluster, &total)["metadata"]["uid"].as_str().unwrap().to_owned();
    let clocks = "{mode: Enforce, selector: {matchLabels: {app: clocks}}, budget: {watts: 900, components: [gpu]}, \
                  control: {algorithm: external}}";
    let clocks = object("PowerCappingPolicy", Some(&name), "clocks", clocks);
    apply(cluster, &clocks);
    let mut agent = world.spawn(&["--capping=on", "--capping.resources=enforce"]);
    agent.wait_until_ready();
    world.wait("both to be followed", || {
        let page = agent.scrape();
        ["total", "clocks"].iter().all(|policy| {
            page.has("energy_agent_policy_state", &[("policy", policy), ("policy_namespace", &name), ("state", "open")])
        })
    });
    // Between the floor and the 700 W of its GPU.
    let level = format!(
        "{{for: {{kind: PowerCappingPolicy, name: total, uid: {uid}, generation: 1}}, epoch: 1, staleAfterSeconds: 600, \
         levels: [{{tier: '', permille: 500}}], fallbackPermille: 100}}"
    );
    let level = object("PowerLevel", Some(&name), &name_for_policy("total"), &level);
    apply(cluster, &level);
    world.wait_for_lock("GPU-total");
    // An expired clock does not count. A valid clock is the upper end.
    let frequencies = |time: &str| {
        let spec =
            format!("{{gpuFrequencies: [{{uuid: GPU-clocks, graphicsFrequency: 1200, expirationTime: '{time}'}}]}}");
        apply(cluster, &object("NodeFrequencies", None, &name, &spec));
    };
    frequencies("2020-01-01T00:00:00Z");
    agent.after_ticks(3);
    assert!(world.is_open("GPU-clocks"));
    frequencies("2100-01-01T00:00:00Z");
    assert_eq!(world.wait_for_lock("GPU-clocks").1, 1200);
    // Both open with their policies.
    delete(cluster, &total);
    delete(cluster, &clocks);
    world.wait_until_open("GPU-total");
    world.wait_until_open("GPU-clocks");
    agent.assert_well();
}

#[test]
fn a_node_follows_the_level_of_its_budget_and_opens_with_it() {
    if !has_api_server() {
        return;
    }
    let mut world = World::new();
    install(&world.node.cluster);
    let [_pod] = world.busy(["train"]);
    let mut hall = Hall::new(&world, "StaticShare");
    let mut agent = hall.agent();
    // Without a level nothing is limited.
    let name = world.node.name.clone();
    world.wait("the budget to be followed", || state(&agent.scrape(), &name) == "open");
    assert!(world.is_open("GPU-train"));

    hall.renew("2026-01-01T00:00:00.000000Z");
    hall.level(1, 300);
    world.wait_for_lock("GPU-train");
    // Between the floor and the 700 W that the GPU may draw.
    hall.wait_for_limit(&agent, "a limit below 45 % of the range", |watts| watts > 210.0 && watts < 320.0);
    world.wait("the power to follow", || world.watts("GPU-train") < 330.0);
    assert_eq!(state(&agent.scrape(), &name), "capping");
    assert_eq!(asked(&world), granted(), "the roles allow what is asked for");

    // A writer that is silent for 10 s: the static share, of 100 permille.
    hall.wait_for_limit(&agent, "the static share", |watts| watts < 220.0);
    hall.renew("2026-01-01T00:01:00.000000Z");
    hall.wait_for_limit(&agent, "the level again", |watts| watts > 210.0);

    // An open level, and mode Off, are no limits at all.
    hall.level(1, 1000);
    world.wait_until_open("GPU-train");
    hall.level(2, 300);
    world.wait_for_lock("GPU-train");
    hall.mode("Off");
    world.wait_until_open("GPU-train");
    hall.mode("Enforce");
    world.wait_for_lock("GPU-train");
    // A deleted budget as well, while its level is still there.
    delete(&world.node.cluster, &hall.budget);
    world.wait_until_open("GPU-train");
    agent.assert_well();
    let writes = world.node.proxy.asked().into_iter().filter(|asked| asked.method != "GET");
    let others: Vec<String> = writes.map(|asked| asked.path).filter(|path| !path.contains("/events")).collect();
    assert_eq!(others, Vec::<String>::new(), "agents write nothing but Events: {}", api_version());
}
