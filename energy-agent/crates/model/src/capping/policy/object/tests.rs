#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::capping::policy::document::parse;
use crate::capping::policy::{Authority, BudgetScope};

fn name() -> PolicyName {
    PolicyName { authority: Authority::Tenant, namespace: Arc::from("ml"), name: Arc::from("cap") }
}

fn problems(spec: &Json) -> String {
    policy(name(), spec).unwrap_err().join("\n")
}

#[test]
fn an_object_and_a_document_that_say_the_same_are_the_same_policy() {
    let text = "version: 1\npolicies:\n- {name: cap, namespace: ml, mode: Enforce, priority: 7, \
                selector: {matchLabels: {app: a}, matchExpressions: [{key: t, operator: In, values: [x, y]}]}, \
                budget: {watts: 400, scope: PerNode, components: [gpu, cpu], windowSeconds: 2.5}, \
                control: {algorithm: table, table: [{clockMHz: 600, watts: 180}, {clockMHz: 1980, watts: 700}]}, \
                actuators: {gpu: {use: [LockedClocks], minClockMHz: 600}, cpu: {use: [Quota], minCPUs: 0.5}}}\n";
    let spec = json!({
        "mode": "Enforce", "priority": 7,
        "selector": {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "t", "operator": "In", "values": ["x", "y"]}]},
        "budget": {"watts": 400, "scope": "PerNode", "components": ["gpu", "cpu"], "windowSeconds": 2.5},
        "control": {"algorithm": "table", "table": [{"clockMHz": 600, "watts": 180}, {"clockMHz": 1980, "watts": 700}]},
        "actuators": {"gpu": {"use": ["LockedClocks"], "minClockMHz": 600}, "cpu": {"use": ["Quota"], "minCPUs": 0.5}},
    });
    let mut document = parse(text, "");
    assert_eq!(document.problems, []);
    let mut expected = document.policies.remove(0);
    expected.name.authority = Authority::Tenant;
    assert_eq!(policy(name(), &spec).unwrap(), expected);
}

#[test]
fn fields_of_a_newer_version_are_passed_over() {
    let spec = json!({
        "selector": {"selectAll": true, "newer": {"a": 1}}, "budget": {"watts": 400, "components": ["gpu"]}, "newer": [1],
        "name": "other", "namespace": "kube-system",
    });
    let policy = policy(name(), &spec).unwrap();
    assert_eq!((&*policy.name.namespace, &*policy.name.name, policy.selector.select_all), ("ml", "cap", true));
}

#[test]
fn what_is_wrong_is_told_with_its_path_and_without_lines() {
    let spec = |watts: u32| json!({"selector": {}, "budget": {"watts": watts, "components": ["gpu"]}});
    let told = problems(&spec(250));
    assert!(told.starts_with("spec.selector: selects nothing"), "{told}");
    assert!(!told.contains("line"), "{told}");
    let told = problems(&spec(250_000));
    assert!(told.contains("spec.budget.watts: 250000 W is more than the maximum, 20000 W; in milliwatts?"), "{told}");
    assert!(!told.contains("line"), "{told}");
    assert!(problems(&json!("x")).starts_with("spec: \"x\" where a map is needed"));
    assert!(problems(&Json::Null).contains("spec: empty"));
}

#[test]
fn scope_total_is_for_objects_and_large() {
    let spec =
        |budget: Json, control: Json| json!({"selector": {"selectAll": true}, "budget": budget, "control": control});
    let total = json!({"watts": 2_000_000, "scope": "Total", "components": ["gpu"]});
    let read = policy(name(), &spec(total.clone(), json!({"controllerName": "example.com/x"}))).unwrap();
    assert_eq!(read.budget.scope, BudgetScope::Total);
    let peak = json!({"percentOfPeak": 50, "scope": "Total", "components": ["gpu"]});
    assert!(problems(&spec(peak, json!({}))).contains("spec.budget.percentOfPeak: a budget of the whole cluster"));
    let pods = json!({"watts": 400, "components": ["gpu"]});
    let told = problems(&spec(pods, json!({"controllerName": "example.com/x"})));
    assert_eq!(told, "spec.control.controllerName: is only valid with `scope: Total`");
    let told = problems(&spec(total, json!({"standing": true})));
    assert_eq!(told, "spec.control.standing: is only valid with watts, and with scope PerPod or PerNode");
    let text = "version: 1\npolicies: [{name: a, selector: {selectAll: true}, budget: {watts: 9, scope: Total, components: [gpu]}}]";
    let document = parse(text, "");
    assert!(document.problems[0].1.contains("policies[0].budget.scope: Total needs a PowerCappingPolicy"));
}
