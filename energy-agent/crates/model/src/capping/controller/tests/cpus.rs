//! Budgets for CPUs: quotas, clocks and the limits of packages.

use super::*;

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
    shared.budget.scope = BudgetScope::PerNode;
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
    rapl.budget.scope = BudgetScope::PerNode;
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
