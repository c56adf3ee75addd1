//! Ceilings that do not follow from the power: those that stand always, and those that come from elsewhere.

use super::*;
use crate::capping::controller::world::{World, clock_of, limit_of, policy};

fn standing(watts: f64) -> Policy {
    let mut policy = policy("cap", watts);
    policy.control.standing = true;
    policy.actuators.gpu.locked_clocks = false;
    policy
}

#[test]
fn a_standing_limit_is_set_while_the_power_is_low_and_stays() {
    let mut world = World::new().policy(standing(400.0)).pod("a").gpu("GPU-0", &["a"]);
    world.tick();
    assert_eq!(world.limit(&limit_of("GPU-0")), Some(400_000), "at 70 W");
    assert_eq!(world.state("cap"), SubjectState::Capping);
    world.draw("GPU-0", 700.0);
    world.ticks(5);
    world.draw("GPU-0", 70.0);
    world.ticks(300);
    assert_eq!(world.limit(&limit_of("GPU-0")), Some(400_000));
    // Not measured: it stands all the same.
    world.seen.gpus[0].power = None;
    world.ticks(400);
    assert_eq!(world.limit(&limit_of("GPU-0")), Some(400_000));
    world.draw("GPU-0", 70.0);
    for watts in [500.0, 300.0] {
        world.put(standing(watts));
        world.ticks(2);
        assert_eq!(
            world.limit(&limit_of("GPU-0")).map(|limit| limit / 1000),
            Some(if watts > 400.0 { 500 } else { 300 })
        );
    }
    world.in_force.policies.clear();
    assert_eq!(world.ticks(1).limits, Limits::new());
}

#[test]
fn a_standing_budget_of_two_gpus_is_divided_and_a_large_one_is_none() {
    let mut world = World::new().policy(standing(500.0)).pod("a").gpu("GPU-0", &["a"]).gpu("GPU-1", &["a"]);
    world.tick();
    assert_eq!([limit_of("GPU-0"), limit_of("GPU-1")].map(|knob| world.limit(&knob)), [Some(250_000); 2]);
    world.put(standing(1400.0));
    assert_eq!(world.ticks(2).limits, Limits::new(), "no more than the devices can draw");
}

#[test]
fn a_standing_limit_that_only_recommends_writes_nothing() {
    let mut only = standing(400.0);
    only.mode = Mode::Recommend;
    let mut world = World::new().policy(only).pod("a").gpu("GPU-0", &["a"]);
    assert_eq!(world.ticks(3).limits, Limits::new());
}

/// One GPU whose policy follows clocks from elsewhere.
fn external() -> World {
    let mut policy = policy("cap", 400.0);
    policy.control.algorithm = Algorithm::External;
    policy.actuators.gpu.power_limit = false;
    let mut world = World::new().policy(policy).pod("a").gpu("GPU-0", &["a"]);
    world.seen.bounds.insert(clock_of("GPU-0"), 1200);
    world.draw("GPU-0", 380.0);
    world
}

#[test]
fn clocks_from_elsewhere_are_followed_within_the_floor() {
    let mut world = external();
    world.tick();
    assert_eq!(world.limit(&clock_of("GPU-0")), Some(1200));
    world.seen.bounds.insert(clock_of("GPU-0"), 100);
    world.tick();
    assert_eq!(world.limit(&clock_of("GPU-0")), Some(345), "the device's lowest");
    // More than it can do: open.
    world.seen.bounds.insert(clock_of("GPU-0"), 3000);
    assert_eq!(world.ticks(1).limits, Limits::new());
}

#[test]
fn the_ratio_law_takes_over_where_they_do_not_keep_the_budget() {
    let mut world = external();
    world.draw("GPU-0", 500.0);
    world.ticks(30);
    assert_eq!(world.limit(&clock_of("GPU-0")), Some(1200), "for 30 s they are trusted");
    world.ticks(2);
    assert!(world.limit(&clock_of("GPU-0")).unwrap() < 1200);
    // Others are tried.
    world.draw("GPU-0", 390.0);
    world.seen.bounds.insert(clock_of("GPU-0"), 1100);
    world.ticks(2);
    assert_eq!(world.limit(&clock_of("GPU-0")), Some(1095), "on a step of 15 MHz from 345");
}

#[test]
fn the_ratio_law_takes_over_where_a_clock_has_expired() {
    let mut world = external();
    world.tick();
    world.seen.bounds.clear();
    world.draw("GPU-0", 500.0);
    world.ticks(3);
    let cut = world.limit(&clock_of("GPU-0")).unwrap();
    assert!(cut < 1200, "{cut}");
    world.draw("GPU-0", 70.0);
    world.ticks(200);
    assert_eq!(world.limit(&clock_of("GPU-0")), None, "and opens in the end");
}
