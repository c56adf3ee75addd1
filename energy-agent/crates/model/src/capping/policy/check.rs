//! Whether a value is what the table of fields says.

use std::collections::BTreeMap;

use super::problems::{Problems, cut};
use super::schema::fields::document::OBJECT as DOCUMENT;
use super::schema::{Field, FieldKind, Object, Presence};
use super::syntax::Syntax;
use super::unit::{Unit, plain};
use super::yaml::{YamlNode, YamlValue};
use crate::nearest::nearest;

/// Whether `node` is of this kind, with all that is in it.
pub fn value(node: &YamlNode<'_>, kind: &FieldKind, problems: &mut Problems) {
    if node.value == YamlValue::Null {
        problems.add(node.line, "empty; give it a value, or remove the key");
        return;
    }
    match kind {
        FieldKind::Text(syntax) => text(node, *syntax, problems),
        FieldKind::Switch if matches!(node.value, YamlValue::Bool(_)) => {}
        FieldKind::Switch => problems.add(node.line, format_args!("{} is neither true nor false", show(node))),
        FieldKind::Whole { unit, min, max } => {
            let range = (f64::from(*min), f64::from(*max));
            if number(node, *unit, range, problems) && node.whole().is_none() {
                problems.add(node.line, format_args!("{} is not a whole number", show(node)));
            }
        }
        FieldKind::Number { unit, min, max } => {
            number(node, *unit, (*min, *max), problems);
        }
        FieldKind::Choice(words) => choice(node, words, problems),
        FieldKind::List { of, min, max } => list(node, of, (*min, *max), problems),
        FieldKind::Labels => labels(node, problems),
        FieldKind::Object(fields) => object(node, fields, problems),
    }
}

fn object(node: &YamlNode<'_>, object: &'static Object, problems: &mut Problems) {
    if !matches!(node.value, YamlValue::Map(_)) {
        let names: Vec<_> = object.fields.iter().map(|field| field.name).collect();
        problems
            .add(node.line, format_args!("{} where a map is needed, with keys of {}", show(node), names.join(", ")));
        return;
    }
    keys(node, object, problems);
    for entry in node.entries() {
        if let Some(field) = object.field(&entry.key) {
            problems.key(field.name, |problems| value(&entry.node, &field.kind, problems));
        }
    }
}

/// Whether a map has the keys it needs, once, and no others.
pub fn keys(node: &YamlNode<'_>, object: &'static Object, problems: &mut Problems) {
    twice(node, problems);
    // What an unknown key was probably meant to be is not reported as missing too.
    let mut meant = Vec::new();
    for entry in node.entries().iter().filter(|entry| object.field(&entry.key).is_none()) {
        let (message, name) = unknown(&entry.key, object);
        meant.extend(name);
        problems.key(&entry.key, |problems| problems.add(entry.line, message));
    }
    let absent = |name: &str| node.get(name).is_none() && !meant.contains(&name);
    for field in object.fields {
        if field.presence == Presence::Required && absent(field.name) {
            problems.key(field.name, |problems| problems.add(node.line, missing(field)));
        }
    }
    let given = object.one_of.iter().filter(|name| !absent(name)).count();
    if !object.one_of.is_empty() && given != 1 {
        let found = if given == 0 { "none of them is" } else { "there are several" };
        problems
            .add(node.line, format_args!("exactly one of {} is needed, and {found} given", object.one_of.join(", ")));
    }
    for (name, other) in object.needs {
        if let (Some(given), true) = (node.get(name), absent(other)) {
            problems.key(name, |problems| problems.add(given.line, format_args!("is only valid with {other}")));
        }
    }
}

/// Keys that come more than once.
fn twice(node: &YamlNode<'_>, problems: &mut Problems) {
    let mut lines = BTreeMap::new();
    for entry in node.entries() {
        if let Some(first) = lines.insert(&*entry.key, entry.line) {
            problems.key(&entry.key, |problems| {
                problems.add(entry.line, format_args!("given twice, first on line {first}; remove one"));
            });
        }
    }
}

