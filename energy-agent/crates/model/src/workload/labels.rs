//! The labels of pods that `--pods.labels` names, and what they are called on the page.

use std::collections::{BTreeMap, BTreeSet};

/// A label of pods that is exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLabel {
    /// As Kubernetes has it.
    pub key: String,
    /// On the page; no other label has it.
    pub name: String,
    /// Another label would have the same name but for a number.
    pub in_conflict: bool,
}

/// The labels in the order in which they are named, each once. `app.kubernetes.io/name` is `label_app_kubernetes_io_name`.
/// Where several would have one name, each of them gets a number, by their order in the alphabet.
#[must_use]
pub fn exported(keys: &[String]) -> Vec<PodLabel> {
    let mut by_name: BTreeMap<String, BTreeSet<&String>> = BTreeMap::new();
    for key in keys {
        by_name.entry(plain_name(key)).or_default().insert(key);
    }
    let mut taken: BTreeSet<String> = by_name.keys().cloned().collect();
    let mut names: BTreeMap<&String, (String, bool)> = BTreeMap::new();
    for (plain, keys) in &by_name {
        let mut numbers = 1..;
        for key in keys {
            let name = if keys.len() == 1 {
                plain.clone()
            } else {
                let numbered = |number: u32| format!("{plain}_conflict{number}");
                numbers.by_ref().map(numbered).find(|name| taken.insert(name.clone())).unwrap_or_else(|| plain.clone())
            };
            names.insert(key, (name, keys.len() > 1));
        }
    }
    let label = |key: &String| {
        let (name, in_conflict) = names.remove(key)?;
        Some(PodLabel { key: key.clone(), name, in_conflict })
    };
    keys.iter().filter_map(label).collect()
}

fn plain_name(key: &str) -> String {
    let letters = key.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' });
    "label_".chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(keys: &[&str]) -> Vec<(String, String)> {
        let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        exported(&keys).into_iter().map(|label| (label.key, label.name)).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, name)| ((*key).to_owned(), (*name).to_owned())).collect()
    }

    #[test]
    fn a_label_is_named_as_kube_state_metrics_has_it() {
        let key = "app.kubernetes.io/name";
        assert_eq!(
            names(&["tier", key, "tier"]),
            pairs(&[("tier", "label_tier"), (key, "label_app_kubernetes_io_name")])
        );
    }

    #[test]
    fn fc_122_labels_that_would_have_one_name_have_numbers() {
        let both = [("ops_managed", "label_ops_managed_conflict2"), ("ops-managed", "label_ops_managed_conflict1")];
        assert_eq!(names(&["ops_managed", "ops-managed"]), pairs(&both));
        // Also beside one that is called so itself.
        let keys = ["a-b", "a_b", "a.b_conflict1", "a.b"];
        let named = names(&keys);
        assert_eq!(named.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), keys);
        assert_eq!(named.iter().map(|(_, name)| name).collect::<BTreeSet<_>>().len(), 4, "{named:?}");
        assert_eq!(named[2].1, "label_a_b_conflict1", "who is alone has the plain name");
    }
}
