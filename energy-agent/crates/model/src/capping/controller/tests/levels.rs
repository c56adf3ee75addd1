//! Budgets over many nodes: the level of this one, as a limit of all its devices.

use super::*;
use crate::capping::controller::world::{World, clock_of, limit_of, policy};
use crate::capping::level::{NodeBudget, NodeLevel, Protect, Standing};
use crate::capping::policy::Authority;

fn name(authority: Authority, called: &str) -> PolicyName {
    PolicyName { authority, name: called.into(), ..PolicyName::default() }
}

fn budget(mode: Mode, level: NodeLevel) -> NodeBudget {
    let name = name(Authority::Budget, "hall");
    NodeBudget { name, mode, level, epoch: 1, standing: Standing::Followed, protect: None }
}

/// Two GPUs of 700 W each at most; the idle power is 70 W, and the lowest clock 345 of 1980 MHz.
fn node() -> World {
    let mut world = World::new().pod("a").gpu("GPU-0", &["a"]).gpu("GPU-1", &[]);
    for gpu in &mut world.seen.gpus {
        gpu.idle = Some(Watts(70.0));
    }
    world.levels.complete = true;
    world
}

#[test]
fn the_range_of_a_node_is_that_of_its_devices() {
    let mut world = node();
    world.tick();
    let range = world.outcome.range;
    // Each: 70 + 630 * (345 / 1980)^1.5 = 70 + 630 * 0.07273 = 115.82 W.
    assert!((range.floor - 231.64).abs() < 0.05, "{range:?}");
    assert!((range.most - 1400.0).abs() < 1e-9, "{range:?}");
    assert_eq!(world.outcome.power, Some(Watts(140.0)));
    // A GPU in other hands draws what it draws.
    world.seen.gpus[1].foreign = true;
    world.draw("GPU-1", 300.0);
    world.tick();
    let range = world.outcome.range;
    assert!((range.floor - 415.82).abs() < 0.05 && (range.most - 1000.0).abs() < 1e-9, "{range:?}");
}

#[test]
fn a_level_is_kept_as_a_limit_and_an_open_one_is_none() {
    let mut world = node();
    world.draw("GPU-0", 700.0);
    world.draw("GPU-1", 70.0);
    world.levels.budgets = vec![budget(Mode::Enforce, NodeLevel::Open)];
    assert_eq!(world.ticks(3).limits, Limits::new());
    assert_eq!(world.state("hall"), SubjectState::Open);
    // 231.64 + 0.3 * 1168.36 = 582.15 W, and 770 W are drawn.
    world.levels.budgets = vec![budget(Mode::Enforce, NodeLevel::Permille(300))];
    world.ticks(1);
    let subject = &world.status("hall").subjects[0];
    assert!((subject.budget.unwrap().0 - 582.15).abs() < 0.1, "{subject:?}");
    assert_eq!((subject.state, subject.pod.clone()), (SubjectState::Capping, None));
    assert!(world.limit(&clock_of("GPU-0")).is_some(), "the busy one is lowered");
    assert_eq!(world.limit(&clock_of("GPU-1")), None, "the idle one has nothing to give");
    // Open again: at the same tick.
    world.levels.budgets = vec![budget(Mode::Enforce, NodeLevel::Open)];
    assert_eq!(world.ticks(1).limits, Limits::new());
    assert_eq!(world.state("hall"), SubjectState::Open);
    // Deleted while it holds.
    world.levels.budgets = vec![budget(Mode::Enforce, NodeLevel::Permille(300))];
    world.ticks(1);
    world.levels.budgets.clear();
    let outcome = world.ticks(1);
    assert_eq!(
        (outcome.limits.len(), outcome.changes.last().map(|change| &change.kind)),
        (0, Some(&BudgetChangeKind::Gone))
    );
}

#[test]
fn a_recommended_level_writes_nothing() {
    let mut world = node();
    world.draw("GPU-0", 700.0);
    world.levels.budgets = vec![budget(Mode::Recommend, NodeLevel::Permille(300))];
    assert_eq!(world.ticks(3).limits, Limits::new());
    assert_eq!(world.state("hall"), SubjectState::Recommending);
}

#[test]
fn a_changed_level_does_not_shorten_the_hold() {
    let mut world = node();
    world.draw("GPU-0", 700.0);
    world.levels.budgets = vec![budget(Mode::Enforce, NodeLevel::Permille(300))];
    world.ticks(1);
    let before = world.limit(&clock_of("GPU-0"));
    world.draw("GPU-0", 400.0);
    world.levels.budgets = vec![budget(Mode::Enforce, NodeLevel::Permille(310))];
    world.ticks(2);
    assert_eq!(world.limit(&clock_of("GPU-0")), before, "held for 5 s after a cut");
}

