//! The solver against bisection, and what holds for all inputs.

use proptest::prelude::*;

use super::*;
use crate::solve::{Share, levels};

fn share() -> impl Strategy<Value = Share> {
    (0.0..2000.0, 0.0..8000.0, 0.0..12_000.0_f64).prop_map(|(floor, range, wish)| Share {
        floor,
        // Some can't be lowered.
        most: if range < 1000.0 { floor } else { floor + range },
        wish,
    })
}

fn drawn(shares: &[Share], level: f64) -> f64 {
    shares.iter().map(|share| share.wish.min(share.floor + level * (share.most - share.floor))).sum()
}

/// The highest level that fits, found by halving.
fn bisected(shares: &[Share], goal: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    if drawn(shares, 1.0) <= goal {
        return 1.0;
    }
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if drawn(shares, middle) <= goal { low = middle } else { high = middle }
    }
    low
}

proptest! {
    #[test]
    fn the_level_is_what_halving_finds(shares in prop::collection::vec(share(), 1..60), part in 0.0..1.2_f64) {
        let (floors, all) = (drawn(&shares, 0.0), drawn(&shares, 1.0));
        let goal = floors + part * (all - floors) + 1e-3;
        let solved = levels(std::slice::from_ref(&shares), goal)[0];
        let range: f64 = shares.iter().map(|share| share.most - share.floor).sum();
        let bisected = bisected(&shares, goal);
        // A thousandth is as fine as levels are.
        prop_assert!(solved.level() <= bisected + 1e-6 && bisected - solved.level() <= 0.001 + 1e-6, "{solved:?} {bisected}");
        prop_assert!(drawn(&shares, solved.level()) <= goal + 1.0);
        prop_assert!(drawn(&shares, solved.level()) >= drawn(&shares, bisected) - 0.0011 * range - 1.0);
    }

    #[test]
    fn the_order_of_nodes_is_nothing_to_it(
        (shares, shuffled) in prop::collection::vec(share(), 1..40)
            .prop_flat_map(|shares| (Just(shares.clone()), Just(shares).prop_shuffle())),
        goal in 0.0..200_000.0_f64,
    ) {
        let [a, b] = [shares, shuffled].map(|shares| levels(&[shares], goal)[0].get());
        prop_assert!(a.abs_diff(b) <= 1, "{a} {b}");
    }

    #[test]
    fn more_watts_never_lower_a_tier(
        tiers in prop::collection::vec(prop::collection::vec(share(), 0..10), 1..4),
        goal in 0.0..100_000.0_f64,
        more in 0.0..50_000.0_f64,
    ) {
        let (less, more_levels) = (levels(&tiers, goal), levels(&tiers, goal + more));
        prop_assert!(less.iter().zip(&more_levels).all(|(less, more)| less <= more), "{less:?} {more_levels:?}");
        // A tier is cut only when those before it are at their floors.
        let first = less.iter().rposition(|level| *level < Permille::OPEN).unwrap_or(0);
        prop_assert!(less[..first].iter().all(|level| *level == Permille::FLOOR), "{less:?}");
        let drawn: f64 = tiers.iter().zip(&less).map(|(shares, level)| drawn(shares, level.level())).sum();
        let floors: f64 = tiers.iter().map(|shares| self::drawn(shares, 0.0)).sum();
        prop_assert!(drawn <= goal.max(floors) + 1.0, "{drawn} {goal}");
    }
}
