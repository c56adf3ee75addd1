//! Drivers that refuse, devices that are lost, hang, forget or are written by others.

use std::time::{Duration, Instant};

use fake_nvml::plant::Plant;
use fake_nvml::returns::Return;
use fake_nvml::state::Limits;
use serde_json::{Value, json};

use super::world::{LIMIT, LOCK, RESET, World, assert_shows, enforce, limit, policy, reason, state};
use crate::common::agent::{Agent, wait_for};
use crate::common::kubernetes::case;
use crate::common::nvml::{self, Gpu};
use crate::common::page::Page;
use crate::common::repeat::{Cause, repeated};

const POWER: &str = "gpu_power_limit";
const CLOCKS: &str = "gpu_locked_clocks";

/// A string of a case.
fn word(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// GPUs are read on: each has used more on the second page.
fn assert_metered(world: &World, first: &Page, page: &Page) {
    for gpu in &world.nvml.state.gpus {
        let joules = |page: &Page| page.number_of("kepler_node_gpu_joules_total", &[("gpu_uuid", &gpu.uuid)]);
        assert!(joules(page) > joules(first) + 100.0, "{}", gpu.uuid);
    }
    page.assert_conserved();
}

/// 50 W where 200 is the least, 900 where 700 is the most, 149.4 where 150 is the least.
#[test]
fn a_budget_out_of_a_devices_range_is_held_as_far_as_the_device_goes_fc_082() {
    let ranges: Value = case("FC-082");
    let mut world = World::new();
    let [narrow, second] = [&ranges["gpu"]["uuid"], &ranges["second_gpu"]["uuid"]].map(|uuid| word(uuid) + "-082");
    let pods = ["w50", "w900", "w149"].map(|name| world.pod(name));
    world.gpu(&narrow, 2.0, &[(&pods[0], 1.0)]);
    world.gpu("GPU-900", 2.0, &[(&pods[1], 1.0)]);
    let small = Limits { min_mw: 150_000, max_mw: 180_000, default_mw: 180_000, ..Limits::default() };
    let gpu = Gpu { processes: Some(vec![pods[2].process(1.0)]), limits: Some(small), ..nvml::gpu(&second) };
    world.add(gpu, Plant { idle_w: 30.0, max_w: 180.0, exponent: 2.0, ..Plant::default() });
    let budgets = [("w50", 50.0), ("w900", 900.0), ("w149", 149.4)];
    world.policies(&budgets.map(|(name, watts)| limit(name, watts)).concat());
    let mut agent = world.agent(&[]);
    world.wait_for_limit(&narrow, 200_000);
    world.wait_for_limit(&second, 150_000);
    let first = agent.after_ticks(4);
    let page = agent.after_ticks(16);

    for uuid in [&narrow, &second] {
        assert_shows(&page, "energy_agent_cap_clamped", &[("actuator", POWER), ("device", uuid)], 1.0);
        // Never retried each tick: one write.
        assert_eq!(world.writes(uuid).len(), 1, "{:?}", world.writes(uuid));
    }
    assert_eq!(world.writes("GPU-900"), [], "it draws less than its budget");
    // Below what the device can be held to: one event each, and the status says that the limit is the lowest.
    for (pod, uuid, watts) in [("w50", &narrow, 200.0), ("w149", &second, 150.0)] {
        let event = world.one_event("Unreachable", &format!("policy {pod}: "));
        assert_eq!(event["regarding"]["name"], pod);
        let told = agent.policies();
        let limit = told["limits"].as_array().unwrap().iter().find(|limit| limit["device"] == **uuid).unwrap();
        assert_eq!(
            [&limit["clamped"], &limit["wanted"], &limit["found"]],
            [&json!(true), &json!(watts), &json!(watts)]
        );
    }
    assert_metered(&world, &first, &page);
    agent.assert_well();
}

/// Four GPUs, of which a driver refuses three limits, each in its own way.
#[test]
fn a_limit_that_a_driver_refuses_is_told_once_and_stays_with_its_device_fc_084() {
    let refusals: Value = case("FC-084");
    let mut world = World::new();
    let pods = ["g0", "g1", "g2", "g3"].map(|name| world.pod(name));
    let calls = refusals["calls"].as_array().unwrap();
    let refused: Vec<String> = calls.iter().map(|call| word(&call["gpu"])).collect();
    for (uuid, pod) in refused.iter().zip(&pods) {
        world.gpu(uuid, 2.0, &[(pod, 1.0)]);
    }
    for (uuid, call) in refused.iter().zip(calls) {
        let answer =
            |name: &str| serde_json::from_value::<Return>(call[name].clone()).ok().filter(|it| *it != Return::Success);
        world.change(uuid, |gpu| {
            gpu.errors.extend(answer("set_power_limit").map(|error| (LIMIT.to_owned(), error)));
            let get = "nvmlDeviceGetPowerManagementLimit".to_owned();
            gpu.errors.extend(answer("get_power_limit").map(|error| (get, error)));
            if let Some(enforced_mw) = call["get_enforced_limit_mw"].as_u64() {
                gpu.limits.as_mut().unwrap().enforced_mw = u32::try_from(enforced_mw).ok();
            }
        });
    }
    world.policies(&["g0", "g1", "g2", "g3"].map(|name| limit(name, 400.0)).concat());
    let mut agent = world.agent(&[]);
    world.wait_for_limit(&refused[3], 400_000);
    let first = agent.after_ticks(4);
    agent.after_ticks(16);
    world.wait("the reasons", || {
        let page = agent.scrape();
        let reasons: Vec<String> = refused.iter().map(|uuid| reason(&page, POWER, uuid)).collect();
        reasons == ["unsupported", "no_permission", "rejected", "ok"]
    });
    // 175 W are exported of the GPU whose own limit cannot be asked for.
    let page = wait_for("a page with the enforced limit", || {
        let page = agent.scrape();
        let shown = page.has("energy_agent_node_gpu_power_limit_watts", &[("gpu_uuid", &refused[0])]);
        Some(page).filter(|_| shown)
    });
    assert_shows(&page, "energy_agent_node_gpu_power_limit_watts", &[("gpu_uuid", &refused[0])], 175.0);
    assert_shows(&page, "energy_agent_cap_clamped", &[("actuator", POWER), ("device", &refused[3])], 0.0);
    assert_eq!(world.writes(&refused[3]).len(), 1, "{:?}", world.writes(&refused[3]));
    // Twenty ticks of an excess, and each refusal was heard once; the next try is a minute away.
    for (uuid, times) in refused.iter().zip([0, 1, 1, 1]) {
        let index = u32::try_from(world.index(uuid)).unwrap();
        assert_eq!(world.nvml.calls_at(LIMIT, index), times, "{uuid}");
        let failed = [("device", uuid.as_str()), ("result", "failed")];
        let shown = if uuid == &refused[3] { 0.0 } else { f64::from(u32::try_from(times).unwrap()) };
        assert_shows(&page, "energy_agent_cap_writes_total", &failed, shown);
    }
    for uuid in [&refused[1], &refused[2]] {
        assert_eq!(world.one_event("NoActuator", &format!("gpu_power_limit of {uuid}: "))["regarding"]["kind"], "Node");
    }
    for (uuid, text) in [(&refused[1], "SYS_ADMIN"), (&refused[2], "200.0 W to 700.0 W")] {
        agent.assert_all_logged(&[uuid, text], 1);
    }
    for (name, uuid, why) in
        [("g0", &refused[0], "unsupported"), ("g1", &refused[1], "no_permission"), ("g2", &refused[2], "rejected")]
    {
        world.wait(name, || state(&agent.scrape(), name) == "no_actuator");
        // The pod's event says why, as its line on the page does.
        let why = format!("policy {name}: {uuid} cannot be capped: gpu_power_limit is {why}");
        assert_eq!(world.one_event("NoActuator", &why)["regarding"]["name"], name);
    }
    assert_metered(&world, &first, &page);
    agent.assert_well();
}

#[test]
fn clocks_that_cannot_be_locked_are_told_and_the_limit_goes_on() {
    repeated(Cause::LateTick, || {
        let case: Value = case("FC-085");
        let mut world = World::new();
        let gpus = case["gpus"].as_array().unwrap();
        let uuids: Vec<String> = gpus.iter().map(|gpu| gpu["uuid"].as_str().unwrap().to_owned()).collect();
        let pods = ["g0", "g1", "g2", "g3"].map(|name| world.pod(name));
        for ((uuid, gpu), pod) in uuids.iter().zip(gpus).zip(&pods) {
            world.gpu(uuid, 2.0, &[(pod, 1.0)]);
            let refuses = |call: &str| gpu[call] == "NOT_SUPPORTED";
            world.change(uuid, |gpu| {
                for (call, symbol) in
                    [("set_gpu_locked_clocks", LOCK), ("set_memory_locked_clocks", "nvmlDeviceSetMemoryLockedClocks")]
                {
                    if refuses(call) {
                        gpu.errors.insert(symbol.to_owned(), Return::NotSupported);
                    }
                }
            });
        }
        world.policies(&["g0", "g1", "g2", "g3"].map(enforce).concat());
        let agent = world.agent(&[]);
        for uuid in &uuids {
            // The power limit part of the policy.
            world.wait(&format!("a limit of {uuid}"), || {
                world.limit_mw(uuid).is_some_and(|limit_mw| limit_mw <= 440_000)
            });
        }
        for uuid in &uuids[1..] {
            world.wait_for_lock(uuid);
            world.wait("the budget to be kept", || world.watts(uuid) <= 400.0);
        }
        world.wait("the limit alone to keep the budget", || world.watts(&uuids[0]) <= 400.0);
        agent.after_ticks(12);
        world.wait("the reasons", || {
            let page = agent.scrape();
            let reasons: Vec<String> = uuids.iter().map(|uuid| reason(&page, CLOCKS, uuid)).collect();
            reasons == ["unsupported", "ok", "ok", "ok"]
        });
        assert_eq!(world.limit_mw(&uuids[0]), Some(400_000), "alone, it is the budget itself");
        let locked = world.nvml.calls_at(LOCK, 0);
        assert_eq!(locked, 1, "it was asked once");
        for uuid in &uuids[1..] {
            // A supported clock: 345 + n x 15; and beside the request stands what the GPU runs at.
            world.wait("the request beside what the GPU runs at", || {
                let page = agent.scrape();
                let first =
                    |name, label| page.select(name, &[(label, uuid)]).first().map(|sample| sample.number() / 1e6);
                let high = f64::from(world.lock(uuid).unwrap().1);
                let requested = first("energy_agent_cap_limit_hertz", "device");
                let runs_at = first("energy_agent_node_gpu_sm_clock_hertz", "gpu_uuid");
                requested.is_some_and(|mhz| (mhz - high).abs() < 0.5) && runs_at.is_some_and(|mhz| mhz < high + 0.5)
            });
            assert_eq!((world.lock(uuid).unwrap().1 - 345) % 15, 0);
        }
        // Memory clocks do not matter here.
        assert_eq!(world.nvml.calls("nvmlDeviceSetMemoryLockedClocks"), 0);
        world.no_policies();
        for uuid in &uuids {
            world.wait_until_open(uuid);
        }
        // Reset only where a lock succeeded.
        assert_eq!(world.nvml.calls_at(RESET, 0), 0);
        assert_eq!(world.nvml.calls_at(RESET, 1), 1);
    });
}

#[test]
fn clocks_that_do_not_obey_are_told_and_the_limit_goes_on() {
    repeated(Cause::LateTick, || {
        let mut world = World::new();
        // Locks are taken without an error, and the clocks stay as they are.
        let _deaf = world.busy(["deaf", "deaf-alone"]);
        for uuid in ["GPU-deaf", "GPU-deaf-alone"] {
            world.change(uuid, |gpu| gpu.clocks.ignore_locks = true);
        }
        let alone = policy("deaf-alone", "Enforce", "watts: 400", ", actuators: {gpu: {use: [LockedClocks]}}");
        world.policies(&(enforce("deaf") + &alone));
        let agent = world.agent(&[]);
        unheard(&world, &agent);
        world.no_policies();
        for uuid in ["GPU-deaf", "GPU-deaf-alone"] {
            world.wait_until_open(uuid);
        }
    });
}

/// GPUs that do not obey: the request beside what runs, then a state, a line and an event, once, and no more locks.
fn unheard(world: &World, agent: &Agent) {
    let uuids = ["GPU-deaf", "GPU-deaf-alone"];
    let of = |page: &Page, name: &str, label: &str, uuid: &str| {
        page.select(name, &[(label, uuid)]).first().map(|sample| sample.number())
    };
    world.wait("the request beside what the GPU runs at, or the state", || {
        let page = agent.scrape();
        let uuid = "GPU-deaf-alone";
        let requested = of(&page, "energy_agent_cap_limit_hertz", "device", uuid);
        let runs_at = of(&page, "energy_agent_node_gpu_sm_clock_hertz", "gpu_uuid", uuid);
        let both = requested.zip(runs_at).is_some_and(|(requested, runs_at)| requested < 1_000e6 && runs_at == 1_980e6);
        both || reason(&page, CLOCKS, uuid) == "not_effective"
    });
    for uuid in uuids {
        world.wait("the lock to be without effect", || reason(&agent.scrape(), CLOCKS, uuid) == "not_effective");
        let event = world.one_event("NoActuator", &format!("gpu_locked_clocks of {uuid}: "));
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("it runs at ") && note.contains(" MHz was set without an error"), "{note}");
        let knob = format!("gpu_locked_clocks of {uuid} ");
        let said = agent.assert_all_logged(&["WARN", &knob], 1);
        assert!(said[0].contains("not_effective"), "{said:#?}");
    }
    // What is left of the policy keeps the budget; where nothing is, that is the state.
    world.wait_for_limit("GPU-deaf", 400_000);
    world.wait("the limit alone to keep the budget", || world.watts("GPU-deaf") <= 400.0);
    world.wait("no means", || state(&agent.scrape(), "deaf-alone") == "no_actuator");
    assert_eq!(world.limit_mw("GPU-deaf-alone"), None);
    let locks = || uuids.map(|uuid| world.writes(uuid).iter().filter(|write| write.call == LOCK).count());
    let before = locks();
    // Cuts to the floor, and once more; the next try is a minute away.
    assert!(before[1] <= 6, "{before:?}");
    agent.after_ticks(8);
    assert_eq!(locks(), before);
}

