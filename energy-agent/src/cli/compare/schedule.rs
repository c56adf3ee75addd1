//! In which order things are measured: each once in a round, and every round shuffled, so that what changes with time (heat, other
//! work on the node) meets all alike.

/// The order of `count` things in so many rounds; the same for a seed. `first`: the thing that begins the first round.
pub(super) fn order(count: usize, rounds: u32, seed: u64, first: Option<usize>) -> Vec<usize> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut order = Vec::new();
    for round in 0..rounds {
        let mut things: Vec<usize> = (0..count).collect();
        random.shuffle(&mut things);
        if let Some(first) = first.filter(|_| round == 0) {
            things.retain(|thing| *thing != first);
            things.insert(0, first);
        }
        order.extend(things);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn every_round_has_each_once_and_a_seed_gives_one_order() {
        let order_of = |seed| order(5, 4, seed, Some(2));
        assert_eq!(order_of(7), order_of(7));
        assert_ne!(order_of(7), order_of(8));
        assert_eq!(order_of(7)[0], 2);
        for round in order_of(7).chunks(5) {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
    }
}
