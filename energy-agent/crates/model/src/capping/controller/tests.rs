mod cpus;
mod decisions;
mod held;
mod levels;

use super::world::{World, clock_of, knob, limit_of, name, policy, quota_of, states};
use super::*;
use crate::capping::knob::KnobState;
use crate::capping::policy::{Algorithm, Amount, Components, Point, Policy, Selector, TelemetryLoss};

fn cpu_policy(called: &str, watts: f64) -> Policy {
    let mut policy = policy(called, watts);
    policy.budget.components = Components { gpu: false, cpu: true };
    policy
}

fn one_gpu() -> World {
    World::new().policy(policy("cap", 400.0)).pod("a").gpu("GPU-0", &["a"])
}

#[test]
fn nothing_is_wanted_until_a_policy_engages() {
    let mut world = one_gpu();
    world.draw("GPU-0", 400.0);
    assert_eq!(world.ticks(20).limits, Limits::new());
    assert_eq!(world.state("cap"), SubjectState::Open);
    assert_eq!(world.outcome.changes, []);
}

#[test]
fn an_excess_lowers_the_clock_and_sets_the_power_limit_behind_it() {
    let mut world = one_gpu();
    world.draw("GPU-0", 700.0);
    assert_eq!(states(world.tick()), [SubjectState::Capping]);
    // 1980 * (380 / 700)^(2/3) = 1317.6, and 345 + 64 * 15 = 1305 is the step below; 1.10 * 400 W.
    let expected = [(clock_of("GPU-0"), 1305), (limit_of("GPU-0"), 440_000)];
    assert_eq!(world.values(), BTreeMap::from(expected));
    assert!(world.outcome.limits.values().all(|limit| limit.policy == name("cap")));
    let [subject] = &*world.status("cap").subjects else { panic!() };
    assert!((subject.ceiling - 1305.0 / 1980.0).abs() < 1e-9);
    assert_eq!((subject.over_budget, subject.over_budget_uj), (Duration::from_secs(1), 300_000_000));
    assert_eq!(subject.knobs, [clock_of("GPU-0"), limit_of("GPU-0")]);
}

#[test]
fn power_of_before_a_cut_is_not_cut_for_again() {
    let mut world = one_gpu();
    world.draw("GPU-0", 700.0);
    world.tick();
    // The driver answered a tick late: the interval ended as the clocks were cut.
    world.seen.gpus[0].age = Duration::from_secs(1);
    assert_eq!(world.tick().limits[&clock_of("GPU-0")].value, 1305);
    world.seen.gpus[0].age = Duration::from_millis(10);
    assert!(world.tick().limits[&clock_of("GPU-0")].value < 1305);
}

#[test]
fn a_clock_is_kept_for_the_hold_and_then_rises_150_mhz_each_5_s() {
    let mut world = one_gpu();
    world.draw("GPU-0", 700.0);
    world.tick();
    world.draw("GPU-0", 200.0);
    let clocks: Vec<_> = (0..12).map(|_| world.tick().limits[&clock_of("GPU-0")].value).collect();
    assert_eq!(clocks, [1305, 1305, 1305, 1305, 1455, 1455, 1455, 1455, 1455, 1605, 1605, 1605]);
    // Two more raises, and then the clock is open; a minute later the limit is gone as well.
    world.ticks(13);
    assert_eq!(world.limit(&clock_of("GPU-0")), None);
    assert_eq!(world.limit(&limit_of("GPU-0")), Some(440_000));
    assert_eq!(world.state("cap"), SubjectState::Capping);
    let open = (0..70).find(|_| world.tick().limits.is_empty());
    assert!(open.is_some_and(|ticks| ticks > 50), "{open:?}");
    assert_eq!(states(&world.outcome), [SubjectState::Open]);
}

#[test]
fn an_excess_after_a_raise_doubles_the_hold() {
    let mut world = one_gpu();
    let mut held = Vec::new();
    for _ in 0..7 {
        world.draw("GPU-0", 450.0);
        world.tick();
        world.draw("GPU-0", 100.0);
        let before = world.limit(&clock_of("GPU-0"));
        held.push((1..200).find(|_| world.tick().limits[&clock_of("GPU-0")].value > before.unwrap()).unwrap());
    }
    assert_eq!(held, [5, 10, 20, 40, 80, 120, 120]);
}

