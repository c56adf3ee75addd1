//! GPUs that come, go, move and change their mode, counters that cannot be believed, and what of it costs the others nothing.

use fake_nvml::returns::Return;

use super::world::{
    NODE_JOULES, NODE_WATTS, POD_JOULES, RETRY_TICKS, Sleeper, World, case, list, of_gpu, up, whole, word,
};
use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::Pod;
use crate::common::nvml::{FakeNvml, Gpu, Instance, Mig, Process, Sample, gpu, now_us, process};
use crate::common::page::Page;
use crate::common::tree::Tree;

const METHOD: &str = "energy_agent_node_gpu_attribution_info";

/// Pages until one on which `holds`, on all of which GPU-a is read.
fn while_a_is_read(world: &World, what: &str, holds: impl Fn(&Page) -> bool) -> Page {
    world.when(what, |page| {
        assert_eq!(up(page, "GPU-a"), (1.0, "ok".to_owned()), "waiting for {what}");
        holds(page)
    })
}

fn has_gpu(page: &Page, uuid: &str) -> bool {
    page.has(super::world::UP, &[("gpu_uuid", uuid)])
}

#[test]
fn a_gpu_that_comes_goes_and_returns_costs_the_other_nothing_fc_118() {
    let case = case("FC-118-gpu-hotplug");
    assert!(word(&case["right"]).contains("GPU-a never has a gap"));
    let pod = Pod::new();
    let job = Sleeper::start(&pod.container, "cuda-job");
    let nvml = FakeNvml::new().gpu(Gpu { energy_mj: Some(1_000), ..gpu("GPU-a") });
    nvml.play();
    let mut world = World::start(nvml);
    let opened = world.nvml.calls("nvmlInit_v2");
    // It comes as the first, so that GPU-a has another index.
    let b = Gpu { energy_mj: Some(7_000), processes: Some(vec![process(job.pid())]), ..gpu("GPU-b") };
    world.nvml.set(|state| state.gpus.insert(0, b.clone()));
    while_a_is_read(&world, "GPU-b to be read", |page| has_gpu(page, "GPU-b"));
    world.agent.after_ticks(4);
    let seen = |gpu: &mut Gpu, energy_mj| {
        gpu.energy_mj = Some(energy_mj);
        gpu.samples = Some(vec![Sample { pid: job.pid(), at_us: now_us(), sm: 80, memory: 0 }]);
    };
    world.nvml.set(|state| seen(&mut state.gpus[0], 10_000));
    world.nvml.add_energy(1, 500);
    let page = world.page();
    assert_eq!((of_gpu(&page, NODE_JOULES, "GPU-a"), of_gpu(&page, NODE_JOULES, "GPU-b")), (500_000, 3_000_000));
    assert!(page.microjoules(POD_JOULES, &[("pod_id", &pod.uid)]) > 0);

    world.nvml.set(|state| _ = state.gpus.remove(0));
    let page = while_a_is_read(&world, "GPU-b to be absent", |page| up(page, "GPU-b") == (0.0, "absent".to_owned()));
    assert!(!page.has(NODE_WATTS, &[("gpu_uuid", "GPU-b")]));
    for _ in 0..RETRY_TICKS {
        world.nvml.add_energy(0, 50);
        world.agent.after_ticks(2);
        while_a_is_read(&world, "time to pass", |page| up(page, "GPU-b").0 < 0.5);
    }
    world.nvml.set(|state| state.gpus.insert(0, Gpu { energy_mj: Some(20_000), ..b }));
    while_a_is_read(&world, "GPU-b to be back", |page| up(page, "GPU-b").0 > 0.5);
    world.agent.after_ticks(4);
    world.nvml.add_energy(0, 2_000);
    world.nvml.add_energy(1, 500);
    let page = world.page();
    assert_eq!((of_gpu(&page, NODE_JOULES, "GPU-a"), of_gpu(&page, NODE_JOULES, "GPU-b")), (1_500_000, 5_000_000));
    assert_eq!(world.nvml.calls("nvmlInit_v2"), opened, "the library stayed open");
    world.agent.assert_well();
}

