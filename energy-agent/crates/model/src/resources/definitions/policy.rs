//! The definition of PowerCappingPolicy, from the table of policy fields: what a document may say, an object may say, but
//! for name, namespace and namespaces, which an object has already. Watts and percents are whole numbers.

use serde_json::{Map, Value};

use super::schema::{self, Schema};
use super::{Definition, age, column, condition, wide};
use crate::capping::policy::json_schema::json_of;
use crate::capping::policy::schema::fields::{MAX_TOTAL_WATTS, MAX_WATTS, policy};
use crate::capping::policy::schema::{Field, FieldKind, Object, Presence};
use crate::capping::policy::unit::{Unit, plain};
use crate::resources::power_capping_policy::{KIND, PLURAL};
use crate::units::nearest_u64;

pub(super) fn definition() -> Definition {
    Definition {
        kind: KIND,
        plural: PLURAL,
        singular: "powercappingpolicy",
        short: &["pcp"],
        category: "power",
        is_namespaced: true,
        doc: "Holds the pods of its namespace that it selects to a power budget.",
        columns: vec![
            column("Mode", "string", ".spec.mode", ""),
            column("Budget", "integer", ".spec.budget.watts", "W"),
            column("Scope", "string", ".spec.budget.scope", ""),
            column("Power", "integer", ".status.watts", "W, of all selected pods"),
            column("Pods", "integer", ".status.pods", ""),
            column("Capped", "integer", ".status.cappedPods", ""),
            condition("Ready"),
            wide(column("Reason", "string", ".status.conditions[?(@.type==\"Ready\")].reason", "")),
            age(),
        ],
        spec: of_object(&policy::OBJECT, "").doc("As a policy of a document, without name and namespace."),
        needs_spec: true,
        status: Some(status()),
    }
}

fn status() -> Schema {
    let fields = vec![
        ("observedGeneration", schema::integer()),
        ("observedTime", schema::time().doc("When the figures were taken.")),
        ("watts", schema::integer().doc("What the selected pods draw together.")),
        ("pods", schema::integer()),
        ("cappedPods", schema::integer()),
        ("nodes", schema::integer()),
        ("conditions", schema::conditions()),
    ];
    schema::object(fields, &[])
}

/// What documents have and objects say otherwise, by path.
const DOCUMENTS_ONLY: [&str; 3] = ["name", "namespace", "selector.namespaces"];

fn of_object(object: &'static Object, path: &str) -> Schema {
    let place = |field: &Field| if path.is_empty() { field.name.to_owned() } else { format!("{path}.{}", field.name) };
    let fields: Vec<_> =
        object.fields.iter().filter(|field| !DOCUMENTS_ONLY.contains(&place(field).as_str())).copied().collect();
    let needs = |field: &Field| object.needs.iter().any(|(name, _)| *name == field.name);
    // A default of what is only valid with something else would stand where that is not.
    let schemas = fields.iter().map(|field| (field.name, of_field(field, &place(field), !needs(field)))).collect();
    let required: Vec<_> =
        fields.iter().filter(|field| field.presence == Presence::Required).map(|field| field.name).collect();
    let mut schema = schema::object(schemas, &required);
    if let [one, other] = object.one_of {
        schema = schema
            .rule(&format!("has(self.{one}) != has(self.{other})"), &format!("write {one} or {other}, one of both"));
    }
    for (name, other) in object.needs {
        schema = schema
            .rule(&format!("!has(self.{name}) || has(self.{other})"), &format!("{name} is only valid with {other}"));
    }
    rules(path).into_iter().fold(schema, |schema, (rule, message)| schema.rule(&rule, &message))
}

fn of_field(field: &'static Field, path: &str, with_default: bool) -> Schema {
    let schema = of_kind(&field.kind, path).doc(field.doc);
    match (&field.kind, field.default()) {
        // The whole of it: the API server holds the rules against it before it fills in the defaults within. What has no
        // rules needs none.
        (FieldKind::Object(object), Some(_)) if !rules(path).is_empty() => schema.default(defaults(object)),
        (FieldKind::Object(_), _) | (_, None) => schema,
        (_, Some(default)) if with_default => schema.default(json_of(&default)),
        _ => schema,
    }
}

fn defaults(object: &'static Object) -> Value {
    let default = |field: &&'static Field| Some((field.name.to_owned(), json_of(&field.default()?)));
    Value::Object(object.fields.iter().filter_map(default).collect::<Map<_, _>>())
}

