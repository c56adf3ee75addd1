//! Where policies come from, and which of them are in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::policy::{Policy, PolicyName};
use super::status::Problem;

/// What all sources say together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InForce {
    pub policies: BTreeMap<PolicyName, Sourced>,
    pub problems: Vec<Problem>,
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
