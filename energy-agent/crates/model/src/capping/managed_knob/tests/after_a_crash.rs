//! What the journal of an agent that was killed makes of a knob.

use super::*;

fn adopted(knob: Knob, original: Option<u64>, written: u64, before: u64, epoch: u64) -> ManagedKnob {
    let raw = original.map_or_else(|| "max 100000".to_owned(), |value| value.to_string());
    let found = Found { min: 0, max: 0, step: 1, value: original, raw, state: KnobState::Ok, epoch };
    let mut entry = JournalEntry::new(&knob, &found, before, &policy("p"), "b", 0);
    entry.intend(written, Some(before), &policy("p"));
    ManagedKnob::adopt(&entry)
}

#[test]
fn whatever_of_the_agents_shows_the_original_comes_back() {
    // Killed before the write, after it, and before its first one.
    for shows in [2000, 1500, 3000] {
        let mut cpu = Bench::cpu();
        cpu.managed = adopted(Knob::CpuFrequency(0), Some(3000), 1500, 2000, 1);
        cpu.becomes(Some(shows));
        cpu.ticks(2, None);
        assert_eq!(cpu.device.value, Some(3000), "{shows}");
        assert!(cpu.managed.held().is_none());
        assert_eq!(cpu.writes.len(), usize::from(shows != 3000));
    }
}

#[test]
fn a_cap_that_stands_is_not_written_again_and_keeps_its_original() {
    let mut cpu = Bench::cpu();
    cpu.managed = adopted(Knob::CpuFrequency(0), Some(3000), 1500, 2000, 1);
    cpu.becomes(Some(1500));
    cpu.ticks(3, Some(&limit(1500)));
    assert_eq!(cpu.writes, []);
    assert_eq!(cpu.seen().original, Some(3000));
}

#[test]
fn a_value_that_somebody_set_meanwhile_stays() {
    let mut cpu = Bench::cpu();
    cpu.managed = adopted(Knob::CpuFrequency(0), Some(3000), 1500, 2000, 1);
    cpu.becomes(Some(2600));
    cpu.ticks(3, None);
    assert_eq!((cpu.writes.len(), cpu.kinds()), (0, vec![KnobChangeKind::Foreign]));
}

#[test]
fn a_pod_that_was_resized_meanwhile_is_held_from_its_new_limit_fc_121() {
    for wanted in [None, Some(limit(100))] {
        let mut quota = Bench::of(Knob::CpuQuota("pod".into()), 10, 4000, 10, Some(2000));
        quota.managed = adopted(Knob::CpuQuota("pod".into()), Some(1000), 100, 150, 1);
        quota.ticks(3, wanted.as_ref());
        assert_eq!(quota.kinds(), [KnobChangeKind::Resized]);
        // A policy that comes later need not wait.
        quota.ticks(2, Some(&limit(100)));
        assert_eq!(quota.writes, [KnobValue::Set(100)]);
        quota.ticks(2, None);
        assert_eq!(quota.device.value, Some(2000));
    }
}

#[test]
fn a_rounded_value_is_the_agents() {
    let mut rapl = Bench::of(Knob::RaplLimit("z".into()), 0, 145_000_000, 1, Some(90_000_000));
    rapl.managed = adopted(Knob::RaplLimit("z".into()), Some(145_000_000), 90_060_000, 100_000_000, 1);
    rapl.tick(None);
    assert_eq!(rapl.device.value, Some(145_000_000));
}

#[test]
fn another_cgroup_of_the_same_path_is_none_of_ours() {
    let mut quota = Bench::of(Knob::CpuQuota("pod".into()), 10, 2000, 10, Some(500));
    quota.managed = adopted(Knob::CpuQuota("pod".into()), None, 500, 500, 99);
    assert_eq!(quota.tick(None), Action::Forget);
    assert_eq!(quota.writes, []);
    assert_eq!(quota.kinds(), []);
}

#[test]
fn a_lock_may_or_may_not_have_been_set_and_is_reset_or_set() {
    let mut gpu = Bench::gpu();
    gpu.managed = adopted(Knob::GpuClock("GPU-1".into()), None, 1200, 1350, 77);
    gpu.ticks(3, Some(&limit(1200)));
    assert_eq!(gpu.writes, [KnobValue::Set(1200)]);
    let mut gpu = Bench::gpu();
    gpu.managed = adopted(Knob::GpuClock("GPU-1".into()), None, 1200, 1350, 77);
    gpu.ticks(3, None);
    assert_eq!(gpu.writes, [KnobValue::Restore("max 100000".to_owned())]);
}

#[test]
fn a_pod_that_was_resized_by_a_little_is_not_the_agents_value_fc_121() {
    // 500 were written; a value in another period is off by one at most.
    for (shows, resized) in [(500, false), (499, false), (501, false), (498, true), (505, true), (507, true)] {
        let mut quota = Bench::of(Knob::CpuQuota("pod".into()), 10, 4000, 10, Some(shows));
        quota.managed = adopted(Knob::CpuQuota("pod".into()), Some(1000), 500, 500, 1);
        quota.tick(None);
        let expected = if resized { vec![KnobChangeKind::Resized] } else { vec![KnobChangeKind::Restored] };
        assert_eq!(quota.kinds(), expected, "{shows}");
        assert_eq!(quota.device.value, Some(if resized { shows } else { 1000 }), "{shows}");
    }
}

#[test]
fn a_higher_value_of_somebody_else_is_not_said_to_be_written_over_where_nothing_will_be() {
    let mut rapl = Bench::of(Knob::RaplLimit("z".into()), 0, 145_000_000, 1, Some(120_000_000));
    rapl.managed = adopted(Knob::RaplLimit("z".into()), Some(145_000_000), 90_000_000, 100_000_000, 1);
    rapl.tick(None);
    assert_eq!(rapl.changes[0].detail, "it is 120.0 W, but 90.0 W was written; it stays");
    assert_eq!((rapl.kinds(), rapl.writes.len()), (vec![KnobChangeKind::Foreign], 0));
}
