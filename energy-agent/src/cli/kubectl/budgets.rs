//! `kubectl energy budgets`: one line for each budget, the fullest first.

use energy_model::capping::policy::Mode;
use energy_model::printable::printable;
use energy_model::resources::CONTROLLER;
use energy_model::resources::cluster_power_budget::{ClusterPowerBudgetSpec, ClusterPowerBudgetStatus};
use energy_model::resources::object::KubeObject;

use super::Align::{Left, Right};
use super::columns;
use super::release::mode_before;

const HEADINGS: [(&str, super::Align); 10] = [
    ("NAME", Left),
    ("MODE", Left),
    ("BUDGET", Right),
    ("POWER", Right),
    ("%", Right),
    ("LEVEL", Right),
    ("NODES", Right),
    ("LIMITED", Right),
    ("SILENT", Right),
    ("NOTE", Left),
];

pub(super) fn table(objects: &[KubeObject]) -> String {
    if objects.is_empty() {
        return "there are no ClusterPowerBudgets\n".to_owned();
    }
    let mut rows: Vec<(Option<u32>, Vec<String>)> = objects.iter().map(row).collect();
    rows.sort_by(|(a, left), (b, right)| b.cmp(a).then_with(|| left.cmp(right)));
    columns(&HEADINGS, &rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>())
}

fn row(object: &KubeObject) -> (Option<u32>, Vec<String>) {
    let status: ClusterPowerBudgetStatus = serde_json::from_value(object.status.clone()).unwrap_or_default();
    let name = printable(&object.metadata.name).into_owned();
    let spec = match object.spec::<ClusterPowerBudgetSpec>() {
        Ok(spec) => spec,
        Err(problem) => {
            let mut row = vec!["-".to_owned(); HEADINGS.len()];
            (row[0], row[HEADINGS.len() - 1]) = (name, printable(&problem).into_owned());
            return (None, row);
        }
    };
    let watts = |watts: Option<i64>| watts.map_or_else(|| "-".to_owned(), |watts| format!("{watts} W"));
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let row = vec![
        name,
        format!("{:?}", spec.mode),
        watts(status.budget_watts.or(Some(spec.watts))),
        watts(status.watts),
        number(status.percent),
        number(status.level_permille),
        status.nodes.to_string(),
        status.limited_nodes.to_string(),
        status.silent_nodes.to_string(),
        printable(&note(object, &spec, &status)).into_owned(),
    ];
    (status.percent, row)
}

/// What people have to know of it first.
fn note(object: &KubeObject, spec: &ClusterPowerBudgetSpec, status: &ClusterPowerBudgetStatus) -> String {
    if spec.mode == Mode::Off {
        // The status is of the time before.
        return mode_before(object)
            .map_or_else(|| "limits no node".to_owned(), |mode| format!("released, was {mode:?}"));
    }
    let condition = |kind: &str, is: &str| {
        let found = status.conditions.iter().find(|condition| condition.kind == kind && condition.status == is);
        found.map(|condition| format!("{}: {}", condition.reason, condition.message))
    };
    let said = condition("Ready", "False")
        .or_else(|| condition("InBudget", "False"))
        .or_else(|| condition("Limiting", "True"));
    let controller = &spec.control.controller_name;
    match said {
        Some(said) => said,
        None if controller != CONTROLLER => format!("levels are written by {controller}"),
        None if status.conditions.is_empty() => "no status yet: does the controller run?".to_owned(),
        None => "open".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use serde_json::{Value, json};

    use super::*;

    fn budget(name: &str, spec: Value, status: Value) -> KubeObject {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn each_budget_has_a_line_with_what_there_is_to_say_of_it() {
        let limiting = |reason: &str, message: &str| {
            json!([{"type": "Ready", "status": "True", "reason": "Running", "message": "4 nodes", "lastTransitionTime": ""},
                   {"type": "Limiting", "status": "True", "reason": reason, "message": message, "lastTransitionTime": ""}])
        };
        let mut released = budget("c", json!({"mode": "Off", "watts": 500}), Value::Null);
        released.metadata.annotations.insert("power.energy-agent.io/released-from".into(), "Enforce".into());
        let objects = [
            budget(
                "rack-r17",
                json!({"mode": "Recommend", "watts": 40_000}),
                json!({"budgetWatts": 30_000, "watts": 31_000, "percent": 103, "levelPermille": 420, "nodes": 4,
                       "silentNodes": 1, "conditions": limiting("WouldLimit", "level 420")}),
            ),
            budget("a", json!({"watts": 500}), Value::Null),
            budget("b", json!({"watts": 500, "control": {"controllerName": "example.com/x"}}), Value::Null),
            released,
            budget("d", json!({"watts": "many"}), Value::Null),
        ];
        let expected = "\
NAME       MODE         BUDGET     POWER     %   LEVEL   NODES   LIMITED   SILENT   NOTE
rack-r17   Recommend   30000 W   31000 W   103     420       4         0        1   WouldLimit: level 420
a          Recommend     500 W         -     -       -       0         0        0   no status yet: does the controller run?
b          Recommend     500 W         -     -       -       0         0        0   levels are written by example.com/x
c          Off           500 W         -     -       -       0         0        0   released, was Enforce
d          -                 -         -     -       -       -         -        -   spec: invalid type: string \"many\", expected i64
";
        assert_eq!(table(&objects), expected);
        assert_eq!(table(&[]), "there are no ClusterPowerBudgets\n");
    }
}
