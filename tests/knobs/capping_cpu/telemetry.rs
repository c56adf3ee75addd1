//! Power that is not measured any more is not 0 W.

use crate::common::agent::wait_for;
use crate::common::alone;
use crate::common::busy_node::{World, wait_for_state};
use crate::common::nvml::{self, FakeNvml, Gpu};
use crate::common::plant::Machine;
use crate::common::tree::Tree;

#[test]
fn when_the_counters_are_lost_the_cap_holds_and_then_lets_go() {
    let _alone = alone();
    let machine = Machine::of(Tree::new(), 2, 200_000_000, 200_000_000);
    let _plant = machine.draw(|| 100.0);
    let world = World::new();
    let Some(pod) = world.pod("batch-0") else { return };
    let before = pod.quota.quota();
    let _load = pod.spin();
    world.policies(&(world.policy(2.0) + "  control: {telemetryTimeoutSeconds: 6}\n"));
    let [sysfs, trust] = machine.flags();
    let agent = world.bare_agent(&[&sysfs, &trust, "--meter.cpu=rapl", "--gpu=off"]);
    wait_for_state(&agent, "quiet", "unreachable");
    let held = pod.quota.quota();
    assert_ne!(held, before);
    machine.lose(0);
    machine.lose(1);
    wait_for_state(&agent, "quiet", "telemetry_lost");
    assert_eq!(pod.quota.quota(), held, "it holds");
    assert!(!agent.scrape().has("energy_agent_policy_power_watts", &[]), "what is not measured has no value");
    pod.wait_until_quota_is(&before);
    wait_for_state(&agent, "quiet", "telemetry_lost");
    machine.found(0);
    machine.found(1);
    pod.wait_until_capped();
}

#[test]
fn one_package_of_two_that_is_lost_does_not_open_what_holds_the_power() {
    let _alone = alone();
    let machine = Machine::of(Tree::new(), 2, 200_000_000, 200_000_000);
    let _plant = machine.draw(|| 100.0);
    let world = World::new();
    let Some(pod) = world.pod("batch-0") else { return };
    let _load = pod.spin();
    world.policies(&(world.policy(2.0) + "  control: {holdSeconds: 3}\n"));
    let [sysfs, trust] = machine.flags();
    let agent = world.bare_agent(&[&sysfs, &trust, "--meter.cpu=rapl", "--gpu=off"]);
    wait_for_state(&agent, "quiet", "unreachable");
    let held = pod.quota.quota();
    // Its counter is taken away, and stands still. The hold bridges the interval within which it stops.
    for stop in [Machine::lose, Machine::halt] {
        stop(&machine, 1);
        wait_for_state(&agent, "quiet", "telemetry_lost");
        agent.after_ticks(12);
        assert_eq!(pod.quota.quota(), held);
        assert!(!agent.scrape().has("energy_agent_policy_power_watts", &[]));
        machine.found(1);
        wait_for_state(&agent, "quiet", "unreachable");
    }
    agent.assert_logged("change=\"TelemetryLost\"", 2);
}

#[test]
fn a_budget_for_gpu_and_cpu_counts_both() {
    let _alone = alone();
    let world = World::new();
    let Some(pod) = world.pod("train-0") else { return };
    let load = pod.spin();
    let mut nvml = FakeNvml::new();
    let process = nvml::Process { load: 1.0, ..nvml::process(load.0.id()) };
    let plant = fake_nvml::plant::Plant { exponent: 2.0, ..Default::default() };
    nvml.state.gpus.push(Gpu { plant: Some(plant), processes: Some(vec![process]), ..nvml::gpu("GPU-a") });
    nvml.play();
    let nvml_flag = nvml.flag();
    let coefficients = world.node.folder().join("coefficients.json");
    let coefficients = format!("--meter.estimate-coefficients={}", coefficients.display());
    world.policies(&world.policy(2000.0).replace("[cpu]", "[gpu, cpu]"));
    let agent = world.bare_agent(&["--interval=1s", "--meter.cpu=estimate", &coefficients, &nvml_flag]);
    // A busy H100 of the plant draws 700 W, a busy CPU 100 W.
    let power = wait_for("the power of both", || {
        let page = agent.scrape();
        let found = page.select("energy_agent_policy_power_watts", &[("policy", "quiet")]);
        found.first().map(|sample| sample.number()).filter(|watts| *watts > 705.0)
    });
    assert!(power < 700.0 + 205.0, "{power} W");
    world.policies(&world.policy(400.0).replace("[cpu]", "[gpu, cpu]"));
    wait_for("the GPU to be cut", || nvml.held().gpus.get("GPU-a").and_then(|held| held.locked_mhz));
    let settled = wait_for("the sum to be under the budget", || {
        let page = agent.scrape();
        let found = page.select("energy_agent_policy_power_watts", &[("policy", "quiet")]);
        found.first().map(|sample| sample.number()).filter(|watts| *watts <= 400.0)
    });
    assert!(settled > 100.0, "{settled} W");
    world.no_policies();
    wait_for("the clocks to be free", || Some(()).filter(|()| nvml.held().gpus["GPU-a"].locked_mhz.is_none()));
    assert_eq!(pod.quota.millicpus(), None, "the GPU was enough");
}
