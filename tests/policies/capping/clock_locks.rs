//! Clocks that an administrator has locked: `nvidia-smi --lock-gpu-clocks` behind the agent's back, which no driver tells.

use std::process::Command;

use fake_nvml::clock::monotonic_us;
use serde_json::Value;

use super::world::{LOCK, RESET, World, enforce, policy, reason, state};
use crate::common::agent::{self, PROGRAM};
use crate::common::nvml::{self, Gpu};
use fake_nvml::plant::Plant;

const CLOCKS: &str = "gpu_locked_clocks";

/// By the clocks alone, so that nothing else keeps the power down.
fn clocks(name: &str, watts: u32) -> String {
    policy(name, "Enforce", &format!("watts: {watts}"), ", actuators: {gpu: {use: [LockedClocks]}}")
}

/// What /policies says of the GPU's clocks.
fn told(agent: &agent::Agent, uuid: &str) -> Value {
    let policies = agent.policies();
    let limits = policies["limits"].as_array().unwrap();
    let own = limits.iter().find(|limit| limit["device"] == uuid && limit["actuator"] == CLOCKS);
    own.unwrap_or_else(|| panic!("{uuid} is not in {policies:#}")).clone()
}

/// Every range that the agent locked the clocks to, and how often it reset them.
fn written(world: &World, uuid: &str) -> (Vec<(u32, u32)>, usize) {
    let writes = world.writes(uuid);
    let locks = writes.iter().filter(|write| write.call == LOCK).map(|write| (write.arguments[0], write.arguments[1]));
    (locks.collect(), writes.iter().filter(|write| write.call == RESET).count())
}

/// Waits until the agent leaves the clocks to the administrator, whose lock stays all the time.
fn wait_for_yielded(world: &World, agent: &agent::Agent, uuid: &str) {
    world.wait("the lock to be seen", || {
        assert_eq!(world.lock(uuid), Some((345, 600)), "{uuid}: {:?}", world.writes(uuid));
        reason(&agent.scrape(), CLOCKS, uuid) == "yielded"
    });
}

#[test]
fn a_lock_that_shows_under_load_is_never_raised_and_stays() {
    let mut world = World::new();
    // At 600 MHz the plant draws 70 + 630 x (600 / 1980)^2 = 128 W, which is over both budgets.
    let [steady, sudden] = ["steady", "sudden"].map(|name| world.pod(name));
    world.gpu("GPU-steady", 2.0, &[(&steady, 1.0)]);
    // Idle until after the first ticks: the tick that sees the load begin sees only a part of it.
    let start_us = monotonic_us() + 12_000_000;
    let process = nvml::Process { steps: vec![(start_us, 1.0)], ..sudden.process(0.0) };
    let plant = Plant { exponent: 2.0, ..Plant::default() };
    world.add(Gpu { processes: Some(vec![process]), ..nvml::gpu("GPU-sudden") }, plant);
    let _free = world.busy(["free"]);
    for uuid in ["GPU-steady", "GPU-sudden"] {
        world.nvml.lock_clocks(uuid, Some((345, 600)));
    }
    // The second one has the power limit, too, which stands in where the clocks are left alone.
    world.policies(&(clocks("steady", 100) + &policy("sudden", "Enforce", "watts: 100", "") + &enforce("free")));
    let mut agent = world.agent(&[]);
    for uuid in ["GPU-steady", "GPU-sudden"] {
        wait_for_yielded(&world, &agent, uuid);
    }
    assert!(monotonic_us() > start_us);
    world.wait_for_lock("GPU-free");
    world.wait("the other's budget to be kept", || world.watts("GPU-free") <= 400.0);
    let page = agent.after_ticks(12);
    for uuid in ["GPU-steady", "GPU-sudden"] {
        assert_eq!(world.lock(uuid), Some((345, 600)));
        assert_eq!(written(&world, uuid), (vec![], 0), "{uuid}");
        let told = told(&agent, uuid);
        assert_eq!((told["state"].as_str(), &told["wanted"]), (Some("yielded"), &Value::Null), "{told}");
        let detail = told["detail"].as_str().unwrap();
        assert!(detail.contains("it runs at 600 MHz under load, the highest is 1980 MHz"), "{detail}");
        assert!(detail.contains("--capping.gpu-clock-before=MIN-MAX"), "{detail}");
        agent.assert_logged(&format!("gpu_locked_clocks of {uuid}"), 1);
    }
    assert_eq!(state(&page, "steady"), "no_actuator", "there is nothing else to lower");
    world.wait_for_limit("GPU-sudden", 200_000);

    // The administrator ends it: from the next look on the clocks are the agent's to lower.
    world.nvml.lock_clocks("GPU-steady", None);
    world.wait("the clocks to be lowered", || !written(&world, "GPU-steady").0.is_empty());
    let (status, _) = agent.end("TERM");
    assert!(status.success());
    assert_eq!(
        (world.lock("GPU-sudden"), world.lock("GPU-steady"), world.lock("GPU-free")),
        (Some((345, 600)), None, None)
    );
    assert_eq!(written(&world, "GPU-sudden"), (vec![], 0));
    assert_eq!(world.journal(), "");
}

