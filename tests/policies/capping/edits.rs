//! Policies that change while the agent runs, in a file, in the API, and in a ConfigMap that is mounted.

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use super::map::Map;
use super::world::{World, assert_shows, document, enforce, limit, policy};
use crate::common::mount::Mount;

#[test]
fn an_edit_acts_a_bad_one_changes_nothing_and_twenty_end_at_the_last() {
    thread::scope(|scope| {
        let by_api = scope.spawn(|| edits(true));
        edits(false);
        by_api.join().unwrap_or_else(|reason| resume_unwind(reason));
    });
}

/// Of a ConfigMap that is followed in the API, else of a file.
fn edits(by_api: bool) {
    let mut world = World::new();
    world.interval = "1s";
    let _pods = world.busy(["train"]);
    let map = Map::new(&world, "edited");
    let set = |policies: &str| if by_api { map.set(&document(policies)) } else { world.policies(policies) };
    set(&policy("train", "Recommend", "watts: 400", ""));
    let agent = if by_api { world.spawn(&["--capping=on", &map.flag()]) } else { world.agent(&[]) };
    agent.wait_until_ready();
    agent.after_ticks(2);
    assert_eq!(world.nvml.writes().len(), 0);
    // How long an edit takes is the benchmark's to say.
    for watts in [400, 500, 350] {
        let ticks = agent.scrape().ticks();
        set(&limit("train", f64::from(watts)));
        world.wait_for_limit("GPU-train", watts * 1000);
        // Up as fast as down, and not when a minute has passed.
        let page = agent.after_ticks(2);
        assert!(page.ticks() - ticks < 30, "{watts} W after {} ticks", page.ticks() - ticks);
    }

    // A document with a fault, and one that is not YAML: the previous version stays active.
    let before = world.nvml.writes().len();
    for (bad, message) in [
        (policy("train", "Enforce", "watts: 350000", ""), "milliwatts"),
        ("- {name: train, mode: Enforce".to_owned(), "not valid YAML"),
    ] {
        set(&bad);
        world.wait("the refusal", || !agent.logged(message).is_empty());
        let page = agent.after_ticks(3);
        assert_shows(&page, "energy_agent_policy_budget_watts", &[("policy", "train")], 350.0);
        assert_shows(&page, "energy_agent_policy_problems", &[], 1.0);
        assert_eq!((world.nvml.writes().len(), world.limit_mw("GPU-train")), (before, Some(350_000)));
        let refused = agent.policies()["problems"][0].clone();
        assert!(refused["kept"] == true && refused["message"].as_str().unwrap().contains(message), "{refused}");
    }

    let ticks = agent.scrape().ticks();
    for edit in 0..20 {
        // The last is below what any before it leads to, so that it has to be written.
        set(&limit("train", f64::from(if edit == 19 { 250 } else { 300 - edit })));
        thread::sleep(Duration::from_millis(95));
    }
    world.wait_for_limit("GPU-train", 250_000);
    let page = agent.after_ticks(2);
    assert_eq!(world.limit_mw("GPU-train"), Some(250_000));
    assert_shows(&page, "energy_agent_policy_problems", &[], 0.0);
    let writes = world.nvml.writes().len() - before;
    // One a tick at most, and that of a tick which has not ended.
    let ticks = page.ticks() - ticks;
    assert!(
        u64::try_from(writes).unwrap() <= ticks + 1,
        "{writes} writes in {ticks} ticks: {:#?}",
        &world.nvml.writes()[before..]
    );
    if by_api {
        map.delete();
    } else {
        world.no_policies();
    }
    world.wait_until_open("GPU-train");
}

#[test]
fn a_configmap_caps_and_its_deletion_restores_and_an_api_that_is_away_does_not() {
    let mut world = World::new();
    let _pods = world.busy(["train", "other"]);
    let map = Map::new(&world, "policies");
    let agent = world.spawn(&["--capping=on", &map.flag()]);
    agent.wait_until_ready();
    agent.after_ticks(4);
    assert_eq!(world.nvml.writes().len(), 0);
    map.set(&document(&enforce("train")));
    world.wait_for_lock("GPU-train");
    assert!(world.is_open("GPU-other"));
    // An edit.
    map.set(&document(&(enforce("train") + &enforce("other"))));
    world.wait_for_lock("GPU-other");
    let up = |reason: &str| agent.scrape().number_of("energy_agent_policy_source_up", &[("reason", reason)]);
    assert_eq!(up("ok"), 1.0);

    world.node.proxy.go_away();
    let resets = || world.nvml.writes().iter().filter(|write| write["call"] == super::world::RESET).count();
    agent.after_ticks(16);
    assert!(world.lock("GPU-train").is_some() && world.lock("GPU-other").is_some() && resets() == 0);
    assert_eq!(up("unreachable"), 0.0);
    // A deletion that nobody could tell of.
    map.set(&document(&enforce("train")));
    agent.after_ticks(4);
    assert!(world.lock("GPU-other").is_some());
    world.node.proxy.come_back();
    world.wait_until_open("GPU-other");
    assert!(world.lock("GPU-train").is_some());

    map.delete();
    world.wait_until_open("GPU-train");
    let page = agent.after_ticks(2);
    assert!(!page.has("energy_agent_policy_info", &[]));
    assert_eq!(up("absent"), 1.0);
}

#[test]
fn every_swap_of_a_mounted_configmap_acts_and_one_of_equal_content_writes_nothing_fc_093() {
    let mut world = World::new();
    let _pods = world.busy(["train"]);
    let text = |watts: u32| document(&limit("train", f64::from(watts)));
    let mount = Mount::new("..2025_01_01_00_00_00.111", &text(400));
    let agent = world.spawn(&["--capping=on", &format!("--capping.policy={}", mount.folder().display())]);
    world.wait_for_limit("GPU-train", 400_000);
    for (version, watts) in [("..2025_01_01_00_10_00.222", 350), ("..2025_01_01_00_20_00.333", 300)] {
        mount.swap(version, &text(watts));
        world.wait_for_limit("GPU-train", watts * 1000);
    }
    agent.after_ticks(2);
    let (writes, said) = (world.nvml.writes().len(), agent.log().len());
    mount.swap("..2025_01_01_00_30_00.444", &text(300));
    // The folder is looked at twice a second.
    let page = agent.after_ticks(6);
    assert_eq!((world.nvml.writes().len(), world.limit_mw("GPU-train")), (writes, Some(300_000)));
    assert_eq!(agent.log()[said..], [] as [String; 0]);
    assert_shows(&page, "energy_agent_policy_budget_watts", &[("policy", "train")], 300.0);
}
