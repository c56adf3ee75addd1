//! What happened to a knob that people should hear of, once.

use crate::capping::knob::Knob;
use crate::capping::knob::KnobState;
use crate::capping::policy::PolicyName;

/// Something that changed; not reported again while it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnobChange {
    pub knob: Knob,
    pub policy: Option<PolicyName>,
    pub kind: KnobChangeKind,
    /// For people: values with their units, or the error with its remedy.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnobChangeKind {
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