#[test]
fn a_lock_that_takes_the_place_of_the_agents_is_neither_raised_nor_reset() {
    let mut world = World::new();
    let _pods = world.busy(["admin", "other"]);
    world.policies(&(clocks("admin", 400) + &clocks("other", 400)));
    let mut agent = world.agent(&[]);
    for name in ["admin", "other"] {
        world.wait_for_lock(&format!("GPU-{name}"));
        world.wait("the budget to be kept", || world.watts(&format!("GPU-{name}")) <= 400.0);
    }
    agent.after_ticks(8);
    // 128 W are far below the 360 W from which on the agent raises its own lock.
    world.nvml.lock_clocks("GPU-admin", Some((345, 600)));
    let before = world.writes("GPU-admin").len();
    wait_for_yielded(&world, &agent, "GPU-admin");
    assert!(!world.journal().contains("GPU-admin"), "{}", world.journal());
    agent.assert_logged("another program has locked its clocks", 1);
    let event = world.one_event("ForeignChange", "gpu_locked_clocks of GPU-admin");
    assert!(event["note"].as_str().unwrap().contains("600 MHz"), "{event}");
    // Longer than the hold after which a ceiling is raised.
    agent.after_ticks(24);
    world.policies(&clocks("other", 400));
    agent.after_ticks(4);
    assert_eq!(world.lock("GPU-admin"), Some((345, 600)));
    assert!(world.lock("GPU-other").is_some_and(|(_, high)| high < 1980), "{:?}", world.lock("GPU-other"));
    let (status, _) = agent.end("TERM");
    assert!(status.success());
    assert_eq!((world.lock("GPU-admin"), world.lock("GPU-other")), (Some((345, 600)), None));
    assert_eq!(world.writes("GPU-admin").len(), before, "{:?}", world.writes("GPU-admin"));
}

