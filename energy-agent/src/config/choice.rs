//! Values of flags that are one of a few words.

use clap::ValueEnum;
use energy_model::capping::policy::Mode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Capping {
    Off,
    On,
}

/// Where the controller takes the power of nodes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NodeSource {
    Agents,
    Prometheus,
}

/// What objects of the API server may do at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Resources {
    Off,
    Recommend,
    Enforce,
}

impl Resources {
    /// The highest mode that an object has.
    #[must_use]
    pub(crate) const fn most(self) -> Mode {
        match self {
            Self::Off => Mode::Off,
            Self::Recommend => Mode::Recommend,
            Self::Enforce => Mode::Enforce,
        }
    }
}
