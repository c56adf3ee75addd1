//! The endings of FC-089 with the built program: whatever way it ends, the originals are not forgotten.

use serde_json::Value;

use super::world::{GpuPod, LIMIT, LOCK, RESET, World, enforce, limit, state};
use crate::common::agent::Agent;
use crate::common::kubernetes::case;

/// The GPU of the case. An administrator set its limit to 500 W; a policy caps it to 250 W.
const LIMITED: &str = "GPU-fd585786-3c80-50f9-8a72-731ad8419df6";
const LOCKED: &str = "GPU-locked";

struct Ending {
    world: World,
    _pods: [GpuPod; 2],
    original_mw: u32,
    capped_mw: u32,
}

impl Ending {
    fn new() -> Self {
        let case: Value = case("FC-089");
        let number =
            |moment: &str| u32::try_from(case[moment][format!("{LIMITED}.power_limit_mw")].as_u64().unwrap()).unwrap();
        let (original_mw, capped_mw) = (number("before"), number("capped_to"));
        let mut world = World::new();
        let pods = ["limited", "locked"].map(|name| world.pod(name));
        world.gpu(LIMITED, 2.0, &[(&pods[0], 1.0)]);
        world.gpu(LOCKED, 2.0, &[(&pods[1], 1.0)]);
        world.nvml.limit_power(LIMITED, original_mw);
        let ending = Self { world, _pods: pods, original_mw, capped_mw };
        ending.cap();
        ending
    }

    fn cap(&self) {
        self.world.policies(&(limit("limited", f64::from(self.capped_mw) / 1000.0) + &enforce("locked")));
    }

    /// An agent that has capped both.
    fn capped(&self) -> Agent {
        let agent = self.world.agent(&[]);
        self.world.wait_for_limit(LIMITED, self.capped_mw);
        self.world.wait_for_lock(LOCKED);
        self.world.wait_for_limit(LOCKED, 440_000);
        agent
    }

    fn is_original(&self) -> bool {
        self.world.limit_mw(LIMITED) == Some(self.original_mw)
            && self.world.lock(LIMITED).is_none()
            && self.world.is_open(LOCKED)
    }

    /// Starts with these flags; what was left is back before the first tick.
    fn assert_back_before_the_first_tick(&self, flags: &[&str]) {
        assert!(!self.is_original());
        let mut agent = self.world.spawn(&[&["--interval=60s"], flags].concat());
        self.world.wait("the originals", || {
            let (ticks, back) = (agent.scrape().ticks(), self.is_original());
            assert!(back || ticks == 0, "a tick came first");
            back
        });
        self.world.wait("the journal to be empty", || self.world.journal().is_empty());
        let (status, _) = agent.end("TERM");
        assert!(status.success(), "{status}");
        assert!(self.is_original());
    }
}

#[test]
fn a_killed_agents_caps_are_adopted_and_the_originals_are_from_before_them() {
    let ending = Ending::new();
    let world = &ending.world;
    let mut agent = ending.capped();
    agent.after_ticks(8);
    agent.end("KILL");
    assert_eq!(world.limit_mw(LIMITED), Some(ending.capped_mw));
    let (lock, before) = (world.lock(LOCKED).unwrap(), world.nvml.writes().len());

    let mut agent = world.agent(&[]);
    agent.after_ticks(8);
    // On a busy machine the power of a tick may be missing.
    world.wait("both to be capped", || {
        let page = agent.scrape();
        ["limited", "locked"].iter().all(|policy| state(&page, policy) == "capping")
    });
    agent.assert_logged("adopted from the journal", 1);
    // No jump: nothing was let go in between, and nothing but a correction was written.
    for write in &world.nvml.writes()[before..] {
        assert_ne!(write["call"], RESET, "{write}");
        if write["call"] == LIMIT {
            assert!(write["arguments"][0].as_u64().unwrap() <= 440_000, "{write}");
        }
        if write["call"] == LOCK {
            assert!(write["arguments"][1].as_u64().unwrap() <= u64::from(lock.1) + 30, "{write}");
        }
    }
    assert_eq!(world.limit_mw(LIMITED), Some(ending.capped_mw));
    assert!(world.lock(LOCKED).is_some());

    // SIGTERM: what was before the first cap, not what the second run found.
    let (status, _) = agent.end("TERM");
    assert!(status.success(), "{status}");
    assert!(ending.is_original(), "{:?}", world.nvml.held());
    assert_eq!(world.journal(), "");
}

#[test]
fn what_a_killed_agent_left_is_back_before_the_first_tick_where_it_is_not_to_be_capped_any_more() {
    let ending = Ending::new();
    ending.capped().end("KILL");
    ending.world.no_policies();
    let file = format!("--capping.policy={}", ending.world.node.folder().join("policies.yaml").display());
    ending.assert_back_before_the_first_tick(&["--capping=on", &file]);

    // The kill switch does the same, whatever the policies say.
    ending.cap();
    ending.capped().end("KILL");
    ending.assert_back_before_the_first_tick(&["--capping=off", &file]);
    // And from then on it is an agent that has nothing to do with capping.
    let agent = ending.world.spawn(&["--capping=off", &file]);
    agent.wait_until_ready();
    let page = agent.after_ticks(4);
    assert!(!page.names().iter().any(|name| name.starts_with("energy_agent_cap_")));
    assert!(ending.is_original());
}

#[test]
fn an_agent_killed_in_the_middle_of_applying_leaves_nothing_that_the_next_does_not_know() {
    for stays in [true, false] {
        let mut ending = Ending::new();
        // The lock is taken, the limits are on their way to the driver.
        ending.world.nvml.hang(LIMIT, 60.0);
        let mut agent = ending.world.agent(&[]);
        ending.world.wait_for_lock(LOCKED);
        ending.world.wait("both limits to be asked for", || ending.world.nvml.calls(LIMIT) >= 2);
        agent.end("KILL");
        ending.world.nvml.heal();
        assert_eq!(ending.world.limit_mw(LIMITED), Some(ending.original_mw));
        if stays {
            let mut agent = ending.capped();
            let (status, _) = agent.end("TERM");
            assert!(status.success());
            assert!(ending.is_original(), "{:?}", ending.world.nvml.held());
        } else {
            ending.world.no_policies();
            let file = format!("--capping.policy={}", ending.world.node.folder().join("policies.yaml").display());
            ending.assert_back_before_the_first_tick(&["--capping=on", &file]);
        }
        assert_eq!(ending.world.journal(), "");
    }
}
