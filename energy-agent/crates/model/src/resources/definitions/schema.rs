//! Structural schemas, as the API server wants them in a definition.

use serde_json::{Map, Value, json};

/// Labels of a selector.
const MOST_LABELS: usize = 64;
/// Characters of a label's value.
const LABEL: usize = 63;

/// The schema of one value.
pub(super) struct Schema(Map<String, Value>);

impl Schema {
    fn of(value: Value) -> Self {
        let Value::Object(map) = value else { return Self(Map::new()) };
        Self(map)
    }

    pub(super) fn value(self) -> Value {
        Value::Object(self.0)
    }

    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    pub(super) fn doc(self, text: &str) -> Self {
        self.with("description", text)
    }

    pub(super) fn default(self, value: impl Into<Value>) -> Self {
        self.with("default", value)
    }

    /// A rule in CEL, and what is said to who breaks it.
    pub(super) fn rule(mut self, rule: &str, message: &str) -> Self {
        let rules = self.0.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        if let Value::Array(rules) = rules {
            rules.push(json!({"rule": rule, "message": message}));
        }
        self
    }
}

pub(super) fn object(fields: Vec<(&str, Schema)>, required: &[&str]) -> Schema {
    let properties: Map<String, Value> =
        fields.into_iter().map(|(name, schema)| (name.to_owned(), schema.value())).collect();
    let schema = Schema::of(json!({"type": "object", "properties": properties}));
    if required.is_empty() { schema } else { schema.with("required", required.to_vec()) }
}

pub(super) fn integer() -> Schema {
    Schema::of(json!({"type": "integer", "format": "int64"}))
}

pub(super) fn integer_in(min: i64, max: i64) -> Schema {
    integer().with("minimum", min).with("maximum", max)
}

/// Watts or percents. A type for integers would refuse a fraction in the API server's own words, which name no remedy.
pub(super) fn whole_in(min: impl Into<Value>, max: impl Into<Value>) -> Schema {
    number()
        .with("minimum", min)
        .with("maximum", max)
        .rule("self == double(int(self))", "write a whole number, such as 400; a fraction is not taken")
}

pub(super) fn percent(min: i64, max: i64, usual: i64) -> Schema {
    integer_in(min, max).default(usual)
}

pub(super) fn number() -> Schema {
    Schema::of(json!({"type": "number"}))
}

pub(super) fn switch() -> Schema {
    Schema::of(json!({"type": "boolean"}))
}

pub(super) fn text(most_chars: usize) -> Schema {
    Schema::of(json!({"type": "string", "maxLength": most_chars}))
}

pub(super) fn time() -> Schema {
    Schema::of(json!({"type": "string", "format": "date-time"}))
}

pub(super) fn choice(words: &[&str]) -> Schema {
    Schema::of(json!({"type": "string", "enum": words}))
}

pub(super) fn labels() -> Schema {
    Schema::of(json!({
        "type": "object", "minProperties": 1, "maxProperties": MOST_LABELS,
        "additionalProperties": {"type": "string", "maxLength": LABEL},
    }))
}

pub(super) fn list(items: Schema, min: usize, max: usize) -> Schema {
    let schema = Schema::of(json!({"type": "array", "maxItems": max, "items": items.value()}));
    if min > 0 { schema.with("minItems", min) } else { schema }
}

/// A list without two items that are the same.
pub(super) fn set(items: Schema, min: usize, max: usize) -> Schema {
    list(items, min, max).with("x-kubernetes-list-type", "set")
}

/// A list whose items differ by `key`: writers own items of it, not the list.
pub(super) fn map_list(items: Schema, key: &str, max: usize) -> Schema {
    list(items, 0, max).with("x-kubernetes-list-type", "map").with("x-kubernetes-list-map-keys", vec![key])
}

/// `status.conditions`.
pub(super) fn conditions() -> Schema {
    let fields = vec![
        ("type", text(316)),
        ("status", choice(&["True", "False", "Unknown"])),
        ("observedGeneration", integer()),
        ("lastTransitionTime", time()),
        ("reason", text(1024).with("minLength", 1)),
        ("message", text(32_768)),
    ];
    let item = object(fields, &["type", "status", "reason", "message", "lastTransitionTime"]);
    map_list(item, "type", 8)
}

/// `mode` of a budget or policy; what kubectl reads as false without quotes is told.
pub(super) fn mode() -> Schema {
    choice(&["Off", "Recommend", "Enforce"]).default("Recommend")
}
