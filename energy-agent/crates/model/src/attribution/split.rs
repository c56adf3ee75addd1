//! Exact division of a whole amount of energy by whole weights: every part is its exact share rounded down or up, and
//! the parts sum to the amount.

use std::cmp::Reverse;

use crate::units::Microjoules;

/// Splits `energy` by `weights` (any unit, stable order) into parts that sum to `energy`; all-zero weights give `None`.
///
/// Largest remainder: the exact shares are rounded down, and the microjoules left over go one each to the shares that
/// lost most by rounding, the earlier one first among equals. A weight of zero lost nothing and gets nothing.
#[must_use]
pub fn split(energy: Microjoules, weights: &[u64]) -> Option<Vec<Microjoules>> {
    let total: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    if total == 0 {
        return None;
    }
    let mut parts = Vec::with_capacity(weights.len());
    let mut remainders = Vec::with_capacity(weights.len());
    let mut left = energy.0;
    for (index, &weight) in weights.iter().enumerate() {
        let product = u128::from(energy.0) * u128::from(weight);
        let part = u64::try_from(product / total).expect("a weight is at most the total, so a part is at most energy");
        left -= part;
        parts.push(Microjoules(part));
        remainders.push((Reverse(product % total), index));
    }
    // The remainders sum to `left * total` and each is below `total`: more than `left` of them are not zero.
    let left = usize::try_from(left).expect("fewer microjoules are left over than there are weights");
    if left > 0 {
        remainders.select_nth_unstable(left - 1);
        for &(_, index) in &remainders[..left] {
            parts[index].0 += 1;
        }
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(energy: u64, weights: &[u64]) -> Vec<u64> {
        split(Microjoules(energy), weights).unwrap().into_iter().map(|part| part.0).collect()
    }

    #[test]
    fn what_divides_evenly_is_divided_evenly() {
        assert_eq!(parts(100, &[1, 3, 0]), [25, 75, 0]);
    }

    #[test]
    fn the_largest_remainder_gets_the_last_microjoule() {
        // Exact shares of 10 by 1:2:4: 1 3/7, 2 6/7, 5 5/7. Rounded down 1 + 2 + 5 = 8; 6/7 and 5/7 lost most.
        assert_eq!(parts(10, &[1, 2, 4]), [1, 3, 6]);
    }

    #[test]
    fn ties_go_to_the_earlier_part() {
        assert_eq!(parts(2, &[5, 5, 5]), [1, 1, 0]);
    }

    #[test]
    fn nobody_weighs_nothing_and_gets_nothing() {
        assert_eq!(split(Microjoules(7), &[]), None);
        assert_eq!(split(Microjoules(7), &[0, 0]), None);
        assert_eq!(parts(0, &[3, 4]), [0, 0]);
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let half = u64::MAX / 2;
        assert_eq!(parts(u64::MAX, &[u64::MAX, u64::MAX]), [half + 1, half]);
        assert_eq!(parts(u64::MAX, &[u64::MAX, 0]), [u64::MAX, 0]);
    }

    fn weights() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop_oneof![Just(0), 1..100_u64, any::<u64>()], 1..40)
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_whole_and_zero_gets_zero(energy: u64, weights in weights()) {
            if let Some(parts) = split(Microjoules(energy), &weights) {
                prop_assert_eq!(parts.iter().map(|part| u128::from(part.0)).sum::<u128>(), u128::from(energy));
                for (part, weight) in parts.iter().zip(&weights) {
                    prop_assert!(*weight != 0 || part.0 == 0);
                }
            } else {
                prop_assert!(weights.iter().all(|&weight| weight == 0));
            }
        }

        #[test]
        fn equal_weights_differ_by_a_microjoule_at_most(energy: u64, mut weights in weights()) {
            weights.push(weights[0]);
            if let Some(parts) = split(Microjoules(energy), &weights) {
                prop_assert!(parts[0].0.abs_diff(parts[parts.len() - 1].0) <= 1);
            }
        }

        #[test]
        fn the_unit_of_the_weights_does_not_matter(
            energy: u64, weights in prop::collection::vec(0..1_000_000_u64, 1..40), factor in 1..1_000_000_u64,
        ) {
            let scaled: Vec<u64> = weights.iter().map(|weight| weight * factor).collect();
            prop_assert_eq!(split(Microjoules(energy), &weights), split(Microjoules(energy), &scaled));
        }
    }
}
