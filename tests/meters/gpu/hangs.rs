//! Calls that do not return: nobody else waits for them.

use super::world::{NODE_JOULES, NODE_WATTS, World, of_gpu, up};
use crate::common::nvml::{FakeNvml, gpu};

/// Longer than anything here waits.
const TWO_MINUTES_S: f64 = 120.0;
/// Ticks while a call hangs. One that waited for it would not end before the call does, and forty that waited a second
/// each would not end in time either.
const TICKS: u64 = 40;

#[test]
fn a_call_that_hangs_two_minutes_delays_no_tick_and_no_scrape() {
    let nvml = FakeNvml::new().gpu(gpu("GPU-a")).gpu(gpu("GPU-b"));
    nvml.play();
    let mut world = World::start(nvml);
    world.nvml.at(0).hangs.insert("nvmlDeviceGetTotalEnergyConsumption".to_owned(), TWO_MINUTES_S);
    world.nvml.play();
    let page = world.when("the hang to show", |page| up(page, "GPU-a") == (0.0, "hanging".to_owned()));
    assert_eq!(up(&page, "GPU-b"), (1.0, "ok".to_owned()));
    world.nvml.add_energy(0, 3_000);
    world.nvml.add_energy(1, 4_000);
    let page = world.agent.after_ticks(TICKS);
    page.assert_conserved();
    assert_eq!(up(&page, "GPU-a"), (0.0, "hanging".to_owned()), "the call has not returned");
    assert_eq!(of_gpu(&page, NODE_JOULES, "GPU-b"), 4_000_000, "the other GPU is read");
    assert!(!page.has(NODE_WATTS, &[("gpu_uuid", "GPU-a")]));
    world.agent.assert_all_logged(&["WARN", "GPU-a"], 1);

    world.nvml.heal();
    world.when("the GPU to be read again", |page| up(page, "GPU-a").0 > 0.5);
    let page = world.page();
    assert_eq!(of_gpu(&page, NODE_JOULES, "GPU-a"), 3_000_000, "its counter went on counting");
    world.agent.assert_well();
}

#[test]
fn a_library_that_hangs_while_it_is_loaded_delays_nothing() {
    let mut nvml = FakeNvml::new();
    nvml.hang("nvmlInit_v2", TWO_MINUTES_S);
    let mut world = World::start(nvml);
    world.when("the hang to show", |page| World::meter(page) == (0.0, "hanging".to_owned()));
    let page = world.agent.after_ticks(TICKS);
    assert_eq!(World::meter(&page), (0.0, "hanging".to_owned()), "the call has not returned");
    world.nvml.state.gpus.push(gpu("GPU-a"));
    world.nvml.heal();
    world.when("the GPU to be read", |page| World::meter(page).0 > 0.5 && page.has(super::world::INFO, &[]));
    world.agent.assert_well();
}

#[test]
fn the_agent_ends_while_a_call_hangs() {
    let nvml = FakeNvml::new().gpu(gpu("GPU-a"));
    nvml.play();
    let mut world = World::start(nvml);
    world.nvml.hang("*", TWO_MINUTES_S);
    world.when("the hang to show", |page| up(page, "GPU-a") == (0.0, "hanging".to_owned()));
    // Long before the call returns, or this gives up waiting.
    let (status, _) = world.agent.end("TERM");
    assert!(status.success(), "{status}");
}
