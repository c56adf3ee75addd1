//! The Events that the agent posts.

use fake_nvml::clock::monotonic_us;
use fake_nvml::returns::Return;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::world::{GpuPod, RESET, World, reason};
use crate::common::agent::{Agent, wait_for};
use crate::common::kubernetes::proxy::Answer;

/// 400 W for each pod of the namespace, which the plant can be held to.
fn policy(world: &World) -> String {
    let namespace = &world.node.name;
    format!(
        "- name: train\n  mode: Enforce\n  selector: {{namespaces: [{namespace}]}}\n  budget: {{watts: 400, components: [gpu]}}\n"
    )
}

/// A pod with a GPU that draws 700 W until something is lowered.
fn busy() -> (World, GpuPod) {
    let mut world = World::new();
    let pod = world.pod("train-0");
    world.gpu("GPU-a", 2.0, &[(&pod, 1.0)]);
    (world, pod)
}

/// Such a pod under [`policy`], and lowered.
fn capped() -> (World, GpuPod, Agent) {
    let (world, pod) = busy();
    world.policies(&policy(&world));
    let agent = world.agent(&[]);
    world.wait_for_limit("GPU-a", 440_000);
    world.wait_for_lock("GPU-a");
    (world, pod, agent)
}

fn counted(agent: &Agent, result: &str) -> u64 {
    agent.scrape().one("energy_agent_capping_events_total", &[("result", result)]).value.parse().unwrap()
}

#[test]
fn a_cap_and_its_end_are_one_event_each_of_the_pod() {
    let (world, pod) = busy();
    world.policies(&policy(&world));
    let agent = world.agent(&[]);
    let event = world.wait_for_event("Capping");
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "namespace": world.node.name, "name": "train-0", "uid": pod.pod.uid(),
    });
    assert_eq!(event["regarding"], object);
    let told = ["type", "reportingController", "action"].map(|key| event[key].as_str().unwrap());
    assert_eq!(told, ["Normal", "energy-agent", "Capping"]);
    assert_eq!(event["metadata"]["namespace"], *world.node.name);
    let note = event["note"].as_str().unwrap();
    assert!(note.starts_with("policy train: ") && note.contains(" of 400.0 W, through gpu_locked_clocks"), "{note}");

    // It goes on to cut and to hold, and that is no news.
    let written = world.nvml.writes().len();
    wait_for("another write", || (world.nvml.writes().len() > written).then_some(()));
    assert_eq!(world.events("Capping").len(), 1);
    assert_eq!(world.events("Released"), [] as [Value; 0]);

    world.no_policies();
    let released = world.wait_for_event("Released");
    assert_eq!(released["regarding"], object);
    let restored = world.wait_for_event("Restored");
    assert_eq!([&restored["regarding"]["kind"], &restored["regarding"]["name"]], ["Node", &*world.node.name]);
    assert_eq!(restored["metadata"]["namespace"], "default");
    assert_eq!([world.events("Capping").len(), world.events("Released").len()], [1, 1]);
    wait_for("the count", || (counted(&agent, "posted") >= 3).then_some(()));
    assert_eq!(counted(&agent, "dropped"), 0);
}

#[test]
fn a_role_that_may_not_create_events_costs_a_line_and_no_cap() {
    let (world, _pod) = busy();
    world.policies("- name: broken\n  mode: Sometimes\n");
    let agent = world.agent(&[]);
    let refused = world.wait_for_event("Invalid");
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
    agent.assert_logged("the agent needs create on events.events.k8s.io", 1);
    assert_eq!(world.events("Capping"), [] as [Value; 0]);
}

#[test]
fn an_event_waits_for_a_server_that_fails_and_comes_once_where_the_answer_was_lost() {
    let (world, _pod) = busy();
    let agent = world.agent(&[]);
    agent.after_ticks(4);
    world.node.proxy.faults().lists = Answer::status(500);
    world.policies(&policy(&world));
    world.wait_for_lock("GPU-a");
    world.wait("the line", || !agent.logged("events cannot be posted").is_empty());
    assert_eq!(([counted(&agent, "posted"), counted(&agent, "dropped")], world.events("Capping").len()), ([0, 0], 0));
    let healed = Timestamp::now();
    world.node.proxy.faults().lists = Answer::Pass;
    let event = world.wait_for_event("Capping");
    // It says when it happened, not when it was sent.
    let at: Timestamp = event["eventTime"].as_str().unwrap().parse().unwrap();
    assert!(at < healed, "{at} and {healed}");
    wait_for("the count", || (counted(&agent, "posted") == 1).then_some(()));
    agent.assert_logged("events are posted again", 1);

    world.node.proxy.faults().lists = Answer::Lose;
    world.no_policies();
    world.wait_until_open("GPU-a");
    world.wait_for_event("Released");
    assert_eq!(counted(&agent, "posted"), 1, "as far as the agent can know");
    world.node.proxy.faults().lists = Answer::Pass;
    world.wait_for_event("Restored");
    wait_for("the count", || (counted(&agent, "posted") == 3).then_some(()));
    assert_eq!(counted(&agent, "dropped"), 0);
    for reason in ["Capping", "Released", "Restored"] {
        assert_eq!(world.events(reason).len(), 1, "{reason}");
    }
    agent.assert_logged("events cannot be posted", 1);
}

