//! The figures of a policy and its limits, against arithmetic by hand and what the plant and its driver say.

use super::world::{GpuPod, LIMIT, LOCK, RESET, World, assert_shows, policy, state};
use crate::common::agent::{Agent, wait_for};
use crate::common::page::Page;

/// Power at 990, 1485 and 1980 MHz: 70 + 630 (f / 1980)^2. What is cut too deep stays so, for its figures to be read.
const PROFILE: &str = ", control: {releasePercent: 30, algorithm: table, table: [{clockMHz: 990, watts: 227.5}, {clockMHz: 1485, watts: 424.375}, {clockMHz: 1980, watts: 700}]}";
const TRAIN: [(&str, &str); 1] = [("policy", "train")];

fn near(value: f64, expected: f64, part: f64) -> bool {
    (value - expected).abs() <= expected.abs() * part
}

/// Writes of a limit of the GPU by result, as the agent counts them.
fn counted(page: &Page, actuator: &str) -> [f64; 4] {
    ["ok", "failed", "restored", "deferred"].map(|result| {
        let labels = [("actuator", actuator), ("device", "GPU-train"), ("result", result)];
        page.number_of("energy_agent_cap_writes_total", &labels)
    })
}

/// A pod whose GPU draws 700 W until it is limited, and an agent with a policy for it.
struct Train {
    world: World,
    agent: Agent,
    _pods: [GpuPod; 1],
}

impl Train {
    /// With a policy in this mode.
    fn under(mode: &str) -> Self {
        let mut world = World::new();
        let pods = world.busy(["train"]);
        world.policies(&policy("train", mode, "watts: 400", PROFILE));
        let agent = world.agent(&[]);
        Self { world, agent, _pods: pods }
    }

    /// A page that shows this power. A tick of a busy machine may come without a reading of the GPU.
    fn draws(&self, watts: f64) -> Page {
        wait_for(&format!("{watts} W"), || {
            let page = self.agent.scrape();
            let power = page.select("energy_agent_policy_power_watts", &TRAIN).first().map(|power| power.number());
            Some(page).filter(|_| power.is_some_and(|power| near(power, watts, 0.005)))
        })
    }
}

/// A figure of the policy.
fn of(page: &Page, name: &str) -> f64 {
    page.number_of(&format!("energy_agent_policy_{name}"), &TRAIN)
}

#[test]
fn a_recommendation_shows_budget_power_headroom_excess_and_ceiling_as_the_plant_has_them() {
    let train = Train::under("Recommend");
    // Open: 700 W of 400 W, so 300 W too much all the time.
    let before = train.draws(700.0);
    train.agent.after_ticks(6);
    let after = train.draws(700.0);
    assert_eq!(state(&after, "train"), "recommending");
    assert_shows(&after, "energy_agent_policy_budget_watts", &TRAIN, 400.0);
    assert!((of(&after, "headroom_watts") - (400.0 - of(&after, "power_watts"))).abs() < 2e-6);
    let grown = |name: &str| of(&after, name) - of(&before, name);
    let joules = |page: &Page| page.number_of("kepler_node_gpu_joules_total", &[("gpu_uuid", "GPU-train")]);
    // At 700 W, the energy is the time.
    let seconds = (joules(&after) - joules(&before)) / 700.0;
    let over = grown("over_budget_seconds_total");
    assert!((seconds * 0.8 - 0.5..=seconds + 0.5).contains(&over), "{over} s of {seconds} s");
    assert!(near(grown("over_budget_joules_total"), over * 300.0, 0.02), "{over} s");
    // 990 + 495 * (380 - 227.5) / (424.375 - 227.5) = 1373.4 MHz are recommended.
    assert!(near(of(&after, "ceiling_ratio"), 1373.4 / 1980.0, 0.005), "{}", of(&after, "ceiling_ratio"));
    assert!(!after.has("energy_agent_cap_limit_hertz", &[]) && !after.has("energy_agent_cap_limit_watts", &[]));
    assert_eq!(train.world.nvml.writes().len(), 0);
}

