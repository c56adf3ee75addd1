//! Power limits that hold a budget by themselves: they follow it up as fast as down, to the nearest unit.

use super::world::{World, clock_of, limit_of, policy, quota_of};
use super::*;
use crate::capping::knob::KnobState;
use crate::capping::policy::{Components, Policy};

/// GPUs of pod `a`, held by their power limits alone.
fn by_limit(watts: f64, gpus: &[&str]) -> World {
    let mut world = World::new().policy(alone(watts)).pod("a");
    for gpu in gpus {
        world = world.gpu(gpu, &["a"]);
        // As drivers have it: whole watts.
        world.seen.knobs.get_mut(&limit_of(gpu)).unwrap().step = 1000;
    }
    world
}

fn alone(watts: f64) -> Policy {
    let mut alone = policy("cap", watts);
    alone.actuators.gpu.locked_clocks = false;
    alone
}

fn reason(world: &World) -> Option<&str> {
    world.status("cap").subjects[0].reason.as_deref()
}

#[test]
fn a_budget_that_is_raised_reaches_a_limit_within_three_ticks_as_one_that_is_lowered() {
    let mut world = by_limit(400.0, &["GPU-0"]);
    world.draw("GPU-0", 700.0);
    world.tick();
    // The GPU works at its limit.
    for (budget, draws, limit) in
        [(400.0, 398.0, 400_000), (600.0, 398.0, 600_000), (300.0, 598.0, 300_000), (350.0, 120.0, 350_000)]
    {
        world.put(alone(budget));
        world.draw("GPU-0", draws);
        world.ticks(3);
        assert_eq!(world.limit(&limit_of("GPU-0")), Some(limit), "{budget} W");
    }
    // Behind clocks it stands at 110 % of it.
    let mut world = World::new().policy(policy("cap", 300.0)).pod("a").gpu("GPU-0", &["a"]);
    world.draw("GPU-0", 700.0);
    world.tick();
    world.draw("GPU-0", 290.0);
    world.put(policy("cap", 500.0));
    world.ticks(3);
    assert_eq!(world.limit(&limit_of("GPU-0")), Some(550_000));
    assert!(world.limit(&clock_of("GPU-0")).is_some(), "clocks rise by their own law");
    // More than the device can draw: the limit is as it was.
    let mut world = by_limit(400.0, &["GPU-0"]);
    world.draw("GPU-0", 700.0);
    world.tick();
    world.put(alone(800.0));
    assert_eq!(world.ticks(3).limits, Limits::new());
}

#[test]
fn a_limit_that_was_meant_for_another_load_rises_within_the_hold() {
    let mut world = by_limit(600.0, &["GPU-0", "GPU-1"]);
    world.draw("GPU-0", 700.0);
    world.draw("GPU-1", 100.0);
    world.tick();
    // 600 * 700 / 800, and one half.
    assert_eq!((world.limit(&limit_of("GPU-0")), world.limit(&limit_of("GPU-1"))), (Some(525_000), Some(300_000)));
    // The work goes to the other one: 370 of 600 W are used, and it could have 200 W more.
    world.draw("GPU-0", 70.0);
    world.draw("GPU-1", 299.0);
    world.ticks(7);
    // 300 * 570 / 369 is 463.4.
    assert_eq!(world.limit(&limit_of("GPU-1")), Some(463_000));
}

#[test]
fn watts_become_the_nearest_unit_of_a_knob() {
    for (watts, limit_mw) in [(249.9996, 250_000), (250.0, 250_000), (250.0004, 250_000), (250.9, 250_000)] {
        let mut world = by_limit(watts, &["GPU-0"]);
        world.draw("GPU-0", 700.0);
        world.tick();
        // A limit is whole watts, and never above the budget by more than it is rounded.
        assert_eq!(world.limit(&limit_of("GPU-0")), Some(limit_mw), "{watts} W");
    }
    // 0.57 * 1000 is 569.99... in binary.
    let mut cpus = policy("cap", 1.0);
    cpus.budget.components = Components { gpu: false, cpu: true };
    cpus.actuators.cpu.min_cpus = Some(0.57);
    let mut world = World::new().policy(cpus).pod("a");
    world.seen.knobs.get_mut(&quota_of("a")).unwrap().original = Some(600);
    for _ in 0..5 {
        world.work("a", 50.0, 0.57);
        world.tick();
    }
    assert_eq!(world.limit(&quota_of("a")), Some(570));
}

#[test]
fn limits_that_add_up_to_more_than_the_budget_are_told() {
    let mut world = by_limit(600.0, &["GPU-0", "GPU-1"]);
    world.draw("GPU-0", 700.0);
    world.draw("GPU-1", 100.0);
    world.tick();
    let told = "the power limits add up to 825.0 W of 600.0 W: a GPU with little load may draw up to an equal share, and is \
                cut if it does";
    assert_eq!(reason(&world), Some(told));
    world.draw("GPU-0", 525.0);
    world.draw("GPU-1", 300.0);
    world.tick();
    world.draw("GPU-0", 350.0);
    world.draw("GPU-1", 300.0);
    world.tick();
    // 600 * 350 / 650 = 323.08, and 300.
    assert!(
        reason(&world).unwrap().starts_with("the power limits add up to 623.0 W of 600.0 W"),
        "{:?}",
        reason(&world)
    );
    world.draw("GPU-0", 323.0);
    world.draw("GPU-1", 323.0);
    world.tick();
    assert_eq!(world.limit(&limit_of("GPU-0")), Some(300_000));
    assert_eq!(reason(&world), None);
    // Four devices that can't be limited below 200 W.
    let mut world = by_limit(600.0, &["GPU-0", "GPU-1", "GPU-2", "GPU-3"]);
    (0..4).for_each(|number| world.draw(&format!("GPU-{number}"), 700.0));
    world.tick();
    let told = "the power limits add up to 800.0 W of 600.0 W: no device allows a lower limit";
    assert_eq!((reason(&world), world.state("cap")), (Some(told), SubjectState::Capping));
    // Behind clocks they are 110 % by rule.
    let mut world = World::new().policy(policy("cap", 400.0)).pod("a").gpu("GPU-0", &["a"]);
    world.draw("GPU-0", 700.0);
    world.tick();
    assert_eq!((world.limit(&limit_of("GPU-0")), reason(&world)), (Some(440_000), None));
    assert_eq!(world.seen.knobs[&limit_of("GPU-0")].state, KnobState::Ok);
}
