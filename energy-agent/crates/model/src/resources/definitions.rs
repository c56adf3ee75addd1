//! The CustomResourceDefinitions of all kinds. That of PowerCappingPolicy follows from the table of policy fields.

mod budget;
pub(crate) mod frequencies;
mod level;
mod policy;
mod schema;

use serde_json::{Value, json};

use self::schema::Schema;
use super::{GROUP, VERSION};

/// A kind, as far as definitions differ.
struct Definition {
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    /// What people type.
    short: &'static [&'static str],
    /// `kubectl get CATEGORY` shows it.
    category: &'static str,
    is_namespaced: bool,
    doc: &'static str,
    columns: Vec<Value>,
    spec: Schema,
    needs_spec: bool,
    status: Option<Schema>,
}

/// The definitions, in the order in which people meet the kinds.
#[must_use]
pub fn all() -> Vec<Value> {
    [policy::definition(), budget::definition(), level::definition(), frequencies::definition()]
        .map(Definition::object)
        .into()
}

impl Definition {
    fn object(self) -> Value {
        let Self { kind, plural, singular, short, category, is_namespaced, doc, columns, spec, needs_spec, status } =
            self;
        let mut names = json!({
            "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular,
            "categories": [category],
        });
        if !short.is_empty() {
            names["shortNames"] = json!(short);
        }
        let has_status = status.is_some();
        let fields = [Some(("spec", spec)), status.map(|status| ("status", status))];
        let required: &[&str] = if needs_spec { &["spec"] } else { &[] };
        let whole = schema::object(fields.into_iter().flatten().collect(), required).doc(doc);
        let mut version = json!({
            "name": VERSION, "served": true, "storage": true,
            "additionalPrinterColumns": columns,
            "schema": {"openAPIV3Schema": whole.value()},
        });
        if has_status {
            version["subresources"] = json!({"status": {}});
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{GROUP}")},
            "spec": {
                "group": GROUP, "scope": if is_namespaced { "Namespaced" } else { "Cluster" },
                "names": names, "versions": [version],
            },
        })
    }
}

/// A column of `kubectl get`; `doc` may be empty.
fn column(name: &str, kind: &str, path: &str, doc: &str) -> Value {
    let mut column = json!({"name": name, "type": kind, "jsonPath": path});
    if !doc.is_empty() {
        column["description"] = json!(doc);
    }
    column
}

/// The status of a condition as a column.
fn condition(name: &str) -> Value {
    column(name, "string", &format!(".status.conditions[?(@.type==\"{name}\")].status"), "")
}

/// Only with `-o wide`.
fn wide(mut column: Value) -> Value {
    column["priority"] = json!(1);
    column
}

fn age() -> Value {
    column("Age", "date", ".metadata.creationTimestamp", "")
}
