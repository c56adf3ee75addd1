//! Calls that do not return: nobody else waits for them.

use std::time::{Duration, Instant};

use crate::common::nvml::{FakeNvml, gpu};
use crate::common::{alone, one_of_three};
use crate::world::{NODE_JOULES, NODE_WATTS, World, of_gpu, up};

/// Longer than any test.
const TWO_MINUTES_S: f64 = 120.0;

/// Ticks in four seconds, while pages are asked for; and the longest time that one took.
fn pace(world: &World) -> (u64, Duration) {
    let before = world.agent.scrape().ticks();
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    while began.elapsed() < Duration::from_secs(4) {
        let start = Instant::now();
        world.agent.scrape();
        slowest = slowest.max(start.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    (world.agent.scrape().ticks() - before, slowest)
}

/// Ticks go on at the pace they have on this machine without a hang (20 in four seconds where nothing else runs), and
/// pages come at once.
fn assert_nobody_waits(usual: (u64, Duration), hanging: (u64, Duration)) {
    println!("usual {usual:?}, hanging {hanging:?}");
    assert!(3 * hanging.0 >= 2 * usual.0, "ticks: usual {usual:?}, hanging {hanging:?}");
    let limit = usual.1.mul_f64(3.0).max(Duration::from_millis(500));
    assert!(hanging.1 < limit, "slowest page: usual {usual:?}, hanging {hanging:?}");
}

#[test]
fn a_call_that_hangs_two_minutes_delays_no_tick_and_no_scrape() {
    let _alone = alone();
    one_of_three(|| {
        let nvml = FakeNvml::new().gpu(gpu("GPU-a")).gpu(gpu("GPU-b"));
        nvml.play();
        let mut world = World::start(nvml);
        let usual = pace(&world);
        world.nvml.at(0).hangs.insert("nvmlDeviceGetTotalEnergyConsumption".to_owned(), TWO_MINUTES_S);
        world.nvml.play();
        let page = world.when("the hang to show", |page| up(page, "GPU-a") == (0.0, "hanging".to_owned()));
        assert_eq!(up(&page, "GPU-b"), (1.0, "ok".to_owned()));
        world.nvml.add_energy(0, 3_000);
        world.nvml.add_energy(1, 4_000);
        let hanging = pace(&world);
        let page = world.page();
        assert_eq!(of_gpu(&page, NODE_JOULES, "GPU-b"), 4_000_000, "the other GPU is read");
        assert!(!page.has(NODE_WATTS, &[("gpu_uuid", "GPU-a")]));
        let lines: Vec<_> = world.agent.logged("WARN").into_iter().filter(|line| line.contains("GPU-a")).collect();
        assert_eq!(lines.len(), 1, "{lines:#?}");

        world.nvml.heal();
        world.when("the GPU to be read again", |page| up(page, "GPU-a").0 > 0.5);
        let page = world.page();
        assert_eq!(of_gpu(&page, NODE_JOULES, "GPU-a"), 3_000_000, "its counter went on counting");
        world.agent.assert_well();
        assert_nobody_waits(usual, hanging);
    });
}

#[test]
fn a_library_that_hangs_while_it_is_loaded_delays_nothing() {
    let _alone = alone();
    one_of_three(|| {
        let mut nvml = FakeNvml::new();
        nvml.hang("nvmlInit_v2", TWO_MINUTES_S);
        let mut world = World::start(nvml);
        world.when("the hang to show", |page| World::meter(page) == (0.0, "hanging".to_owned()));
        let hanging = pace(&world);
        world.nvml.state.gpus.push(gpu("GPU-a"));
        world.nvml.heal();
        world.when("the GPU to be read", |page| World::meter(page).0 > 0.5 && page.has(crate::world::INFO, &[]));
        world.agent.assert_well();
        assert_nobody_waits(pace(&world), hanging);
    });
}

#[test]
fn the_agent_ends_while_a_call_hangs() {
    let _alone = alone();
    let nvml = FakeNvml::new().gpu(gpu("GPU-a"));
    nvml.play();
    let mut world = World::start(nvml);
    world.nvml.hang("*", TWO_MINUTES_S);
    world.when("the hang to show", |page| up(page, "GPU-a") == (0.0, "hanging".to_owned()));
    let (status, took) = world.agent.end("TERM");
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
