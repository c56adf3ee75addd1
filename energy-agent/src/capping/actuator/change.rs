//! What happened to a knob that people should hear of, once.

use tracing::{info, warn};

use super::super::knob::Knob;
use super::super::observation::KnobState;
use super::super::policy::PolicyName;

/// Something that changed; not told again while it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub knob: Knob,
    pub policy: Option<PolicyName>,
    pub kind: ChangeKind,
    /// For people: values with their units, or the error with its remedy.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Somebody else wrote it; it is left to them.
    Foreign,
    /// The limit of a pod was changed: the new one is what it was before.
    Resized,
    /// Somebody else has locked a GPU's clocks; they are left alone while that shows.
    Locked,
    /// It had lost what was written, which is written again.
    Reverted,
    /// It is as it was before the first write.
    Restored,
    /// It could not be given back so far; that is tried again and again.
    RestoreFailed,
    /// A limit could not be written, or has no effect; tried again later.
    Refused(KnobState),
    /// A limit was written after it could not be.
    Recovered,
}

impl Change {
    /// Its line in the log.
    pub fn log(&self) {
        let Self { knob, policy, kind, detail } = self;
        let policy = policy.as_ref().map(ToString::to_string).unwrap_or_default();
        match kind {
            ChangeKind::Foreign => {
                warn!(%knob, policy, "somebody else writes it: {detail}");
            }
            ChangeKind::Locked => {
                warn!(%knob, policy, "its clocks are left alone while this shows: {detail}");
            }
            ChangeKind::Resized => {
                info!(%knob, policy, "the pod was resized, its new limit is what is given back: {detail}")
            }
            ChangeKind::Reverted => info!(%knob, policy, "set again: {detail}"),
            ChangeKind::Restored => info!(%knob, policy, "given back: {detail}"),
            ChangeKind::RestoreFailed => {
                warn!(%knob, policy, error = detail, "cannot be given back, it stays in the journal and is tried again");
            }
            ChangeKind::Refused(state) => {
                warn!(%knob, policy, reason = state.as_str(), error = detail, "cannot be limited, it is tried again later");
            }
            ChangeKind::Recovered => info!(%knob, policy, "can be limited again: {detail}"),
        }
    }
}