#[test]
fn power_that_is_not_measured_any_more_holds_releases_or_goes_to_the_floor_as_the_policy_says() {
    let mut world = World::new();
    let names = ["hold", "release", "floor", "well"];
    let _pods = world.busy(names);
    let loss = |name: &str, more: &str| policy(name, "Enforce", "watts: 400", &format!(", control: {{{more}}}"));
    world.policies(
        &[
            loss("hold", "onTelemetryLoss: Hold, telemetryTimeoutSeconds: 8"),
            loss("release", "onTelemetryLoss: Release"),
            loss("floor", "onTelemetryLoss: Floor"),
            enforce("well"),
        ]
        .concat(),
    );
    let agent = world.agent(&[]);
    for name in names {
        world.wait_for_lock(&format!("GPU-{name}"));
    }
    agent.after_ticks(12);
    // Energy and power cannot be read; the device can be written.
    for name in &names[..3] {
        world.change(&format!("GPU-{name}"), |gpu| {
            for call in [
                "nvmlDeviceGetTotalEnergyConsumption",
                "nvmlDeviceGetPowerUsage",
                "nvmlDeviceGetFieldValues",
                "nvmlDeviceGetSamples",
            ] {
                gpu.errors.insert(call.to_owned(), Return::NotSupported);
            }
        });
    }
    let began = Instant::now();
    world.wait_until_open("GPU-release");
    world.wait("the floor", || world.lock("GPU-floor") == Some((345, 495)));
    world.wait("the loss to be seen", || state(&agent.scrape(), "hold") == "telemetry_lost");
    let (lock, writes) = (world.lock("GPU-hold"), world.writes("GPU-hold").len());
    assert!(lock.is_some());
    let page = agent.after_ticks(2);
    for name in &names[..3] {
        assert_eq!(state(&page, name), "telemetry_lost", "{name}");
        assert!(!page.has("energy_agent_policy_power_watts", &[("policy", name)]), "{name}");
        assert_eq!(world.one_event("TelemetryLost", &format!("policy {name}: "))["regarding"]["name"], **name);
    }
    world.wait("the others to go on", || state(&agent.scrape(), "well") == "capping");
    world.wait_until_open("GPU-hold");
    // The 8 s begin with the last power that was measured, a tick or two before.
    assert!(began.elapsed() > Duration::from_secs(7), "{:?}", began.elapsed());
    // No power is not 0 W: between the loss and the end of the hold nothing was raised.
    let since = &world.writes("GPU-hold")[writes..];
    assert!(since.iter().all(|write| write.call == RESET || write.arguments == [700_000]), "{since:?}");
    // It comes back, and is capped again.
    world.nvml.heal();
    world.wait_for_lock("GPU-release");
    world.wait_for_lock("GPU-hold");
}

