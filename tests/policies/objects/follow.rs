//! Agents that follow PowerCappingPolicies, beside the documents of an admin.

use serde_json::{Value, json};

use super::{apply, ask, collection, delete, has_api_server, install, object};
use crate::capping::world::{World, assert_shows, limit};
use crate::common::agent::Agent;
use crate::common::kubernetes::proxy::Answer;
use crate::common::kubernetes::status_object;

/// By the power limit alone, which is then exactly the budget.
fn spec(app: &str, mode: &str, priority: i64, watts: u32) -> String {
    format!(
        "{{mode: {mode}, priority: {priority}, selector: {{matchLabels: {{app: {app}}}}}, \
         budget: {{watts: {watts}, components: [gpu]}}, actuators: {{gpu: {{use: [PowerLimit]}}}}}}"
    )
}

fn tenants(world: &World, name: &str, spec: &str) -> Value {
    object("PowerCappingPolicy", Some(&world.node.name), name, spec)
}

fn source(agent: &Agent) -> Value {
    let sources = agent.policies()["sources"].clone();
    sources.as_array().unwrap().iter().find(|source| source["source"] == "PowerCappingPolicies").unwrap().clone()
}

/// Requests about our kinds that are no watches.
fn lists(world: &World) -> usize {
    let asked = world.node.proxy.asked();
    asked.iter().filter(|asked| !asked.is_watch && asked.path.contains("power.energy-agent.io")).count()
}

#[test]
fn a_tenants_object_lowers_and_never_lifts_an_admins_cap() {
    if !has_api_server() {
        return;
    }
    let mut world = World::new();
    install(&world.node.cluster);
    let [_pod, _other] = world.busy(["train", "other"]);
    world.policies(&limit("train", 400.0));
    let mut agent = world.agent(&["--capping.resources=enforce"]);
    world.wait_for_limit("GPU-train", 400_000);

    // However high its priority.
    let high = tenants(&world, "cap", &spec("train", "Enforce", 1_000_000_000, 20_000));
    apply(&world.node.cluster, &high);
    // The API server is the one of other tests too, and they may have objects of this name.
    let own = [("policy", "cap"), ("policy_namespace", &*world.node.name), ("authority", "tenant")];
    world.wait("the object to be active", || agent.scrape().has("energy_agent_policy_info", &own));
    agent.after_ticks(4);
    assert_eq!(world.limit_mw("GPU-train"), Some(400_000), "the admin's cap stays");

    // A lower one holds, whatever its priority; and again the admin's once it is gone.
    apply(&world.node.cluster, &tenants(&world, "cap", &spec("train", "Enforce", -5, 300)));
    world.wait_for_limit("GPU-train", 300_000);
    let page = agent.scrape();
    let info = page.select("energy_agent_policy_info", &own);
    assert_eq!(info[0].label("source"), format!("PowerCappingPolicy {}/cap", world.node.name));
    // Both decide, each for its authority.
    assert_shows(&page, "energy_agent_policy_conflicts", &own, 0.0);

    // What the API server cannot judge is refused by the agent, and the version before stays: clocks have to ascend.
    let descending = "{mode: Enforce, selector: {matchLabels: {app: train}}, budget: {watts: 350, components: [gpu]}, \
                      control: {algorithm: table, table: [{clockMHz: 900, watts: 400}, {clockMHz: 600, watts: 200}]}}";
    apply(&world.node.cluster, &tenants(&world, "cap", descending));
    let event = world.one_event("Invalid", "clocks must ascend");
    assert_eq!(
        (&event["regarding"]["kind"], &event["regarding"]["name"]),
        (&json!("PowerCappingPolicy"), &json!("cap"))
    );
    let problems = agent.policies()["problems"].clone();
    let is_ours = |problem: &&Value| problem["policy"]["namespace"] == *world.node.name;
    let problem = problems.as_array().unwrap().iter().find(is_ours).unwrap();
    assert_eq!((problem["kept"].as_bool(), problem["policy"]["authority"].as_str()), (Some(true), Some("tenant")));
    assert!(problem["message"].as_str().unwrap().starts_with("spec.control.table[1]: clocks must ascend"), "{problem}");
    let source = info[0].label("source");
    assert_shows(&agent.scrape(), "energy_agent_policy_problems", &[("source", source)], 1.0);
    assert_eq!(world.limit_mw("GPU-train"), Some(300_000));

    // Another namespace's object selects none of this one's pods.
    let elsewhere =
        object("PowerCappingPolicy", Some("elsewhere"), &world.node.name, &spec("other", "Enforce", 0, 200));
    apply(&world.node.cluster, &elsewhere);
    // In steady state there is nothing but the watches.
    let is_known = |policy: &Value| policy["namespace"] == "elsewhere" && policy["name"] == *world.node.name;
    world.wait("all objects", || agent.policies()["policies"].as_array().unwrap().iter().any(is_known));
    // Of a tenant without a pod here there are no series.
    assert!(!agent.scrape().has("energy_agent_policy_info", &[("policy_namespace", "elsewhere")]));
    let before = lists(&world);
    agent.after_ticks(6);
    assert_eq!(lists(&world), before, "requests in steady state");
    assert!(world.is_open("GPU-other"), "a policy of another namespace caps nothing here");

    delete(&world.node.cluster, &high);
    delete(&world.node.cluster, &elsewhere);
    world.wait_for_limit("GPU-train", 400_000);
    world.no_policies();
    world.wait_until_open("GPU-train");
    agent.assert_well();
}

#[test]
fn kinds_that_are_not_installed_are_waited_for_and_recommend_writes_nothing() {
    if !has_api_server() {
        return;
    }
    let mut world = World::new();
    install(&world.node.cluster);
    let [_pod, _admins] = world.busy(["train", "admins"]);
    let missing = status_object(404, "NotFound", "the server could not find the requested resource");
    world.node.proxy.faults().of_path = vec![("powercappingpolicies", Answer::Refuse(404, missing))];
    let wanted = tenants(&world, "cap", &spec("train", "Enforce", 0, 300));
    apply(&world.node.cluster, &wanted);
    world.policies(&limit("admins", 400.0));
    let mut agent = world.agent(&["--capping.resources=recommend"]);
    // All else works.
    world.wait_for_limit("GPU-admins", 400_000);
    let absent = source(&agent);
    assert_eq!((absent["up"].as_bool(), absent["reason"].as_str()), (Some(false), Some("absent")), "{absent}");
    assert!(absent["detail"].as_str().unwrap().contains("energy-agent policy crd | kubectl apply"), "{absent}");
    agent.after_ticks(4);
    agent.assert_logged("objects cannot be followed yet", 1);

    world.node.proxy.faults().of_path.clear();
    let recommending = [("policy", "cap"), ("policy_namespace", &*world.node.name), ("state", "recommending")];
    world.wait("the object to be followed", || agent.scrape().has("energy_agent_policy_state", &recommending));
    // The flag is the most that an object may do.
    assert!(world.is_open("GPU-train"));
    let path = format!("{}/cap", collection(&wanted));
    ask(&world.node.cluster, axum::http::Method::DELETE, &path, &Value::Null).unwrap();
    agent.assert_well();
}
