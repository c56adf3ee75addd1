//! What is measured of a GPU, and what is not.

use fake_nvml::plant::Plant;

use super::world::{
    INFO, NODE_ACTIVE, NODE_IDLE, NODE_JOULES, NODE_WATTS, World, case, joules, list, of_gpu, up, whole, word,
};
use crate::common::nvml::{FakeNvml, Gpu, gpu, now_us};

#[test]
fn not_found_means_idle_fc_051() {
    let case = case("FC-051-idle-not-found");
    let [first, last] = list(&case["steps"]) else { panic!("two steps") };
    let gpu = Gpu { energy_mj: Some(whole(&first["total_energy_mj"])), ..gpu("GPU-a") };
    let mut world = World::start({
        let nvml = FakeNvml::new().gpu(gpu);
        nvml.play();
        nvml
    });
    world.nvml.add_energy(0, whole(&last["total_energy_mj"]));
    let page = world.page();
    let expect = &case["expect"];
    assert_eq!(of_gpu(&page, NODE_JOULES, "GPU-a"), joules(&expect["device_joules"]));
    assert_eq!(of_gpu(&page, NODE_IDLE, "GPU-a"), joules(&expect["idle_or_unallocated_joules"]));
    assert_eq!(up(&page, "GPU-a"), (1.0, "ok".to_owned()));
    assert!(world.nvml.calls("nvmlDeviceGetProcessUtilization") > 3, "it was asked, and NOT_FOUND was no error");
    assert_eq!(world.agent.logged("WARN").iter().filter(|line| line.contains("GPU-a")).count(), 0);
    world.agent.assert_well();
}

#[test]
fn a_gpu_that_tells_nothing_has_an_info_series_only_fc_049() {
    let case = case("FC-049-all-unsupported");
    let device = &case["devices"][0];
    let uuid = word(&device["uuid"]);
    let unsupported = |call: &str| {
        let step = list(&case["steps"]).iter().find(|step| step["call"] == call).unwrap();
        assert_eq!(step["ret"], "NOT_SUPPORTED");
    };
    ["power_usage", "total_energy", "utilization", "power_limit"].into_iter().for_each(unsupported);
    let nvml = FakeNvml::new().gpu(Gpu {
        name: word(&device["name"]).to_owned(),
        energy_mj: None,
        power_mw: None,
        power_samples: None,
        utilization: None,
        limits: None,
        ..gpu(uuid)
    });
    nvml.play();
    let mut world = World::start(nvml);
    world.pass(2 * super::world::RETRY_TICKS);
    let page = world.page();
    assert_eq!(page.one(INFO, &[]).label("gpu_name"), word(&device["name"]));
    let energies = page.energy_names();
    assert!(!energies.iter().any(|name| name.contains("gpu")), "{energies:?}");
    assert!(!page.has("energy_agent_node_gpu_utilization_ratio", &[]));
    let said = world.agent.assert_logged("not supported", 1);
    assert!(said[0].contains("nvmlDeviceGetTotalEnergyConsumption"), "{said:#?}");
    assert!(said[0].contains("nvmlDeviceGetPowerUsage"), "{said:#?}");
    world.agent.assert_well();
}

#[test]
fn power_alone_is_integrated_over_the_drivers_time_fc_050() {
    let case = case("FC-050-power-only");
    let start_us = now_us() - 5_000_000;
    let samples: Vec<(u64, u32)> = list(&case["steps"])
        .iter()
        .map(|step| {
            assert_eq!(step["total_energy"], "NOT_SUPPORTED");
            (start_us + whole(&step["t"]) * 1_000_000, u32::try_from(whole(&step["power_mw"])).unwrap())
        })
        .collect();
    let nvml = FakeNvml::new().gpu(Gpu { energy_mj: None, power_samples: Some(samples[..1].to_vec()), ..gpu("GPU-a") });
    nvml.play();
    let mut world = World::start(nvml);
    for end in 2..=samples.len() {
        world.nvml.at(0).power_samples = Some(samples[..end].to_vec());
        world.nvml.play();
        world.agent.after_ticks(2);
    }
    let page = world.page();
    let total = page.one(NODE_JOULES, &[("gpu_uuid", "GPU-a")]);
    assert_eq!(total.label("source"), "nvml_integrated");
    assert_eq!(of_gpu(&page, NODE_JOULES, "GPU-a"), joules(&case["expect"]["joules_total_trapezoid"]));
    assert_eq!(page.select(NODE_JOULES, &[]).len(), 1, "one source, from the beginning");
}

