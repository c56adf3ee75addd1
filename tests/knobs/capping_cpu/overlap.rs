//! Policies of one pod that decide about different components.

use std::time::Duration;

use fake_nvml::plant::Plant;
use serde_json::json;

use crate::common::agent::wait_for;
use crate::common::alone;
use crate::common::busy_node::{CpuPod, WATTS_PER_CPU, World, state};
use crate::common::cgroup::ids;
use crate::common::kubernetes::node::{self, container, running};
use crate::common::nvml::{self, FakeNvml, Gpu};
use crate::common::quota::QuotaPod;

/// The policies of FC-091, enforced.
fn policies() -> String {
    let (_, text) = include_str!("../../cases/FC-091-overlap.yaml").split_once("    policies:\n").unwrap();
    let lines = text.lines().map_while(|line| line.strip_prefix("    "));
    lines.map(|line| format!("{line}\n")).collect::<String>().replace("  budget:", "  mode: Enforce\n  budget:")
}

#[test]
fn the_gpu_is_one_policys_and_the_cpus_are_anothers_fc_091() {
    let _alone = alone();
    let world = World::new();
    let node::Pod { object, cgroup } = world.node.adopt(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "batch", "name": world.node.name, "labels": {"tier": "low", "team": "ml"}},
        "spec": {"containers": [container("main")]},
        "status": {"phase": "Running", "containerStatuses": [running("main", &format!("containerd://{}", ids().1))]},
    }));
    let Some(quota) = QuotaPod::of(cgroup) else { return };
    let pod = CpuPod { object, quota };
    let load = pod.quota.load(&["spin", "0"]);
    let mut nvml = FakeNvml::new();
    let process = nvml::Process { load: 1.0, ..nvml::process(load.0.id()) };
    let plant = Plant { exponent: 2.0, ..Plant::default() };
    nvml.state.gpus.push(Gpu { plant: Some(plant), processes: Some(vec![process]), ..nvml::gpu("GPU-a") });
    nvml.play();
    world.policies(&policies());
    let coefficients =
        format!("--meter.estimate-coefficients={}", world.node.folder().join("coefficients.json").display());
    let agent = world.bare_agent(&["--meter.cpu=estimate", &coefficients, &nvml.flag()]);
    // 250 W of the GPU, by-label's; 60 W of the CPUs, other-control's.
    let watts = || nvml.held().gpus["GPU-a"].running.as_ref().unwrap().power_w;
    wait_for("by-label to hold the GPU", || {
        nvml.held().gpus.get("GPU-a").and_then(|held| held.locked_mhz).filter(|_| watts() <= 250.0)
    });
    pod.wait_until_capped();
    agent.after_ticks(4);
    let used = pod.cpus_over(Duration::from_secs(3));
    let budget = 60.0 / WATTS_PER_CPU;
    assert!(used <= budget * 1.05, "{used} CPUs of {budget}");
    assert!(watts() <= 250.0, "{} W", watts());
    assert_eq!(["by-label", "other-control"].map(|policy| state(&agent, policy)), ["capping", "capping"]);
    let page = agent.scrape();
    let whose = |device: &str| {
        let limits = page.samples.iter().filter(|sample| sample.name.starts_with("energy_agent_cap_limit_"));
        limits.filter(|sample| sample.label("device") == device).map(|limit| limit.label("policy")).collect::<Vec<_>>()
    };
    // Each once: the clock and the power limit of the GPU, and the quota.
    assert_eq!((whose("GPU-a"), whose(pod.device())), (vec!["by-label"; 2], vec!["other-control"]));
}
