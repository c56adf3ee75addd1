//! The word that was probably meant, for messages about one that is unknown.

use strsim::levenshtein;

/// The candidate with the fewest letters to add, drop or change; none that differs in more than a third of its letters.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distances = candidates.into_iter().map(|candidate| (levenshtein(word, candidate), candidate));
    let (distance, best) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= best.len().max(word.len())).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_changes_win_and_a_stranger_has_no_neighbour() {
        assert_eq!(nearest("contaner", ["node", "pod", "container"]), Some("container"));
        assert_eq!(nearest("xyz", ["node", "pod", "container"]), None);
        assert_eq!(nearest("pods", []), None);
    }
}
