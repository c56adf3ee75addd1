//! Somebody else who writes the same knob.

use super::*;

/// Seconds between the writes of a limit, while somebody else puts `theirs` in its place `after` seconds after each.
fn fought(theirs: u64, after: u32, seconds: u32) -> (Bench, Vec<u32>) {
    let mut rapl = Bench::of(Knob::RaplLimit("intel-rapl:0".into()), 10, 205, 1, Some(205));
    let (mut written, mut since) = (Vec::new(), None);
    for second in 0..seconds {
        if rapl.tick(Some(&limit(60))) == Action::Set(60) {
            written.push(second);
            since = Some(second);
        }
        if since.is_some_and(|at| second >= at + after) {
            rapl.becomes(Some(theirs));
            since = None;
        }
    }
    (rapl, written)
}

/// A package of 205 W at most, limited to 60 W.
fn package() -> (Bench, Limit) {
    let of = Knob::RaplLimit("intel-rapl:0".into());
    let (mut package, ours) = (Bench::of(of, 10_000_000, 205_000_000, 1, Some(205_000_000)), limit(60_000_000));
    package.tick(Some(&ours));
    assert_eq!(package.writes, [KnobValue::Set(60_000_000)]);
    (package, ours)
}

#[test]
fn a_lower_foreign_value_stays_and_is_what_was() {
    let (mut package, ours) = package();
    package.becomes(Some(55_000_000));
    assert_eq!(package.tick(Some(&ours)), Action::Forget);
    assert_eq!((package.kinds(), package.seen().state), (vec![KnobChangeKind::Foreign], KnobState::Yielded));
    let told = package.managed.cap(package.now).detail.unwrap();
    assert_eq!(told, "another program has set 55.0 W, which is lower than the 60.0 W that the agent wrote: it stays");
    package.ticks(300, Some(&limit(52_000_000)));
    package.ticks(298, None);
    assert_eq!(package.writes.len(), 1, "neither limited nor given back");
    package.ticks(3, Some(&ours));
    assert_eq!(package.writes.len(), 1, "nothing is raised above it");
    assert_eq!(package.managed.cap(package.now).detail, None);
    package.ticks(3, Some(&limit(52_000_000)));
    assert_eq!(package.writes[1..], [KnobValue::Set(52_000_000)]);
    assert_eq!(package.seen().original, Some(55_000_000));
    package.tick(None);
    assert_eq!(package.device.value, Some(55_000_000));
}

#[test]
fn a_higher_foreign_value_is_written_over_after_a_minute_and_comes_back_at_the_end() {
    let (mut package, ours) = package();
    package.becomes(Some(80_000_000));
    assert_eq!(package.tick(Some(&ours)), Action::Forget);
    let said = "it is 80.0 W, but 60.0 W was written; another program has set 80.0 W, which is higher than the 60.0 W that the agent wrote: the agent overwrites it after 60 s, at most three times within an hour (a repeated value: at once, at most twenty times)";
    assert_eq!(package.changes[0].detail, said);
    assert_eq!(package.kinds(), [KnobChangeKind::Foreign]);
    package.ticks(10, Some(&ours));
    let told = package.managed.cap(package.now).detail.unwrap();
    assert!(told.contains("the agent overwrites it after 50 s, at most three times within an hour"), "{told}");
    package.ticks(49, Some(&ours));
    assert_eq!((package.writes.len(), package.seen().state), (1, KnobState::Yielded));
    package.tick(Some(&ours));
    assert_eq!(package.writes[1..], [KnobValue::Set(60_000_000)]);
    assert_eq!(package.seen().original, Some(80_000_000));
    package.tick(None);
    assert_eq!(package.device.value, Some(80_000_000), "what they set is what is given back");
}

#[test]
fn no_limit_at_all_is_a_higher_value() {
    let mut quota = Bench::of(Knob::CpuQuota("pod".into()), 10, 2000, 10, Some(1500));
    quota.tick(Some(&limit(500)));
    quota.becomes(None);
    quota.ticks(61, Some(&limit(500)));
    assert_eq!(quota.writes, [KnobValue::Set(500), KnobValue::Set(500)]);
    assert_eq!(quota.seen().original, None);
}

#[test]
fn two_writers_that_never_give_way_write_three_times_an_hour() {
    // Each second another value, so that it is never what was before.
    let mut rapl = Bench::of(Knob::RaplLimit("intel-rapl:0".into()), 10, 205, 1, Some(205));
    let mut written = Vec::new();
    for second in 0_u32..7300 {
        if rapl.tick(Some(&limit(60))) == Action::Set(60) {
            written.push(second);
        }
        rapl.becomes(Some(100 + u64::from(second) % 97));
    }
    // The first is the cap itself; each of the others comes a minute after the one before was seen to be gone. The first of
    // an hour later comes an hour after the first, the second after the second.
    assert_eq!(written, [0, 61, 122, 183, 3661, 3722, 3783, 7261]);
}

#[test]
fn what_goes_back_to_the_same_value_again_and_again_is_set_again_twenty_times_an_hour_at_most() {
    // Every 30 s: never more than five times a minute.
    let (rapl, written) = fought(205, 29, 3600);
    assert!((20..=24).contains(&written.len()), "{written:?}");
    assert_eq!(rapl.seen().state, KnobState::Yielded);
    // A value that was foreign and has become what was before is the same.
    let (_, written) = fought(150, 29, 3600);
    assert!((20..=25).contains(&written.len()), "{written:?}");
}
