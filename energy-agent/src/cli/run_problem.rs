//! Why a command about a run has no figures, with its exit code.

use std::fmt;
use std::process::ExitCode;

use energy_model::printable::printable_lines;

use crate::signals::EndSignal;

/// The text names the object and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RunProblem {
    /// What was asked for makes no sense.
    Usage(String),
    /// There are no figures to be had.
    NotMeasured(String),
    /// Somebody asked for the end.
    Ended(EndSignal),
}

impl RunProblem {
    /// Prints it; the exit code.
    pub(crate) fn end(&self) -> ExitCode {
        eprintln!("error: {}", printable_lines(&self.to_string()));
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::NotMeasured(_) => 3,
            Self::Ended(signal) => signal.exit_code(),
        })
    }
}

impl fmt::Display for RunProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::NotMeasured(text) => f.write_str(text),
            Self::Ended(signal) => write!(f, "ended by {signal}"),
        }
    }
}

impl From<EndSignal> for RunProblem {
    fn from(signal: EndSignal) -> Self {
        Self::Ended(signal)
    }
}

/// What a library or the system refuses is not measured.
impl From<anyhow::Error> for RunProblem {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<EndSignal>() {
            Ok(signal) => Self::Ended(signal),
            Err(error) => Self::NotMeasured(format!("{error:#}")),
        }
    }
}
