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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use serde_json::{Value, json};

    use super::*;

    /// As controllers of version 0.1.0 write it. Never changed: an agent or controller of the next version meets it.
    const STORED: &str = r#"{"for":{"kind":"ClusterPowerBudget","name":"hall-2","uid":"7c1e2f0a-0000-4000-8000-000000000001","generation":4},"epoch":17,"changeTime":"2026-11-28T23:54:00Z","leaseName":"energy-agent-levels","staleAfterSeconds":60,"levels":[{"tier":"batch","permille":420},{"tier":"","permille":1000}],"lowestPermille":420,"fallbackPermille":310}"#;

    fn stored() -> PowerLevelSpec {
        let level = |tier: &str, permille| TierLevel { tier: tier.to_owned(), permille };
        PowerLevelSpec {
            subject: LevelSubject {
                kind: "ClusterPowerBudget".to_owned(),
                name: "hall-2".to_owned(),
                uid: "7c1e2f0a-0000-4000-8000-000000000001".to_owned(),
                generation: 4,
            },
            epoch: 17,
            change_time: Some("2026-11-28T23:54:00Z".to_owned()),
            lease_name: LEVELS_LEASE.to_owned(),
            stale_after_seconds: 60,
            levels: vec![level("batch", 420), level("", 1000)],
            lowest_permille: Some(420),
            fallback_permille: 310,
        }
    }

    #[test]
    fn a_level_of_another_version_is_read() {
        let whole: Value = serde_json::from_str(STORED).unwrap();
        assert_eq!(serde_json::from_value::<PowerLevelSpec>(whole.clone()).unwrap(), stored());
        // A later version says more, at every place.
        let mut later = whole.clone();
        for object in ["", "/for", "/levels/0"] {
            later.pointer_mut(object).unwrap()["somethingNewer"] = json!({"a": [1]});
        }
        assert_eq!(serde_json::from_value::<PowerLevelSpec>(later).unwrap(), stored());
        // What a writer of one's own may leave out.
        let mut least = whole.clone();
        for key in ["changeTime", "leaseName", "lowestPermille"] {
            least.as_object_mut().unwrap().remove(key);
        }
        let expected = PowerLevelSpec { change_time: None, lowest_permille: None, ..stored() };
        assert_eq!(serde_json::from_value::<PowerLevelSpec>(least).unwrap(), expected);
        // And this version writes all that the earlier one wrote.
        let now = serde_json::to_value(stored()).unwrap();
        for (key, value) in whole.as_object().unwrap() {
            assert_eq!(&now[key], value, "{key}");
        }
    }
}
