//! Budgets below what is drawn at the floors.

use super::world::{World, clock_of, limit_of, policy, quota_of, states};
use super::*;
use crate::capping::knob::KnobState;
use crate::capping::policy::Components;

#[test]
fn a_budget_that_cannot_be_reached_is_said_once_and_not_hunted() {
    let mut world = World::new().policy(policy("cap", 80.0)).pod("a").gpu("GPU-0", &["a"]);
    let mut said = Vec::new();
    let mut values = Vec::new();
    for second in 0..600 {
        // Idle is above the budget's release, a load at the floor above the budget.
        world.draw("GPU-0", if second % 30 < 20 { 110.0 } else { 73.0 });
        said.extend(states(world.tick()));
        values.push(world.values());
    }
    assert_eq!(said, [SubjectState::Capping, SubjectState::Unreachable]);
    // FC-082: 88 W is below the device's 200 W.
    let floor = BTreeMap::from([(clock_of("GPU-0"), 345), (limit_of("GPU-0"), 200_000)]);
    assert!(values[30..].iter().all(|value| *value == floor), "{values:?}");
    assert_eq!(world.outcome.clamped, floor.into_keys().collect());
}

#[test]
fn a_clock_at_its_devices_least_is_clamped_and_one_at_the_policys_is_not() {
    // The policy's least: 345 + 17 * 15.
    for (least_mhz, lowest, clamped) in [(None, 345, true), (Some(600), 600, false)] {
        let mut cap = policy("cap", 80.0);
        cap.actuators.gpu.min_clock_mhz = least_mhz;
        let mut world = World::new().policy(cap).pod("a").gpu("GPU-0", &["a"]);
        world.draw("GPU-0", 300.0);
        world.ticks(10);
        assert_eq!((world.limit(&clock_of("GPU-0")), world.state("cap")), (Some(lowest), SubjectState::Unreachable));
        assert_eq!(world.outcome.clamped.contains(&clock_of("GPU-0")), clamped, "{least_mhz:?}");
        world.draw("GPU-0", 60.0);
        world.ticks(20);
        assert!(world.limit(&clock_of("GPU-0")).unwrap() > lowest);
        assert!(!world.outcome.clamped.contains(&clock_of("GPU-0")), "it is above its least");
    }
}

#[test]
fn a_quota_at_its_least_is_clamped() {
    let mut cap = policy("cap", 1.0);
    cap.budget.components = Components { gpu: false, cpu: true };
    let mut world = World::new().policy(cap).pod("a");
    world.seen.knobs.get_mut(&quota_of("a")).unwrap().min = 400;
    world.work("a", 100.0, 1.0);
    world.tick();
    // One half of the CPU that it uses.
    assert_eq!((world.limit(&quota_of("a")), world.outcome.clamped.len()), (Some(500), 0));
    world.work("a", 50.0, 0.5);
    world.tick();
    assert_eq!(world.limit(&quota_of("a")), Some(400));
    assert_eq!(world.outcome.clamped, BTreeSet::from([quota_of("a")]));
}

#[test]
fn a_gpu_that_somebody_else_has_set_is_named_when_the_other_is_at_its_floor() {
    let mut world = World::new().policy(policy("cap", 80.0)).pod("a").gpu("GPU-0", &["a"]).gpu("GPU-1", &["a"]);
    for knob in [clock_of("GPU-0"), limit_of("GPU-0")] {
        world.seen.knobs.get_mut(&knob).unwrap().state = KnobState::Yielded;
    }
    world.draw("GPU-0", 300.0);
    world.draw("GPU-1", 300.0);
    world.ticks(10);
    assert_eq!(world.limit(&clock_of("GPU-1")), Some(345));
    let subject = &world.status("cap").subjects[0];
    let expected = "GPU-0 cannot be capped: gpu_locked_clocks is yielded, gpu_power_limit is yielded";
    assert_eq!((subject.state, subject.reason.as_deref()), (SubjectState::Capping, Some(expected)));
}