#[test]
fn clocks_that_are_stated_come_back_however_a_cap_ends() {
    let mut world = World::new();
    let _pods = world.busy(["stated", "reset"]);
    // At 900 MHz 70 + 630 x (900 / 1980)^2 = 200 W; 150 W are at 705 MHz.
    for uuid in ["GPU-stated", "GPU-reset"] {
        world.nvml.lock_clocks(uuid, Some((345, 900)));
    }
    let flag = "--capping.gpu-clock-before=GPU-stated=345-900,GPU-reset=open";
    let capped = |world: &World, flags: &[&str]| {
        world.policies(&(clocks("stated", 150) + &clocks("reset", 150)));
        let agent = world.agent(flags);
        for uuid in ["GPU-stated", "GPU-reset"] {
            world.wait("the clocks to be lowered", || world.lock(uuid).is_some_and(|(_, high)| high < 900));
        }
        agent
    };
    let is_back = |world: &World| world.lock("GPU-stated") == Some((345, 900)) && world.lock("GPU-reset").is_none();

    // A policy that is deleted.
    let agent = capped(&world, &[flag]);
    let limit = told(&agent, "GPU-stated");
    assert_eq!((limit["original"].as_f64(), limit["state"].as_str()), (Some(900e6), Some("ok")), "{limit}");
    world.no_policies();
    world.wait("the stated clocks", || is_back(&world));
    agent.after_ticks(4);
    agent.assert_logged("clocks are locked to 345-900 MHz, as configured", 1);
    // The end of the agent. The other GPU is open now, which is what it was stated to be.
    world.nvml.lock_clocks("GPU-reset", Some((345, 900)));
    drop(agent);
    let mut agent = capped(&world, &[flag]);
    let (status, _) = agent.end("TERM");
    assert!(status.success() && is_back(&world), "{status} {:?}", world.nvml.held());
    // A crash and a start without the flag: the journal has kept it.
    let mut agent = capped(&world, &[flag]);
    agent.end("KILL");
    assert!(!is_back(&world));
    world.no_policies();
    let mut agent = world.agent(&[]);
    world.wait("the stated clocks", || is_back(&world));
    assert!(agent.end("TERM").0.success());
    // A crash, and the command.
    let mut agent = capped(&world, &[flag]);
    agent.end("KILL");
    let restore = Command::new(PROGRAM)
        .args(["restore", &world.nvml.flag()])
        .arg(format!("--state.directory={}", world.node.folder().join("state").display()))
        .arg(format!("--run.directory={}", world.node.folder().join("run").display()))
        .output()
        .unwrap();
    let table = String::from_utf8(restore.stdout).unwrap();
    assert!(restore.status.success() && is_back(&world), "{table}");
    assert!(table.lines().any(|line| line.contains("GPU-stated") && line.contains("900 MHz")), "{table}");

    // Never above what was stated, in all of that.
    let (locks, resets) = written(&world, "GPU-stated");
    let restored = locks.iter().filter(|range| **range == (345, 900)).count();
    assert!(locks.iter().all(|(low, high)| *low == 345 && *high <= 900), "{locks:?}");
    assert_eq!((restored, resets), (4, 0), "{locks:?}");
    assert_eq!(written(&world, "GPU-reset").1, 4);
    assert_eq!(world.journal(), "");
}

#[test]
fn a_crash_of_a_run_that_was_not_told_is_restored_to_what_is_stated_since() {
    let mut world = World::new();
    let _pods = world.busy(["late"]);
    world.policies(&clocks("late", 400));
    let mut agent = world.agent(&[]);
    world.wait_for_lock("GPU-late");
    agent.end("KILL");
    world.no_policies();
    let agent = world.agent(&["--capping.gpu-clock-before=345-1200"]);
    world.wait("the stated clocks", || world.lock("GPU-late") == Some((345, 1200)));
    world.wait("the journal to be empty", || world.journal().is_empty());
    drop(agent);
    assert_eq!(written(&world, "GPU-late").1, 0);
}

#[test]
fn what_cannot_be_stated_is_refused_and_what_cannot_be_restored_is_not_capped() {
    for (value, sentence) in [
        ("345,1200", "\"345\" is not a range; expected MIN-MAX in MHz, as in 345-1200"),
        ("1200-345", "1200-345 is not a range"),
        ("0=345-1200", "\"0\" is not the UUID of a GPU, which begins with GPU- (nvidia-smi -L)"),
        ("open,345-1200", "all GPUs have two values"),
    ] {
        let (code, said) = agent::run(&[&format!("--capping.gpu-clock-before={value}")]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(sentence) && said.contains("--capping.gpu-clock-before"), "{value}: {said}");
    }
    let mut world = World::new();
    let _pods = world.busy(["beyond"]);
    world.policies(&clocks("beyond", 400));
    let agent = world.agent(&["--capping.gpu-clock-before=GPU-beyond=345-2500,GPU-typo=open"]);
    world.wait("the reason", || reason(&agent.scrape(), CLOCKS, "GPU-beyond") == "rejected");
    agent.after_ticks(6);
    assert_eq!(world.writes("GPU-beyond"), []);
    let sentence = "345-2500 MHz cannot be restored, the clocks are 345 to 1980 MHz here";
    agent.assert_logged(sentence, 1);
    agent.assert_logged("names a GPU that does not exist here", 1);
}
