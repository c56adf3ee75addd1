use super::world::{World, clock_of, knob, limit_of, name, policy, quota_of, states};
use super::*;
use crate::capping::observation::KnobState;
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
fn fc_091_one_policy_decides_in_any_order_of_loading() {
    let mut by_namespace = policy("by-namespace", 400.0);
    by_namespace.priority = 5;
    let mut by_label = policy("by-label", 250.0);
    by_label.priority = 10;
    by_label.selector =
        Selector { match_labels: [("tier".to_owned(), "low".to_owned())].into(), ..Selector::default() };
    let mut other_control = cpu_policy("other-control", 30.0);
    other_control.priority = 1;
    other_control.selector =
        Selector { match_labels: [("team".to_owned(), "ml".to_owned())].into(), ..Selector::default() };
    let all = [by_namespace, by_label, other_control];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let labels = [("tier", "low"), ("team", "ml")];
        let mut world = World::new().pod_with("train-0", "ml", &labels).gpu("GPU-0", &["train-0"]);
        for place in order {
            world.put(all[place].clone());
        }
        world.draw("GPU-0", 390.0);
        world.work("train-0", 60.0, 4.0);
        world.tick();
        let owner = |knob: &Knob| world.outcome.limits.get(knob).map(|limit| limit.policy.clone());
        // Once for the device: the policy of the highest priority. The other component is no conflict.
        assert_eq!(owner(&clock_of("GPU-0")), Some(name("by-label")));
        assert_eq!(world.limit(&limit_of("GPU-0")), Some(275_000));
        assert_eq!(owner(&quota_of("train-0")), Some(name("other-control")));
        let lost = &world.status("by-namespace").lost;
        assert_eq!(lost.len(), 1);
        assert_eq!((&*lost[0].pod.name, lost[0].component, &lost[0].winner), ("train-0", "gpu", &name("by-label")));
        assert!(world.status("by-namespace").subjects.is_empty());
        assert!(world.status("other-control").lost.is_empty());
        let conflicts = |outcome: &Outcome| {
            outcome.changes.iter().filter(|change| matches!(change.what, What::Conflict { .. })).count()
        };
        assert_eq!(conflicts(&world.outcome), 1);
        assert_eq!(conflicts(world.tick()), 0, "said once");
    }
}

#[test]
fn the_lower_budget_and_then_the_name_decide_between_equal_priorities() {
    let mut percent = policy("a-percent", 0.0);
    percent.budget.amount = Amount::PercentOfPeak { percent: 1.0, lookback: Duration::from_secs(60) };
    let mut world = World::new().pod("a").gpu("GPU-0", &["a"]).policy(percent);
    for (called, watts) in [("b", 300.0), ("c", 300.0), ("a", 500.0)] {
        world.put(policy(called, watts));
    }
    world.tick();
    for loser in ["a", "c", "a-percent"] {
        assert_eq!(world.status(loser).lost[0].winner, name("b"));
    }
}

