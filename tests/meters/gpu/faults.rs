//! What goes wrong with drivers and GPUs is a state with a metric and one line in the log, and passes by itself.

use fake_nvml::plant::Plant;
use fake_nvml::returns::Return;

use super::world::{NODE_JOULES, NODE_WATTS, POD_JOULES, RETRY_TICKS, UP, World, case, list, of_gpu, up, whole, word};
use crate::common::agent::Agent;
use crate::common::nvml::{FakeNvml, Gpu, Sample, gpu, now_us, process, sample};

/// A name as NVML's header has it.
fn returned(value: &serde_json::Value) -> Return {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn without_a_library_gpus_are_absent_and_said_so_once_fc_044() {
    let case = case("FC-044-no-library");
    assert_eq!(case["steps"][0]["ret"], "LIBRARY_NOT_FOUND");
    let agent = Agent::start(&[
        "--interval=200ms",
        "--meter.cpu=none",
        "--ebpf=off",
        "--nvml.library=/nowhere/libnvidia-ml.so.1",
    ]);
    let mut world = World { nvml: FakeNvml::new(), agent };
    let page = world.pass(3 * RETRY_TICKS);
    assert_eq!(World::meter(&page), (0.0, "absent".to_owned()));
    let gpu_series: Vec<_> = page.names().into_iter().filter(|name| name.contains("gpu")).collect();
    assert!(gpu_series.is_empty(), "{gpu_series:?}");
    let lines = world.agent.assert_logged("/nowhere/libnvidia-ml.so.1", 1);
    assert!(lines[0].contains("INFO"), "{lines:#?}");
    world.agent.assert_well();
}

#[test]
fn a_late_driver_is_picked_up() {
    let mut world = World::start(FakeNvml::new());
    let page = world.pass(RETRY_TICKS + 2);
    assert_eq!(World::meter(&page), (0.0, "absent".to_owned()));
    world.agent.assert_logged("no NVIDIA GPU", 1);
    assert_eq!(world.nvml.calls("nvmlShutdown"), 0, "what was not initialised is not shut down (FC-044)");
    world.nvml.state.gpus.push(Gpu { energy_mj: Some(5_000_000), ..gpu("GPU-a") });
    world.nvml.play();
    world.when("the driver to be found", |page| World::meter(page).0 > 0.5 && page.has(UP, &[("gpu_uuid", "GPU-a")]));
    world.agent.after_ticks(3);
    world.nvml.add_energy(0, 7_000);
    assert_eq!(of_gpu(&world.page(), NODE_JOULES, "GPU-a"), 7_000_000);
    world.agent.assert_logged("NVML is open", 1);
}

#[test]
fn a_version_mismatch_ends_power_keeps_totals_and_passes_fc_046() {
    let case = case("FC-046-version-mismatch");
    let [first, second, energy, init] = list(&case["steps"]) else { panic!("four steps") };
    let uuid = word(&first["gpu"]);
    let nvml = FakeNvml::new().gpu(Gpu { energy_mj: Some(whole(&first["mj"])), ..gpu(uuid) });
    nvml.play();
    let mut world = World::start(nvml);
    world.nvml.at(0).energy_mj = Some(whole(&second["mj"]));
    world.nvml.play();
    let page = world.page();
    assert_eq!(of_gpu(&page, NODE_JOULES, uuid), 2_000_000_000, "200 W for 10 s");
    assert!(page.has(NODE_WATTS, &[("gpu_uuid", uuid)]));

    let mismatch = returned(&energy["ret"]);
    assert_eq!(returned(&init["ret"]), mismatch);
    world.nvml.state.errors.insert("nvmlInit_v2".to_owned(), mismatch);
    world.nvml.fail("nvmlDeviceGetTotalEnergyConsumption", mismatch);
    let page = world.when("the mismatch to show", |page| {
        World::meter(page) == (0.0, "version_mismatch".to_owned()) && !page.has(NODE_WATTS, &[])
    });
    assert_eq!(up(&page, uuid), (0.0, "version_mismatch".to_owned()));
    assert_eq!(of_gpu(&page, NODE_JOULES, uuid), 2_000_000_000, "totals stand");
    let asked = world.nvml.calls("nvmlInit_v2");
    world.pass(3 * RETRY_TICKS);
    let again = world.nvml.calls("nvmlInit_v2") - asked;
    assert!((2..=4).contains(&again), "{again} tries in {} ticks", 3 * RETRY_TICKS);
    let warnings = world.agent.assert_all_logged(&["WARN", "mismatch"], 1);
    assert!(warnings[0].contains("reload the kernel module"), "{warnings:#?}");

    world.nvml.heal();
    world.when("the driver to be read again", |page| up(page, uuid).0 > 0.5 && World::meter(page).0 > 0.5);
    world.agent.after_ticks(3);
    let total = of_gpu(&world.page(), NODE_JOULES, uuid);
    world.nvml.add_energy(0, 1_000);
    assert_eq!(of_gpu(&world.page(), NODE_JOULES, uuid), total + 1_000_000);
    world.agent.assert_well();
}

/// The module is the new driver's, and the library in the agent's container that of the old one, until the pod ends.
#[test]
fn after_an_upgrade_of_the_driver_the_remedy_is_a_new_pod_and_the_agent_holds_nothing_fc_130() {
    let nvml = FakeNvml::new().gpu(gpu("GPU-a"));
    nvml.play();
    let mut world = World::start(nvml);
    assert_eq!(world.nvml.calls("nvmlShutdown"), 0);
    world.nvml.state.errors.insert("nvmlInit_v2".to_owned(), Return::LibRmVersionMismatch);
    world.nvml.state.generation += 1;
    world.nvml.play();
    world.when("the mismatch to show", |page| World::meter(page) == (0.0, "version_mismatch".to_owned()));
    assert_eq!(world.nvml.calls("nvmlShutdown"), 1, "the old driver is let go");
    world.pass(3 * RETRY_TICKS);
    let said = world.agent.assert_logged("delete the pod", 1);
    assert!(said[0].contains("reload the kernel module"), "{said:#?}");
    // As from a library that fits again.
    world.nvml.heal();
    world.when("the driver to be read again", |page| up(page, "GPU-a").0 > 0.5 && World::meter(page).0 > 0.5);
    world.agent.assert_well();
}

#[test]
fn one_of_eight_gpus_is_lost_and_comes_back_fc_047() {
    let case = case("FC-047-lost-gpu");
    let lost = &case["steps"][1];
    let uuids: Vec<_> = list(&case["devices"]).iter().map(word).collect();
    let index = uuids.iter().position(|uuid| *uuid == lost["gpu"]).unwrap();
    // "100 W each"
    let plant = Plant { idle_w: 100.0, max_w: 100.0, ..Plant::default() };
    let nvml =
        uuids.iter().fold(FakeNvml::new(), |nvml, uuid| nvml.gpu(Gpu { plant: Some(plant.clone()), ..gpu(uuid) }));
    nvml.play();
    let mut world = World::start(nvml);
    let page = world.when("the power of all", |page| page.select(NODE_WATTS, &[]).len() == 8);
    let before = of_gpu(&page, NODE_JOULES, uuids[index]);

    // Every call on it, the one for its handle by index included, as at t = 20 of the case.
    world.nvml.fail_at(index, "*", returned(&lost["all_calls"]));
    let page = world
        .when("the GPU to be lost", |page| page.select(NODE_WATTS, &[]).len() == 7 && up(page, uuids[index]).0 < 0.5);
    assert_eq!(up(&page, uuids[index]), (0.0, "lost".to_owned()));
    world.pass(2 * RETRY_TICKS);
    let page = world.when("the power of the healthy ones", |page| page.select(NODE_WATTS, &[]).len() >= 7);
    let watts: Vec<f64> = page.select(NODE_WATTS, &[]).iter().map(|sample| sample.number()).collect();
    assert_eq!(watts.len(), 7, "the healthy ones, and nothing for the lost one");
    let sum: f64 = watts.iter().sum();
    let expected = case["expect"]["node_gpu_watts_after"].as_f64().unwrap();
    assert!((sum - expected).abs() < 0.1 * expected, "{sum}");
    assert!(of_gpu(&page, NODE_JOULES, uuids[index]) >= before, "its total stands");
    world.agent.assert_all_logged(&["WARN", uuids[index]], 1);

    world.nvml.heal();
    let page = world.when("the GPU to be back", |page| page.select(NODE_WATTS, &[]).len() == 8);
    assert_eq!(up(&page, uuids[index]), (1.0, "ok".to_owned()));
    world.agent.assert_well();
}

#[test]
fn a_reloaded_driver_and_another_order_keep_each_gpus_series() {
    let nvml = FakeNvml::new()
        .gpu(Gpu { energy_mj: Some(1_000_000), ..gpu("GPU-a") })
        .gpu(Gpu { energy_mj: Some(2_000_000), ..gpu("GPU-b") });
    nvml.play();
    let mut world = World::start(nvml);
    world.nvml.add_energy(0, 10_000);
    world.nvml.add_energy(1, 20_000);
    let totals =
        |page: &crate::common::page::Page| (of_gpu(page, NODE_JOULES, "GPU-a"), of_gpu(page, NODE_JOULES, "GPU-b"));
    assert_eq!(totals(&world.page()), (10_000_000, 20_000_000));

    // Another order under the same driver: handles stay with their GPUs.
    world.nvml.set(|state| state.gpus.swap(0, 1));
    world.nvml.add_energy(1, 1_000);
    let page = world.page();
    assert_eq!(totals(&page), (11_000_000, 20_000_000));

    // The driver is unloaded, and loaded again: counters begin anew, and so do indices.
    world.nvml.unload();
    let gone = world.when("the driver to be gone", |page| World::meter(page).0 < 0.5);
    assert_eq!(totals(&gone), (11_000_000, 20_000_000));
    world.nvml.state.generation += 1;
    for gpu in &mut world.nvml.state.gpus {
        gpu.energy_mj = Some(0);
    }
    world.nvml.play();
    world.when("both GPUs to be read again", |page| up(page, "GPU-a").0 > 0.5 && up(page, "GPU-b").0 > 0.5);
    world.agent.after_ticks(3);
    world.nvml.add_energy(0, 5_000);
    let page = world.page();
    assert_eq!(totals(&page), (11_000_000, 25_000_000), "GPU-b is the first now");
    let row = page.one(NODE_JOULES, &[("gpu_uuid", "GPU-b")]);
    assert_eq!(row.label("gpu"), "0");
    assert_eq!(page.select(NODE_JOULES, &[]).len(), 2);
    world.agent.assert_well();
}

#[test]
fn an_older_library_gives_what_it_has() {
    let missing = [
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetMigMode",
        "nvmlEventSetCreate",
    ];
    let nvml = FakeNvml::new().without(&missing).gpu(Gpu {
        power_samples: None,
        plant: Some(Plant { idle_w: 100.0, max_w: 100.0, ..Plant::default() }),
        ..gpu("GPU-a")
    });
    nvml.play();
    let mut world = World::start(nvml);
    world.pass(2 * RETRY_TICKS);
    let page = world.page();
    assert_eq!(page.one(NODE_JOULES, &[]).label("source"), "nvml_integrated");
    assert!(of_gpu(&page, NODE_JOULES, "GPU-a") > 0);
    assert!(!page.has("energy_agent_node_gpu_memory_used_bytes", &[]));
    assert!(page.has("energy_agent_node_gpu_temperature_celsius", &[]));
    let said = world.agent.assert_logged("not supported", 1);
    for symbol in ["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetMemoryInfo_v2"] {
        assert!(said[0].contains(symbol), "{said:#?}");
    }
    world.agent.assert_well();
}

#[test]
fn without_a_symbol_that_all_needs_nvml_is_down_and_says_so() {
    let nvml = FakeNvml::new().without(&["nvmlDeviceGetCount_v2"]);
    nvml.play();
    let mut world = World::start(nvml);
    let page = world.pass(2 * RETRY_TICKS);
    assert_eq!(World::meter(&page), (0.0, "symbol".to_owned()));
    let lines = world.agent.assert_logged("nvmlDeviceGetCount_v2", 1);
    assert!(lines[0].contains("update the NVIDIA driver"), "{lines:#?}");
    world.agent.assert_well();
}

#[test]
fn a_utilization_that_is_no_percentage_is_left_out_and_the_gpu_is_read_on() {
    let nvml = FakeNvml::new().gpu(Gpu { utilization: Some((37, u32::MAX)), ..gpu("GPU-a") });
    nvml.play();
    let mut world = World::start(nvml);
    let page = world.when("the utilization", |page| page.has("energy_agent_node_gpu_utilization_ratio", &[]));
    assert_eq!(page.one("energy_agent_node_gpu_utilization_ratio", &[]).value, "0.37");
    assert!(!page.has("energy_agent_node_gpu_memory_utilization_ratio", &[]));
    world.agent.assert_well();
}

#[test]
fn any_single_call_that_is_not_supported_takes_only_its_own_figure_away() {
    // The call, and the figure that hangs on it.
    let calls = [
        ("nvmlDeviceGetUtilizationRates", "energy_agent_node_gpu_utilization_ratio"),
        ("nvmlDeviceGetUtilizationRates", "energy_agent_node_gpu_memory_utilization_ratio"),
        ("nvmlDeviceGetMemoryInfo_v2", "energy_agent_node_gpu_memory_used_bytes"),
        ("nvmlDeviceGetTemperature", "energy_agent_node_gpu_temperature_celsius"),
        ("nvmlDeviceGetClockInfo", "energy_agent_node_gpu_sm_clock_hertz"),
        ("nvmlDeviceGetEnforcedPowerLimit", "energy_agent_node_gpu_power_limit_watts"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "energy_agent_node_gpu_throttle_reasons"),
    ];
    let others = [
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetSupportedEventTypes",
    ];
    let mut symbols: Vec<_> = calls.iter().map(|(call, _)| *call).chain(others).collect();
    symbols.dedup();
    // A GPU for each.
    let mut nvml = FakeNvml::new();
    for symbol in &symbols {
        let mut gpu = gpu(&format!("GPU-{symbol}"));
        gpu.errors.insert((*symbol).to_owned(), Return::NotSupported);
        nvml = nvml.gpu(gpu);
    }
    nvml.play();
    let mut world = World::start(nvml);
    for index in 0..symbols.len() {
        *world.nvml.at(index).energy_mj.as_mut().unwrap() += 1_000;
    }
    world.nvml.play();
    let page = world.page();
    for symbol in &symbols {
        let uuid = format!("GPU-{symbol}");
        assert_eq!(up(&page, &uuid), (1.0, "ok".to_owned()), "{symbol}");
        assert_eq!(of_gpu(&page, NODE_JOULES, &uuid), 1_000_000, "{symbol}");
        for (call, figure) in calls {
            assert_eq!(page.has(figure, &[("gpu_uuid", &uuid)]), call != *symbol, "{figure} without {symbol}");
        }
    }
    world.agent.assert_well();
}

#[test]
fn critical_errors_are_counted_and_named() {
    let nvml = FakeNvml::new().gpu(Gpu { xids: vec![13], ..gpu("GPU-a") }).gpu(gpu("GPU-b"));
    nvml.play();
    let mut world = World::start(nvml);
    let xids = |page: &crate::common::page::Page, uuid| {
        page.one("energy_agent_gpu_xid_errors_total", &[("gpu_uuid", uuid)]).number()
    };
    let page = world.page();
    assert!(xids(&page, "GPU-a") < 0.5, "the one before the agent came is not news");
    world.nvml.set(|state| state.gpus[0].xids.push(79));
    let page = world.page();
    assert!((xids(&page, "GPU-a") - 1.0).abs() < 0.1 && xids(&page, "GPU-b") < 0.5);
    let lines = world.agent.assert_logged("xid=79", 1);
    assert!(lines[0].contains("GPU-a"), "{lines:#?}");
}

#[test]
fn garbage_samples_weigh_nothing_and_are_counted() {
    let pod = crate::common::cgroup::Pod::new();
    let job = super::world::Sleeper::start(&pod.container, "cuda-job");
    let nvml = FakeNvml::new().gpu(Gpu {
        processes: Some(vec![process(job.pid())]),
        samples: Some(vec![sample(job.pid(), 0)]),
        ..gpu("GPU-a")
    });
    nvml.play();
    let mut world = World::start(nvml);
    let hour_us = 3_600_000_000;
    let gpu = world.nvml.at(0);
    gpu.ignore_last_seen = true;
    gpu.samples = Some(vec![
        sample(0, 50),
        sample(job.pid(), 255),
        Sample { at_us: now_us() + hour_us, ..sample(job.pid(), 50) },
        Sample { at_us: now_us() - hour_us, ..sample(job.pid(), 50) },
        sample(999_999_998, 50),
    ]);
    world.nvml.add_energy(0, 10_000);
    let page = world.page();
    for reason in ["no_process", "over_100_percent", "future", "past", "exited"] {
        let ignored = page.one("energy_agent_gpu_samples_ignored_total", &[("reason", reason)]).number();
        assert!(ignored >= 1.0, "{reason}");
    }
    assert_eq!(of_gpu(&page, NODE_JOULES, "GPU-a"), 10_000_000);
    assert!(!page.has(POD_JOULES, &[]), "garbage is no share");
    let lines = world.agent.logged("WARN").iter().filter(|line| line.contains("GPU-a")).count();
    assert_eq!(lines, 0, "garbage is counted, not logged");
    world.agent.assert_well();
}
