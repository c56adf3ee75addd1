//! Policies in a file: the file itself, the keys of the ConfigMaps in it, or objects.

use energy_cluster::configmaps;
use energy_model::capping::policy::object;
use energy_model::capping::policy::yaml::{self, YamlNode, YamlValue};
use energy_model::resources::{GROUP, power_capping_policy};

use super::FoundPolicies;
use crate::policies::files::is_document;

/// What is to be checked in a file, or why it cannot be.
pub(super) fn documents(file: &str, text: String) -> Vec<Result<FoundPolicies, String>> {
    let file = if file == "-" { "standard input" } else { file };
    let manifests = match yaml::documents(&text, 1) {
        Ok(roots) if roots.iter().any(|root| kind(root).is_some()) => {
            roots.iter().flat_map(|root| of_manifest(file, root)).collect()
        }
        // The document itself says best what is wrong with it.
        _ => Vec::new(),
    };
    if manifests.is_empty() {
        let place = file.to_owned();
        return vec![Ok(FoundPolicies::Document { place, text, namespace: String::new(), first_line: 1 })];
    }
    manifests
}

fn kind<'a>(root: &'a YamlNode<'_>) -> Option<&'a str> {
    root.get("apiVersion")?;
    root.get("kind")?.text()
}

/// It is of the group of this program, whatever its version.
fn is_ours(root: &YamlNode<'_>) -> bool {
    let group = root.get("apiVersion").and_then(YamlNode::text).and_then(|version| version.split_once('/'));
    group.is_some_and(|(group, _)| group == GROUP)
}

fn of_manifest(file: &str, root: &YamlNode<'_>) -> Vec<Result<FoundPolicies, String>> {
    let line = root.line;
    match kind(root) {
        Some("ConfigMap") => {}
        Some(power_capping_policy::KIND) if is_ours(root) => {
            let (name, policy) = object::of_manifest(root);
            return vec![Ok(FoundPolicies::Object { place: file.to_owned(), name, policy: policy.map(Box::new) })];
        }
        Some("List" | "ConfigMapList") => {
            return root
                .get("items")
                .map(YamlNode::items)
                .unwrap_or_default()
                .iter()
                .flat_map(|item| of_manifest(file, item))
                .collect();
        }
        Some(kind @ ("PowerCappingPolicy" | "PowerCappingConfig" | "NodeFrequencies")) => {
            let hint = "docs/migrate-from-climatik.md shows how to convert it";
            return vec![Err(format!("{file}: {kind} is a kind of Climatik; {hint} (line {line})"))];
        }
        Some(kind) => {
            // Of another file not even this word is repeated.
            let is_kind = kind.len() <= 63 && kind.bytes().all(|byte| byte.is_ascii_alphabetic());
            let kind = if is_kind { kind } else { "manifest of another kind" };
            return vec![Err(format!("{file}: a {kind} cannot hold policies, only a ConfigMap can (line {line})"))];
        }
        None => {
            return vec![Err(format!(
                "{file}: neither `apiVersion` nor `kind`, but other documents of the file have them (line {line})"
            ))];
        }
    }
    let metadata =
        |key| root.get("metadata").and_then(|metadata| metadata.get(key)).and_then(YamlNode::text).unwrap_or_default();
    let (namespace, name) = (metadata("namespace"), metadata("name"));
    let map = if namespace.is_empty() { format!("ConfigMap {name}") } else { format!("ConfigMap {namespace}/{name}") };
    let entries = root.get("data").map(YamlNode::entries).unwrap_or_default();
    let binary = root.get("binaryData").map(YamlNode::entries).unwrap_or_default();
    let binary: Vec<&yaml::MapEntry<'_>> = binary.iter().filter(|entry| is_document(&entry.key)).collect();
    if entries.is_empty() && binary.is_empty() {
        return vec![Err(format!("{file}: {map}: no key in `data` (line {line})"))];
    }
    let document = |entry: &yaml::MapEntry<'_>| {
        let place = format!("{file}: {map} key {}", entry.key);
        match &entry.node.value {
            YamlValue::Text { text, literal } => Ok(FoundPolicies::Document {
                place,
                text: text.to_string(),
                namespace: namespace.to_owned(),
                // Of a text in quotes no line is one of the file's; they are counted within it.
                first_line: if *literal { entry.line + 1 } else { 1 },
            }),
            _ => Err(format!(
                "{place}: not text; write `{}: |` and the policies below it (line {})",
                entry.key, entry.line
            )),
        }
    };
    let decoded = |entry: &&yaml::MapEntry<'_>| {
        let place = format!("{file}: {map} key {}", entry.key);
        match entry.node.text().and_then(configmaps::decoded) {
            Some(text) => Ok(FoundPolicies::Document { place, text, namespace: namespace.to_owned(), first_line: 1 }),
            None => Err(format!("{place}: {} (line {})", configmaps::not_text(), entry.line)),
        }
    };
    entries.iter().map(document).chain(binary.iter().map(decoded)).collect()
}