#[test]
fn one_gpu_whose_driver_says_it_is_gone_costs_the_others_nothing() {
    for error in [Return::Uninitialized, Return::DriverNotLoaded, Return::Unknown, Return::GpuIsLost] {
        let nvml = FakeNvml::new().gpu(Gpu { energy_mj: Some(0), ..gpu("GPU-a") }).gpu(gpu("GPU-b"));
        nvml.play();
        let mut world = World::start(nvml);
        let opened = world.nvml.calls("nvmlInit_v2");
        world.nvml.fail_at(1, "*", error);
        while_a_is_read(&world, "GPU-b to be down", |page| up(page, "GPU-b").0 < 0.5);
        for _ in 0..RETRY_TICKS {
            world.nvml.add_energy(0, 100);
            world.agent.after_ticks(2);
            while_a_is_read(&world, "time to pass", |page| up(page, "GPU-b").0 < 0.5);
        }
        let energy = 100_000 * RETRY_TICKS;
        assert_eq!(of_gpu(&world.page(), NODE_JOULES, "GPU-a"), energy, "{error:?}: every reading counts");
        assert_eq!(world.nvml.calls("nvmlInit_v2"), opened, "{error:?}: the library stayed open");
        world.nvml.heal();
        while_a_is_read(&world, "GPU-b to be back", |page| up(page, "GPU-b").0 > 0.5);
    }
}

#[test]
fn what_was_refused_in_mig_mode_is_asked_again_after_it_fc_119() {
    let case = case("FC-119-mig-toggled");
    let steps = list(&case["steps"]);
    let shares = &steps[0]["processes"];
    assert_eq!((shares["a"].as_f64(), shares["b"].as_f64()), (Some(0.6), Some(0.2)));
    let refused = ["nvmlDeviceGetProcessUtilization", "nvmlDeviceGetUtilizationRates"];
    refused.iter().for_each(|call| assert_eq!(steps[1][*call], "NOT_SUPPORTED"));
    let pods = [Pod::new(), Pod::new()];
    let jobs = pods.each_ref().map(|pod| Sleeper::start(&pod.container, "cuda-job"));
    let nvml = FakeNvml::new().gpu(Gpu {
        energy_mj: Some(0),
        utilization: Some((80, 0)),
        processes: Some(jobs.iter().map(|job| process(job.pid())).collect()),
        mig: Some(Mig::default()),
        ..gpu("GPU-a")
    });
    nvml.play();
    let mut world = World::start(nvml);
    let of = |page: &Page, pod: &Pod| page.microjoules(POD_JOULES, &[("pod_id", &pod.uid)]);
    // One tick's work and energy at a time, until the page says how it is divided.
    let work = |world: &mut World, method: &str| {
        let pids = jobs.each_ref().map(Sleeper::pid);
        wait_for(method, || {
            let at_us = now_us();
            let samples = pids.iter().zip([60, 20]).map(|(&pid, sm)| Sample { pid, at_us, sm, memory: 0 });
            world.nvml.at(0).samples = Some(samples.collect());
            world.nvml.add_energy(0, 1_000);
            let page = world.agent.after_ticks(1);
            page.assert_conserved();
            // Where a reading came late there is no row.
            Some(page).filter(|page| page.select(METHOD, &[]).iter().any(|row| row.label("method") == method))
        })
    };
    work(&mut world, "samples");

    let instances = |played: &[(u32, u32)], world: &mut World| {
        world.nvml.set(|state| {
            let gpu = &mut state.gpus[0];
            refused.iter().for_each(|call| _ = gpu.errors.insert((*call).to_owned(), Return::NotSupported));
            let instance = |&(id, slices): &(u32, u32)| Instance {
                uuid: format!("MIG-{id}"),
                gpu_instance: id,
                slices,
                ..Instance::default()
            };
            gpu.mig = Some(Mig { enabled: true, instances: played.iter().map(instance).collect() });
            let job =
                |(&(id, _), job): (&(u32, u32), &Sleeper)| Process { gpu_instance: Some(id), ..process(job.pid()) };
            gpu.processes = Some(played.iter().zip(&jobs).map(job).collect());
        });
    };
    instances(&[(1, 3), (2, 1)], &mut world);
    work(&mut world, "mig-slices");
    instances(&[(7, 1), (8, 1)], &mut world);
    world.pass(2 * RETRY_TICKS);

    world.nvml.set(|state| {
        let gpu = &mut state.gpus[0];
        gpu.errors.clear();
        gpu.mig = Some(Mig::default());
        gpu.processes = Some(jobs.iter().map(|job| process(job.pid())).collect());
    });
    let before = work(&mut world, "samples");
    work(&mut world, "samples");
    let after = work(&mut world, "samples");
    let [a, b] = pods.each_ref().map(|pod| of(&after, pod) - of(&before, pod));
    // 3:1 again, to what the ends of the intervals make.
    assert!(b > 0 && (2 * b..4 * b).contains(&a), "{a} {b}");
    assert!(after.has("energy_agent_node_gpu_utilization_ratio", &[]));
    world.agent.assert_logged("not supported", 1);
    world.agent.assert_well();
}

