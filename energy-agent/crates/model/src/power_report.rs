//! What a node says of its power to the controller: the JSON of `/power`. Written by the agent, read by the controller; both
//! may be a version apart, so fields are only added.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PowerReport {
    pub node: String,
    /// Rises with each tick; starts anew with the agent.
    pub seq: u64,
    /// Of all that is measured; `None`: some of it was not measured in the last interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// What the node can be held at. A node that can lower nothing says its power here and in `most_watts`.
    pub floor_watts: f64,
    /// What its devices may draw together.
    pub most_watts: f64,
    /// What it may draw by all budgets together; `None`: no budget limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_watts: Option<f64>,
    /// The budget that holds it lower than it would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
    /// What it follows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<HeldLevel>,
    /// Of the objects that select pods of this node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyReport>,
}

/// A level that the node follows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldLevel {
    /// The budget's name.
    pub budget: String,
    pub epoch: i64,
    pub permille: u32,
    /// The node's floor for this budget, where its protected pods raise it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor_watts: Option<f64>,
}

/// A PowerCappingPolicy, as far as it concerns this node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyReport {
    pub namespace: String,
    pub name: String,
    pub pods: u32,
    pub capped_pods: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    pub floor_watts: f64,
    pub most_watts: f64,
    /// Why its last version is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
