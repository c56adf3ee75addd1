//! YAML text (and JSON, which is YAML) into a tree that knows its lines. What could grow without bounds is limited: bytes,
//! depth, and values after aliases are written out.
//!
//! The parser is the one below serde-saphyr, which reads the web configuration. Policies are not read through serde: it ends
//! at the first error, and a policy is refused with all of its problems, each with its line.

use std::borrow::Cow;
use std::collections::BTreeMap;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span};

/// The API server takes no larger ConfigMap.
pub const MAX_BYTES: usize = 1 << 20;
/// A policy needs 7 levels.
pub(crate) const MAX_DEPTH: usize = 32;
/// A document of [`MAX_BYTES`] with the smallest policies has about 120,000.
pub(crate) const MAX_VALUES: usize = 250_000;

/// A value and the line it begins on.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlNode<'a> {
    pub line: usize,
    pub value: YamlValue<'a>,
}

/// As the core schema of YAML 1.2 has it: `yes` and `Off` are texts. <https://yaml.org/spec/1.2.2/#103-core-schema>
#[derive(Clone, Debug, PartialEq)]
pub enum YamlValue<'a> {
    Null,
    Bool(bool),
    /// Decimal, `.inf` or `.nan`, as written.
    Number(Cow<'a, str>),
    Text {
        text: Cow<'a, str>,
        /// A block scalar that is kept line by line (`|`); [`YamlNode::line`] is that of its first line, not of the `|`.
        literal: bool,
    },
    List(Vec<YamlNode<'a>>),
    Map(Vec<MapEntry<'a>>),
}

/// A key of a map, in the order of the text; a key may come twice.
#[derive(Clone, Debug, PartialEq)]
pub struct MapEntry<'a> {
    pub key: Cow<'a, str>,
    pub line: usize,
    pub node: YamlNode<'a>,
}

/// What stands for a map that is not there: it has no keys.
pub(crate) static NOTHING: YamlNode<'static> = YamlNode { line: 0, value: YamlValue::Null };

impl<'a> YamlNode<'a> {
    /// The value of a key; of the first, if there are several.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&YamlNode<'a>> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// Empty for what is no map.
    #[must_use]
    pub fn entries(&self) -> &[MapEntry<'a>] {
        if let YamlValue::Map(entries) = &self.value { entries } else { &[] }
    }

    /// Empty for what is no list.
    #[must_use]
    pub fn items(&self) -> &[YamlNode<'a>] {
        if let YamlValue::List(items) = &self.value { items } else { &[] }
    }

    #[must_use]
    pub fn text(&self) -> Option<&str> {
        if let YamlValue::Text { text, .. } = &self.value { Some(text) } else { None }
    }

    #[must_use]
    pub fn truth(&self) -> Option<bool> {
        if let YamlValue::Bool(truth) = self.value { Some(truth) } else { None }
    }

    /// `None` for what is no number; infinities and NaN are numbers.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        let YamlValue::Number(text) = &self.value else { return None };
        match text.trim_start_matches(['-', '+']) {
            ".inf" | ".Inf" | ".INF" if text.starts_with('-') => Some(f64::NEG_INFINITY),
            ".inf" | ".Inf" | ".INF" => Some(f64::INFINITY),
            ".nan" | ".NaN" | ".NAN" => Some(f64::NAN),
            _ => text.parse().ok(),
        }
    }

    /// `None` for what is no whole number; `3.0` is one.
    #[must_use]
    pub fn whole(&self) -> Option<i64> {
        let number = self.number().filter(|number| number.is_finite() && number.fract().abs() < f64::EPSILON)?;
        format!("{number:.0}").parse().ok()
    }

    /// This value and all within.
    fn count(&self) -> usize {
        let within = self.items().iter().chain(self.entries().iter().map(|entry| &entry.node));
        1 + within.map(Self::count).sum::<usize>()
    }

    /// Levels of lists and maps.
    fn height(&self) -> usize {
        match &self.value {
            YamlValue::List(items) => 1 + items.iter().map(Self::height).max().unwrap_or(0),
            YamlValue::Map(entries) => 1 + entries.iter().map(|entry| entry.node.height()).max().unwrap_or(0),
            _ => 0,
        }
    }
}

/// The documents of a text that are not empty; lines are counted from `first_line`.
///
/// # Errors
/// One line with what is wrong and where: no YAML, a limit, a tag.
pub fn documents(text: &str, first_line: usize) -> Result<Vec<YamlNode<'_>>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes are more than the limit of {MAX_BYTES} bytes for a document", text.len()));
    }
    let mut options = granit_parser::Options::default();
    // One more than is allowed, so that the message is ours.
    options.flow_nesting_limit = MAX_DEPTH + 1;
    options.block_nesting_limit = MAX_DEPTH + 1;
    options.set_emit_comments(false);
    let mut builder = Builder { first_line, ..Builder::default() };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| builder.refused(&error, text))?;
        builder.take(event, span)?;
    }
    Ok(builder.documents)
}

/// A list or map that has not ended yet.
struct Open<'a> {
    node: YamlNode<'a>,
    anchor: usize,
    key: Option<(Cow<'a, str>, usize)>,
}

