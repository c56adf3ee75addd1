//! Everything that ends a cap gives the originals back; what goes on being capped is not touched by it.

use serde_json::json;

use super::world::{RESET, World, Write, enforce, policy, state};

#[test]
fn what_is_not_to_be_capped_any_more_is_as_it_was_and_the_rest_goes_on() {
    let mut world = World::new();
    let names = ["deleted", "recommend", "off", "label", "ended", "admin", "kept"];
    let [_deleted, _recommend, _off, label, ended, _admin, _kept] = world.busy(names);
    // An administrator's limit, as in FC-089.
    world.nvml.limit_power("GPU-admin", 500_000);
    world.policies(&names.map(enforce).concat());
    let mut agent = world.agent(&[]);
    for name in names {
        world.wait_for_lock(&format!("GPU-{name}"));
        world.wait_for_limit(&format!("GPU-{name}"), 440_000);
    }
    agent.after_ticks(12);
    let before = world.writes("GPU-kept").len();

    let kept = ["label", "ended", "kept"].map(enforce).concat();
    world.policies(
        &(kept + &policy("recommend", "Recommend", "watts: 400", "") + &policy("off", "Off", "watts: 400", "")),
    );
    // The selector does not match any more.
    let mut object = label.pod.object.clone();
    object["metadata"]["labels"] = json!({"app": "another"});
    world.node.cluster.update(&object);
    world.change("GPU-ended", |gpu| gpu.processes = Some(Vec::new()));
    ended.delete(&world);
    for name in ["deleted", "recommend", "off", "label", "ended"] {
        world.wait_until_open(&format!("GPU-{name}"));
    }
    world.wait("the administrator's limit", || {
        world.lock("GPU-admin").is_none() && world.limit_mw("GPU-admin") == Some(500_000)
    });
    let page = agent.after_ticks(2);
    assert_eq!((state(&page, "off").as_str(), state(&page, "kept").as_str()), ("off", "capping"));
    world.wait("a recommendation", || state(&agent.scrape(), "recommend") == "recommending");
    assert_eq!(page.count("energy_agent_cap_restore_pending"), 0);
    let since = &world.writes("GPU-kept")[before..];
    let let_go = |write: &&Write| write.call == RESET || write.arguments == [700_000];
    assert_eq!(since.iter().find(let_go), None, "what goes on was let go in between");
    assert!(world.lock("GPU-kept").is_some() && !world.journal().is_empty());
    // FC-029: who comes under the name of a pod that was capped begins uncapped, and is not over the budget.
    let again = world.pod("ended");
    let user = again.process(0.1);
    world.change("GPU-ended", |gpu| gpu.processes = Some(vec![user]));
    world.wait("the new pod's energy", || {
        agent.scrape().has("kepler_pod_gpu_joules_total", &[("pod_id", again.pod.uid())])
    });
    let released = |name: &str| world.writes(&format!("GPU-{name}")).len();
    let before = names[..6].iter().map(|name| released(name)).sum::<usize>();
    agent.after_ticks(4);
    assert_eq!(names[..6].iter().map(|name| released(name)).sum::<usize>(), before, "once back, nothing is written");

    // SIGTERM, within what Kubernetes leaves.
    let (status, _) = agent.end("TERM");
    assert!(status.success(), "{status}");
    assert!(names.iter().filter(|name| **name != "admin").all(|name| world.is_open(&format!("GPU-{name}"))));
    assert_eq!((world.lock("GPU-admin"), world.limit_mw("GPU-admin")), (None, Some(500_000)));
    assert_eq!(world.journal(), "");
}
