//! Documents that nobody wrote.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::problems::{SELECTOR, problems};
use super::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Parts are cut out, doubled, moved, or replaced by what YAML has a meaning for.
    #[test]
    fn whatever_is_done_to_a_document_it_is_read_or_refused(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize, "[-a-z0-9:{}\\[\\],&*!|>'\"#%@`?. \\n\\tµ…]{0,8}", any::<bool>()), 1..6)
    ) {
        let mut text: Vec<char> = WHOLE.chars().collect();
        for (at, length, new, double) in edits {
            let start = at.index(text.len() + 1);
            let end = (start + length).min(text.len());
            let old: Vec<char> = text[start..end].to_vec();
            text.splice(start..end, new.chars().chain(if double { old.repeat(2) } else { Vec::new() }));
        }
        let text: String = text.into_iter().collect();
        let document = parse(&text, "ns");
        prop_assert!(!document.policies.is_empty() || !document.problems.is_empty() || text.contains("[]"));
        let lines = text.split(['\n', '\r']).count();
        for (_, problem) in &document.problems {
            prop_assert!(!problem.contains('\n') && problem.len() < 600, "{}", problem);
            let line = problem.rsplit_once("(line ").and_then(|(_, line)| line.split(')').next()?.parse::<usize>().ok());
            prop_assert!(line.is_none_or(|line| (1..=lines + 1).contains(&line)), "{} of {}", problem, lines);
        }
        let names: BTreeSet<_> = document.policies.iter().map(|policy| &policy.name).collect();
        prop_assert_eq!(names.len(), document.policies.len());
    }

    #[test]
    fn a_budget_is_taken_if_and_only_if_it_is_plausible(watts in any::<f64>()) {
        let shown = if watts.is_nan() { ".nan".to_owned() } else if watts.is_finite() { watts.to_string() } else { ".inf".to_owned() };
        let taken = problems(&format!("{SELECTOR}budget: {{components: [gpu], watts: {shown}}}")).is_empty();
        prop_assert_eq!(taken, watts.is_finite() && watts > 0.999_999_999 && watts < 20_000.000_001);
    }

    #[test]
    fn any_text_at_all_is_read_or_refused(text in "\\PC{0,200}") {
        let document = parse(&text, "");
        prop_assert_eq!(document.policies.len(), 0);
        prop_assert!(!document.problems.is_empty());
    }
}
