//! GPUs over their budget: what is written, when, and how often.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use fake_nvml::clock::monotonic_us;
use fake_nvml::folder::Held;
use fake_nvml::plant::Plant;

use super::world::{LIMIT, LOCK, RESET, World, Write, assert_shows, enforce, policy, reason, settled_watts, state};
use crate::common::agent::wait_for;
use crate::common::nvml::{self, Gpu};
use crate::common::page::Page;
use crate::common::say;

const SECOND_US: u64 = 1_000_000;

#[test]
fn without_a_policy_that_enforces_nothing_is_written_whatever_a_gpu_draws() {
    let mut world = World::new();
    let _pods = world.busy(["recommend", "off", "unselected"]);
    // Installed alone: capping is on, and there is no file yet.
    let agent = world.agent(&[]);
    agent.after_ticks(8);
    world.policies(&(policy("recommend", "Recommend", "watts: 400", "") + &policy("off", "Off", "watts: 400", "")));
    world.wait("the recommendation", || state(&agent.scrape(), "recommend") == "recommending");
    agent.after_ticks(12);
    // A tick of a busy machine may come without a reading of the GPU, and has no power then.
    let page = wait_for("a page with its power", || {
        Some(agent.scrape()).filter(|page| page.has("energy_agent_policy_power_watts", &[("policy", "recommend")]))
    });
    let of = |name: &str| page.number_of(name, &[("policy", "recommend")]);
    // 380 of 700 W are (380 / 700)^(1 / 1.5) = 0.665 of the clock.
    assert!(
        (of("energy_agent_policy_ceiling_ratio") - 0.665).abs() < 0.02,
        "{}",
        of("energy_agent_policy_ceiling_ratio")
    );
    assert!((of("energy_agent_policy_power_watts") - 700.0).abs() < 40.0);
    assert!(
        of("energy_agent_policy_headroom_watts") < -260.0 && of("energy_agent_policy_over_budget_seconds_total") > 2.0
    );
    assert_eq!(state(&page, "off"), "off");
    assert_shows(&page, "energy_agent_policy_ceiling_ratio", &[("policy", "off")], 1.0);
    assert_eq!(world.nvml.writes(), Vec::<serde_json::Value>::new());
    assert_eq!(world.journal(), "");
    assert!(world.watts("GPU-recommend") > 699.0);
}

/// The pods of [`Minute`] with a budget that is not a part of the peak.
const MINUTE_PODS: [&str; 4] = ["step", "bursts", "noise", "unreachable"];

/// A minute of five GPUs under one agent, which several tests look at: a step, bursts, noise, a budget out of reach, and a part
/// of the peak.
struct Minute {
    plant: Plant,
    /// Of the monotonic clock: when the agent was started, when the loads rose, and when that of the peak fell.
    began_us: u64,
    start_us: u64,
    fell_us: u64,
    /// The last page.
    page: Page,
    /// A tick's length on this machine.
    tick_s: f64,
    /// What was written to each GPU, by its pod, and what was in force at the end.
    writes: BTreeMap<&'static str, Vec<Write>>,
    held: Held,
}

/// Measured once, by the first test that asks.
static MINUTE: LazyLock<Minute> = LazyLock::new(Minute::measure);

impl Minute {
    /// Once more where the machine was too busy: where late ticks have no reading of a GPU, the claims do not hold.
    fn measure() -> Self {
        for _ in 0..2 {
            let minute = Self::once();
            let late = minute.page.count("energy_agent_late_ticks_total");
            if late < 2 {
                return minute;
            }
            say("REPEATED", &format!("{late} ticks of a minute came late"));
        }
        Self::once()
    }