#[test]
fn a_counter_that_stands_still_is_no_power_of_nothing_fc_132() {
    let case = case("FC-132-frozen-gpu-counter");
    let played = &case["gpu"];
    assert_eq!(played["grows"], false);
    let energy_mj = whole(&played["energy_mj"]);
    let nvml = FakeNvml::new()
        .gpu(Gpu {
            energy_mj: Some(energy_mj),
            power_mw: Some(u32::try_from(whole(&played["power_mw"])).unwrap()),
            ..gpu("GPU-b")
        })
        .gpu(gpu("GPU-a"));
    nvml.play();
    let mut world = World::start(nvml);
    let opened = world.nvml.calls("nvmlInit_v2");
    assert_eq!(up(&world.page(), "GPU-b"), (1.0, "ok".to_owned()));
    // The other one counts.
    let page = wait_for("the standstill", || {
        world.nvml.add_energy(1, 20_000);
        let page = world.agent.after_ticks(1);
        assert_eq!(up(&page, "GPU-a"), (1.0, "ok".to_owned()));
        Some(page).filter(|page| up(page, "GPU-b") == (0.0, "frozen".to_owned()))
    });
    assert!(!page.has(NODE_WATTS, &[("gpu_uuid", "GPU-b")]), "nothing was measured");
    let told = world.agent.assert_logged("gained nothing for 10 s", 1);
    assert!(told[0].contains(" WARN ") && told[0].contains("GPU-b"), "{told:#?}");
    // It goes on by itself, and nothing it counted is lost.
    world.nvml.add_energy(0, 3_000);
    world.when("the counter to count", |page| up(page, "GPU-b").0 > 0.5);
    let page = world.page();
    assert_eq!(of_gpu(&page, NODE_JOULES, "GPU-b"), 3_000_000);
    assert_eq!(world.nvml.calls("nvmlInit_v2"), opened, "the library stayed open");
    world.agent.assert_well();
}

#[test]
fn a_superchips_gpu_has_its_own_power_and_its_module_is_the_platform_fc_117() {
    let case = case("FC-117-gh200");
    let (played, sensor) = (&case["nvml"]["gpus"][0], &case["hwmon"]);
    let uuid = word(&played["uuid"]);
    let mut tree = Tree::new();
    for key in ["name", "power1_label", "power1_average"] {
        let text = sensor[key].as_str().map_or_else(|| sensor[key].to_string(), str::to_owned);
        tree.apply(&format!("f sys/class/hwmon/hwmon0/{key} = {text}"));
    }
    for module_power_mw in [None, Some(600_000)] {
        let mut nvml = FakeNvml::new().gpu(Gpu {
            name: word(&played["name"]).to_owned(),
            energy_mj: Some(1_000_000),
            power_mw: Some(u32::try_from(whole(&played["power_mw"])).unwrap()),
            module_power_mw,
            ..gpu(uuid)
        });
        nvml.play();
        let sysfs = format!("--path.sysfs={}", tree.sysfs().display());
        let agent = Agent::start(&["--interval=200ms", "--ebpf=off", &sysfs, &nvml.flag()]);
        let module = [("zone", "platform")];
        // What the counter shows is the module's, whatever it is.
        let page = wait_for("power of all three", || {
            nvml.add_energy(0, 120_000);
            let page = agent.after_ticks(1);
            let all = page.has(NODE_WATTS, &[]) && page.has("kepler_node_cpu_watts", &module);
            Some(page).filter(|page| all && page.has("kepler_node_cpu_watts", &[("zone", "package")]))
        });
        page.assert_conserved();
        let gpu = page.one(NODE_WATTS, &[]);
        // Its samples are on a clock of their own.
        assert!((gpu.number() - 350.0).abs() < 35.0, "{gpu:?}");
        assert_eq!(gpu.label("source"), "nvml_integrated");
        let package = page.one("kepler_node_cpu_watts", &[("zone", "package")]);
        assert_eq!((package.label("source"), format!("{:.1}", package.number())), ("hwmon", "53.4".to_owned()));
        let row = page.one("kepler_node_cpu_watts", &module);
        assert_eq!(row.label("path"), format!("nvml/{uuid}/module"));
        if module_power_mw.is_some() {
            // The tick's interval and the GPU's are not the same to the millisecond.
            assert!((row.number() - 600.0).abs() < 200.0, "{row:?}");
            assert_eq!(row.label("source"), "nvml_integrated");
        } else {
            assert_eq!(row.label("source"), "nvml");
        }
    }
}
