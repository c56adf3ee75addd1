//! Run files, read: one run or a list of them.

use serde_json::Value;

use super::{API_VERSION, Run};

/// Why a text is no run file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It has another `apiVersion`, or none.
    Version(String),
    /// It is no JSON, or a key has another type; without the file's content.
    Broken(String),
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(found) if found.is_empty() => {
                write!(f, "no run file: it has no apiVersion; expected {API_VERSION}")
            }
            Self::Version(found) => {
                write!(f, "apiVersion {found:?} is not supported, only {API_VERSION}; a newer energy-agent may read it")
            }
            Self::Broken(problem) => write!(f, "no run file: {problem}"),
        }
    }
}

impl std::error::Error for Unreadable {}

impl Run {
    /// Reads a run file: one run, or a list of them. Keys that are not known are ignored.
    ///
    /// # Errors
    /// When it is no run file of this version, or a list of nothing.
    pub fn parse_all(text: &[u8]) -> Result<Vec<Self>, Unreadable> {
        let at = |error: &serde_json::Error| format!("at line {}, column {}", error.line(), error.column());
        let broken = |error: &serde_json::Error, place: &str| Unreadable::Broken(format!("{} {place}", problem(error)));
        match serde_json::from_slice(text).map_err(|error| broken(&error, &at(&error)))? {
            Value::Array(runs) if runs.is_empty() => Err(Unreadable::Broken("an empty list of runs".to_owned())),
            Value::Array(runs) => {
                let read = |(number, run): (usize, Value)| {
                    check_version(&run)?;
                    serde_json::from_value(run).map_err(|error| broken(&error, &format!("in run {}", number + 1)))
                };
                runs.into_iter().enumerate().map(read).collect()
            }
            run => {
                check_version(&run)?;
                // Once more, for the place of what is wrong.
                let run = serde_json::from_slice(text).map_err(|error| broken(&error, &at(&error)))?;
                Ok(vec![run])
            }
        }
    }
}

fn check_version(run: &Value) -> Result<(), Unreadable> {
    match run.get("apiVersion").and_then(Value::as_str).unwrap_or_default() {
        API_VERSION => Ok(()),
        version => Err(Unreadable::Version(version.chars().take(64).collect())),
    }
}

/// What is wrong, without words of the file.
fn problem(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        serde_json::error::Category::Eof => "the JSON ends too early",
        serde_json::error::Category::Syntax => "invalid JSON",
        _ => "a key is missing or has a value of another type",
    }
}
