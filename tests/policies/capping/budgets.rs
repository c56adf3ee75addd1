//! What a budget is a budget of.

use std::time::Duration;

use fake_nvml::clock::monotonic_us;
use fake_nvml::plant::Plant;

use super::world::{World, assert_shows, policy, state};
use crate::common::nvml::{self, Gpu};
use crate::common::repeat::{Cause, repeated};

const SECOND_US: u64 = 1_000_000;
/// Most bursts of a load, five seconds each.
const BURSTS: u64 = 60;

#[test]
fn a_budget_is_of_all_gpus_of_a_pod_of_all_pods_of_the_node_or_of_a_window() {
    repeated(Cause::LateTick, || {
        let mut world = World::new();
        // One pod on two GPUs; two pods that share a budget; one with short bursts.
        let [two, node_a, node_b, window] = [
            world.pod("two"),
            world.pod_with("node-a", &[("app", "node")]),
            world.pod_with("node-b", &[("app", "node")]),
            world.pod("window"),
        ];
        for (uuid, pod) in [("GPU-2a", &two), ("GPU-2b", &two), ("GPU-na", &node_a), ("GPU-nb", &node_b)] {
            world.gpu(uuid, 2.0, &[(pod, 1.0)]);
        }
        let gpu = Gpu { processes: Some(vec![window.process(0.0)]), ..nvml::gpu("GPU-window") };
        world.add(gpu, Plant { exponent: 2.0, ..Plant::default() });
        world.policies(
            &[
                policy("two", "Enforce", "watts: 800", ""),
                policy("node", "Enforce", "watts: 900, scope: PerNode", ""),
                policy("window", "Enforce", "watts: 400, windowSeconds: 10", ""),
            ]
            .concat(),
        );
        let agent = world.agent(&[]);
        let sum = |a: &str, b: &str| world.watts(a) + world.watts(b);
        // Both of a pair do their part.
        for uuid in ["GPU-2a", "GPU-2b", "GPU-na", "GPU-nb"] {
            let (low, high) = world.wait_for_lock(uuid);
            assert!(low == 345 && (900..1900).contains(&high), "{uuid} {low} {high}");
        }
        world.wait("two GPUs of a pod to keep its budget", || sum("GPU-2a", "GPU-2b") <= 800.0);
        world.wait("two pods to keep the budget of the node", || sum("GPU-na", "GPU-nb") <= 900.0);
        let page = agent.after_ticks(8);
        assert!(sum("GPU-2a", "GPU-2b") <= 800.0 && sum("GPU-na", "GPU-nb") <= 900.0);
        let node = page.select("energy_agent_policy_budget_watts", &[("policy", "node")]);
        assert_eq!((node.len(), node[0].label("pod_name"), node[0].number()), (1, "", 900.0));
        assert_shows(&page, "energy_agent_policy_budget_watts", &[("policy", "two")], 800.0);

        // A second of 700 W in every 5: 0.2 x 700 + 0.8 x 70 = 196 W in the mean.
        let start_us = monotonic_us() + SECOND_US;
        let bursts = (0..BURSTS).flat_map(|burst| [5 * burst, 5 * burst + 1]).zip([1.0, 0.0].into_iter().cycle());
        let steps = bursts.map(|(second, load)| (start_us + second * SECOND_US, load)).collect();
        world.change("GPU-window", |gpu| gpu.processes.as_mut().unwrap()[0].steps = steps);
        let (mut highest, mut shown) = (0.0_f64, 0.0_f64);
        // Three bursts; on a busy machine as many more as it takes.
        while monotonic_us() < start_us + 16 * SECOND_US
            || ((shown < 150.0 || highest < 690.0) && monotonic_us() < start_us + 5 * BURSTS * SECOND_US)
        {
            std::thread::sleep(Duration::from_millis(200));
            highest = highest.max(world.watts("GPU-window"));
            // A tick of a busy machine may come without a reading of the GPU.
            let page = agent.scrape();
            let power = page.select("energy_agent_policy_power_watts", &[("policy", "window")]);
            shown = power.first().map_or(shown, |power| shown.max(power.number()));
        }
        // The budget is one of the mean, and so is the power that is shown beside it: of any 10 s,
        // two bursts and what a tick more or less makes.
        assert!(highest > 690.0, "{highest} W");
        assert!((150.0..260.0).contains(&shown), "{shown} W");
        assert_eq!(world.writes("GPU-window"), []);
        world.wait("an open window", || state(&agent.scrape(), "window") == "open");
        assert_shows(&agent.scrape(), "energy_agent_policy_over_budget_seconds_total", &[("policy", "window")], 0.0);
    });
}