fn of_kind(kind: &'static FieldKind, path: &str) -> Schema {
    match kind {
        FieldKind::Text(syntax) => schema::text(syntax.max_chars()).with("pattern", syntax.pattern()),
        FieldKind::Switch => schema::switch(),
        FieldKind::Whole { min, max, .. } => schema::integer_in((*min).into(), (*max).into()),
        FieldKind::Number { unit: Unit::Watts | Unit::Percent, min, max } => {
            // A budget of the whole cluster may be more; a rule says so of the others.
            let max = if path == "budget.watts" { MAX_TOTAL_WATTS } else { *max };
            schema::whole_in(nearest_u64(*min), nearest_u64(max))
        }
        FieldKind::Number { min, max, .. } => schema::number().with("minimum", *min).with("maximum", *max),
        FieldKind::Choice(words) => schema::choice(words),
        FieldKind::List { of, min, max } if of.object().is_some() => {
            schema::list(of_kind(of, &format!("{path}[]")), *min, *max)
        }
        FieldKind::List { of, min, max } => schema::set(of_kind(of, path), *min, *max),
        FieldKind::Labels => schema::labels(),
        FieldKind::Object(object) => of_object(object, path),
    }
}

/// What the fields of an object have to do with each other, as [`rules`](crate::capping::policy) says it of documents; what
/// to write is said to who breaks it.
fn rules(path: &str) -> Vec<(String, String)> {
    let said = |rules: &[(&str, &str)]| {
        rules.iter().map(|(rule, message)| ((*rule).to_owned(), (*message).to_owned())).collect::<Vec<_>>()
    };
    match path {
        "" => said(&[
            (
                "!has(self.control.controllerName) || self.budget.scope == 'Total'",
                "control.controllerName is only valid with budget.scope Total; remove it, or write scope Total",
            ),
            (
                "!self.control.standing || (has(self.budget.watts) && self.budget.scope != 'Total')",
                "control.standing is only valid with budget.watts, and with scope PerPod or PerNode",
            ),
            (
                "!has(self.actuators) || !has(self.actuators.gpu) || 'gpu' in self.budget.components",
                "actuators.gpu is given, and budget.components does not name gpu; add it there, or remove actuators.gpu",
            ),
            (
                "!has(self.actuators) || !has(self.actuators.cpu) || 'cpu' in self.budget.components",
                "actuators.cpu is given, and budget.components does not name cpu; add it there, or remove actuators.cpu",
            ),
            (
                "!has(self.actuators) || !has(self.actuators.cpu) || !('RaplLimit' in self.actuators.cpu.use)",
                "RaplLimit limits the whole node, which is more than a namespace; write Frequency or Quota",
            ),
        ]),
        "selector" => said(&[(
            "(has(self.selectAll) && self.selectAll) != (has(self.matchLabels) || has(self.matchExpressions))",
            "an empty selector would match every pod; write selectAll true for that, and only for that",
        )]),
        "selector.matchExpressions[]" => said(&[(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "In and NotIn need values, Exists and DoesNotExist take none",
        )]),
        "budget" => {
            let most = plain(MAX_WATTS);
            vec![
                (
                    "self.scope != 'Total' || has(self.watts)".to_owned(),
                    "scope Total needs watts: a budget of the whole cluster has no peak".to_owned(),
                ),
                (
                    format!("self.scope == 'Total' || !has(self.watts) || self.watts <= {most}"),
                    format!("more than {most} W within a node; write watts, not milliwatts, or scope Total"),
                ),
            ]
        }
        "control" => said(&[
            (
                "self.releasePercent < self.targetPercent && self.targetPercent <= self.engagePercent",
                "need releasePercent < targetPercent <= engagePercent",
            ),
            (
                "(self.algorithm == 'table') == has(self.table)",
                "algorithm table needs a table, as [{clockMHz: 600, watts: 180}, {clockMHz: 1980, watts: 700}], and only it takes one",
            ),
        ]),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::capping::policy::schema::fields::{budget, control, selector};

    /// The rules name fields by text: each of these texts is a field of the table.
    #[test]
    fn the_rules_name_fields_that_there_are() {
        for (object, names) in [
            (&selector::OBJECT, &["selectAll", "matchLabels", "matchExpressions"][..]),
            (&budget::OBJECT, &["watts", "scope", "components"]),
            (
                &control::OBJECT,
                &[
                    "algorithm",
                    "table",
                    "releasePercent",
                    "targetPercent",
                    "engagePercent",
                    "standing",
                    "controllerName",
                ],
            ),
        ] {
            for name in names {
                assert!(object.field(name).is_some(), "{name}");
            }
        }
        assert_eq!(defaults(&control::OBJECT)["holdSeconds"], json!(5));
    }
}