fn missing(field: &Field) -> String {
    match field.kind {
        FieldKind::Whole { min, max, .. } if min == max => format!("missing; write `{}: {min}`", field.name),
        FieldKind::Choice(words) => format!("missing; one of {}", words.join(", ")),
        _ => format!("missing; it is: {}", field.doc.split(". ").next().unwrap_or(field.doc).trim_end_matches('.')),
    }
}

/// What to say of a key that this object does not have, and which of its own was probably meant.
fn unknown(key: &str, object: &'static Object) -> (String, Option<&'static str>) {
    if key == "<<" {
        return ("merge keys are not supported; write the values out".to_owned(), None);
    }
    // Longer ones resemble none, and the comparison takes time.
    let key: String = key.chars().take(64).collect();
    let near = || {
        let words = object.fields.iter().flat_map(|field| field.alike.iter().chain([&field.name]));
        let word = nearest(&key, words.copied())?;
        object.fields.iter().find(|field| field.name == word || field.alike.contains(&word)).map(|field| field.name)
    };
    let meant = begun(&key, object);
    if let (None, Some(place)) = (meant, elsewhere(&key, &DOCUMENT, "")) {
        return (format!("unknown key here; it belongs in `{place}`"), None);
    }
    match meant.or_else(near) {
        Some(name) => (format!("unknown key; did you mean `{name}`?"), Some(name)),
        None => {
            let names: Vec<_> = object.fields.iter().map(|field| field.name).collect();
            (format!("unknown key; valid are {}", names.join(", ")), None)
        }
    }
}

