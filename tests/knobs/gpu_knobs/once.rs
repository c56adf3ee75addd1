//! Writes without a tick.

use std::time::{Duration, Instant};

use energy_host::meter::gpu::write_once;
use energy_model::capping::knob::Value;
use energy_model::capping::observation::KnobState;

use super::world::{clock, power, received};
use crate::common::nvml::{FakeNvml, gpu};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn writes_come_back_in_their_order() {
    let nvml = FakeNvml::new().gpu(gpu("GPU-a")).gpu(gpu("GPU-b"));
    nvml.play();
    let library = nvml.library().display().to_string();
    nvml.lock_clocks("GPU-a", Some((345, 1200)));
    nvml.limit_power("GPU-b", 300_000);
    let writes = [
        (power("GPU-b"), Value::Restore("700000".to_owned())),
        (clock("GPU-a"), Value::Restore(String::new())),
        (clock("GPU-gone"), Value::Restore(String::new())),
        (power("GPU-a"), Value::Set(100_000)),
    ];
    let outcomes = write_once(&library, &writes, LONG);
    assert!(outcomes.iter().map(|(knob, _)| knob).eq(writes.iter().map(|(knob, _)| knob)));
    assert_eq!(outcomes[0].1.as_ref().unwrap().value, Some(700_000));
    assert_eq!(outcomes[1].1.as_ref().unwrap().value, None);
    let states: Vec<_> = outcomes[2..].iter().map(|(_, outcome)| outcome.as_ref().unwrap_err().state).collect();
    assert_eq!(states, [KnobState::Unreachable, KnobState::Rejected]);
    assert_eq!(nvml.held().gpus["GPU-a"].locked_mhz, None);
    assert_eq!(received(&nvml).len(), 2);
}

#[test]
fn a_hang_ends_at_the_timeout_and_keeps_no_other_gpu_from_its_write() {
    let mut nvml = FakeNvml::new().gpu(gpu("GPU-a")).gpu(gpu("GPU-b"));
    nvml.at(0).hangs.insert("nvmlDeviceResetGpuLockedClocks".to_owned(), 120.0);
    nvml.play();
    let library = nvml.library().display().to_string();
    let writes = ["GPU-a", "GPU-b"].map(|uuid| (clock(uuid), Value::Restore(String::new())));
    let began = Instant::now();
    let outcomes = write_once(&library, &writes, Duration::from_secs(3));
    // The hang alone lasts 120 s.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    let error = outcomes[0].1.as_ref().unwrap_err();
    assert_eq!(error.state, KnobState::Unreachable);
    assert!(error.detail.contains("no answer within 3 s"), "{}", error.detail);
    assert_eq!(outcomes[1].1.as_ref().unwrap().state, KnobState::Ok);
    nvml.unload();
    let (_, outcome) = write_once(&library, &writes[1..], LONG).remove(0);
    assert_eq!(outcome.unwrap_err().state, KnobState::Unreachable, "no driver");
}

#[test]
fn without_a_library_nothing_is_in_reach() {
    let writes = [(clock("GPU-a"), Value::Restore(String::new()))];
    let (knob, outcome) = write_once("/nonexistent/libnvidia-ml.so.1", &writes, LONG).remove(0);
    let error = outcome.unwrap_err();
    assert_eq!((knob, error.state), (clock("GPU-a"), KnobState::Unreachable));
    assert!(error.detail.contains("/nonexistent/libnvidia-ml.so.1"), "{}", error.detail);
}