#[test]
fn recommend_says_the_ceiling_and_wants_nothing() {
    let mut recommended = policy("cap", 400.0);
    recommended.mode = Mode::Recommend;
    let mut world = World::new().policy(recommended).pod("a").gpu("GPU-0", &["a"]);
    world.draw("GPU-0", 700.0);
    for _ in 0..10 {
        assert_eq!(world.tick().limits, Limits::new());
        // (380 / 700)^(2/3), at each tick: nothing follows it.
        assert!((world.status("cap").subjects[0].ceiling - 0.665_46).abs() < 1e-4);
        assert_eq!(world.state("cap"), SubjectState::Recommending);
    }
    world.draw("GPU-0", 100.0);
    world.ticks(6);
    assert_eq!(world.state("cap"), SubjectState::Open);
}

#[test]
fn fc_085_without_locked_clocks_the_power_limit_is_the_share_itself() {
    let mut world = one_gpu();
    world.seen.knobs.get_mut(&clock_of("GPU-0")).unwrap().state = KnobState::Unsupported;
    world.draw("GPU-0", 700.0);
    world.tick();
    assert_eq!(world.values(), BTreeMap::from([(limit_of("GPU-0"), 400_000)]));
    // It works at its limit: that is kept however long.
    world.draw("GPU-0", 398.0);
    assert_eq!(world.ticks(300).limits.len(), 1);
    world.draw("GPU-0", 100.0);
    assert_eq!(world.ticks(70).limits.len(), 0);
}

#[test]
fn the_device_that_draws_most_is_cut_first() {
    let mut world = World::new().policy(policy("cap", 600.0)).pod("a").gpu("GPU-0", &["a"]).gpu("GPU-1", &["a"]);
    world.draw("GPU-0", 600.0);
    world.draw("GPU-1", 100.0);
    world.tick();
    // 570 - 100 = 470 W are left for it: 1980 * (470 / 600)^(2/3) = 1682.6.
    assert_eq!(world.limit(&clock_of("GPU-0")), Some(1680));
    assert_eq!(world.limit(&clock_of("GPU-1")), None);
    // Shares of 600 * 600 / 700 and of one half; 1.10 of each.
    assert_eq!((world.limit(&limit_of("GPU-0")), world.limit(&limit_of("GPU-1"))), (Some(565_714), Some(330_000)));
}

#[test]
fn a_window_is_a_mean_and_is_not_cut_twice_for_what_is_past() {
    let mut slow = policy("cap", 400.0);
    slow.budget.window = Duration::from_secs(10);
    let mut world = World::new().policy(slow).pod("a").gpu("GPU-0", &["a"]);
    world.draw("GPU-0", 300.0);
    world.ticks(10);
    world.draw("GPU-0", 700.0);
    // (7 * 300 + 3 * 700) / 10 = 420 W; the least cut is 8 %: 1821.6 MHz.
    assert_eq!(world.ticks(2).limits, Limits::new());
    assert_eq!(world.tick().limits[&clock_of("GPU-0")].value, 1815);
    // Until then the budget was kept: it is one of the mean, as the power that is shown beside it.
    let [subject] = &*world.status("cap").subjects else { panic!() };
    assert_eq!(subject.power, Some(Watts(420.0)));
    assert_eq!((subject.over_budget, subject.over_budget_uj), (Duration::from_secs(1), 20_000_000));
    // The mean is 425 W, but what draws now is within the target.
    world.draw("GPU-0", 350.0);
    assert_eq!(world.tick().limits[&clock_of("GPU-0")].value, 1815);
    // (5 * 300 + 3 * 700 + 350 + 390) / 10 = 434 W: 1815 * (380 / 434)^(2/3) = 1661.1.
    world.draw("GPU-0", 390.0);
    assert_eq!(world.tick().limits[&clock_of("GPU-0")].value, 1650);
}

#[test]
fn a_profile_finds_its_clock_in_one_tick() {
    let points = [(500, 100.0), (1000, 200.0), (1500, 400.0), (2000, 700.0)];
    let mut profile = policy("cap", 400.0);
    profile.control.algorithm = Algorithm::Table(points.map(|(clock_mhz, watts)| Point { clock_mhz, watts }).to_vec());
    let mut world = World::new().policy(profile).pod("a").gpu("GPU-0", &["a"]);
    world.draw("GPU-0", 700.0);
    // 688 W are expected at 1980 MHz: 380 W are 373.5 W of the profile, which is 1433.7 MHz.
    assert_eq!(world.tick().limits[&clock_of("GPU-0")].value, 1425);
    // A policy that recommends shows the same, on no step.
    let mut recommend = Policy::clone(&world.in_force.policies[&name("cap")].policy);
    recommend.mode = Mode::Recommend;
    world.put(recommend);
    world.tick();
    assert!((world.status("cap").subjects[0].ceiling - 1433.7 / 1980.0).abs() < 1e-4);
}

