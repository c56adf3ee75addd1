//! Why a command about a run has no figures, with its exit code.

use std::fmt;
use std::process::ExitCode;

use energy_model::printable::printable_lines;

/// The text names the object and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RunProblem {
    /// What was asked for makes no sense.
    Usage(String),
    /// There are no figures to be had.
    NotMeasured(String),
}

impl RunProblem {
    /// Prints it; the exit code.
    pub(crate) fn end(&self) -> ExitCode {
        eprintln!("error: {}", printable_lines(&self.to_string()));
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::NotMeasured(_) => 3,
        })
    }
}

impl fmt::Display for RunProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::NotMeasured(text) => f.write_str(text),
        }
    }
}

/// What a library or the system refuses is not measured.
impl From<anyhow::Error> for RunProblem {
    fn from(error: anyhow::Error) -> Self {
        Self::NotMeasured(format!("{error:#}"))
    }
}
