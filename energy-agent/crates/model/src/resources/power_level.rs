//! PowerLevel: how far nodes may go between their floor and their most. One writer, followed by name.

use serde::{Deserialize, Serialize};

use super::LEVELS_LEASE;

pub const KIND: &str = "PowerLevel";
pub const PLURAL: &str = "powerlevels";

/// In permille: open, no limit at all.
pub const OPEN: u32 = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PowerLevelSpec {
    #[serde(rename = "for")]
    pub subject: LevelSubject,
    /// The leader's; never goes back.
    pub epoch: i64,
    /// When a level was changed last; RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_time: Option<String>,
    #[serde(default = "usual_lease")]
    pub lease_name: String,
    pub stale_after_seconds: u32,
    pub levels: Vec<TierLevel>,
    /// The lowest of the levels, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest_permille: Option<u32>,
    /// The static share.
    pub fallback_permille: u32,
}

/// The one object that a level is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelSubject {
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub generation: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierLevel {
    /// Empty: nodes of no tier.
    pub tier: String,
    pub permille: u32,
}

fn usual_lease() -> String {
    LEVELS_LEASE.to_owned()
}

/// The name of the level of a budget. It lies in the namespace of the agents.
#[must_use]
pub fn name_for_budget(budget: &str) -> String {
    format!("budget.{budget}")
}

/// The name of the level of a policy. It lies in the namespace of the policy.
#[must_use]
pub fn name_for_policy(policy: &str) -> String {
    format!("policy.{policy}")
}

impl PowerLevelSpec {
    /// The level of a tier; of one that is not named, the lowest there is.
    #[must_use]
    pub fn permille(&self, tier: &str) -> u32 {
        let lowest = || self.levels.iter().map(|level| level.permille).min().unwrap_or(OPEN);
        self.levels.iter().find(|level| level.tier == tier).map_or_else(lowest, |level| level.permille)
    }
}
