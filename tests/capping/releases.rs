//! Everything that ends a cap gives the originals back; what goes on being capped is not touched by it.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::world::{World, enforce, policy, state};

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
    assert_eq!(world.writes("GPU-kept").len(), before, "it was settled, and nothing of it was changed");
    assert!(world.lock("GPU-kept").is_some() && !world.journal().is_empty());
    let released = world.nvml.writes().len();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(world.nvml.writes().len(), released, "once back, nothing more is written");

    // SIGTERM, within what Kubernetes leaves.
    let (status, took) = agent.end("TERM");
    assert!(status.success() && took < Duration::from_secs(5), "{status} {took:?}");
    assert!(names.iter().filter(|name| **name != "admin").all(|name| world.is_open(&format!("GPU-{name}"))));
    assert_eq!((world.lock("GPU-admin"), world.limit_mw("GPU-admin")), (None, Some(500_000)));
    assert_eq!(world.journal(), "");
}
