//! Clocks and power limits of GPUs, through the fake NVML library: what the driver holds outlives the agent.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Knob, Limits};

use super::node::{Driver, Node, limits};
use crate::common::agent::wait_for;
use crate::common::nvml::{FakeNvml, gpu};

const UUID: &str = "GPU-fd585786-3c80-50f9-8a72-731ad8419df6";

fn clock() -> Knob {
    Knob::GpuClock(UUID.into())
}

fn power() -> Knob {
    Knob::GpuPower(UUID.into())
}

/// A board whose limit is 500 W (FC-089).
fn board() -> FakeNvml {
    let mut nvml = FakeNvml::new().gpu(gpu(UUID));
    let limits = nvml.at(0).limits.as_mut().unwrap();
    (limits.min_mw, limits.max_mw, limits.default_mw) = (200_000, 700_000, 500_000);
    nvml.play();
    nvml
}

/// The upper end of the lock, and the limit; `None`: none, or never written.
fn held(nvml: &FakeNvml) -> (Option<u32>, Option<u32>) {
    let held = nvml.held();
    let gpu = held.gpus.get(UUID).cloned().unwrap_or_default();
    (gpu.locked_mhz.map(|(_, high)| high), gpu.power_limit_mw)
}

fn wanted() -> Limits {
    limits([(clock(), 1200), (power(), 250_000)])
}

/// Ticks until the driver holds this.
fn until(agent: &mut Driver, limits: &Limits, nvml: &FakeNvml, expected: (Option<u32>, Option<u32>)) {
    wait_for("the driver to hold it", || {
        agent.tick(limits);
        (held(nvml) == expected).then_some(())
    });
    // The answers come a moment later.
    wait_for("the agent to know", || {
        agent.tick(limits);
        agent.actuator.caps(&BTreeSet::new()).iter().all(|cap| cap.state == KnobState::Ok).then_some(())
    });
}

const CAPPED: (Option<u32>, Option<u32>) = (Some(1200), Some(250_000));
const BACK: (Option<u32>, Option<u32>) = (None, Some(500_000));

#[test]
fn a_gpu_is_capped_by_two_writes_and_given_back_by_two() {
    let nvml = board();
    let node = Node::new().with_gpus(&nvml);
    let mut agent = node.open();
    until(&mut agent, &wanted(), &nvml, CAPPED);
    for _ in 0..5 {
        agent.tick(&wanted());
    }
    assert_eq!(nvml.writes().len(), 2, "{:#?}", nvml.writes());
    let knobs = agent.actuator.knobs();
    assert_eq!((knobs[&power()].original, knobs[&power()].current), (Some(500_000), Some(250_000)));
    assert_eq!((knobs[&clock()].original, knobs[&clock()].current), (None, Some(1200)));
    until(&mut agent, &Limits::new(), &nvml, BACK);
    assert_eq!(nvml.writes().len(), 4, "{:#?}", nvml.writes());
    assert_eq!(agent.actuator.adopted(), Limits::new());
}

#[test]
fn an_agent_that_ends_waits_for_its_gpus() {
    let nvml = board();
    let node = Node::new().with_gpus(&nvml);
    let mut agent = node.open();
    until(&mut agent, &wanted(), &nvml, CAPPED);
    let end = Instant::now() + Duration::from_secs(60);
    assert!(agent.actuator.close(agent.now, end, &mut agent.files, &mut agent.gpus));
    assert_eq!(held(&nvml), BACK);
}

#[test]
fn a_killed_agents_gpus_are_given_back_by_the_command() {
    let nvml = board();
    let node = Node::new().with_gpus(&nvml);
    let mut agent = node.open();
    until(&mut agent, &wanted(), &nvml, CAPPED);
    drop(agent);
    let dry = node.restore(&["--dry-run"]);
    assert!(dry.line(&power()).contains("250.0 W"), "{dry:#?}");
    assert!(dry.line(&clock()).ends_with("would be restored"), "{dry:#?}");
    assert_eq!(held(&nvml), CAPPED);
    let outcome = node.restore(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    assert_eq!(held(&nvml), BACK);
}

#[test]
fn the_next_run_knows_the_limit_of_before_the_first_cap() {
    let nvml = board();
    let node = Node::new().with_gpus(&nvml);
    let mut agent = node.open();
    until(&mut agent, &wanted(), &nvml, CAPPED);
    drop(agent);
    let mut agent = node.open();
    assert_eq!(agent.actuator.adopted(), wanted());
    // Whether a lock was written cannot be read: it is written once more.
    wait_for("the lock to be written again", || {
        agent.tick(&wanted());
        (nvml.writes().len() == 3).then_some(())
    });
    assert_eq!(held(&nvml), CAPPED);
    assert_eq!(agent.actuator.knobs()[&power()].original, Some(500_000));
    until(&mut agent, &Limits::new(), &nvml, BACK);
}

#[test]
fn gpus_that_are_away_stay_in_the_journal() {
    let nvml = board();
    let node = Node::new().with_gpus(&nvml);
    let mut agent = node.open();
    until(&mut agent, &wanted(), &nvml, CAPPED);
    drop(agent);
    nvml.unload();
    let outcome = node.restore(&[]);
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert!(outcome.line(&clock()).contains("FAILED: the device does not exist"), "{outcome:#?}");
    nvml.play();
    let outcome = node.restore(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    assert_eq!(held(&nvml), BACK);
}

#[test]
fn a_limit_of_an_administrator_stays() {
    let nvml = board();
    let node = Node::new().with_gpus(&nvml);
    let mut agent = node.open();
    until(&mut agent, &wanted(), &nvml, CAPPED);
    nvml.limit_power(UUID, 400_000);
    wait_for("the agent to notice", || {
        agent.tick(&wanted());
        (agent.actuator.knobs()[&power()].state == KnobState::Yielded).then_some(())
    });
    until_gone(&mut agent, &nvml);
    assert_eq!(held(&nvml), (None, Some(400_000)));
}

/// Ticks without limits until nothing is held.
fn until_gone(agent: &mut Driver, nvml: &FakeNvml) {
    wait_for("all to be given back", || {
        agent.tick(&Limits::new());
        (agent.actuator.adopted().is_empty() && held(nvml).0.is_none()).then_some(())
    });
}
