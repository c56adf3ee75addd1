//! How a field of a policy document is declared: once, in [`fields`]. From there its value is read and checked, explained to
//! people (`policy explain`) and described to editors (JSON schema).
//!
//! A field is a [`TypedField`]: its name, what a value may be, what stands for it where it is not given, and what it means. The
//! type of the key is what the reader gets, so that a policy is read by the keys themselves and no name, range or default
//! stands anywhere else. A default is written as people would write it, and a key that is not given is read as if its
//! default had been written.

pub mod fields;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use super::syntax::Syntax;
use super::unit::Unit;
use super::yaml::{NOTHING, YamlNode, YamlValue};

/// A key and its value.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    /// What it means, for people.
    pub doc: &'static str,
    pub kind: FieldKind,
    pub presence: Presence,
    /// What people write when they mean it, beside what resembles `name`.
    pub alike: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Required,
    /// The value that stands for it, as it would be written.
    Default(&'static str),
    /// What it means that there is none.
    Optional(&'static str),
}

/// What a value may be.
#[derive(Debug)]
pub enum FieldKind {
    Text(Syntax),
    Switch,
    Whole {
        unit: Unit,
        min: i32,
        max: i32,
    },
    Number {
        unit: Unit,
        min: f64,
        max: f64,
    },
    Choice(&'static [&'static str]),
    List {
        of: &'static FieldKind,
        min: usize,
        max: usize,
    },
    /// A map of label keys to label values.
    Labels,
    Object(&'static Object),
}

#[derive(Debug)]
pub struct Object {
    pub fields: &'static [&'static Field],
    /// Of these there has to be exactly one.
    pub one_of: &'static [&'static str],
    /// The first only with the second.
    pub needs: &'static [(&'static str, &'static str)],
}

/// A field whose value is a `T`.
#[derive(Debug)]
pub(crate) struct TypedField<T> {
    pub field: Field,
    read: PhantomData<fn() -> T>,
}

/// The value of a key that is a map, or a list of maps: its keys are read in turn.
#[derive(Debug)]
pub(crate) struct Map;

