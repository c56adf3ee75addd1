//! What is wrong, and what to do about it: two texts that stay apart until somebody shows them.

use std::fmt;

/// Shown as `what; remedy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// What is wrong, with the object; or what works.
    pub what: String,
    /// Empty where nothing is to be done, or it is not known.
    pub remedy: String,
}

impl Advice {
    #[must_use]
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }

    /// With this remedy, if it has none.
    #[must_use]
    pub fn or_remedy(self, remedy: &str) -> Self {
        if self.remedy.is_empty() { Self { remedy: remedy.to_owned(), ..self } } else { self }
    }

    /// With one more thing to do.
    #[must_use]
    pub fn and_remedy(mut self, remedy: &str) -> Self {
        if !self.remedy.is_empty() {
            self.remedy += "; ";
        }
        self.remedy += remedy;
        self
    }

    /// The same, with the object that it is about.
    #[must_use]
    pub fn of(self, object: impl fmt::Display) -> Self {
        Self { what: format!("{object}: {}", self.what), ..self }
    }
}

impl From<String> for Advice {
    fn from(what: String) -> Self {
        Self::new(what, "")
    }
}

impl From<&str> for Advice {
    fn from(what: &str) -> Self {
        Self::new(what, "")
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, remedy } = self;
        f.write_str(what)?;
        if remedy.is_empty() { Ok(()) } else { write!(f, "; {remedy}") }
    }
}

impl std::error::Error for Advice {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_semicolon_of_the_first_part_begins_no_remedy() {
        let advice = Advice::new("2 of 3 zones readable; zone 1: denied", "run as root").of("rapl");
        assert_eq!(advice.to_string(), "rapl: 2 of 3 zones readable; zone 1: denied; run as root");
        assert_eq!(advice.remedy, "run as root");
        assert_eq!(Advice::from("no GPU; driver 570").to_string(), "no GPU; driver 570");
    }
}
