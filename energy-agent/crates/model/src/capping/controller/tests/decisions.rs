//! Who decides about a pod or a device.

use super::*;

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
        assert_eq!(
            (&*lost[0].pod.name, lost[0].component, &lost[0].winner),
            ("train-0", Component::Gpu, &name("by-label"))
        );
        assert!(world.status("by-namespace").subjects.is_empty());
        assert!(world.status("other-control").lost.is_empty());
        let conflicts = |outcome: &Outcome| {
            outcome.changes.iter().filter(|change| matches!(change.kind, BudgetChangeKind::Conflict { .. })).count()
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