/// What a value of a checked document can be read as.
pub(crate) trait FromYaml: Sized {
    /// `None`: the document was not checked.
    fn read(node: &YamlNode<'_>, kind: &FieldKind) -> Option<Self>;
}

/// Declares the keys of an object: a module with a [`TypedField`] each, and the [`Object`] that has them in this order.
macro_rules! object {
    (
        $(#[$attribute:meta])*
        $module:ident
        $(one_of: [$($one_of:ident),*], needs: [$($needs:ident with $other:ident),*],)?
        { $($key:ident: $type:ty = $field:expr;)* }
    ) => {
        $(#[$attribute])*
        pub mod $module {
            use super::*;

            $(pub(crate) static $key: TypedField<$type> = TypedField::new($field);)*

            pub static OBJECT: Object = Object {
                fields: &[$(&$key.field),*],
                one_of: &[$($($one_of.name()),*)?],
                needs: &[$($(($needs.name(), $other.name())),*)?],
            };
        }
    };
}
use object;

/// Declares an enum whose values are words of a document.
macro_rules! words {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident { $($(#[$variant_attribute:meta])* $variant:ident = $word:literal),* $(,)? }
    ) => {
        $(#[$attribute])*
        $visibility enum $name { $($(#[$variant_attribute])* $variant),* }

        impl $name {
            /// As a document names them.
            pub(crate) const WORDS: &'static [&'static str] = &[$($word),*];
        }

        impl $crate::capping::policy::schema::FromYaml for $name {
            fn read(
                node: &$crate::capping::policy::yaml::YamlNode<'_>,
                _: &$crate::capping::policy::schema::FieldKind,
            ) -> Option<Self> {
                match node.text()? {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}
pub(super) use words;

impl Object {
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().copied().find(|field| field.name == name)
    }
}

impl FieldKind {
    /// The object that it is, or is a list of.
    #[must_use]
    pub const fn object(&self) -> Option<&'static Object> {
        match self {
            Self::Object(object) | Self::List { of: Self::Object(object), .. } => Some(object),
            _ => None,
        }
    }
}

impl Field {
    const fn new(name: &'static str, kind: FieldKind, presence: Presence, doc: &'static str) -> Self {
        Self { name, doc, kind, presence, alike: &[] }
    }

    const fn alike(mut self, alike: &'static [&'static str]) -> Self {
        self.alike = alike;
        self
    }

    /// The default, as if it had been written.
    #[must_use]
    pub fn default(&self) -> Option<YamlNode<'static>> {
        let Presence::Default(text) = self.presence else { return None };
        let node = |value| YamlNode { line: 0, value };
        let word = |text: &'static str| node(YamlValue::Text { text: Cow::Borrowed(text), literal: false });
        Some(match self.kind {
            FieldKind::Switch => node(YamlValue::Bool(text == "true")),
            FieldKind::Whole { .. } | FieldKind::Number { .. } => node(YamlValue::Number(Cow::Borrowed(text))),
            FieldKind::Text(_) | FieldKind::Choice(_) => word(text),
            FieldKind::List { .. } => {
                let words = text.trim_matches(['[', ']']).split(", ").filter(|word| !word.is_empty());
                node(YamlValue::List(words.map(word).collect()))
            }
            FieldKind::Labels | FieldKind::Object(_) => node(YamlValue::Map(Vec::new())),
        })
    }
}

impl<T> TypedField<T> {
    const fn new(field: Field) -> Self {
        Self { field, read: PhantomData }
    }

    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.field.name
    }

    /// The value as it is given.
    #[must_use]
    pub fn given<'a, 'b>(&self, map: &'a YamlNode<'b>) -> Option<&'a YamlNode<'b>> {
        map.get(self.field.name)
    }
}

impl<T: FromYaml> TypedField<T> {
    /// The value, or the default. `None`: there is neither.
    #[must_use]
    pub fn of(&self, map: &YamlNode<'_>) -> Option<T> {
        match self.given(map) {
            Some(node) => T::read(node, &self.field.kind),
            None => T::read(&self.field.default()?, &self.field.kind),
        }
    }
}

impl TypedField<Map> {
    /// The map, or an empty one, whose keys are all read as their defaults.
    #[must_use]
    pub fn of<'a>(&self, map: &'a YamlNode<'a>) -> &'a YamlNode<'a> {
        self.given(map).unwrap_or(&NOTHING)
    }
}

impl TypedField<Vec<Map>> {
    /// The items of the list.
    #[must_use]
    pub fn of<'a, 'b>(&self, map: &'a YamlNode<'b>) -> &'a [YamlNode<'b>] {
        self.given(map).map(YamlNode::items).unwrap_or_default()
    }
}

impl FromYaml for bool {
    fn read(node: &YamlNode<'_>, _: &FieldKind) -> Option<Self> {
        node.truth()
    }
}

impl FromYaml for i32 {
    fn read(node: &YamlNode<'_>, _: &FieldKind) -> Option<Self> {
        Self::try_from(node.whole()?).ok()
    }
}

impl FromYaml for u32 {
    fn read(node: &YamlNode<'_>, _: &FieldKind) -> Option<Self> {
        Self::try_from(node.whole()?).ok()
    }
}

impl FromYaml for f64 {
    fn read(node: &YamlNode<'_>, _: &FieldKind) -> Option<Self> {
        node.number()
    }
}

impl FromYaml for Duration {
    fn read(node: &YamlNode<'_>, kind: &FieldKind) -> Option<Self> {
        let seconds = match kind {
            FieldKind::Number { unit: Unit::Seconds, .. } => node.number()?,
            FieldKind::Number { unit: Unit::Hours, .. } => node.number()? * 3600.0,
            _ => return None,
        };
        Self::try_from_secs_f64(seconds).ok()
    }
}

impl FromYaml for String {
    fn read(node: &YamlNode<'_>, _: &FieldKind) -> Option<Self> {
        node.text().map(str::to_owned)
    }
}

impl<T: FromYaml> FromYaml for Vec<T> {
    fn read(node: &YamlNode<'_>, kind: &FieldKind) -> Option<Self> {
        let FieldKind::List { of, .. } = kind else { return None };
        node.items().iter().map(|item| T::read(item, of)).collect()
    }
}

impl FromYaml for BTreeMap<String, String> {
    fn read(node: &YamlNode<'_>, _: &FieldKind) -> Option<Self> {
        let label = |entry: &super::yaml::MapEntry<'_>| Some((entry.key.to_string(), entry.node.text()?.to_owned()));
        node.entries().iter().map(label).collect()
    }
}
