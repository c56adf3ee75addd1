//! Writes that hang, GPUs that are lost, and drivers that are loaded anew.

use std::time::{Duration, Instant};

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::KnobValue;
use energy_model::meter_state::Reason;
use fake_nvml::returns::Return;

use super::world::{PATIENCE, World, clock, power};
use crate::common::alone;
use crate::common::nvml::{FakeNvml, gpu};
use crate::common::patience::Patience;

/// Longer than a busy machine takes for anything.
const HANG: Duration = Duration::from_secs(600);

#[test]
fn a_write_that_hangs_delays_no_tick_and_no_other_gpu() {
    let _alone = alone();
    let mut nvml = FakeNvml::new().gpu(gpu("GPU-a")).gpu(gpu("GPU-b"));
    nvml.at(0).hangs.insert("nvmlDeviceSetPowerManagementLimit".to_owned(), HANG.as_secs_f64());
    let mut world = World::start(nvml);
    world.send(&power("GPU-a"), KnobValue::Set(300_000));
    assert!(!world.meter.write(&power("GPU-a"), KnobValue::Set(310_000)), "one of a knob at a time");
    world.send(&clock("GPU-a"), KnobValue::Set(1200));
    world.send(&power("GPU-b"), KnobValue::Set(300_000));

    let (mut others, mut slowest) = (0, Duration::ZERO);
    let hanging = |world: &World| world.meter.health().gpus.iter().any(|gpu| gpu.reason == Reason::Hanging);
    let mut patience = Patience::new();
    while !hanging(&world) {
        patience.check("the hang to be noticed");
        let began = Instant::now();
        others += world.tick().iter().filter(|reading| &*reading.gpu.uuid == "GPU-b").count();
        slowest = slowest.max(began.elapsed());
    }
    // Some 58 ticks of 50 ms on a machine with nothing else to do.
    assert!(others >= 4, "{others} readings of the other GPU");
    assert!(slowest < HANG / 2, "{slowest:?}");
    let written = world.meter.take_written();
    assert_eq!(written.len(), 1, "the other GPU's: {written:?}");
    assert_eq!(written[0].result.as_ref().unwrap().value, Some(300_000));
    assert_eq!(world.found(&clock("GPU-a")).state, KnobState::Unreachable);
    assert_eq!(world.found(&clock("GPU-b")).state, KnobState::Ok);
    assert!(!world.meter.write(&clock("GPU-a"), KnobValue::Restore(String::new())), "no queue behind a hang");
    let began = Instant::now();
    world.meter.settle(began + Duration::from_millis(300));
    // It waited for the time it was given, and not until the end of the hang.
    assert!(began.elapsed() >= Duration::from_millis(300) && began.elapsed() < HANG / 2);

    world.nvml.heal();
    world.meter.settle(Instant::now() + PATIENCE);
    let written = world.meter.take_written();
    assert_eq!(written.len(), 2, "both come when the call returns: {written:?}");
    assert!(written.iter().all(|written| written.result.is_ok()), "{written:?}");
    world.until("the GPU to be back", |world| world.found(&clock("GPU-a")).state == KnobState::Ok);
    world.until("the hang to be over", |world| !hanging(world));
}

#[test]
fn a_lost_gpu_is_out_of_reach_and_its_clocks_begin_a_new_epoch() {
    let mut world = World::start(FakeNvml::new().gpu(gpu("GPU-a")).gpu(gpu("GPU-b")));
    let knob = clock("GPU-a");
    let before = world.write(&knob, KnobValue::Set(1200)).unwrap();
    // It is lost between two readings: the write is the first to find out.
    world.nvml.fail_at(0, "*", Return::GpuIsLost);
    let error = world.write(&power("GPU-a"), KnobValue::Set(300_000)).unwrap_err();
    assert_eq!(error.state, KnobState::Unreachable, "{}", error.detail);
    world.until("the loss to show", |world| world.found(&knob).state == KnobState::Unreachable);
    assert!(!world.meter.write(&knob, KnobValue::Set(1000)));
    assert_eq!(world.write(&clock("GPU-b"), KnobValue::Set(1005)).unwrap().value, Some(1005));
    world.nvml.heal();
    world.until("the GPU to be back", |world| world.found(&knob).state == KnobState::Ok);
    let after = world.found(&knob);
    assert_eq!(after.value, None);
    assert_ne!(after.epoch, before.epoch);
}

#[test]
fn a_driver_that_was_loaded_anew_has_forgotten_and_the_epoch_says_so() {
    let mut world = World::start(FakeNvml::new().gpu(gpu("GPU-a")).gpu(gpu("GPU-b")));
    let (lock, limit, untouched) = (clock("GPU-a"), power("GPU-a"), power("GPU-b"));
    let locked = world.write(&lock, KnobValue::Set(1200)).unwrap();
    let limited = world.write(&limit, KnobValue::Set(300_000)).unwrap();
    let other = world.found(&untouched);
    world.nvml.set(|state| state.generation += 1);
    world.until("the clocks to be open", |world| world.found(&lock).epoch != locked.epoch);
    assert_eq!(world.found(&lock).value, None);
    let after = world.found(&limit);
    assert_eq!(after.value, Some(700_000));
    assert_ne!(after.epoch, limited.epoch);
    world.until("the other GPU", |world| world.found(&untouched).state == KnobState::Ok);
    assert_eq!(world.found(&untouched), other, "what shows as before has forgotten nothing");
}
