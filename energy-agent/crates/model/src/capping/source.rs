//! Where policies come from, and which of them are active: a file or folder and ConfigMaps, all followed at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::policy::{Policy, PolicyName};
use super::status::{Problem, SourceState};

/// What all sources say together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActivePolicies {
    pub policies: BTreeMap<PolicyName, Sourced>,
    pub problems: Vec<Problem>,
    /// In the order of their rank: the first that names a policy decides what it is.
    pub sources: Vec<SourceState>,
    /// Every source has answered since the start. Until then a policy that is missing is not known to be deleted.
    pub complete: bool,
}

/// A policy and where it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Sourced {
    pub policy: Arc<Policy>,
    /// `file /etc/...` or `ConfigMap ns/name key k`.
    pub source: Arc<str>,
}
