//! Holds a value against a JSON Schema: the keywords of draft 2020-12 that the schema of policies uses, by their definitions
//! in <https://json-schema.org/draft/2020-12/json-schema-validation>.

use regex::Regex;
use serde_json::Value;

/// What is wrong with the value, if something is.
///
/// # Panics
/// At a keyword that is not known here: nothing is passed over.
pub fn problem(schema: &Value, value: &Value) -> Option<String> {
    schema.as_object().unwrap().iter().find_map(|(keyword, rule)| {
        let holds = match &**keyword {
            "$schema" | "title" | "description" | "default" => true,
            "type" => has_type(value, rule.as_str().unwrap()),
            "const" => value == rule,
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
            "pattern" => value.as_str().is_none_or(|text| Regex::new(rule.as_str().unwrap()).unwrap().is_match(text)),
            "maxLength" => value.as_str().is_none_or(|text| text.chars().count() <= size(rule)),
            "minItems" => value.as_array().is_none_or(|items| items.len() >= size(rule)),
            "maxItems" => value.as_array().is_none_or(|items| items.len() <= size(rule)),
            "uniqueItems" => value
                .as_array()
                .is_none_or(|items| items.iter().enumerate().all(|(index, item)| !items[..index].contains(item))),
            "minProperties" => value.as_object().is_none_or(|map| map.len() >= size(rule)),
            "required" => value.as_object().is_none_or(|map| names(rule).all(|name| map.contains_key(name))),
            "dependentRequired" => value.as_object().is_none_or(|map| {
                let needs = rule.as_object().unwrap();
                needs
                    .iter()
                    .all(|(name, others)| !map.contains_key(name) || names(others).all(|other| map.contains_key(other)))
            }),
            "oneOf" => rule.as_array().unwrap().iter().filter(|one| problem(one, value).is_none()).count() == 1,
            "items" => return value.as_array()?.iter().find_map(|item| problem(rule, item)),
            "properties" => {
                let map = value.as_object()?;
                return rule.as_object().unwrap().iter().find_map(|(name, rule)| problem(rule, map.get(name)?));
            }
            "additionalProperties" => {
                let known = schema["properties"].as_object();
                let mut others =
                    value.as_object()?.iter().filter(|(name, _)| known.is_none_or(|known| !known.contains_key(*name)));
                return others.find_map(|(name, value)| match rule {
                    Value::Bool(allowed) => (!allowed).then(|| format!("additional {name}")),
                    rule => problem(rule, value),
                });
            }
            "propertyNames" => {
                return value.as_object()?.keys().find_map(|name| problem(rule, &Value::String(name.clone())));
            }
            _ => panic!("the keyword {keyword} is not known here"),
        };
        (!holds).then(|| format!("{keyword} {rule} does not hold for {value}"))
    })
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => panic!("the type {name} is not known here"),
    }
}

fn size(rule: &Value) -> usize {
    rule.as_u64().unwrap().try_into().unwrap()
}

fn names(rule: &Value) -> impl Iterator<Item = &str> {
    rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap())
}
