//! Power limits.

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::KnobValue;
use fake_nvml::returns::Return;
use fake_nvml::state::{Gpu, Limits};

use super::world::{World, case, power, received};
use crate::common::nvml::{FakeNvml, gpu};

const SET: &str = "nvmlDeviceSetPowerManagementLimit";

#[test]
fn a_limit_is_written_in_milliwatts_and_given_back_exactly_fc_081() {
    // "hardware: GPU accepts 200..700 W"; the original is no whole watt.
    let nvml = FakeNvml::new().gpu(gpu("GPU-a"));
    nvml.play();
    nvml.limit_power("GPU-a", 650_500);
    let mut world = World::start(nvml);
    let knob = power("GPU-a");
    let before = world.found(&knob);
    assert_eq!((before.min, before.max, before.value), (200_000, 700_000, Some(650_500)));
    assert_eq!((before.raw.as_str(), before.state), ("650500", KnobState::Ok));
    assert_eq!(received(&world.nvml), [], "probing writes nothing");

    let after = world.write(&knob, KnobValue::Set(250_000)).unwrap();
    assert_eq!((after.value, after.state, after.epoch), (Some(250_000), KnobState::Ok, before.epoch));
    assert_eq!(world.found(&knob), after);
    world.write(&knob, KnobValue::Restore(before.raw.clone())).unwrap();
    assert_eq!(world.found(&knob), before);
    world.write(&knob, KnobValue::Restore(String::new())).unwrap();
    let line = |limit_mw| ("GPU-a".to_owned(), SET.to_owned(), vec![limit_mw]);
    assert_eq!(received(&world.nvml), [line(250_000), line(650_500), line(700_000)], "the last is the default");
}

#[test]
fn the_driver_never_receives_a_limit_out_of_its_range_fc_082() {
    let case = case("FC-082-below-minimum");
    let mw = |value: &serde_json::Value| u32::try_from(value.as_u64().unwrap()).unwrap() * 1000;
    let gpus = [&case["gpu"], &case["second_gpu"]].map(|gpu| {
        let (min_mw, max_mw, default_mw) = (mw(&gpu["min_w"]), mw(&gpu["max_w"]), mw(&gpu["default_w"]));
        (gpu["uuid"].as_str().unwrap(), Limits { min_mw, max_mw, default_mw, ..Limits::default() })
    });
    let nvml = gpus
        .iter()
        .fold(FakeNvml::new(), |nvml, (uuid, limits)| nvml.gpu(Gpu { limits: Some(limits.clone()), ..gpu(uuid) }));
    let mut world = World::start(nvml);
    let (first, second) = (power(gpus[0].0), power(gpus[1].0));
    assert_eq!((world.found(&second).min, world.found(&second).max), (150_000, 180_000));
    for (knob, limit_mw) in [(&first, 50_000), (&first, 900_000), (&second, 149_400), (&first, u64::MAX)] {
        let error = world.write(knob, KnobValue::Set(limit_mw)).unwrap_err();
        assert_eq!(error.state, KnobState::Rejected);
        let range = if knob == &first { "200.0 W to 700.0 W" } else { "150.0 W to 180.0 W" };
        assert!(error.detail.contains(range), "{}", error.detail);
    }
    assert_eq!(world.write(&first, KnobValue::Restore("50000".to_owned())).unwrap_err().state, KnobState::Rejected);
    assert_eq!(world.write(&first, KnobValue::Restore("much".to_owned())).unwrap_err().state, KnobState::Error);
    assert_eq!(received(&world.nvml), []);
    assert_eq!(world.found(&first).state, KnobState::Ok, "another value can be written");
    world.write(&second, KnobValue::Set(150_000)).unwrap();
    assert_eq!(received(&world.nvml).len(), 1);
}

#[test]
fn each_error_is_a_state_of_its_own_gpu_and_others_go_on_fc_084() {
    let case = case("FC-084-set-errors");
    let calls = case["calls"].as_array().unwrap();
    let error = |value: &serde_json::Value| -> Return { serde_json::from_value(value.clone()).unwrap() };
    let uuids: Vec<&str> = calls.iter().map(|call| call["gpu"].as_str().unwrap()).collect();
    let mut nvml = uuids.iter().fold(FakeNvml::new(), |nvml, uuid| nvml.gpu(gpu(uuid)));
    for (index, call) in calls.iter().enumerate() {
        let played = nvml.at(index);
        played.errors.insert(SET.to_owned(), error(&call["set_power_limit"]));
        if error(&call["set_power_limit"]) == Return::Success {
            played.errors.clear();
        }
        if !call["get_power_limit"].is_null() {
            let limit = "nvmlDeviceGetPowerManagementLimit".to_owned();
            played.errors.insert(limit, error(&call["get_power_limit"]));
            let enforced_mw = call["get_enforced_limit_mw"].as_u64().map(|mw| u32::try_from(mw).unwrap());
            played.limits = Some(Limits { enforced_mw, ..Limits::default() });
        }
    }
    let mut world = World::start(nvml);
    assert_eq!(world.found(&power(uuids[0])).state, KnobState::Unsupported, "known before a write");
    let written: Vec<_> = uuids.iter().map(|uuid| world.write(&power(uuid), KnobValue::Set(300_000))).collect();
    let states: Vec<KnobState> = written.iter().flat_map(|result| result.as_ref().err()).map(|it| it.state).collect();
    assert_eq!(states, [KnobState::Unsupported, KnobState::NoPermission, KnobState::Rejected]);
    assert!(written[1].as_ref().unwrap_err().detail.contains("CAP_SYS_ADMIN"), "the remedy");
    assert!(written[2].as_ref().unwrap_err().detail.contains("200.0 W to 700.0 W"), "the valid range");
    assert_eq!(written[3].as_ref().unwrap().value, Some(300_000));
    // What cannot be written, whatever it is, stays so.
    let states = uuids.iter().map(|uuid| world.found(&power(uuid)).state).collect::<Vec<_>>();
    assert_eq!(states, [KnobState::Unsupported, KnobState::NoPermission, KnobState::Ok, KnobState::Ok]);
    // All are metered.
    let read = world.read_each();
    let enforced = read.iter().find(|reading| &*reading.gpu.uuid == uuids[0]).unwrap().state.power_limit.unwrap();
    assert!((enforced.0 - 175.0).abs() < 1e-9);
}

#[test]
fn a_limit_that_is_taken_and_kept_back_is_not_effective() {
    let mut nvml = FakeNvml::new().gpu(gpu("GPU-a"));
    nvml.at(0).limits.as_mut().unwrap().keep = true;
    let mut world = World::start(nvml);
    let knob = power("GPU-a");
    let after = world.write(&knob, KnobValue::Set(300_000)).unwrap();
    assert_eq!((after.value, after.state), (Some(700_000), KnobState::NotEffective));
    world.tick();
    assert_eq!(world.found(&knob).state, KnobState::NotEffective);
    assert_eq!(world.write(&knob, KnobValue::Set(700_000)).unwrap().state, KnobState::Ok, "what it has, it takes");
}

#[test]
fn a_foreign_write_shows_with_the_readings() {
    let mut world = World::start(FakeNvml::new().gpu(gpu("GPU-a")));
    let knob = power("GPU-a");
    world.write(&knob, KnobValue::Set(300_000)).unwrap();
    world.nvml.limit_power("GPU-a", 500_000);
    world.until("the foreign limit", |world| world.found(&knob).value == Some(500_000));
    assert_eq!(world.found(&knob).raw, "500000");
}