#[test]
fn telemetry_that_stops_is_not_0_watts() {
    let lost = |loss: TelemetryLoss| {
        let mut policy = policy("cap", 400.0);
        policy.control.on_telemetry_loss = loss;
        policy.control.telemetry_timeout = Duration::from_secs(60);
        let mut world = World::new().policy(policy).pod("a").gpu("GPU-0", &["a"]);
        world.draw("GPU-0", 700.0);
        world.tick();
        let capped = world.values();
        world.seen.gpus[0].users[0].power = None;
        assert_eq!(world.ticks(3).policies[0].subjects[0].state, SubjectState::Capping, "not yet");
        assert_eq!(world.values(), capped);
        assert_eq!(states(world.tick()), [SubjectState::TelemetryLost]);
        (world, capped)
    };
    let (mut world, capped) = lost(TelemetryLoss::Hold);
    world.ticks(55);
    assert_eq!(world.values(), capped);
    assert_eq!(world.tick().limits, Limits::new());
    assert_eq!(lost(TelemetryLoss::Release).0.values(), BTreeMap::new());
    assert_eq!(lost(TelemetryLoss::Floor).0.limit(&clock_of("GPU-0")), Some(345));
}

#[test]
fn a_policy_that_recommends_says_the_floor_when_telemetry_stops() {
    let mut floor = policy("cap", 400.0);
    (floor.mode, floor.control.on_telemetry_loss) = (Mode::Recommend, TelemetryLoss::Floor);
    let mut world = World::new().policy(floor).pod("a").gpu("GPU-0", &["a"]);
    world.draw("GPU-0", 100.0);
    world.tick();
    world.seen.gpus[0].users[0].power = None;
    world.ticks(4);
    assert_eq!((world.state("cap"), world.outcome.limits.len()), (SubjectState::TelemetryLost, 0));
    assert!((world.status("cap").subjects[0].ceiling - 345.0 / 1980.0).abs() < 1e-9);
}

#[test]
fn an_edit_of_numbers_goes_on_from_where_it_is() {
    let mut world = one_gpu();
    world.draw("GPU-0", 700.0);
    world.tick();
    world.draw("GPU-0", 395.0);
    world.tick();
    world.put(policy("cap", 410.0));
    assert_eq!(world.tick().limits[&clock_of("GPU-0")].value, 1305);
    assert_eq!(world.outcome.changes, []);
    world.put(policy("cap", 300.0));
    // 1305 * max(0.5, (285 / 395)^(2/3)) = 1049.9.
    assert_eq!(world.tick().limits[&clock_of("GPU-0")].value, 1035);
}

#[test]
fn deletion_and_another_mode_restore_at_once() {
    let mut world = one_gpu();
    world.draw("GPU-0", 700.0);
    world.tick();
    let mut recommend = policy("cap", 400.0);
    recommend.mode = Mode::Recommend;
    world.put(recommend);
    assert_eq!(world.tick().limits, Limits::new());
    world.put(policy("cap", 400.0));
    assert_eq!(world.tick().limits.len(), 2);
    world.in_force.policies.clear();
    assert_eq!(world.tick().limits, Limits::new());
    assert_eq!(world.outcome.changes.len(), 1);
    assert_eq!(world.outcome.changes[0].kind, BudgetChangeKind::Gone);
}

#[test]
fn the_end_of_the_agent_is_the_end_of_every_cap_that_is_enforced() {
    let mut recommend = policy("recommend", 400.0);
    recommend.mode = Mode::Recommend;
    let mut world = one_gpu().policy(recommend);
    world.draw("GPU-0", 700.0);
    world.tick();
    assert_eq!([world.state("cap"), world.state("recommend")], [SubjectState::Capping, SubjectState::Recommending]);
    let ended = world.controller.end();
    let told: Vec<_> = ended.iter().map(|change| (&change.policy, change.kind.clone())).collect();
    assert_eq!(told, [(&name("cap"), BudgetChangeKind::End)]);
    assert_eq!(ended[0].pod.as_ref().map(|pod| &*pod.uid), Some("a"));
    assert_eq!(world.controller.end(), []);
}