#[test]
fn a_counter_that_stands_still_is_lost_telemetry_and_no_open_policy_fc_132() {
    let mut world = World::new();
    let _pods = world.busy(["frozen"]);
    // 650 W of 350 W, and the counter gains nothing from the start.
    world.change("GPU-frozen", |gpu| {
        (gpu.plant, gpu.energy_mj, gpu.power_mw) = (None, Some(5_198_685_762), Some(650_000));
    });
    world.policies(&policy("frozen", "Enforce", "watts: 350", ", control: {onTelemetryLoss: Floor}"));
    let agent = world.agent(&[]);
    world.wait("the loss to be seen", || state(&agent.scrape(), "frozen") == "telemetry_lost");
    let page = agent.scrape();
    assert!(!page.has("energy_agent_policy_power_watts", &[("policy", "frozen")]));
    let gpu = page.one("energy_agent_gpu_up", &[("gpu_uuid", "GPU-frozen")]);
    assert_eq!((gpu.value.as_str(), gpu.label("reason")), ("0", "frozen"));
    world.wait("the floor", || world.lock("GPU-frozen") == Some((345, 495)));
}

#[test]
fn a_lost_gpu_keeps_its_entry_and_a_counter_that_never_was_is_replaced_by_the_power() {
    let mut world = World::new();
    let names = ["lost", "integrated", "well"];
    let _pods = world.busy(names);
    world.change("GPU-integrated", |gpu| gpu.energy_mj = None);
    world.policies(&names.map(enforce).concat());
    let mut agent = world.agent(&[]);
    for name in names {
        let uuid = format!("GPU-{name}");
        world.wait_for_lock(&uuid);
        world.wait("the budget to be kept", || world.watts(&uuid) <= 400.0);
    }
    world.change("GPU-lost", |gpu| _ = gpu.errors.insert("*".to_owned(), Return::GpuIsLost));
    world.wait("the loss", || reason(&agent.scrape(), CLOCKS, "GPU-lost") == "unreachable");
    let (lock, writes) = (world.lock("GPU-lost"), world.writes("GPU-lost").len());
    agent.after_ticks(12);
    assert!(state(&agent.scrape(), "well") == "capping" && world.watts("GPU-well") <= 400.0);
    // The policy goes while the device is away: it is given back when it is there again.
    world.policies(&["integrated", "well"].map(enforce).concat());
    agent.after_ticks(8);
    assert_eq!((world.lock("GPU-lost"), world.writes("GPU-lost").len()), (lock, writes));
    assert!(agent.scrape().number("energy_agent_cap_restore_pending") >= 1.0);
    world.change("GPU-lost", |gpu| gpu.errors.clear());
    world.wait_until_open("GPU-lost");
    let page = agent.after_ticks(2);
    assert_eq!(page.count("energy_agent_cap_restore_pending"), 0);
    agent.assert_well();
}

