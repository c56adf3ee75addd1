//! Budgets of whole nodes: their power is the node's, no matter who sets its limits.

use super::world::{World, knob, name, policy, quota_of};
use super::*;
use crate::capping::knob::KnobState;
use crate::capping::observation::KnobNow;
use crate::capping::policy::{Components, Policy, Selector};

const ZONES: [&str; 2] = ["intel-rapl:0", "intel-rapl:1"];

/// A budget for the CPUs of the whole node, kept by the packages' limits alone.
fn node_policy(watts: f64) -> Policy {
    let mut node = policy("node", watts);
    node.selector = Selector { select_all: true, ..Selector::default() };
    node.budget.scope = BudgetScope::PerNode;
    node.budget.components = Components { gpu: false, cpu: true };
    (node.actuators.cpu.frequency, node.actuators.cpu.quota, node.actuators.cpu.rapl_limit) = (false, false, true);
    node
}

fn rapl(zone: &str) -> Knob {
    Knob::RaplLimit(Arc::from(zone))
}

/// Packages of 150 W at most, and the node's power.
fn node(policy: Policy, zones: &[&str], watts: f64) -> World {
    let mut world = World::new().policy(policy);
    for zone in zones {
        let limit = KnobNow { original: Some(150_000_000), ..knob(10_000_000, 150_000_000, 125_000) };
        world.seen.knobs.insert(rapl(zone), limit);
    }
    world.seen.node_cpu_power = Some(Watts(watts));
    world
}

/// Somebody else has set the limit of a package.
fn takes(world: &mut World, zone: &str, limit_uw: u64) {
    let knob = world.seen.knobs.get_mut(&rapl(zone)).unwrap();
    (knob.original, knob.state) = (Some(limit_uw), KnobState::Yielded);
}

fn reason(world: &World) -> String {
    world.status("node").subjects[0].reason.clone().unwrap_or_default()
}

fn power(world: &World) -> Option<Watts> {
    world.status("node").subjects[0].power
}

#[test]
fn the_power_of_a_node_whose_limit_is_somebody_elses_is_shown_with_what_rules() {
    // With a pod and without one.
    for pods in [0, 1] {
        let mut world = node(node_policy(40.0), &ZONES[..1], 60.0);
        for _ in 0..pods {
            world = world.pod("a");
        }
        world.tick();
        assert_eq!(world.values(), BTreeMap::from([(rapl(ZONES[0]), 38_000_000)]));
        takes(&mut world, ZONES[0], 60_000_000);
        world.ticks(5);
        assert_eq!((power(&world), world.state("node")), (Some(Watts(60.0)), SubjectState::NoActuator), "{pods} pods");
        assert_eq!(reason(&world), "rapl_limit of intel-rapl:0 is yielded: another program has set it to 60.0 W");
        // 20 W over the budget, each second.
        assert_eq!(world.status("node").subjects[0].over_budget_uj, 6 * 20_000_000);
        // When it can be written again, that is no floor that was reached.
        world.seen.knobs.get_mut(&rapl(ZONES[0])).unwrap().state = KnobState::Ok;
        world.tick();
        assert_eq!(world.values(), BTreeMap::from([(rapl(ZONES[0]), 38_000_000)]));
        assert_eq!((world.state("node"), reason(&world)), (SubjectState::Capping, String::new()));
    }
}

#[test]
fn a_package_that_somebody_else_has_set_leaves_the_other_its_part() {
    let mut world = node(node_policy(200.0), &ZONES, 250.0);
    takes(&mut world, ZONES[0], 140_000_000);
    world.tick();
    // One half of 190 W, and not all of it.
    assert_eq!(world.values(), BTreeMap::from([(rapl(ZONES[1]), 95_000_000)]));
    assert_eq!(world.state("node"), SubjectState::Capping);
    // Who reads why the budget is not kept has to learn whose value it is, as long as it lasts.
    world.ticks(5);
    assert_eq!(world.values(), BTreeMap::from([(rapl(ZONES[1]), 95_000_000)]));
    assert_eq!(reason(&world), "rapl_limit of intel-rapl:0 is yielded: another program has set it to 140.0 W");
    assert_eq!(world.state("node"), SubjectState::Capping);
    // Given back, it is the node's own again: that is no floor that was reached.
    world.seen.knobs.get_mut(&rapl(ZONES[0])).unwrap().state = KnobState::Ok;
    world.tick();
    assert_eq!(world.values().len(), 2);
    assert_eq!((world.state("node"), reason(&world)), (SubjectState::Capping, String::new()));
}