#[derive(Default)]
struct Builder<'a> {
    first_line: usize,
    documents: Vec<YamlNode<'a>>,
    open: Vec<Open<'a>>,
    anchors: BTreeMap<usize, YamlNode<'a>>,
    values: usize,
}

impl<'a> Builder<'a> {
    fn refused(&self, error: &ScanError, text: &str) -> String {
        let before = error.marker().line().saturating_sub(1);
        let line = self.first_line + before;
        match error.kind() {
            ErrorKind::RecursionLimitExceeded => too_deep(line),
            ErrorKind::TabNotAllowed
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation
            | ErrorKind::TabInPlainScalar => {
                let tab = self.first_line + indented_by_tab(text, before).unwrap_or(before);
                format!("a tab in the indentation: YAML allows only spaces (line {tab})")
            }
            _ => not_yaml(&error.info(), line),
        }
    }

    fn take(&mut self, event: Event<'a>, span: Span) -> Result<(), String> {
        let line = self.first_line + span.start.line().saturating_sub(1);
        match event {
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, _, Some(_))
            | Event::MappingStart(_, _, Some(_)) => {
                Err(format!("tags (`!name`) are not supported; write the plain value (line {line})"))
            }
            Event::Scalar(text, style, anchor, None) => self.add(YamlNode { line, value: scalar(text, style) }, anchor),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err(format!("an alias inside its own anchor (line {line})"));
                };
                if self.open.len() + node.height() > MAX_DEPTH {
                    return Err(too_deep(line));
                }
                // Before the copy is made: nine aliases of nine aliases, nine times, would be 400 million values.
                count(&mut self.values, node.count(), line)?;
                let node = node.clone();
                self.add(node, 0)
            }
            Event::SequenceStart(_, anchor, None) => self.start(line, YamlValue::List(Vec::new()), anchor),
            Event::MappingStart(_, anchor, None) => self.start(line, YamlValue::Map(Vec::new()), anchor),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open { node, anchor, .. }) => self.add(node, anchor),
                None => Ok(()),
            },
            Event::DocumentEnd => {
                self.anchors.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn start(&mut self, line: usize, value: YamlValue<'a>, anchor: usize) -> Result<(), String> {
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(line));
        }
        self.open.push(Open { node: YamlNode { line, value }, anchor, key: None });
        Ok(())
    }

    /// Puts a whole value where it belongs.
    fn add(&mut self, node: YamlNode<'a>, anchor: usize) -> Result<(), String> {
        let line = node.line;
        count(&mut self.values, 1, line)?;
        if anchor > 0 {
            count(&mut self.values, node.count(), line)?;
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            if node.value != YamlValue::Null {
                self.documents.push(node);
            }
            return Ok(());
        };
        match (&mut open.node.value, open.key.take()) {
            (YamlValue::Map(entries), Some((key, line))) => entries.push(MapEntry { key, line, node }),
            (YamlValue::List(items), _) => items.push(node),
            _ => match node.value {
                YamlValue::Text { text, .. } | YamlValue::Number(text) => open.key = Some((text, line)),
                YamlValue::Bool(key) => open.key = Some((key.to_string().into(), line)),
                YamlValue::Null => open.key = Some(("null".into(), line)),
                YamlValue::List(_) | YamlValue::Map(_) => return Err(format!("a key that is not text (line {line})")),
            },
        }
        Ok(())
    }
}

fn count(values: &mut usize, more: usize, line: usize) -> Result<(), String> {
    *values += more;
    if *values <= MAX_VALUES {
        return Ok(());
    }
    Err(format!("more than {MAX_VALUES} values, including those of aliases (line {line})"))
}

/// Of the line after the first `before` ones and the next, the one that a tab indents; counted from 0.
fn indented_by_tab(text: &str, before: usize) -> Option<usize> {
    let mut lines = text.lines().enumerate().skip(before).take(2);
    let by_tab = |line: &str| line.find(|letter: char| letter != ' ').is_some_and(|at| line[at..].starts_with('\t'));
    lines.find(|(_, line)| by_tab(line)).map(|(at, _)| at)
}

fn too_deep(line: usize) -> String {
    format!("nested deeper than {MAX_DEPTH} levels (line {line})")
}

fn not_yaml(info: &str, line: usize) -> String {
    format!("not valid YAML: {info} (line {line})")
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle) -> YamlValue<'_> {
    if style != ScalarStyle::Plain {
        return YamlValue::Text { text, literal: style == ScalarStyle::Literal };
    }
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => YamlValue::Null,
        "true" | "True" | "TRUE" => YamlValue::Bool(true),
        "false" | "False" | "FALSE" => YamlValue::Bool(false),
        _ if is_number(&text) => YamlValue::Number(text),
        _ => YamlValue::Text { text, literal: false },
    }
}

fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    matches!(unsigned, ".inf" | ".Inf" | ".INF")
        || matches!(text, ".nan" | ".NaN" | ".NAN")
        || (unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
            && unsigned.chars().all(|c| matches!(c, '0'..='9' | '.' | 'e' | 'E' | '+' | '-'))
            && unsigned.parse::<f64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> YamlNode<'_> {
        documents(text, 1).unwrap().pop().unwrap()
    }

    #[test]
    fn scalars_are_what_yaml_1_2_says() {
        let text = "[~, null, true, False, 12, -0.5, 1e3, .5, 4., .inf, -.INF, .NaN, '12', \"true\", yes, Off, 1_000, 0x1F, 1.2.3, -x, inf, nan, +5]";
        let node = one(text);
        let kinds: Vec<_> = node
            .items()
            .iter()
            .map(|item| match &item.value {
                YamlValue::Null => "null",
                YamlValue::Bool(_) => "bool",
                YamlValue::Number(_) => "number",
                YamlValue::Text { .. } => "text",
                _ => "other",
            })
            .collect();
        let expected =
            ["null"; 2].into_iter().chain(["bool"; 2]).chain(["number"; 8]).chain(["text"; 10]).chain(["number"]);
        assert_eq!(kinds, expected.collect::<Vec<_>>());
        let numbers: Vec<_> =
            node.items().iter().filter_map(YamlNode::number).map(|number| number.to_string()).collect();
        assert_eq!(numbers, ["12", "-0.5", "1000", "0.5", "4", "inf", "-inf", "NaN", "5"]);
        let whole: Vec<_> = node.items().iter().filter_map(YamlNode::whole).collect();
        assert_eq!(whole, [12, 1000, 4, 5]);
    }

    #[test]
    fn keys_and_values_know_their_lines() {
        let node = one("# a\na:\n  b: 1\n\n  c:\n  - x\n  - |\n    y\n");
        let a = node.get("a").unwrap();
        assert_eq!((node.line, node.entries()[0].line, a.line), (2, 2, 3));
        assert_eq!((a.entries()[1].line, a.entries()[1].node.items()[0].line), (5, 6));
        let YamlValue::Text { text, literal: true } = &a.get("c").unwrap().items()[1].value else { panic!("{a:?}") };
        assert_eq!((&**text, a.get("c").unwrap().items()[1].line), ("y\n", 8));
        assert_eq!(
            documents("a: b\n---\nc: d", 10).unwrap().iter().map(|node| node.line).collect::<Vec<_>>(),
            [10, 12]
        );
    }

    #[test]
    fn an_alias_stands_for_what_it_names() {
        let node = one("a: &x [1, {b: 2}]\nc: *x\nd: &y e\n*y : f");
        assert_eq!(node.get("c").unwrap().items(), node.get("a").unwrap().items());
        assert_eq!(node.get("e").and_then(YamlNode::text), Some("f"));
    }

    #[test]
    fn fc_095_what_would_grow_without_bounds_is_refused_by_a_limit() {
        let nines = |name: &str| [name; 9].join(", ");
        let mut bomb = format!("a0: &a0 [{}]\n", nines("x"));
        for level in 1..10 {
            bomb += &format!("a{level}: &a{level} [{}]\n", nines(&format!("*a{}", level - 1)));
        }
        let deep_alias: String = (0..20).map(|level| format!("a{level}: &a{level} [[*a{}]]\n", level - 1)).collect();
        for (text, problem) in [
            (bomb, "more than 250000 values, including those of aliases (line "),
            (format!("a: {}1{}", "[".repeat(5000), "]".repeat(5000)), "nested deeper than 32 levels (line 1)"),
            (format!("{}1", "- ".repeat(5000)), "nested deeper than 32 levels (line "),
            (
                (0..1000).map(|level| format!("{}a:\n", " ".repeat(level))).collect(),
                "nested deeper than 32 levels (line ",
            ),
            (deep_alias.replace("*a-1", "x"), "nested deeper than 32 levels (line 16)"),
            (format!("[{}]", "a,".repeat(250_000)), "more than 250000 values"),
            (" ".repeat(1_048_577), "1048577 bytes are more than the limit of 1048576"),
            ("a: &a [*a]".to_owned(), "an alias inside its own anchor (line 1)"),
        ] {
            let refused = documents(&text, 1).unwrap_err();
            assert!(refused.starts_with(problem), "{}: {refused}", &text[..40]);
        }
        let deep = format!("{}1{}", "[".repeat(32), "]".repeat(32));
        assert_eq!(documents(&deep, 1).unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_yaml_or_not_read_is_named_with_its_line() {
        for (text, problem) in [
            ("a: b\nc: d: e", "not valid YAML: "),
            ("a: b\nc: *nobody", "not valid YAML: "),
            ("- a: b\n\tc: d", "a tab in the indentation: YAML allows only spaces"),
            ("a:\n\tb: c", "a tab in the indentation: YAML allows only spaces"),
            ("a: 1\nb: !!str 2", "tags (`!name`) are not supported"),
            ("a: 1\n? [b]\n: c", "a key that is not text (line 2)"),
        ] {
            let refused = documents(text, 1).unwrap_err();
            assert!(refused.starts_with(problem) && refused.ends_with("(line 2)"), "{text}: {refused}");
        }
    }
}
