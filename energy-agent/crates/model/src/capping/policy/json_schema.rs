//! The table of fields as a JSON Schema, for editors: what `check` refuses for its shape, this refuses too. What fields have
//! to do with each other is left to `check`.

use serde_json::{Map, Value, json};

use super::schema::fields::document::OBJECT as DOCUMENT;
use super::schema::{Field, FieldKind, Object, Presence};
use super::syntax::Syntax;
use super::yaml::{YamlNode, YamlValue as Yaml};

/// The schema of a document, draft 2020-12.
#[must_use]
pub fn document() -> Value {
    let mut schema = object(&DOCUMENT);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("energy-agent power policies");
    schema["description"] = json!("Pods that are kept within a power budget, and how.");
    schema
}

fn object(object: &'static Object) -> Value {
    let properties: Map<_, _> = object.fields.iter().map(|field| (field.name.to_owned(), property(field))).collect();
    let required: Vec<_> =
        object.fields.iter().filter(|field| field.presence == Presence::Required).map(|field| field.name).collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if !object.one_of.is_empty() {
        schema["oneOf"] = object.one_of.iter().map(|name| json!({"required": [name]})).collect();
    }
    if !object.needs.is_empty() {
        let needs: Map<_, _> = object.needs.iter().map(|(name, other)| ((*name).to_owned(), json!([other]))).collect();
        schema["dependentRequired"] = Value::Object(needs);
    }
    schema
}

fn property(field: &Field) -> Value {
    let mut schema = kind(&field.kind);
    schema["description"] = json!(field.doc);
    if let Some(default) = field.default() {
        schema["default"] = json_of(&default);
    }
    schema
}

pub(crate) fn json_of(node: &YamlNode<'_>) -> Value {
    match &node.value {
        Yaml::Null => Value::Null,
        Yaml::Bool(truth) => json!(truth),
        // Decimal, as JSON writes it.
        Yaml::Number(text) => text.parse().unwrap_or_else(|_| json!(text)),
        Yaml::Text { text, .. } => json!(text),
        Yaml::List(items) => items.iter().map(json_of).collect(),
        Yaml::Map(entries) => entries.iter().map(|entry| (entry.key.to_string(), json_of(&entry.node))).collect(),
    }
}

fn kind(kind: &FieldKind) -> Value {
    match kind {
        FieldKind::Text(syntax) => text(*syntax),
        FieldKind::Switch => json!({"type": "boolean"}),
        FieldKind::Whole { min, max, .. } if min == max => json!({"const": min}),
        FieldKind::Whole { min, max, .. } => json!({"type": "integer", "minimum": min, "maximum": max}),
        FieldKind::Number { min, max, .. } => json!({"type": "number", "minimum": min, "maximum": max}),
        FieldKind::Choice(words) => json!({"enum": words}),
        FieldKind::List { of, min, max } => {
            let mut schema = json!({"type": "array", "items": self::kind(of), "maxItems": max});
            if *min > 0 {
                schema["minItems"] = json!(min);
            }
            if of.object().is_none() {
                schema["uniqueItems"] = json!(true);
            }
            schema
        }
        FieldKind::Labels => json!({
            "type": "object",
            "minProperties": 1,
            "propertyNames": text(Syntax::LabelKey),
            "additionalProperties": text(Syntax::LabelValue),
        }),
        FieldKind::Object(fields) => object(fields),
    }
}

fn text(syntax: Syntax) -> Value {
    json!({"type": "string", "pattern": syntax.pattern(), "maxLength": syntax.max_chars()})
}