#[test]
fn the_lowest_ceiling_of_admin_tenant_and_budget_holds() {
    let mut world = node();
    world.seen.gpus.truncate(1);
    let mut alone = |authority, watts: f64, priority| {
        let mut policy = policy("cap", watts);
        policy.name = PolicyName { authority, namespace: "ml".into(), name: "cap".into() };
        policy.selector.namespaces.clear();
        policy.selector.select_all = true;
        policy.priority = priority;
        policy.actuators.gpu.locked_clocks = false;
        world.put(policy);
    };
    alone(Authority::Admin, 400.0, 0);
    alone(Authority::Tenant, 20_000.0, 1_000_000_000);
    world.draw("GPU-0", 700.0);
    world.ticks(2);
    assert_eq!(world.limit(&limit_of("GPU-0")), Some(400_000), "a tenant never lifts an admin's cap");
    assert_eq!(world.outcome.policies.iter().map(|policy| policy.lost.len()).sum::<usize>(), 0);
    let mut lower = policy("cap", 300.0);
    lower.name = PolicyName { authority: Authority::Tenant, namespace: "ml".into(), name: "cap".into() };
    (lower.selector.namespaces, lower.selector.select_all) = (Vec::new(), true);
    lower.actuators.gpu.locked_clocks = false;
    world.put(lower);
    world.ticks(2);
    assert_eq!(world.limit(&limit_of("GPU-0")), Some(300_000));
}

#[test]
fn a_policy_of_scope_total_is_open_until_a_level_says_otherwise() {
    let mut world = node();
    let mut total = policy("total", 2400.0);
    total.budget.scope = BudgetScope::Total;
    total.name = name(Authority::Tenant, "total");
    total.name.namespace = "ml".into();
    total.selector.namespaces.clear();
    total.selector.select_all = true;
    let id = total.name.clone();
    world.put(total);
    world.draw("GPU-0", 700.0);
    assert_eq!(world.ticks(3).limits, Limits::new());
    assert_eq!(world.state("total"), SubjectState::Open);
    // Of the one GPU of its pod: 115.82 + 0.5 * 584.18 = 407.91 W.
    world.levels.policies.insert(id, NodeLevel::Permille(500));
    world.ticks(1);
    let subject = &world.status("total").subjects[0];
    assert!((subject.budget.unwrap().0 - 407.91).abs() < 0.1, "{subject:?}");
    assert!(world.limit(&clock_of("GPU-0")).is_some());
}

#[test]
fn of_many_policies_of_scope_total_for_one_pod_only_the_level_of_the_one_that_decides_is_needed() {
    let mut world = node();
    for (number, watts) in [2400.0, 1200.0, 3600.0].into_iter().enumerate() {
        let mut total = policy(&format!("total-{number}"), watts);
        total.budget.scope = BudgetScope::Total;
        total.name.authority = Authority::Tenant;
        world.put(total);
    }
    let mut elsewhere = policy("elsewhere", 1.0);
    elsewhere.budget.scope = BudgetScope::Total;
    elsewhere.selector.namespaces = vec!["other".to_owned()];
    world.put(elsewhere);
    let World { controller, in_force, seen, .. } = &mut world;
    let totals = controller.totals(in_force, &seen.pods);
    assert_eq!(totals.iter().map(|name| &*name.name).collect::<Vec<_>>(), ["total-1"]);
}

#[test]
fn what_protected_pods_hold_counts_in_the_floor_and_the_others_carry_the_load() {
    let mut world = node().pod("b");
    world.seen.gpus[1].users = world.seen.gpus[0].users.clone();
    world.seen.gpus[1].users[0].uid = "b".into();
    Arc::make_mut(&mut world.seen.pods[1].pod).priority = 1_000_000;
    world.draw("GPU-0", 700.0);
    world.draw("GPU-1", 600.0);
    let protect = Protect { priority_at_least: Some(1_000_000), ..Protect::default() };
    let protected = NodeBudget { protect: Some(protect), ..budget(Mode::Enforce, NodeLevel::Permille(500)) };
    world.levels.budgets = vec![protected];
    world.ticks(1);
    // The floor: 115.82 + 700 W; the limit in the middle between it and 1400 W.
    let range = world.status("hall").range.unwrap();
    assert!((range.floor.0 - 815.82).abs() < 0.05 && (range.most.0 - 1400.0).abs() < 1e-9, "{range:?}");
    assert!((range.limit.unwrap().0 - 1107.91).abs() < 0.05, "{range:?}");
    assert!(world.limit(&clock_of("GPU-0")).is_some());
    assert_eq!((world.limit(&clock_of("GPU-1")), world.limit(&limit_of("GPU-1"))), (None, None));
    // Another user of the GPU, who is not protected: it is lowered as others are.
    let shared = world.seen.gpus[0].users[0].clone();
    world.seen.gpus[1].users.push(shared);
    world.ticks(1);
    assert!((world.status("hall").range.unwrap().floor.0 - 231.64).abs() < 0.05);
    assert!(world.limit(&clock_of("GPU-1")).is_some());
}

#[test]
fn limits_of_an_earlier_run_stand_until_the_budget_is_known() {
    let mut world = node();
    let limit = Limit { value: 1200, policy: name(Authority::Budget, "hall") };
    let adopted = Limits::from([(clock_of("GPU-0"), limit)]);
    world.controller.adopt(&adopted);
    world.levels.complete = false;
    assert_eq!(world.ticks(3).limits, adopted, "not known yet");
    world.levels.complete = true;
    assert_eq!(world.ticks(1).limits, Limits::new(), "there is no such budget");
}
