//! GPUs over their budget.

use std::thread;
use std::time::{Duration, Instant};

use crate::world::World;

/// 400 W for each pod of the namespace.
fn policy(mode: &str, namespace: &str) -> String {
    format!(
        "- name: train\n  mode: {mode}\n  selector: {{namespaces: [{namespace}]}}\n  budget: {{watts: 400, components: [gpu]}}\n"
    )
}

#[test]
fn a_pod_over_its_budget_is_held_to_it_and_let_go_when_the_policy_is_deleted() {
    let mut world = World::new();
    let pod = world.pod("train-0");
    world.gpu("GPU-a", 2.0, &[(&pod, 1.0)]);
    world.policies(&policy("Enforce", &world.node.name));
    let agent = world.agent(&[]);
    world.wait_for_lock("GPU-a");
    // Settled within 3 ticks of the first cut; the plant averages over nothing here: it is the power of the moment.
    let deadline = Instant::now() + Duration::from_secs(4);
    while world.watts("GPU-a") > 400.0 {
        assert!(Instant::now() < deadline, "{} W, {:?}", world.watts("GPU-a"), world.lock("GPU-a"));
        thread::sleep(Duration::from_millis(20));
    }
    let (low, high) = world.lock("GPU-a").unwrap();
    assert!(low == 345 && high < 1980, "{low} {high}");

    world.no_policies();
    world.wait_for_no_lock("GPU-a");
    let last = world.nvml.writes().last().unwrap().clone();
    assert!(world.nvml.held().gpus["GPU-a"].power_limit_mw.is_none_or(|limit_mw| limit_mw == 700_000), "{last}");
    drop(agent);
}
