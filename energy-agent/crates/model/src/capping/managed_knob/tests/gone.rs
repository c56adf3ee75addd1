//! What is not there any more when it is to be given back.

use super::*;

/// What is told when giving back fails with [`KnobState::Unreachable`], and the failures counted.
fn told(mut bench: Bench) -> (Vec<KnobChangeKind>, u64, bool) {
    bench.tick(Some(&limit(bench.device.min)));
    assert!(bench.managed.held().is_some());
    bench.kinds();
    bench.refuse = Some(KnobState::Unreachable);
    assert_eq!(bench.tick(None), Action::Restore);
    (bench.kinds(), bench.managed.restore_failures(), bench.managed.held().is_some())
}

#[test]
fn a_quota_whose_pod_ended_between_look_and_write_is_no_failure_and_a_clock_is() {
    let quota = Bench::of(Knob::CpuQuota("pod".into()), 50, 2000, 10, None);
    assert_eq!(told(quota), (vec![], 0, true), "the next look finds it gone");
    assert_eq!(told(Bench::cpu()), (vec![KnobChangeKind::RestoreFailed], 1, true));
}
