//! PowerCappingPolicy: pods of a namespace that are kept within a power budget.
//!
//! Its spec is a policy of a document without name and namespace, and is read by the same table of fields.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::condition::Condition;
use super::object::KubeObject;
use crate::capping::policy::{Authority, Policy, PolicyName, object};

pub const KIND: &str = "PowerCappingPolicy";
pub const PLURAL: &str = "powercappingpolicies";

/// Written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PowerCappingPolicyStatus {
    pub observed_generation: i64,
    /// When the figures were taken; RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<i64>,
    pub pods: u32,
    pub capped_pods: u32,
    pub nodes: u32,
    pub conditions: Vec<Condition>,
}

/// The name of the policy in an object.
#[must_use]
pub fn name(object: &KubeObject) -> PolicyName {
    let [namespace, name] = [&object.metadata.namespace, &object.metadata.name].map(|text| Arc::from(text.as_str()));
    PolicyName { authority: Authority::Tenant, namespace, name }
}

/// The policy in an object.
///
/// # Errors
/// All that is wrong with it, with its path, as of a document.
pub fn policy(object: &KubeObject) -> Result<Policy, Vec<String>> {
    object::policy(name(object), &object.spec)
}