    fn once() -> Self {
        let mut world = World::new();
        world.interval = "1s";
        let plant = Plant { exponent: 2.4, ..Plant::default() };
        let pods: Vec<_> = MINUTE_PODS.iter().map(|name| world.pod(name)).collect();
        for (name, pod) in MINUTE_PODS.iter().zip(&pods) {
            let processes = Some(vec![pod.process(0.1)]);
            world.add(Gpu { processes, ..nvml::gpu(&format!("GPU-{name}")) }, plant.clone());
        }
        let more: String = MINUTE_PODS[..3].iter().map(|name| enforce(name)).collect();
        // At 700 W from the beginning on, and little as soon as it is held to its budget.
        let pod = world.pod("peak");
        world.add(Gpu { processes: Some(vec![pod.process(1.0)]), ..nvml::gpu("GPU-peak") }, plant.clone());
        // Of 36 s; a mean of 5 s does not jump when a reading comes late.
        let peak = policy("peak", "Enforce", "percentOfPeak: 80, lookbackHours: 0.01, windowSeconds: 5", "");
        // Its idle power is 70 W, and the least clock draws 70 + 630 / 4^2.4 = 92.6 W.
        world.policies(&(more + &peak + &policy("unreachable", "Enforce", "watts: 80", "")));
        let began_us = monotonic_us();
        let mut agent = world.agent(&[]);
        world.wait("learning", || state(&agent.scrape(), "peak") == "learning");
        assert!(!agent.scrape().has("energy_agent_policy_budget_watts", &[("policy", "peak")]));
        let start_us = monotonic_us() + SECOND_US;
        for name in MINUTE_PODS {
            world.change(&format!("GPU-{name}"), |gpu| {
                gpu.processes.as_mut().unwrap()[0].steps = Self::steps(name, start_us);
            });
        }
        world.wait("the peak to be known and held to", || {
            let page = agent.scrape();
            let budget = page.select("energy_agent_policy_budget_watts", &[("policy", "peak")]).pop();
            budget.is_some_and(|budget| world.watts("GPU-peak") <= budget.number())
        });
        let fell_us = monotonic_us() + SECOND_US;
        world.change("GPU-peak", |gpu| gpu.processes.as_mut().unwrap()[0].steps = vec![(fell_us, 0.1)]);
        while monotonic_us() < start_us + 68 * SECOND_US {
            thread::sleep(Duration::from_millis(200));
        }
        // A busy machine takes more time to let it go.
        world.wait("the peak's clocks to be reset", || world.lock("GPU-peak").is_none());
        let page = agent.after_ticks(1);
        agent.assert_well();
        page.assert_conserved();
        let ticks = u32::try_from(page.ticks()).unwrap();
        let tick_s = Duration::from_micros(monotonic_us() - began_us).as_secs_f64() / f64::from(ticks);
        let names = MINUTE_PODS.into_iter().chain(["peak"]);
        let writes = names.map(|name| (name, world.writes(&format!("GPU-{name}")))).collect();
        Self { plant, began_us, start_us, fell_us, page, tick_s, writes, held: world.nvml.held() }
    }

    /// The loads of a pod from `start_us` on.
    fn steps(name: &str, start_us: u64) -> Vec<(u64, f64)> {
        let at = |seconds: u64| start_us + seconds * SECOND_US;
        match name {
            "step" | "unreachable" => vec![(at(0), 1.0)],
            // 4 of 10 seconds.
            "bursts" => (0..7).flat_map(|burst| [(at(10 * burst), 1.0), (at(10 * burst + 4), 0.0)]).collect(),
            // Between 0.72 and 1, another load each second.
            _ => (0..70)
                .map(|second| (at(second), 0.72 + f64::from(u32::try_from(second * 7 % 15).unwrap()) * 0.02))
                .collect(),
        }
    }
}

#[test]
fn no_load_has_a_gpu_written_out_of_its_range_or_more_than_twenty_times_a_minute() {
    for name in MINUTE_PODS {
        let writes = &MINUTE.writes[name];
        if name != "unreachable" {
            assert!(
                writes.iter().all(|write| write.at_us >= MINUTE.start_us),
                "{name} was under its budget: {writes:?}"
            );
        }
        for write in writes {
            match (write.call.as_str(), write.arguments.as_slice()) {
                // The lowest supported clock, so that the device can still idle; the agent's floor is a quarter of 1980.
                (LOCK, &[low, high]) => assert!(low == 345 && (495..1980).contains(&high), "{name} {write:?}"),
                (LIMIT, &[limit_mw]) => assert!((200_000..=700_000).contains(&limit_mw), "{name} {write:?}"),
                (RESET, []) => {}
                _ => panic!("{name} {write:?}"),
            }
        }
        let most = most_in_a_minute(writes);
        println!("{name}: {} writes, at most {most} in a minute", writes.len());
        assert!(most <= 20, "{name}: {most} writes in a minute: {writes:#?}");
    }
}

#[test]
fn a_step_of_the_load_is_held_by_three_cuts_at_most() {
    let Minute { plant, start_us, page, held, .. } = &*MINUTE;
    // Settled: the first write after which the power stays at the budget or below, for 30 s.
    let writes = &MINUTE.writes["step"];
    let until = |at_us: u64| -> Vec<Write> { writes.iter().filter(|write| write.at_us <= at_us).cloned().collect() };
    let after = writes.iter().filter(|write| write.at_us < start_us + 30 * SECOND_US);
    let over = after.clone().filter(|write| settled_watts(plant, 1.0, &until(write.at_us)) > 400.0);
    let settled = writes.iter().find(|write| over.clone().all(|over| over.at_us < write.at_us)).unwrap();
    println!("settled after {} ms", (settled.at_us - start_us) / 1000);
    // A cut each tick, and three ticks. How long they take is the benchmark's to say.
    let cuts = writes.iter().filter(|write| write.call == LOCK && write.at_us <= settled.at_us).count();
    assert!(cuts <= 3, "{cuts} cuts: {writes:#?}");
    assert!(held.gpus["GPU-step"].running.as_ref().unwrap().power_w <= 400.0);
    assert_eq!(reason(page, "gpu_locked_clocks", "GPU-step"), "ok");
    for name in ["step", "noise"] {
        assert_eq!(state(page, name), "capping", "{name}");
    }
}