#[test]
fn power_without_samples_is_integrated_over_our_time() {
    let plant = Plant { idle_w: 100.0, max_w: 100.0, ..Plant::default() };
    let card = |uuid, energy_mj| Gpu { energy_mj, power_samples: None, plant: Some(plant.clone()), ..gpu(uuid) };
    let nvml = FakeNvml::new().gpu(card("GPU-a", None)).gpu(card("GPU-b", Some(0)));
    nvml.play();
    let world = World::start(nvml);
    let before = world.agent.scrape();
    // However long that takes: a card that draws the same, read in the same ticks, has a counter of its own.
    let after = world.agent.after_ticks(25);
    let used = |uuid| {
        f64::from(u32::try_from(of_gpu(&after, NODE_JOULES, uuid) - of_gpu(&before, NODE_JOULES, uuid)).unwrap())
    };
    let (integrated, counter) = (used("GPU-a"), used("GPU-b"));
    // One of the two is read up to a tick later.
    assert!((integrated / counter - 1.0).abs() < 0.05, "{integrated} uJ for {counter} uJ");
    let source = |uuid| after.one(NODE_JOULES, &[("gpu_uuid", uuid)]).label("source").to_owned();
    assert_eq!((source("GPU-a"), source("GPU-b")), ("nvml_integrated".to_owned(), "nvml".to_owned()));
}

#[test]
fn an_unused_gpu_idles_and_a_vgpu_has_no_energy_fc_058() {
    let case = case("FC-058-idle-and-vgpu");
    let [idle, vgpu] = list(&case["devices"]) else { panic!("two devices") };
    let watts = idle["power_w"].as_f64().unwrap();
    let utilization = u32::try_from(whole(&vgpu["utilization"])).unwrap();
    assert_eq!(vgpu["power"], "NOT_SUPPORTED");
    let nvml = FakeNvml::new()
        .gpu(Gpu { plant: Some(Plant { idle_w: watts, max_w: 350.0, ..Plant::default() }), ..gpu(word(&idle["uuid"])) })
        .gpu(Gpu {
            energy_mj: None,
            power_mw: None,
            power_samples: None,
            utilization: Some((utilization, 0)),
            virtualization: 2,
            ..gpu(word(&vgpu["uuid"]))
        });
    nvml.play();
    let world = World::start(nvml);
    let page = world.page();
    let of_idle = [("gpu_uuid", word(&idle["uuid"]))];
    let shown = page.one(NODE_WATTS, &of_idle).number();
    assert!((shown - watts).abs() < 0.1 * watts, "{shown}");
    assert!(of_gpu(&page, NODE_IDLE, word(&idle["uuid"])) > 0);
    assert_eq!(of_gpu(&page, NODE_ACTIVE, word(&idle["uuid"])), 0);
    let of_vgpu = [("gpu_uuid", word(&vgpu["uuid"]))];
    assert!(page.has(INFO, &of_vgpu));
    // What the dashboard lists GPUs by has all of them.
    assert!(include_str!("../../../dashboards/agent-health.json").contains("gpu_uuid, reason) (energy_agent_gpu_up{"));
    assert_eq!(up(&page, word(&vgpu["uuid"])), (1.0, "ok".to_owned()));
    assert_eq!(page.one("energy_agent_node_gpu_utilization_ratio", &of_vgpu).value, "0.12");
    for name in page.energy_names() {
        assert!(name.contains("limit") || !page.has(name, &of_vgpu), "{name}");
    }
}

#[test]
fn what_never_changes_is_asked_once() {
    let nvml = FakeNvml::new().gpu(gpu("GPU-a")).gpu(gpu("GPU-b"));
    nvml.play();
    let world = World::start(nvml);
    let once = ["nvmlInit_v2", "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetHandleByIndex_v2"];
    let before = once.map(|call| world.nvml.calls(call));
    let asked = world.nvml.calls("nvmlDeviceGetTotalEnergyConsumption");
    world.pass(2 * super::world::RETRY_TICKS);
    assert_eq!(once.map(|call| world.nvml.calls(call)), before);
    assert!(world.nvml.calls("nvmlDeviceGetTotalEnergyConsumption") > asked);
    assert!(world.nvml.writes().is_empty(), "reading writes nothing");
}
