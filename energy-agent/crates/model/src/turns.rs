//! Items of several owners in turns, so that nobody who has thousands keeps those of the others waiting.

use std::collections::BTreeMap;

/// First one item of each owner, then a second one of each, and so on. Owners, and the items of each, stay in the order in which
/// they first come.
#[must_use]
pub fn in_turns<T, K: Ord>(items: impl IntoIterator<Item = T>, owner: impl Fn(&T) -> K) -> Vec<T> {
    let mut counts: BTreeMap<K, usize> = BTreeMap::new();
    let numbered = items.into_iter().map(|item| {
        let count = counts.entry(owner(&item)).or_default();
        *count += 1;
        (*count, item)
    });
    let mut numbered: Vec<(usize, T)> = numbered.collect();
    numbered.sort_by_key(|(turn, _)| *turn);
    numbered.into_iter().map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_many_waits_for_who_has_few() {
        let items = ["b1", "b2", "b3", "a1", "c1", "c2"];
        assert_eq!(in_turns(items, |item| item.as_bytes()[0]), ["b1", "a1", "c1", "b2", "c2", "b3"]);
    }
}
