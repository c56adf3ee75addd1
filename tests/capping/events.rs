//! What the cluster is told.

use axum::http::Request;
use serde_json::{Value, json};

use crate::common::agent::{Agent, wait_for};
use crate::common::one_of_three;
use crate::kubernetes::proxy::Answer;
use crate::kubernetes::server::runtime;
use crate::world::World;

/// 400 W for each pod of the namespace, which the plant can be held to.
fn policy(world: &World) -> String {
    let namespace = &world.node.name;
    format!(
        "- name: train\n  mode: Enforce\n  selector: {{namespaces: [{namespace}]}}\n  budget: {{watts: 400, components: [gpu]}}\n"
    )
}

/// Events that this node's agent has sent, by reason.
fn events(world: &World, reason: &str) -> Vec<Value> {
    let request = Request::get("/apis/events.k8s.io/v1/events").body(Vec::new()).unwrap();
    let list: Value = runtime().block_on(world.node.cluster.client.request(request)).unwrap();
    let mut all = list["items"].as_array().unwrap().clone();
    all.retain(|event| event["reportingInstance"] == *world.node.name && event["reason"] == reason);
    all
}

fn wait_for_event(world: &World, reason: &str) -> Value {
    wait_for(reason, || events(world, reason).first().cloned())
}

fn counted(agent: &Agent, result: &str) -> u64 {
    agent.scrape().one("energy_agent_capping_events_total", &[("result", result)]).value.parse().unwrap()
}

#[test]
fn a_cap_and_its_end_are_one_event_each_of_the_pod() {
    one_of_three(|| {
        let mut world = World::new();
        let pod = world.pod("train-0");
        world.gpu("GPU-a", 2.0, &[(&pod, 1.0)]);
        world.policies(&policy(&world));
        let agent = world.agent(&[]);
        let event = wait_for_event(&world, "Capping");
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": world.node.name, "name": "train-0", "uid": pod.pod.uid(),
        });
        assert_eq!(event["regarding"], object);
        let told = ["type", "reportingController", "action"].map(|key| event[key].as_str().unwrap());
        assert_eq!(told, ["Normal", "energy-agent", "Capping"]);
        assert_eq!(event["metadata"]["namespace"], *world.node.name);
        let note = event["note"].as_str().unwrap();
        assert!(
            note.starts_with("policy train: ") && note.contains(" of 400.0 W, through gpu_locked_clocks"),
            "{note}"
        );

        // It goes on to cut and to hold, and that is no news.
        let written = world.nvml.writes().len();
        wait_for("another write", || (world.nvml.writes().len() > written).then_some(()));
        assert_eq!(events(&world, "Capping").len(), 1);
        assert_eq!(events(&world, "Released"), [] as [Value; 0]);

        world.no_policies();
        let released = wait_for_event(&world, "Released");
        assert_eq!(released["regarding"], object);
        let restored = wait_for_event(&world, "Restored");
        assert_eq!([&restored["regarding"]["kind"], &restored["regarding"]["name"]], ["Node", &*world.node.name]);
        assert_eq!(restored["metadata"]["namespace"], "default");
        assert_eq!([events(&world, "Capping").len(), events(&world, "Released").len()], [1, 1]);
        wait_for("the count", || (counted(&agent, "posted") >= 3).then_some(()));
        assert_eq!(counted(&agent, "dropped"), 0);
    });
}

#[test]
fn a_role_that_may_not_create_events_costs_a_line_and_no_cap() {
    one_of_three(|| {
        let mut world = World::new();
        let pod = world.pod("train-0");
        world.gpu("GPU-a", 2.0, &[(&pod, 1.0)]);
        world.policies("- name: broken\n  mode: Sometimes\n");
        let agent = world.agent(&[]);
        let refused = wait_for_event(&world, "Invalid");
        assert_eq!((refused["type"].as_str(), refused["regarding"]["kind"].as_str()), (Some("Warning"), Some("Node")));
        let forbidden = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Forbidden", "code": 403,
            "message": "events.events.k8s.io is forbidden: User \"agent\" cannot create resource \"events\"",
        });
        world.node.proxy.faults().lists = Answer::Refuse(403, forbidden);
        world.policies(&policy(&world));
        world.wait_for_lock("GPU-a");
        wait_for("the count", || (counted(&agent, "dropped") >= 1).then_some(()));
        world.no_policies();
        world.wait_until_open("GPU-a");
        wait_for("the next one", || (counted(&agent, "dropped") >= 3).then_some(()));
        let said = agent.logged("the agent needs create on events.events.k8s.io");
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(events(&world, "Capping"), [] as [Value; 0]);
    });
}