#[test]
fn caps_of_an_earlier_run_go_on_from_where_they_are() {
    let limit = |value| Limit { value, policy: name("cap") };
    let adopted = Limits::from([(clock_of("GPU-0"), limit(1005)), (limit_of("GPU-0"), limit(440_000))]);
    let mut world = one_gpu();
    world.controller.adopt(&adopted);
    world.draw("GPU-0", 100.0);
    for _ in 0..5 {
        assert_eq!(world.tick().limits, adopted);
    }
    assert_eq!(world.tick().limits[&clock_of("GPU-0")].value, 1155);

    // Until all sources have answered, a policy that is missing is not known to be gone.
    let mut world = World::new();
    world.in_force.complete = false;
    world.controller.adopt(&adopted);
    assert_eq!(world.ticks(300).limits, adopted);
    world.in_force.complete = true;
    assert_eq!(world.tick().limits, Limits::new());

    // Its pod does not turn up.
    let mut world = World::new().policy(policy("cap", 400.0));
    world.controller.adopt(&adopted);
    assert_eq!(world.ticks(30).limits, adopted);
    assert_eq!(world.tick().limits, Limits::new());
}

#[test]
fn a_part_of_the_peak_is_learned_open_and_kept_while_capped() {
    let mut policy = policy("cap", 0.0);
    policy.budget.amount = Amount::PercentOfPeak { percent: 80.0, lookback: Duration::from_secs(60) };
    let mut world = World::new().policy(policy).pod("a").gpu("GPU-0", &["a"]);
    world.draw("GPU-0", 500.0);
    assert_eq!(states(world.tick()), [SubjectState::Learning]);
    world.draw("GPU-0", 300.0);
    world.ticks(58);
    assert_eq!(world.state("cap"), SubjectState::Learning);
    world.draw("GPU-0", 450.0);
    assert_eq!(states(world.tick()), [SubjectState::Capping]);
    world.draw("GPU-0", 390.0);
    world.ticks(600);
    assert_eq!(world.status("cap").subjects[0].budget, Some(Watts(400.0)));
}

#[test]
fn a_cap_is_released_while_its_peak_is_not_known() {
    let mut percent = policy("cap", 0.0);
    percent.budget.amount = Amount::PercentOfPeak { percent: 80.0, lookback: Duration::from_secs(60) };
    let limit = Limit { value: 1005, policy: name("cap") };
    let adopted = Limits::from([(clock_of("GPU-0"), limit)]);
    // An earlier run knew it.
    let mut world = World::new().policy(percent.clone()).pod("a").gpu("GPU-0", &["a"]);
    world.controller.adopt(&adopted);
    // The budget was in watts before.
    let mut edited = one_gpu();
    edited.draw("GPU-0", 700.0);
    edited.tick();
    assert_eq!(edited.outcome.limits.len(), 2);
    edited.put(percent);
    for mut world in [world, edited] {
        world.draw("GPU-0", 500.0);
        assert_eq!(world.tick().limits, Limits::new());
        assert_eq!(world.state("cap"), SubjectState::Learning);
        world.ticks(60);
        assert_eq!(world.status("cap").subjects[0].budget, Some(Watts(400.0)));
        assert_eq!(world.state("cap"), SubjectState::Capping);
    }
}

#[test]
fn a_pod_without_a_gpu_has_nothing_to_cap_and_nothing_to_complain() {
    let mut world = World::new().policy(policy("cap", 400.0)).pod("a");
    world.tick();
    assert_eq!(world.state("cap"), SubjectState::Open);
}

#[test]
fn what_was_over_the_budget_goes_on_when_the_policy_the_pod_or_another_mode_comes_again() {
    let mut world = one_gpu();
    let counted = |world: &World| {
        let status = world.outcome.policies.iter().find(|status| status.name == name("cap"));
        status
            .and_then(|status| status.subjects.first())
            .map(|subject| (subject.over_budget.as_secs(), subject.over_budget_uj))
    };
    // 300 W over the budget for a second; the clock does not follow in this world, so each tick adds as much.
    world.draw("GPU-0", 700.0);
    world.tick();
    assert_eq!(counted(&world), Some((1, 300_000_000)));
    // Deleted, and there again.
    let sourced = world.in_force.policies.remove(&name("cap")).unwrap();
    world.tick();
    assert_eq!(counted(&world), None);
    world.in_force.policies.insert(name("cap"), sourced.clone());
    world.tick();
    assert_eq!(counted(&world), Some((2, 600_000_000)));
    // Another mode.
    let mut recommend = Policy::clone(&sourced.policy);
    recommend.mode = Mode::Recommend;
    world.in_force.policies.get_mut(&name("cap")).unwrap().policy = Arc::new(recommend);
    world.tick();
    assert_eq!(counted(&world), Some((3, 900_000_000)));
    // The pod is not known for a while.
    let pods = std::mem::take(&mut world.seen.pods);
    world.tick();
    assert_eq!(counted(&world), None);
    world.seen.pods = pods;
    world.tick();
    assert_eq!(counted(&world), Some((4, 1_200_000_000)));
}