#[test]
fn a_budget_out_of_reach_is_told_once_and_not_hunted_for() {
    let Minute { start_us, page, held, .. } = &*MINUTE;
    assert_eq!(state(page, "unreachable"), "unreachable");
    let gpu = &held.gpus["GPU-unreachable"];
    assert_eq!((gpu.locked_mhz, gpu.power_limit_mw), (Some((345, 495)), Some(200_000)));
    // No more is written in the last 30 s.
    let last = MINUTE.writes["unreachable"].last().unwrap().at_us;
    assert!(last < start_us + 38 * SECOND_US, "hunting until {} s", (last - start_us) / SECOND_US);
}

#[test]
fn a_step_bursts_and_noise_are_over_the_budget_for_a_few_ticks_of_a_minute() {
    let Minute { page, tick_s, .. } = &*MINUTE;
    // By the agent's own count, in ticks as long as they are on this machine. Nothing held down, it is 68, 28 and 68 s, of
    // ticks of a second; the first second of a burst is the backstop's, 1.1 x the budget.
    for name in ["step", "bursts", "noise"] {
        let over = page.number_of("energy_agent_policy_over_budget_seconds_total", &[("policy", name)]);
        println!("{name}: {over} s over its budget, in ticks of {tick_s} s");
        assert!(over < 10.0 * tick_s, "{name}: {over} s, in ticks of {tick_s} s");
    }
}

/// Learned for the whole time, then held to, and let go when the load went.
#[test]
fn a_part_of_the_peak_is_learned_held_to_and_let_go_when_the_load_goes() {
    let Minute { plant, began_us, fell_us, page, held: at_end, .. } = &*MINUTE;
    // 80 % of 700 W.
    let budget = page.number_of("energy_agent_policy_budget_watts", &[("policy", "peak")]);
    assert!((548.0..580.0).contains(&budget), "{budget} W");
    let writes = MINUTE.writes["peak"].clone();
    let learned_us = writes[0].at_us - began_us;
    println!("the peak was known after {learned_us} us");
    // A tick of a busy machine may come without a reading of the GPU, and is not learned from.
    assert!(learned_us >= 36 * SECOND_US && writes[0].at_us < *fell_us, "{learned_us} us");
    let (held, let_go): (Vec<Write>, Vec<Write>) = writes.into_iter().partition(|write| write.at_us < *fell_us);
    assert!(settled_watts(plant, 1.0, &held) <= budget, "{held:?}");
    // The clocks rise step by step until they are reset; the power limit stands for a minute more.
    let highs: Vec<u32> = let_go.iter().filter(|write| write.call == LOCK).map(|write| write.arguments[1]).collect();
    assert!(!highs.is_empty() && highs.is_sorted(), "{let_go:?}");
    assert!(let_go.iter().any(|write| write.call == RESET), "{let_go:?}");
    assert_eq!(at_end.gpus["GPU-peak"].locked_mhz, None);
    assert_shows(page, "energy_agent_policy_ceiling_ratio", &[("policy", "peak")], 1.0);
    let limit = f64::from(at_end.gpus["GPU-peak"].power_limit_mw.unwrap()) / 1000.0;
    assert!((limit - 1.1 * budget).abs() < 0.05 * budget, "{limit} W behind {budget} W");
}

#[test]
fn a_pod_over_its_budget_is_held_to_it_and_let_go_when_the_policy_is_deleted() {
    let mut world = World::new();
    world.interval = "1s";
    let _pods = world.busy(["train"]);
    world.policies(&enforce("train"));
    let agent = world.agent(&[]);
    world.wait_for_lock("GPU-train");
    world.wait("the budget to be kept", || world.watts("GPU-train") <= 400.0);
    let (low, high) = world.lock("GPU-train").unwrap();
    assert!(low == 345 && high < 1980, "{low} {high}");
    // 1.1 x 400 W.
    assert_eq!(world.limit_mw("GPU-train"), Some(440_000));
    let of_train = [("device", "GPU-train"), ("policy", "train"), ("actuator", "gpu_locked_clocks")];
    // The clock is raised in small steps, between the page and the driver's answer too.
    world.wait("the page to show what the driver holds", || {
        let wanted = agent.scrape().number_of("energy_agent_cap_limit_hertz", &of_train);
        (wanted - f64::from(world.lock("GPU-train").unwrap().1) * 1e6).abs() < 0.5
    });
    let page = agent.after_ticks(1);
    assert_shows(&page, "energy_agent_cap_found_watts", &[("device", "GPU-train")], 440.0);

    world.no_policies();
    world.wait_until_open("GPU-train");
    // The reset call, never "the highest clock".
    let calls: Vec<String> = world.writes("GPU-train").into_iter().map(|write| write.call).collect();
    assert!(calls.contains(&RESET.to_owned()), "{calls:?}");
    drop(agent);
}

/// The most writes within any 60 s.
fn most_in_a_minute(writes: &[Write]) -> usize {
    let within = |from: &Write| {
        let minute = from.at_us..from.at_us + 60 * SECOND_US;
        writes.iter().filter(|write| minute.contains(&write.at_us)).count()
    };
    writes.iter().map(within).max().unwrap_or(0)
}