#[test]
fn only_a_policy_that_enforces_takes_a_pod_from_one_that_does() {
    let (mut off, mut recommend) = (policy("off", 100.0), policy("recommend", 100.0));
    (off.mode, off.priority) = (Mode::Off, 9);
    (recommend.mode, recommend.priority) = (Mode::Recommend, 8);
    let mut world = one_gpu().policy(off).policy(recommend);
    world.draw("GPU-0", 700.0);
    world.tick();
    assert_eq!(world.limit(&limit_of("GPU-0")), Some(440_000));
    assert_eq!(
        ["cap", "off", "recommend"].map(|policy| world.state(policy)),
        [SubjectState::Capping, SubjectState::Off, SubjectState::Recommending]
    );
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
fn a_gpu_that_others_use_is_capped_only_if_all_agree() {
    let capped = |world: &mut World| {
        world.draw("GPU-0", 700.0);
        world.tick().limits.contains_key(&clock_of("GPU-0"))
    };
    let mut shared = policy("cap", 200.0);
    // The other pod has no policy.
    let mut world = World::new().policy(shared.clone()).pod("a").pod_with("b", "web", &[]).gpu("GPU-0", &["a", "b"]);
    assert!(!capped(&mut world));
    assert_eq!(states(&world.outcome), [SubjectState::NoActuator]);
    // Both have the same.
    assert!(capped(&mut World::new().policy(shared.clone()).pod("a").pod("b").gpu("GPU-0", &["a", "b"])));
    // Another one that does not agree, and one that does.
    let mut other = policy("other", 900.0);
    other.selector.namespaces = vec!["web".to_owned()];
    let world = |shared: &Policy, other: &Policy| {
        let world = World::new().policy(shared.clone()).policy(other.clone());
        world.pod("a").pod_with("b", "web", &[]).gpu("GPU-0", &["a", "b"])
    };
    shared.actuators.gpu.allow_shared = true;
    assert!(!capped(&mut world(&shared, &other)));
    other.actuators.gpu.allow_shared = true;
    let mut agreed = world(&shared, &other);
    assert!(capped(&mut agreed));
    // a's 1.10 * 200 W beside b's 350 W.
    assert_eq!(agreed.limit(&limit_of("GPU-0")), Some(570_000));
    let mut foreign = world(&shared, &other);
    foreign.seen.gpus[0].foreign = true;
    assert!(!capped(&mut foreign));
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
    assert_eq!(world.outcome.changes[0].what, What::Gone);
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
    let told: Vec<_> = ended.iter().map(|change| (&change.policy, change.what.clone())).collect();
    assert_eq!(told, [(&name("cap"), What::End)]);
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
fn a_quota_starts_from_what_the_pod_uses() {
    let mut world = World::new().policy(cpu_policy("cap", 60.0)).pod("a");
    world.work("a", 80.0, 8.0);
    world.tick();
    // 8 CPUs * 57 / 80 = 5.7, in steps of a twentieth of 8.
    assert_eq!(world.values(), BTreeMap::from([(quota_of("a"), 5600)]));
    // 70 % of the target: up to 57 / 40 of it, at most 25 % of 64 CPUs, after the hold.
    world.work("a", 40.0, 5.6);
    world.ticks(5);
    assert_eq!(world.limit(&quota_of("a")), Some(7600));
}

#[test]
fn an_idle_pod_is_not_choked_for_a_busy_one() {
    let mut shared = cpu_policy("cap", 60.0);
    shared.budget.scope = Scope::PerNode;
    let mut world = World::new().policy(shared).pod("busy").pod("idle");
    world.work("busy", 80.0, 8.0);
    world.work("idle", 0.1, 0.01);
    world.ticks(10);
    assert!(world.limit(&quota_of("busy")).is_some());
    assert_eq!(world.limit(&quota_of("idle")), None);
}

#[test]
fn cores_of_its_own_are_slowed_down_rather_than_a_quota_set() {
    let mut world = World::new().policy(cpu_policy("cap", 60.0)).pod("a");
    for core in [0, 1] {
        world.seen.knobs.insert(Knob::CpuFrequency(core), knob(800_000, 3_000_000, 1));
        world.seen.pods[0].frequencies.push(Knob::CpuFrequency(core));
    }
    world.work("a", 80.0, 2.0);
    world.tick();
    // 3 GHz * (57 / 80)^(2/3) = 2393.2 MHz.
    let values: Vec<u64> = world.values().into_values().collect();
    assert!(values.len() == 2 && values.iter().all(|khz| (2_393_000..2_393_500).contains(khz)), "{values:?}");
}

#[test]
fn packages_share_the_target_of_the_whole_node() {
    let mut rapl = cpu_policy("node", 200.0);
    rapl.selector = Selector { select_all: true, ..Selector::default() };
    rapl.budget.scope = Scope::PerNode;
    rapl.actuators.cpu.rapl_limit = true;
    let mut world = World::new().policy(rapl.clone()).pod("a").pod_with("b", "web", &[]);
    for zone in ["intel-rapl:0", "intel-rapl:1"] {
        world.seen.knobs.insert(Knob::RaplLimit(Arc::from(zone)), knob(50_000_000, 150_000_000, 1));
    }
    world.seen.node_cpu_power = Some(Watts(250.0));
    world.tick();
    let values: Vec<u64> = world.values().into_values().collect();
    assert_eq!(values, [95_000_000, 95_000_000]);
    rapl.mode = Mode::Recommend;
    world.put(rapl);
    assert_eq!(world.tick().limits, Limits::new());
    // What would be written: 95 of 150 W.
    assert!((world.status("node").subjects[0].ceiling - 0.633_333).abs() < 1e-6);
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
fn a_pod_without_a_gpu_has_nothing_to_cap_and_nothing_to_complain() {
    let mut world = World::new().policy(policy("cap", 400.0)).pod("a");
    world.tick();
    assert_eq!(world.state("cap"), SubjectState::Open);
}

#[test]
fn fc_095_nine_thousand_policies_cost_little_a_tick() {
    let filled = |policies: u32, pods: u32| {
        let mut world = World::new();
        for number in 0..policies {
            let mut policy = policy(&format!("p-{number:05}"), 200.0);
            policy.selector.namespaces = vec![format!("ns-{number:05}")];
            world.put(policy);
        }
        for number in 0..pods {
            world = world.pod_with(&format!("pod-{number:04}"), &format!("ns-{number:05}"), &[]);
        }
        world.tick();
        world
    };
    let (mut whole, mut part) = (filled(9000, 1000), filled(1125, 125));
    let (mut one, mut eight) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..10 {
        let start = std::time::Instant::now();
        let outcome = whole.ticks(1);
        one += start.elapsed();
        assert_eq!(outcome.policies.iter().map(|status| status.subjects.len()).sum::<usize>(), 1000);
        let start = std::time::Instant::now();
        part.ticks(8);
        eight += start.elapsed();
    }
    println!("{:?} a tick, {:?} for eight of an eighth", one / 10, eight / 10);
    // Eight times as many of both: pods x policies would be eight times the work of eight ticks.
    assert!(one < 4 * eight, "{one:?} and {eight:?}");
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