/// The key with the same letters, whatever their case and what is between them, or the only one that begins so.
fn begun(key: &str, object: &'static Object) -> Option<&'static str> {
    let letters = |text: &str| text.replace(['_', '-', '.'], "").to_lowercase();
    let key = letters(key);
    let names = || object.fields.iter().map(|field| field.name);
    names().find(|name| letters(name) == key).or_else(|| {
        let mut begun = names().filter(|name| key.len() >= 4 && letters(name).starts_with(&key));
        begun.next().filter(|_| begun.next().is_none())
    })
}

/// The object that has a field of this name, as `policies[].budget`.
fn elsewhere(name: &str, object: &'static Object, path: &str) -> Option<String> {
    if object.field(name).is_some() && !path.is_empty() {
        return Some(path.to_owned());
    }
    object.fields.iter().find_map(|field| {
        let dot = if path.is_empty() { "" } else { "." };
        let list = if matches!(field.kind, FieldKind::List { .. }) { "[]" } else { "" };
        elsewhere(name, field.kind.object()?, &format!("{path}{dot}{}{list}", field.name))
    })
}

fn text(node: &YamlNode<'_>, syntax: Syntax, problems: &mut Problems) {
    match &node.value {
        YamlValue::Text { text, .. } if syntax.holds(text) => {}
        YamlValue::Text { .. } => problems.add(node.line, format_args!("{} is not {}", show(node), syntax.describe())),
        YamlValue::Number(text) => {
            let text = cut(text);
            problems.add(node.line, format_args!("{text} is a number here; write \"{text}\""));
        }
        YamlValue::Bool(truth) => problems.add(node.line, format_args!("{truth} is not text here; write \"{truth}\"")),
        _ => problems.add(node.line, format_args!("{} where a text is needed", show(node))),
    }
}

/// Whether it is a number in the range.
fn number(node: &YamlNode<'_>, unit: Unit, (min, max): (f64, f64), problems: &mut Problems) -> bool {
    let Some(number) = node.number() else {
        let meant = node.text().and_then(|text| unit.number_in(text));
        let of = if unit == Unit::None { String::new() } else { format!(" (in {})", unit.sign()) };
        let hint = meant.map_or(String::new(), |number| format!("; write {}", plain(number)));
        problems.add(node.line, format_args!("{} where a plain number{of} is needed{hint}", show(node)));
        return false;
    };
    // Before any comparison: NaN is neither above nor below anything.
    if !number.is_finite() {
        problems.add(node.line, format_args!("{} is not a finite number", show(node)));
    } else if min.total_cmp(&max).is_eq() && (number - min).abs() > f64::EPSILON {
        problems.add(node.line, format_args!("{} is not known here; write {}", show(node), plain(min)));
    } else if number <= 0.0 && min > 0.0 {
        problems.add(node.line, format_args!("{} is not above 0", unit.show(number)));
    } else if number < min {
        let (number_shown, hint) = (unit.show(number), unit.hint(number, min, max));
        problems.add(node.line, format_args!("{number_shown} is less than the minimum, {}{hint}", unit.show(min)));
    } else if number > max {
        let (number_shown, hint) = (unit.show(number), unit.hint(number, min, max));
        problems.add(node.line, format_args!("{number_shown} is more than the maximum, {}{hint}", unit.show(max)));
    } else {
        return true;
    }
    false
}

fn choice(node: &YamlNode<'_>, words: &'static [&'static str], problems: &mut Problems) {
    let Some(text) = node.text() else {
        // What other YAML readers, those of the version 1.1, make of `Off`.
        let hint = if node.value == YamlValue::Bool(false) && words.contains(&"Off") {
            "; if Off was meant, write \"Off\""
        } else {
            ""
        };
        problems.add(node.line, format_args!("{} is not one of {}{hint}", show(node), words.join(", ")));
        return;
    };
    if words.contains(&text) {
        return;
    }
    let text: String = text.chars().take(64).collect();
    let same = words.iter().copied().find(|word| word.eq_ignore_ascii_case(&text));
    let hint = match same.or_else(|| nearest(&text, words.iter().copied())) {
        Some(word) => format!("; did you mean {word}?"),
        None => String::new(),
    };
    problems.add(node.line, format_args!("{} is not one of {}{hint}", show(node), words.join(", ")));
}

fn list(node: &YamlNode<'_>, of: &'static FieldKind, (min, max): (usize, usize), problems: &mut Problems) {
    let YamlValue::List(items) = &node.value else {
        let hint =
            if of.object().is_none() { format!("; write [{}]", show(node).trim_matches('"')) } else { String::new() };
        problems.add(node.line, format_args!("{} where a list is needed{hint}", show(node)));
        return;
    };
    if items.len() < min {
        problems.add(node.line, format_args!("{} are too few; at least {min}", items.len()));
    }
    if items.len() > max {
        problems.add(node.line, format_args!("{} are too many; at most {max}", items.len()));
        return;
    }
    for (index, item) in items.iter().enumerate() {
        problems.item(index, |problems| {
            value(item, of, problems);
            if of.object().is_none() && items[..index].iter().any(|earlier| earlier.value == item.value) {
                problems.add(item.line, format_args!("{} is in the list already", show(item)));
            }
        });
    }
}

fn labels(node: &YamlNode<'_>, problems: &mut Problems) {
    if !matches!(node.value, YamlValue::Map(_)) {
        problems.add(node.line, format_args!("{} where a map of labels is needed, as {{app: train}}", show(node)));
        return;
    }
    if node.entries().is_empty() {
        problems.add(node.line, "empty; name a label, or remove the key");
    }
    twice(node, problems);
    for entry in node.entries() {
        problems.key(&entry.key, |problems| {
            if !Syntax::LabelKey.holds(&entry.key) {
                problems.add(entry.line, format_args!("the key is not {}", Syntax::LabelKey.describe()));
            }
            match &entry.node.value {
                YamlValue::Null => problems.add(entry.line, "empty; write \"\" for a label without a value"),
                _ => text(&entry.node, Syntax::LabelValue, problems),
            }
        });
    }
}

/// A value, for a message.
fn show(node: &YamlNode<'_>) -> String {
    match &node.value {
        YamlValue::Null => "nothing".to_owned(),
        YamlValue::Bool(truth) => truth.to_string(),
        YamlValue::Number(text) => cut(text),
        YamlValue::Text { text, .. } => format!("\"{}\"", cut(text)),
        YamlValue::List(_) => "a list".to_owned(),
        YamlValue::Map(_) => "a map".to_owned(),
    }
}
