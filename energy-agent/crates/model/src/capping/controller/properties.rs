use proptest::prelude::*;

use super::world::{World, clock_of, limit_of, name, policy};
use super::*;
use crate::capping::policy::{Amount, Policy};

/// Who decides, by the rule as it is written down: sorted by priority, budget, name.
fn first(policies: &[Policy], mode: Mode) -> Option<PolicyName> {
    let mut ranked: Vec<_> = policies.iter().filter(|policy| policy.mode == mode).collect();
    ranked.sort_by(|a, b| {
        let watts = |policy: &Policy| match policy.budget.amount {
            Amount::Watts(watts) => watts,
            Amount::PercentOfPeak { .. } => f64::INFINITY,
        };
        b.priority.cmp(&a.priority).then(watts(a).total_cmp(&watts(b))).then(a.name.cmp(&b.name))
    });
    ranked.first().map(|policy| policy.name.clone())
}

prop_compose! {
    fn any_policy()(
        number in 0..20_u32,
        priority in 0..3,
        watts in 1..4_u32,
        mode in prop_oneof![Just(Mode::Off), Just(Mode::Recommend), Just(Mode::Enforce)],
    ) -> Policy {
        let policy = policy(&format!("p{number}"), 100.0 * f64::from(watts));
        Policy { priority, mode, ..policy }
    }
}

proptest! {
    #[test]
    fn one_policy_of_each_mode_decides(policies in prop::collection::vec(any_policy(), 1..8)) {
        let mut world = World::new().pod("a").gpu("GPU-0", &["a"]);
        let by_name: BTreeMap<_, _> = policies.into_iter().map(|policy| (policy.name.clone(), policy)).collect();
        let policies: Vec<Policy> = by_name.into_values().collect();
        policies.iter().for_each(|policy| world.put(policy.clone()));
        world.tick();
        for mode in [Mode::Enforce, Mode::Recommend] {
            let winner = first(&policies, mode);
            for policy in policies.iter().filter(|policy| policy.mode == mode) {
                let status = world.status(&policy.name.name);
                let lost: Vec<_> = status.lost.iter().map(|conflict| conflict.winner.clone()).collect();
                if Some(&policy.name) == winner.as_ref() {
                    prop_assert!(lost.is_empty() && status.subjects.len() == 1);
                } else {
                    prop_assert!(lost == winner.iter().cloned().collect::<Vec<_>>() && status.subjects.is_empty());
                }
            }
        }
    }

    /// Whatever is measured, a value is on a step of the device, between the floor and below open; no excess raises
    /// anything, and no tick without room raises a clock.
    #[test]
    fn limits_stay_in_range_and_an_excess_raises_nothing(
        budget in 50_u32..900,
        least in prop::option::of(0_u32..2500),
        powers in prop::collection::vec(prop::option::weighted(0.9, (0_u32..800, 300_u32..2000)), 1..300),
    ) {
        let budget = f64::from(budget);
        let mut capped = policy("cap", budget);
        capped.actuators.gpu.min_clock_mhz = least;
        let mut world = World::new().policy(capped).pod("a").gpu("GPU-0", &["a"]);
        let floor = u64::from(least.unwrap_or(0)).clamp(345, 1980);
        let open = u64::MAX;
        let (mut clock, mut limit) = (open, open);
        for power in powers {
            match power {
                Some((watts, mhz)) => {
                    world.draw("GPU-0", f64::from(watts));
                    world.seen.gpus[0].clock_mhz = Some(mhz);
                }
                None => world.seen.gpus[0].users[0].power = None,
            }
            world.tick();
            for limit in world.outcome.limits.values() {
                prop_assert_eq!(&limit.policy, &name("cap"));
            }
            let now = world.limit(&clock_of("GPU-0")).unwrap_or(open);
            prop_assert!(now == open || (floor..1980).contains(&now) && (now - 345).is_multiple_of(15), "{now}");
            let limit_now = world.limit(&limit_of("GPU-0")).unwrap_or(open);
            prop_assert!(limit_now == open || (200_000..700_000).contains(&limit_now));
            if let Some((watts, _)) = power {
                let watts = f64::from(watts);
                if watts >= 0.9 * budget {
                    prop_assert!(now <= clock, "{now} after {clock} at {watts} W of {budget}");
                    prop_assert!(limit_now <= limit);
                }
                if watts > budget && clock != open && clock > floor + 15 {
                    // At least 8 %, except for what the floor and the step leave.
                    prop_assert!(now * 100 <= clock * 92 || now <= floor + 15, "{now} after {clock}");
                }
            } else {
                prop_assert!(now == clock);
            }
            (clock, limit) = (now, limit_now);
        }
    }
}
