//! Locked clocks.

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::KnobValue;
use fake_nvml::plant::Plant;
use fake_nvml::returns::Return;
use fake_nvml::state::{Clocks, Gpu, Process};

use super::world::{World, case, clock, power, received};
use crate::common::nvml::{FakeNvml, gpu};

const LOCK: &str = "nvmlDeviceSetGpuLockedClocks";
const RESET: &str = "nvmlDeviceResetGpuLockedClocks";

#[test]
fn capabilities_are_each_gpus_own_and_a_lock_is_a_range_fc_085() {
    let case = case("FC-085-locked-clocks");
    let gpus = case["gpus"].as_array().unwrap();
    let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu["uuid"].as_str().unwrap()).collect();
    let mut nvml = uuids.iter().fold(FakeNvml::new(), |nvml, uuid| nvml.gpu(gpu(uuid)));
    for (index, played) in gpus.iter().enumerate() {
        let error: Return = serde_json::from_value(played["set_gpu_locked_clocks"].clone()).unwrap();
        if error != Return::Success {
            nvml.at(index).errors.insert(LOCK.to_owned(), error);
        }
    }
    let observed_mhz = gpus[3]["observed_clock_mhz_after"].as_u64().unwrap();
    nvml.at(3).sm_clock_mhz = Some(u32::try_from(observed_mhz).unwrap());
    let mut world = World::start(nvml);
    // 1207 MHz is on no list.
    let locked: Vec<_> = uuids.iter().map(|uuid| world.write(&clock(uuid), KnobValue::Set(1207))).collect();
    assert_eq!(locked[0].as_ref().unwrap_err().state, KnobState::Unsupported);
    assert_eq!(world.found(&clock(uuids[0])).state, KnobState::Unsupported);
    for found in &locked[1..] {
        assert_eq!(found.as_ref().unwrap().value, Some(1200), "the nearest lower one");
    }
    assert_eq!(world.write(&power(uuids[0]), KnobValue::Set(300_000)).unwrap().state, KnobState::Ok);
    let line = |uuid: &str, arguments: &[u64]| (uuid.to_owned(), LOCK.to_owned(), arguments.to_vec());
    let locks = uuids[1..].iter().map(|uuid| line(uuid, &[345, 1200]));
    assert_eq!(received(&world.nvml)[..3], locks.collect::<Vec<_>>());
    // Success is no proof: the clock that runs is read beside.
    let read = world.read_each();
    let last = read.iter().find(|reading| &*reading.gpu.uuid == uuids[3]).unwrap();
    assert_eq!(last.state.sm_clock_hertz, Some(observed_mhz * 1_000_000));

    let open = world.write(&clock(uuids[1]), KnobValue::Restore(String::new())).unwrap();
    assert_eq!(open.value, None);
    let last = received(&world.nvml).pop().unwrap();
    assert_eq!(last, (uuids[1].to_owned(), RESET.to_owned(), vec![]), "reset, not a lock at the highest clock");
    assert_eq!(world.nvml.calls(RESET), 1);
}

#[test]
fn a_gpu_older_than_volta_is_not_asked_fc_085() {
    let mut nvml = FakeNvml::new().gpu(gpu("GPU-pascal"));
    nvml.at(0).architecture = 4;
    let world = World::start(nvml);
    assert_eq!(world.found(&clock("GPU-pascal")).state, KnobState::Unsupported);
    assert_eq!(world.found(&power("GPU-pascal")).state, KnobState::Ok);
}

#[test]
fn a_lock_is_never_a_single_clock_and_acts() {
    let busy = Process { pid: 7, load: 1.0, ..Process::default() };
    let plant = Plant { delay_s: 0.0, ..Plant::default() };
    let nvml = FakeNvml::new().gpu(Gpu { plant: Some(plant), processes: Some(vec![busy]), ..gpu("GPU-a") });
    let mut world = World::start(nvml);
    let knob = clock("GPU-a");
    let found = world.found(&knob);
    assert_eq!((found.min, found.max, found.step, found.value), (360, 1980, 15, None));
    for mhz in [0, 345, 359] {
        let error = world.write(&knob, KnobValue::Set(mhz)).unwrap_err();
        assert_eq!(error.state, KnobState::Rejected);
        assert!(error.detail.contains("360 to 1980 MHz"), "{}", error.detail);
    }
    assert_eq!(received(&world.nvml), []);
    world.write(&knob, KnobValue::Set(360)).unwrap();
    assert_eq!(received(&world.nvml)[0].2, [345, 360]);
    let mhz = |world: &mut World| world.tick().first().and_then(|reading| reading.state.sm_clock_hertz);
    while mhz(&mut world) != Some(360_000_000) {}
    world.write(&knob, KnobValue::Restore(String::new())).unwrap();
    while mhz(&mut world) != Some(1_980_000_000) {}
}

#[test]
fn long_lists_are_read_whole_and_missing_ones_replaced_by_the_range() {
    // 210 to 3105 MHz: 194 clocks.
    let many = Clocks { min_mhz: 210, max_mhz: 3105, ..Clocks::default() };
    let mut nvml = FakeNvml::new().gpu(Gpu { clocks: many, ..gpu("GPU-many") });
    for (uuid, calls) in [
        ("GPU-range", &["nvmlDeviceGetSupportedGraphicsClocks"][..]),
        ("GPU-highest", &["nvmlDeviceGetSupportedMemoryClocks", "nvmlDeviceGetMinMaxClockOfPState"]),
    ] {
        let mut played = gpu(uuid);
        for call in calls {
            played.errors.insert((*call).to_owned(), Return::NotSupported);
        }
        nvml = nvml.gpu(played);
    }
    let mut guest = gpu("GPU-guest");
    guest.virtualization = 2;
    let world = World::start(nvml.gpu(guest));
    let range = |uuid| {
        let found = world.found(&clock(uuid));
        (found.min, found.max, found.step, found.state)
    };
    assert_eq!(range("GPU-many"), (225, 3105, 15, KnobState::Ok));
    assert_eq!(range("GPU-range"), (360, 1980, 15, KnobState::Ok));
    let (_, max, _, state) = range("GPU-highest");
    assert_eq!((max, state), (1980, KnobState::Ok));
    assert_eq!(range("GPU-guest").3, KnobState::Unsupported);
    assert_eq!(world.found(&power("GPU-guest")).state, KnobState::Unsupported);
}

#[test]
fn a_library_without_the_calls_has_no_knobs_and_is_read() {
    let nvml = FakeNvml::new().without(&[RESET, "nvmlDeviceSetPowerManagementLimit"]).gpu(gpu("GPU-a"));
    let mut world = World::start(nvml);
    assert_eq!(world.found(&clock("GPU-a")).state, KnobState::Unsupported, "what cannot be undone is not done");
    assert_eq!(world.found(&power("GPU-a")).state, KnobState::Unsupported);
    world.until("a reading", |world| world.meter.health().gpus.iter().all(|gpu| gpu.up));
    assert_eq!(world.write(&clock("GPU-a"), KnobValue::Set(1200)).unwrap_err().state, KnobState::Unsupported);
    assert_eq!(received(&world.nvml), []);
}