#[test]
fn what_is_enforced_shows_its_limits_and_writes_as_the_driver_counts_them_and_off_gives_all_back() {
    let train = Train::under("Recommend");
    train.draws(700.0);
    train.world.policies(&policy("train", "Enforce", "watts: 400", PROFILE));
    // The step below is 345 + 68 * 15 = 1365 MHz; behind it stand 1.1 * 400 W.
    train.world.wait_for_limit("GPU-train", 440_000);
    train.world.wait_for_lock("GPU-train");
    train.agent.after_ticks(8);
    let writes = train.world.writes("GPU-train");
    let locks: Vec<_> = writes.iter().filter(|write| write.call == LOCK).map(|write| &*write.arguments).collect();
    assert_eq!(locks[0], [345, 1365], "{writes:?}");
    // The interval in which it was cut may be cut for once more. It runs at the last of these clocks.
    let (_, high) = train.world.lock("GPU-train").unwrap();
    assert!(locks.len() <= 3 && locks[locks.len() - 1] == [345, high], "{writes:?}");
    let watts = 70.0 + 630.0 * (f64::from(high) / 1980.0).powi(2);
    let before = train.draws(watts);
    train.agent.after_ticks(4);
    let after = train.draws(watts);
    assert!(near(train.world.watts("GPU-train"), watts, 1e-6) && watts <= 380.0, "{watts} W");
    assert!((of(&after, "headroom_watts") - (400.0 - of(&after, "power_watts"))).abs() < 2e-6);
    assert_shows(&after, "energy_agent_policy_ceiling_ratio", &TRAIN, f64::from(high) / 1980.0);
    for counter in ["over_budget_seconds_total", "over_budget_joules_total"] {
        assert_eq!(of(&after, counter), of(&before, counter), "{counter}: the budget is kept");
    }
    let device = [("device", "GPU-train"), ("policy", "train")];
    assert_shows(&after, "energy_agent_cap_limit_hertz", &device, f64::from(high) * 1e6);
    assert_shows(&after, "energy_agent_cap_limit_watts", &device, 440.0);
    assert_shows(&after, "energy_agent_cap_found_watts", &device[..1], 440.0);
    assert_eq!(state(&after, "train"), "capping");
    let calls = |call: &str| {
        let writes = train.world.writes("GPU-train").into_iter().filter(|write| write.call == call);
        f64::from(u32::try_from(writes.count()).unwrap())
    };
    let cuts = calls(LOCK);
    assert_eq!(counted(&after, "gpu_locked_clocks"), [cuts, 0.0, 0.0, 0.0]);
    assert_eq!(([calls(LIMIT), calls(RESET)], counted(&after, "gpu_power_limit")), ([1.0, 0.0], [1.0, 0.0, 0.0, 0.0]));
    assert_shows(&after, "energy_agent_cap_restore_pending", &[], 0.0);
    assert_shows(&after, "energy_agent_cap_restore_failures_total", &[], 0.0);

    // Off: the limits are given back, one call each, and what was counted stays.
    train.world.policies(&policy("train", "'Off'", "watts: 400", PROFILE));
    train.world.wait_until_open("GPU-train");
    let page = train.agent.after_ticks(2);
    assert_eq!(counted(&page, "gpu_locked_clocks"), [cuts, 0.0, 1.0, 0.0]);
    assert_eq!(counted(&page, "gpu_power_limit"), [1.0, 0.0, 1.0, 0.0]);
    assert_eq!([calls(LOCK), calls(LIMIT), calls(RESET)], [cuts, 2.0, 1.0], "{:?}", train.world.writes("GPU-train"));
    assert_eq!(state(&page, "train"), "off");
    assert!(!page.has("energy_agent_cap_limit_hertz", &[]) && !page.has("energy_agent_cap_limit_watts", &[]));
    assert_shows(&page, "energy_agent_cap_found_watts", &device[..1], 700.0);
    assert_shows(&page, "energy_agent_policy_ceiling_ratio", &TRAIN, 1.0);
}