#[test]
fn what_a_driver_forgot_is_set_again_and_what_somebody_else_set_is_theirs() {
    let mut world = World::new();
    let names = ["foreign", "unlocked", "well"];
    let _pods = world.busy(names);
    world.policies(&names.map(enforce).concat());
    let mut agent = world.agent(&[]);
    for name in names {
        world.wait_for_lock(&format!("GPU-{name}"));
        world.wait_for_limit(&format!("GPU-{name}"), 440_000);
    }
    // Loaded anew: locks and limits are gone.
    world.nvml.set(|state| state.generation += 1);
    assert!(names.iter().all(|name| world.is_open(&format!("GPU-{name}"))));
    // 1.1 x the budget, or the budget itself where the clocks had to wait.
    let stands =
        |name: &str| world.limit_mw(&format!("GPU-{name}")).is_some_and(|it| (400_000..=440_000).contains(&it));
    for name in names {
        world.wait_for_lock(&format!("GPU-{name}"));
        world.wait("a limit", || stands(name));
        world.wait("the budget to be kept", || world.watts(&format!("GPU-{name}")) <= 400.0);
    }
    agent.after_ticks(16);

    // `nvidia-smi -rgc` and `nvidia-smi -pl 300` behind the agent's back.
    world.nvml.lock_clocks("GPU-unlocked", None);
    world.nvml.limit_power("GPU-foreign", 300_000);
    world.wait("the foreign limit to be seen", || reason(&agent.scrape(), POWER, "GPU-foreign") == "yielded");
    world.wait_for_lock("GPU-unlocked");
    world.wait("the budget to be kept", || world.watts("GPU-unlocked") <= 400.0);
    agent.after_ticks(12);
    assert_eq!(world.limit_mw("GPU-foreign"), Some(300_000));
    agent.assert_logged("another program writes it", 1);
    let event = world.one_event("ForeignChange", "gpu_power_limit of GPU-foreign");
    assert!(event["note"].as_str().unwrap().contains("it is 300.0 W, but 4"), "{event}");
    let is_ours = world.limit_mw("GPU-well").is_some_and(|limit_mw| (400_000..=440_000).contains(&limit_mw));
    assert!(is_ours && world.lock("GPU-foreign").is_some());

    // What is given back is the agent's own, and not what another has set since.
    let (status, _) = agent.end("TERM");
    assert!(status.success(), "{status}");
    assert_eq!((world.lock("GPU-foreign"), world.limit_mw("GPU-foreign")), (None, Some(300_000)));
    assert!(world.is_open("GPU-well") && world.is_open("GPU-unlocked"));
    assert_eq!(world.journal(), "");
}

