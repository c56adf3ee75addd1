//! The word that was probably meant, for messages about one that is unknown.

/// The candidate with the fewest letters to add, drop or change; none that differs in more than a third of its letters.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distances = candidates.into_iter().map(|candidate| (distance(word, candidate), candidate));
    let (distance, best) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= best.len().max(word.len())).then_some(best)
}

/// Levenshtein's distance, row by row.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_changes_win_and_a_stranger_has_no_neighbour() {
        for (from, to, expected) in [("", "abc", 3), ("kitten", "sitting", 3), ("pod", "pod", 0), ("pods", "pod", 1)] {
            assert_eq!(distance(from, to), expected, "{from} {to}");
        }
        assert_eq!(nearest("contaner", ["node", "pod", "container"]), Some("container"));
        assert_eq!(nearest("xyz", ["node", "pod", "container"]), None);
        assert_eq!(nearest("pods", []), None);
    }
}
