//! The fields of a policy for people, as `kubectl explain` has those of Kubernetes.

use std::fmt::Write as _;

use energy_model::capping::policy::schema::fields::{document::OBJECT as DOCUMENT, policy::OBJECT as POLICY};
use energy_model::capping::policy::schema::{Field, FieldKind, Object, Presence};
use energy_model::capping::policy::syntax::Syntax;
use energy_model::capping::policy::unit::{Unit, plain};
use energy_model::nearest::nearest;

/// Columns of a line.
const WIDTH: usize = 100;

/// What a field is, and what is in it. `path` as in messages: `budget.watts`, `policies[0].budget.watts`, or empty for the
/// whole.
///
/// # Errors
/// One line, when there is no such field: what is there instead.
pub(super) fn explain(path: &str) -> Result<String, String> {
    let mut text = String::new();
    let steps: Vec<_> =
        path.split('.').map(|step| step.split('[').next().unwrap_or(step)).filter(|step| !step.is_empty()).collect();
    let Some((first, rest)) = steps.split_first() else {
        text += "A document of power policies (YAML or JSON). One field: energy-agent policy explain budget.watts\n\n";
        tree(&mut text, &DOCUMENT, 0);
        return Ok(text);
    };
    let (mut object, mut place) = match DOCUMENT.field(first) {
        Some(_) => (&DOCUMENT, String::new()),
        None => (&POLICY, "policies[]".to_owned()),
    };
    let mut field = step(object, first, &place)?;
    place = joined(&place, field);
    for name in rest {
        object = field.kind.object().ok_or_else(|| format!("{place} has no fields"))?;
        field = step(object, name, &place)?;
        place = joined(&place, field);
    }
    line(&mut text, 0, &place, field);
    paragraph(&mut text, 0, field.doc);
    if let Some(object) = field.kind.object() {
        text += "\n";
        tree(&mut text, object, 1);
    }
    Ok(text)
}

fn step(object: &'static Object, name: &str, place: &str) -> Result<&'static Field, String> {
    object.field(name).ok_or_else(|| {
        let names = object.fields.iter().map(|field| field.name);
        let of = if place.is_empty() { "a document" } else { place };
        let name: String = name.chars().take(64).collect();
        match nearest(&name, names.clone()) {
            Some(near) => format!("{of} has no field {name:?}; did you mean {near}?"),
            None => format!("{of} has no field {name:?}; it has {}", names.collect::<Vec<_>>().join(", ")),
        }
    })
}

fn joined(place: &str, field: &Field) -> String {
    let dot = if place.is_empty() { "" } else { "." };
    let list = if matches!(field.kind, FieldKind::List { of: FieldKind::Object(_), .. }) { "[]" } else { "" };
    format!("{place}{dot}{}{list}", field.name)
}

/// Every field of an object, and theirs.
fn tree(text: &mut String, object: &'static Object, depth: usize) {
    for field in object.fields {
        line(text, depth, field.name, field);
        paragraph(text, depth + 1, field.doc);
        if let Some(object) = field.kind.object() {
            tree(text, object, depth + 1);
        }
    }
}

/// Name, type and default.
fn line(text: &mut String, depth: usize, name: &str, field: &Field) {
    let presence = match field.presence {
        Presence::Required => "required".to_owned(),
        Presence::Default(default) => format!("default {default}"),
        Presence::Optional(absent) => format!("optional; default: {absent}"),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}{name} <{}>  {presence}", "  ".repeat(depth), kind(&field.kind));
}

fn kind(kind: &FieldKind) -> String {
    let range = |unit: Unit, min: f64, max: f64| {
        let sign = if unit == Unit::None { String::new() } else { format!(" {}", unit.sign()) };
        format!("{} to {}{sign}", plain(min), plain(max))
    };
    match kind {
        FieldKind::Text(Syntax::Name) => "name".to_owned(),
        FieldKind::Text(Syntax::Namespace) => "namespace".to_owned(),
        FieldKind::Text(Syntax::LabelKey) => "label key".to_owned(),
        FieldKind::Text(Syntax::LabelValue) => "label value".to_owned(),
        FieldKind::Switch => "true or false".to_owned(),
        FieldKind::Whole { min, max, .. } if min == max => format!("{min}"),
        FieldKind::Whole { unit, min, max } => {
            format!("whole number, {}", range(*unit, f64::from(*min), f64::from(*max)))
        }
        FieldKind::Number { unit, min, max } => format!("number, {}", range(*unit, *min, *max)),
        FieldKind::Choice(words) => words.join(" | "),
        FieldKind::List { of: FieldKind::Object(_), .. } => "list".to_owned(),
        FieldKind::List { of, .. } => format!("list of {}", self::kind(of)),
        FieldKind::Labels => "map of label keys to values".to_owned(),
        FieldKind::Object(_) => "object".to_owned(),
    }
}

fn paragraph(text: &mut String, depth: usize, doc: &str) {
    let indent = "  ".repeat(depth);
    let mut line = String::new();
    for word in doc.split_whitespace() {
        if !line.is_empty() && indent.len() + line.chars().count() + 1 + word.chars().count() > WIDTH {
            *text += &format!("{indent}{line}\n");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    *text += &format!("{indent}{line}\n");
}