#[test]
fn the_power_of_a_whole_node_is_the_nodes_by_whatever_means_it_is_lowered() {
    let mut by_clock = node_policy(100.0);
    (by_clock.actuators.cpu.frequency, by_clock.actuators.cpu.rapl_limit) = (true, false);
    let mut world = node(by_clock, &[], 200.0).pod("a");
    world.seen.knobs.insert(Knob::CpuFrequency(0), knob(800_000, 3_000_000, 1));
    // The pod draws half of it; the clock lowers all.
    world.work("a", 100.0, 2.0);
    world.tick();
    assert_eq!(power(&world), Some(Watts(200.0)));
    // 3 GHz * max(0.5, (95 / 200)^(2/3) = 0.6088).
    let khz = world.limit(&Knob::CpuFrequency(0)).unwrap();
    assert!((1_826_000..1_827_000).contains(&khz), "{khz}");
}

#[test]
fn a_pod_of_another_policy_is_named_where_it_keeps_the_node_from_being_lowered() {
    let mut other = policy("low", 30.0);
    (other.budget.components, other.priority) = (Components { gpu: false, cpu: true }, 1);
    let mut world = node(node_policy(40.0), &ZONES[..1], 60.0).policy(other).pod("a").pod_with("b", "web", &[]);
    world.ticks(3);
    assert_eq!((world.values(), world.state("node")), (BTreeMap::new(), SubjectState::NoActuator));
    let expected = "RaplLimit caps the whole node, but policy low decides about the CPUs of pod ml/a; give this policy a \
                    higher priority, or name Frequency or Quota too";
    assert_eq!(reason(&world), expected);
    assert_eq!(power(&world), Some(Watts(60.0)));
    // With quotas it lowers the pods that it decides about.
    let mut both = node_policy(40.0);
    both.actuators.cpu.quota = true;
    world.put(both);
    world.work("b", 30.0, 3.0);
    world.tick();
    let expected = "RaplLimit caps the whole node, but policy low decides about the CPUs of pod ml/a; give this policy a \
                    higher priority";
    assert_eq!(reason(&world), expected, "it names a quota already");
    assert_eq!(world.values().keys().collect::<Vec<_>>(), [&quota_of("b")]);
    assert_eq!((world.state("node"), name("node")), (SubjectState::Capping, world.status("node").name.clone()));
}

#[test]
fn what_is_missing_is_named_by_the_means_that_the_policy_has() {
    for (frequency, quota, expected) in [
        (true, true, "pod ml/a has neither cores of its own nor a writable quota"),
        (true, false, "pod ml/a has no cores of its own with a writable clock"),
        (false, true, "pod ml/a has no writable quota"),
    ] {
        let mut cap = policy("node", 40.0);
        cap.budget.components = Components { gpu: false, cpu: true };
        (cap.actuators.cpu.frequency, cap.actuators.cpu.quota) = (frequency, quota);
        let mut world = World::new().policy(cap).pod("a");
        world.seen.pods[0].quota = None;
        world.tick();
        assert_eq!(reason(&world), expected);
    }
    for (frequency, quota, expected) in [
        (false, false, "no package of this node has a power limit (powercap); name Frequency or Quota"),
        (true, false, "no package of this node has a power limit (powercap)"),
        (false, true, "no package of this node has a power limit (powercap)"),
    ] {
        let mut cap = node_policy(40.0);
        (cap.actuators.cpu.frequency, cap.actuators.cpu.quota) = (frequency, quota);
        let mut world = node(cap, &[], 60.0);
        world.tick();
        assert_eq!(reason(&world), expected, "{frequency} {quota}");
    }
}
