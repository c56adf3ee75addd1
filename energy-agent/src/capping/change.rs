//! A change of state of a policy or a cap: one line in the log each.

use super::policy::PolicyName;
use super::status::PodId;

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Capping,
    Released,
    Unreachable,
    Invalid,
    Conflict,
    ForeignChange,
    Restored,
    RestoreFailed,
    TelemetryLost,
}

/// Told once, when it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub kind: ChangeKind,
    pub policy: PolicyName,
    /// `None`: the node, or the policy itself.
    pub pod: Option<PodId>,
    /// For people, with the remedy where there is one.
    pub message: String,
}

impl ChangeKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Capping => "Capping",
            Self::Released => "Released",
            Self::Unreachable => "Unreachable",
            Self::Invalid => "Invalid",
            Self::Conflict => "Conflict",
            Self::ForeignChange => "ForeignChange",
            Self::Restored => "Restored",
            Self::RestoreFailed => "RestoreFailed",
            Self::TelemetryLost => "TelemetryLost",
        }
    }

    /// Somebody has to see to it.
    #[must_use]
    pub const fn is_warning(self) -> bool {
        !matches!(self, Self::Capping | Self::Released | Self::Restored)
    }
}

/// Writes the line.
pub fn log_change(change: &Change) {
    let Change { kind, policy, pod, message } = change;
    let (change, pod) = (kind.as_str(), pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name)));
    if kind.is_warning() {
        tracing::warn!(change, %policy, pod, "{message}");
    } else {
        tracing::info!(change, %policy, pod, "{message}");
    }
}
