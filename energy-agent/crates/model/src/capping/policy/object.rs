//! A policy that is an object of the API server: the same fields as in a document, without name and namespace.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value as Json;

use super::problems::Problems;
use super::schema::fields::{MAX_TOTAL_WATTS, MAX_WATTS, budget, policy};
use super::schema::{FieldKind, Object};
use super::yaml::{MapEntry, YamlNode, YamlValue};
use super::{Amount, Authority, BudgetScope, Policy, PolicyName, document};

/// The policy in the spec of an object, which has a name and a namespace.
///
/// # Errors
/// All that is wrong with it, each with its path.
pub fn policy(name: PolicyName, spec: &Json) -> Result<Policy, Vec<String>> {
    checked(name, tree(spec, Some(&policy::OBJECT)))
}

/// The policy in a manifest that people write, with its name; here a key that is not known is a mistake.
pub fn of_manifest(root: &YamlNode<'_>) -> (PolicyName, Result<Policy, Vec<String>>) {
    let of = |key: &str| root.get("metadata").and_then(|metadata| metadata.get(key)).and_then(YamlNode::text);
    let [namespace, name] = ["namespace", "name"].map(|key| Arc::from(of(key).unwrap_or("default")));
    let name = PolicyName { authority: Authority::Tenant, namespace, name };
    let policy = match root.get("spec") {
        Some(spec) => checked(name.clone(), spec.clone()),
        None => Err(vec![format!("spec: missing; it has the fields of a policy (line {})", root.line)]),
    };
    (name, policy)
}

fn checked(name: PolicyName, mut node: YamlNode<'_>) -> Result<Policy, Vec<String>> {
    let mut problems = Problems::at("spec".to_owned());
    if let YamlValue::Map(entries) = &mut node.value {
        let own = [(policy::NAME.name(), &name.name), (policy::NAMESPACE.name(), &name.namespace)];
        entries.retain(|entry| own.iter().all(|(key, _)| entry.key != *key));
        entries.extend(own.map(|(key, text)| {
            let value = YamlValue::Text { text: Cow::Owned(text.to_string()), literal: false };
            MapEntry { key: Cow::Borrowed(key), line: 0, node: YamlNode { line: 0, value } }
        }));
    }
    let of_cluster = watts_of_cluster(&mut node);
    let namespace = name.namespace.to_string();
    match document::read_policy(&node, &name, &namespace, &mut problems) {
        Some(mut policy) if problems.is_empty() => {
            policy.budget.amount = of_cluster.map_or(policy.budget.amount, Amount::Watts);
            Ok(policy)
        }
        _ => Err(problems.into_messages()),
    }
}

/// A budget of the whole cluster may be more than the table of fields lets a node have: where it is, it is taken out of the
/// tree, which then has the most of a node.
fn watts_of_cluster(node: &mut YamlNode<'_>) -> Option<f64> {
    let YamlValue::Map(entries) = &mut node.value else { return None };
    let budget = &mut entries.iter_mut().find(|entry| entry.key == policy::BUDGET.name())?.node;
    budget::SCOPE.of(budget).filter(|scope| *scope == BudgetScope::Total)?;
    let YamlValue::Map(entries) = &mut budget.value else { return None };
    let watts = &mut entries.iter_mut().find(|entry| entry.key == budget::WATTS.name())?.node;
    let number = watts.number().filter(|number| (MAX_WATTS..=MAX_TOTAL_WATTS).contains(number))?;
    watts.value = YamlValue::Number(Cow::Owned(MAX_WATTS.to_string()));
    Some(number)
}

/// The tree of a JSON value; it has no lines. Keys that `object` does not have are left out: the API server has pruned what
/// its definition does not know, so they are fields of a newer version, and their defaults stand in every object.
fn tree<'a>(json: &'a Json, object: Option<&'static Object>) -> YamlNode<'a> {
    let value = match json {
        Json::Null => YamlValue::Null,
        Json::Bool(truth) => YamlValue::Bool(*truth),
        Json::Number(number) => YamlValue::Number(Cow::Owned(number.to_string())),
        Json::String(text) => YamlValue::Text { text: Cow::Borrowed(text), literal: false },
        Json::Array(items) => YamlValue::List(items.iter().map(|item| tree(item, object)).collect()),
        Json::Object(map) => YamlValue::Map(map.iter().filter_map(|(key, json)| entry(key, json, object)).collect()),
    };
    YamlNode { line: 0, value }
}

fn entry<'a>(key: &'a str, json: &'a Json, object: Option<&'static Object>) -> Option<MapEntry<'a>> {
    let field = object.map(|object| object.field(key));
    if field.is_some_and(|field| field.is_none()) {
        return None;
    }
    let inner = field.flatten().and_then(|field| match field.kind {
        FieldKind::Object(_) | FieldKind::List { .. } => field.kind.object(),
        _ => None,
    });
    Some(MapEntry { key: Cow::Borrowed(key), line: 0, node: tree(json, inner) })
}

#[cfg(test)]
#[path = "object/tests.rs"]
mod tests;
