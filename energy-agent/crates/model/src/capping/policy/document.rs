//! A YAML document of policies into policies and what is wrong with the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::problems::{Problems, cut};
use super::schema::fields::{document, policy};
use super::schema::{FieldKind, TypedField};
use super::yaml::{YamlNode, YamlValue, documents};
use super::{Authority, Policy, PolicyName, check, read, rules};
use crate::nearest::nearest;

/// What one document holds. A policy that is refused does not stop the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyDocument {
    pub policies: Vec<Policy>,
    /// Whose (`None`: of the whole document, which then holds no policy), and what, with its path and line.
    pub problems: Vec<(Option<PolicyName>, String)>,
}

/// Reads a document. `namespace` is that of its ConfigMap, for messages; policies name their own.
#[must_use]
pub fn parse(text: &str, namespace: &str) -> PolicyDocument {
    parse_at(text, namespace, 1)
}

/// The same for a document that is a part of a file, whose first line is `first_line` there.
#[must_use]
pub fn parse_at(text: &str, namespace: &str, first_line: usize) -> PolicyDocument {
    let refused = |message: String| PolicyDocument { policies: Vec::new(), problems: vec![(None, message)] };
    match documents(text, first_line).as_deref() {
        Err(message) => refused(message.clone()),
        Ok([]) => refused("empty; a document without policies is `version: 1` and `policies: []`".to_owned()),
        Ok([root]) => read_root(root, namespace),
        Ok([_, second, ..]) => refused(format!(
            "a second YAML document begins (line {}); put it into a file or key of its own",
            second.line
        )),
    }
}

fn read_root(root: &YamlNode<'_>, namespace: &str) -> PolicyDocument {
    let mut document = PolicyDocument::default();
    let mut problems = Problems::default();
    if root.get("kind").is_some() && root.get("apiVersion").is_some() {
        problems.add(
            root.line,
            "a Kubernetes manifest, not a policy document; `energy-agent policy check` reads ConfigMaps",
        );
        return refuse(document, problems);
    }
    if !matches!(root.value, YamlValue::Map(_)) {
        problems.add(root.line, "not a policy document, which begins with `version: 1` and `policies:`");
        return refuse(document, problems);
    }
    // The path may lead to any file, by a link or by mistake: of one that is no policy document no word is repeated.
    if document::POLICIES.given(root).is_none() {
        let is_meant = |key: &str| nearest(key, [document::POLICIES.name()]).is_some();
        let hint = match root.entries().iter().find(|entry| is_meant(&entry.key)) {
            Some(entry) => format!("; is it the key in line {}?", entry.line),
            None => String::new(),
        };
        problems.add(root.line, format_args!("not a policy document: it has no key `policies`{hint}"));
        return refuse(document, problems);
    }
    check::keys(root, &document::OBJECT, &mut problems);
    for field in document::OBJECT.fields {
        let Some(node) = root.get(field.name) else { continue };
        // The items one by one, below.
        let is_list = matches!((&field.kind, &node.value), (FieldKind::List { .. }, YamlValue::List(_)));
        if !is_list {
            problems.key(field.name, |problems| check::value(node, &field.kind, problems));
        }
    }
    let items = document::POLICIES.of(root);
    let names: Vec<_> = items.iter().enumerate().map(|(index, node)| name_of(node, index)).collect();
    let mut places: BTreeMap<&PolicyName, Vec<usize>> = BTreeMap::new();
    for (index, name) in names.iter().enumerate() {
        places.entry(name).or_default().push(index);
    }
    for (index, (node, name)) in items.iter().zip(&names).enumerate() {
        let mut problems = Problems::at(format!("policies[{index}]"));
        if let Some(other) = places[name].iter().find(|other| **other != index) {
            problems.key(policy::NAME.name(), |problems| {
                problems.add(
                    node.line,
                    format_args!("{name} is the name of policies[{other}] too, on line {}", items[*other].line),
                );
            });
        }
        match read_policy(node, name, namespace, &mut problems) {
            Some(policy) if problems.is_empty() => document.policies.push(policy),
            _ => document
                .problems
                .extend(problems.into_messages().into_iter().map(|message| (Some(name.clone()), message))),
        }
    }
    if problems.is_empty() { document } else { refuse(document, problems) }
}

/// The document as a whole is wrong. What is wrong with its policies is still reported.
fn refuse(mut document: PolicyDocument, problems: Problems) -> PolicyDocument {
    document.policies.clear();
    let problems = problems.into_messages().into_iter().map(|message| (None, message));
    document.problems.splice(0..0, problems);
    document
}

/// One policy of a document, or of an object that has the same fields.
pub(super) fn read_policy(
    node: &YamlNode<'_>,
    name: &PolicyName,
    namespace: &str,
    problems: &mut Problems,
) -> Option<Policy> {
    check::value(node, &FieldKind::Object(&policy::OBJECT), problems);
    if !problems.is_empty() {
        return None;
    }
    let Some(policy) = read::policy(node, name.clone()) else {
        problems.add(node.line, "cannot be read");
        return None;
    };
    rules::check(&policy, node, namespace, problems);
    Some(policy)
}

/// Also of a policy that is wrong, so that its last good version can be found; one without a name goes by its place, which
/// no policy can have as its name.
fn name_of(node: &YamlNode<'_>, index: usize) -> PolicyName {
    let text = |key: &TypedField<String>| key.given(node).and_then(YamlNode::text).filter(|text| !text.is_empty());
    let name = text(&policy::NAME).map_or_else(|| format!("policies[{index}]"), cut_name);
    PolicyName {
        authority: Authority::Admin,
        namespace: text(&policy::NAMESPACE).map_or_else(|| Arc::from(""), |text| cut_name(text).into()),
        name: name.into(),
    }
}

/// At most as long as a valid one.
fn cut_name(text: &str) -> String {
    if text.len() <= 253 { text.to_owned() } else { cut(text) }
}

#[cfg(test)]
mod tests;
