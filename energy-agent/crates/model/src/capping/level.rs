//! What budgets over many nodes ask of this one at a tick: how far it may go between its floor and its most.

use std::collections::BTreeMap;

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