#[test]
fn a_write_that_hangs_delays_no_tick_no_other_gpu_and_not_the_end() {
    let mut world = World::new();
    let _pods = world.busy(["hanging", "well"]);
    for call in [LOCK, LIMIT] {
        world.change("GPU-hanging", |gpu| _ = gpu.hangs.insert(call.to_owned(), 3600.0));
    }
    world.policies(&["hanging", "well"].map(enforce).concat());
    let mut agent = world.agent(&[]);
    world.wait_for_lock("GPU-well");
    world.wait("a hanging write", || world.nvml.calls_at(LOCK, 0) + world.nvml.calls_at(LIMIT, 0) > 0);
    // Ticks go on while it hangs.
    let page = agent.after_ticks(8);
    world.wait("the other's budget to be kept", || world.watts("GPU-well") <= 400.0);
    assert_eq!(state(&page, "well"), "capping");
    let writes = world.nvml.calls_at(LOCK, 0) + world.nvml.calls_at(LIMIT, 0);
    assert!(writes <= 2, "{writes} writes wait for the same driver");
    // Not when the hang of an hour is over; whether that write happens is not known.
    let (status, took) = agent.end("TERM");
    assert_eq!(status.code(), Some(1), "{took:?}");
    assert!(world.is_open("GPU-well"));
}
