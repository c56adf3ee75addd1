//! More than one policy on a pod, and more than one pod on a GPU.

use serde_json::json;

use super::world::{World, assert_shows, policy, reason, state};

/// `by-label` has the higher priority; `other-control` is about the CPU.
const OVERLAP: &str = include_str!("../../cases/FC-091-overlap.yaml");

/// The policies of FC-091 in another order, in mode Enforce. They set the power limit, so its value shows which budget counts.
fn overlap(order: [usize; 3]) -> String {
    let (_, text) = OVERLAP.split_once("    policies:\n").unwrap();
    let text: String =
        text.lines().map_while(|line| line.strip_prefix("    ")).map(|line| format!("{line}\n")).collect();
    let policies: Vec<String> = text.split("- ").skip(1).map(|policy| format!("- {policy}")).collect();
    assert_eq!(policies.len(), 3, "{policies:?}");
    let more = "  mode: Enforce\n  actuators: {gpu: {use: [PowerLimit]}}\n";
    order.map(|place| policies[place].clone() + if policies[place].contains("[gpu]") { more } else { "" }).concat()
}

#[test]
fn one_policy_decides_about_a_pods_gpu_in_any_order_and_the_other_is_told() {
    for order in [[0, 1, 2], [2, 1, 0]] {
        let mut world = World::new();
        let pod = world.pod_of("batch", &world.node.name, &[("tier", "low"), ("team", "ml")]);
        world.gpu("GPU-a", 2.0, &[(&pod, 1.0)]);
        world.policies(&overlap(order));
        let agent = world.agent(&[]);
        world.wait_for_limit("GPU-a", 250_000);
        let page = agent.after_ticks(8);
        // 250 W as by-label says, once, and never 400.
        let limits: Vec<_> = world.writes("GPU-a").into_iter().map(|write| write.arguments).collect();
        assert_eq!(limits, [[250_000]], "{order:?}");
        let effective = page.select("energy_agent_cap_limit_watts", &[("device", "GPU-a")]);
        assert_eq!((effective.len(), effective[0].label("policy"), effective[0].number()), (1, "by-label", 250.0));
        for (name, conflicts) in [("by-namespace", 1.0), ("by-label", 0.0), ("other-control", 0.0)] {
            assert_shows(&page, "energy_agent_policy_conflicts", &[("policy", name)], conflicts);
        }
        let lost = &agent.policies()["policies"];
        let lost = lost.as_array().unwrap().iter().find(|policy| policy["name"] == "by-namespace").unwrap();
        let train = json!({"uid": pod.pod.uid(), "namespace": "batch", "name": world.node.name});
        let winner = json!({"namespace": "", "name": "by-label"});
        assert_eq!(lost["conflicts"], json!([{"pod": train, "component": "gpu", "winner": winner}]));
        let event = world.one_event("Conflict", "policy by-label decides about its gpu");
        assert_eq!(event["regarding"]["uid"], pod.pod.uid());
        // No conflict: it decides about the CPU of the same pod.
        let of_pod = |name| page.has("energy_agent_policy_state", &[("policy", name), ("pod_name", &world.node.name)]);
        assert_eq!([of_pod("by-namespace"), of_pod("by-label"), of_pod("other-control")], [false, true, true]);
        pod.delete(&world);
    }
}

#[test]
fn a_shared_gpu_is_capped_where_all_allow_it_to_the_lowest_of_their_ceilings() {
    let mut world = World::new();
    let names = ["same-a", "same-b", "yes-a", "yes-b", "no-a", "no-b", "lone", "half"];
    let pods = names.map(|name| {
        let app = name.strip_suffix("-b").filter(|name| *name == "same").map_or(name, |_| "same-a");
        world.pod_with(name, &[("app", app)])
    });
    let [same_a, same_b, yes_a, yes_b, no_a, no_b, lone, half] = &pods;
    world.gpu("GPU-same", 2.0, &[(same_a, 0.5), (same_b, 0.5)]);
    world.gpu("GPU-yes", 2.0, &[(yes_a, 0.5), (yes_b, 0.5)]);
    world.gpu("GPU-no", 2.0, &[(no_a, 0.5), (no_b, 0.5)]);
    world.gpu("GPU-half", 2.0, &[(half, 1.0)]);
    world.gpu("GPU-system", 2.0, &[(lone, 0.5)]);
    // A process of the node that is in no pod.
    let own = std::process::id();
    world.change("GPU-system", |gpu| {
        gpu.processes
            .as_mut()
            .unwrap()
            .push(crate::common::nvml::Process { load: 0.5, ..crate::common::nvml::process(own) });
    });
    let shared = ", actuators: {gpu: {allowShared: true}}";
    world.policies(
        &[
            policy("same-a", "Enforce", "watts: 250", ""),
            policy("yes-a", "Enforce", "watts: 300", shared),
            policy("yes-b", "Enforce", "watts: 200", shared),
            policy("no-a", "Enforce", "watts: 200", shared),
            policy("no-b", "Enforce", "watts: 200", ""),
            policy("lone", "Enforce", "watts: 200", shared),
            policy("half", "Enforce", "watts: 400", ""),
        ]
        .concat(),
    );
    let agent = world.agent(&[]);
    // One policy for all pods of the GPU needs no consent: 2 x 250 W.
    world.wait_for_lock("GPU-same");
    world.wait("both to keep their budgets", || world.watts("GPU-same") <= 500.0);
    // Half of the power is each one's: 200 W of the lower budget are 400 W of the GPU.
    world.wait_for_lock("GPU-yes");
    world.wait("the lower budget to be kept", || world.watts("GPU-yes") <= 400.0);
    world.wait_for_lock("GPU-half");
    // One limit for the device, of the policy with the lowest ceiling.
    world.wait("the lower budget's limit", || {
        let page = agent.scrape();
        let limits = page.select("energy_agent_cap_limit_hertz", &[("device", "GPU-yes")]);
        limits.len() == 1
            && limits[0].label("policy") == "yes-b"
            && reason(&page, "gpu_locked_clocks", "GPU-yes") == "ok"
    });
    agent.after_ticks(8);
    // Where one does not say so, or something that is no pod works too, nothing is written.
    assert_eq!((world.writes("GPU-no"), world.writes("GPU-system")), (Vec::new(), Vec::new()));
    for name in ["no-a", "no-b", "lone"] {
        world.wait(name, || state(&agent.scrape(), name) == "no_actuator");
    }
}