#[test]
fn what_the_end_of_the_agent_gives_back_is_told_and_a_silent_server_holds_nothing_up() {
    let (world, pod, mut agent) = capped();
    world.wait_for_event("Capping");
    let (status, _) = agent.end("TERM");
    assert!(status.success(), "{status}");
    assert!(world.is_open("GPU-a"));
    // They are there when the agent is not any more.
    let [restored, released] = ["Restored", "Released"].map(|reason| world.events(reason));
    assert_eq!([restored.len(), released.len()], [1, 1], "{restored:#?} {released:#?}");
    let note = restored[0]["note"].as_str().unwrap();
    for part in [
        "policy train: ",
        "gpu_locked_clocks of GPU-a: restored: clocks are reset",
        "gpu_power_limit of GPU-a: restored: back at 700.0 W",
    ] {
        assert!(note.contains(part), "{note}");
    }
    assert_eq!(restored[0]["regarding"]["kind"], "Node");
    assert_eq!(released[0]["regarding"]["uid"], pod.pod.uid());
    assert_eq!(released[0]["note"], "policy train: released: the agent ends");

    // A server that takes requests and does not answer.
    let mut agent = world.agent(&[]);
    world.wait_for_lock("GPU-a");
    world.wait("the second Capping", || world.events("Capping").len() == 2);
    world.node.proxy.faults().lists = Answer::Hold;
    let (status, _) = agent.end("TERM");
    assert!(status.success(), "{status}");
    let ended_us = monotonic_us();
    agent.assert_logged("the last events were not posted", 1);
    assert!(world.is_open("GPU-a"));
    let last = world.writes("GPU-a").last().unwrap().at_us;
    // What limits the GPU is given back first; the agent waits for the server, two seconds at most, afterwards.
    assert!(ended_us - last > 1_500_000, "{} us", ended_us - last);
    assert_eq!([world.events("Restored").len(), world.events("Released").len()], [1, 1]);
}

#[test]
fn what_cannot_be_given_back_is_tried_and_told_and_is_not_forgotten_at_the_end() {
    let (mut world, _pod, mut agent) = capped();
    world.change("GPU-a", |gpu| _ = gpu.errors.insert(RESET.to_owned(), Return::Unknown));
    world.no_policies();
    let event =
        world.one_event("RestoreFailed", "gpu_locked_clocks of GPU-a: cannot be restored, the agent tries again: ");
    assert_eq!((event["type"].as_str(), event["regarding"]["kind"].as_str()), (Some("Warning"), Some("Node")));
    wait_for("two tries", || (world.nvml.calls_at(RESET, 0) >= 2).then_some(()));
    let page = agent.after_ticks(2);
    let tries = u64::try_from(world.nvml.calls_at(RESET, 0)).unwrap();
    assert_eq!(page.count("energy_agent_cap_restore_pending"), 1);
    assert_eq!(page.count("energy_agent_cap_restore_failures_total"), tries);
    assert_eq!(reason(&page, "gpu_locked_clocks", "GPU-a"), "unreachable");
    // The other limit of the GPU is back.
    assert_eq!(world.limit_mw("GPU-a"), Some(700_000));

    assert_eq!(agent.end("TERM").0.code(), Some(1), "a limit is left");
    world.one_event("RestoreFailed", "the agent ends with limits that it could not restore; its next start or `energy-agent restore` restores them: gpu_locked_clocks of GPU-a");
    assert!(world.journal().contains("GPU-a"), "{}", world.journal());
    world.nvml.heal();
    let agent = world.agent(&[]);
    world.wait_until_open("GPU-a");
    world.wait("the journal to be empty", || world.journal().is_empty());
    drop(agent);
}
