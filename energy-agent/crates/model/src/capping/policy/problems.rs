//! What is wrong with one policy, each with its path and line.

use std::fmt::{Display, Write as _};

pub use crate::printable::cut;

/// Messages of one policy at most; the rest is only counted.
const MOST: usize = 8;

/// Collects messages while the tree is walked.
#[derive(Debug, Default)]
pub struct Problems {
    /// Of the value that is looked at, as in `policies[0].budget`.
    path: String,
    found: Vec<String>,
    more: usize,
}

impl Problems {
    #[must_use]
    pub fn at(path: String) -> Self {
        Self { path, ..Self::default() }
    }

    /// Looks at a key of the value that is looked at.
    pub fn key<T>(&mut self, key: &str, look: impl FnOnce(&mut Self) -> T) -> T {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.within(format_args!("{dot}{}", cut(key)), look)
    }

    /// Looks at an item of the value that is looked at.
    pub fn item<T>(&mut self, index: usize, look: impl FnOnce(&mut Self) -> T) -> T {
        self.within(format_args!("[{index}]"), look)
    }

    fn within<T>(&mut self, step: impl Display, look: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        // Writing to a String cannot fail.
        let _ = write!(self.path, "{step}");
        let outcome = look(self);
        self.path.truncate(length);
        outcome
    }

    pub fn add(&mut self, line: usize, message: impl Display) {
        if self.found.len() == MOST {
            self.more += 1;
            return;
        }
        let colon = if self.path.is_empty() { "" } else { ": " };
        // What is no text has no lines.
        let line = if line == 0 { String::new() } else { format!(" (line {line})") };
        self.found.push(format!("{}{colon}{message}{line}", self.path));
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    #[must_use]
    pub(crate) fn into_messages(mut self) -> Vec<String> {
        if self.more > 0 {
            self.found.push(format!("{}: and {} more", self.path, self.more));
        }
        self.found
    }
}
