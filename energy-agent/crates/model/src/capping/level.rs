//! What budgets over many nodes ask of this one at a tick: how far it may go between its floor and its most.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::policy::{Mode, PolicyName};

/// Of the range between floor and most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeLevel {
    /// No limit at all.
    #[default]
    Open,
    /// Below 1000.
    Permille(u32),
}

/// A ClusterPowerBudget that selects this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeBudget {
    pub name: PolicyName,
    pub mode: Mode,
    pub level: NodeLevel,
    /// Of the level, for the controller.
    pub epoch: i64,
    pub standing: Standing,
    /// Pods whose devices it does not lower.
    pub protect: Option<Protect>,
}

/// A pod is protected by its priority or by its labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Protect {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_at_least: Option<i32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

impl Protect {
    /// Whether a pod with this priority and these labels is protected.
    #[must_use]
    pub fn covers(&self, priority: i32, labels: &BTreeMap<String, String>) -> bool {
        self.priority_at_least.is_some_and(|least| priority >= least)
            || (!self.match_labels.is_empty() && has_all(labels, &self.match_labels))
    }
}

/// Whether labels have all that are wanted.
pub(crate) fn has_all(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Where a level comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has said one.
    #[default]
    None,
    /// The writer gives signs of life.
    Followed,
    /// It has been silent, and the budget says what then.
    WriterLost,
    /// The level in the cluster is of an earlier leader.
    OlderRefused,
}

crate::as_str!(Standing {
    None => "none",
    Followed => "followed",
    WriterLost => "writer_lost",
    OlderRefused => "older_refused",
});

/// All that is asked at a tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Ascending by name.
    pub budgets: Vec<NodeBudget>,
    /// Of policies with scope Total.
    pub policies: BTreeMap<PolicyName, NodeLevel>,
    /// What budgets and levels there are is known.
    pub complete: bool,
}
