//! What a node says of its power to the controller: the JSON of `/power`. Written by the agent, read by the controller; both
//! may be a version apart, so fields are only added.

use serde::{Deserialize, Serialize};

/// The longest report that a controller takes. Agents stay far below it, whatever tenants write: a node whose report is too long
/// would be silent.
pub const MOST_BYTES: usize = 256 * 1024;

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
    /// Of the objects that select pods of this node, and of those that are refused and whose namespace has pods here; of
    /// thousands of them only some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuReport>,
    /// Groups of cores whose clock is limited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<CpuReport>,
    /// Why its NodeFrequencies are not followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequencies_refused: Option<String>,
}

/// A GPU of the node, and what it is limited to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuReport {
    pub uuid: String,
    pub model: String,
    /// What it runs at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<u32>,
    /// The highest clock that it may have; `None`: all that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling_mhz: Option<u32>,
    /// Its clock or its power is lowered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lowered: bool,
    /// By which policy or budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
}

/// Cores with one clock (a `cpufreq` policy), by the number of the first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuReport {
    pub core_id: u32,
    pub ceiling_mhz: u32,
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
    /// Of the devices of its pods, where it is a budget over many nodes; else 0.
    pub floor_watts: f64,
    pub most_watts: f64,
    /// What they may draw by its level; `None`: open, or only recommended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_watts: Option<f64>,
    /// Why its last version is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use serde_json::{Value, json};

    use super::*;

    /// As agents of version 0.1.0 write it. Never changed: an agent or controller of the next version meets it.
    const STORED: &str = r#"{"node":"worker-1","seq":4711,"watts":612.5,"floor_watts":201.25,"most_watts":1000.0,"limit_watts":600.0,"limited_by":"rack-r17","levels":[{"budget":"rack-r17","epoch":17,"permille":500}],"policies":[{"namespace":"ml","name":"train","pods":2,"capped_pods":1,"watts":410.0,"floor_watts":0.0,"most_watts":0.0}]}"#;

    fn stored() -> PowerReport {
        PowerReport {
            node: "worker-1".to_owned(),
            seq: 4711,
            watts: Some(612.5),
            floor_watts: 201.25,
            most_watts: 1000.0,
            limit_watts: Some(600.0),
            limited_by: Some("rack-r17".to_owned()),
            levels: vec![HeldLevel { budget: "rack-r17".to_owned(), epoch: 17, permille: 500, ..HeldLevel::default() }],
            policies: vec![PolicyReport {
                namespace: "ml".to_owned(),
                name: "train".to_owned(),
                pods: 2,
                capped_pods: 1,
                watts: Some(410.0),
                ..PolicyReport::default()
            }],
            ..PowerReport::default()
        }
    }

    #[test]
    fn a_report_of_another_version_is_read() {
        assert_eq!(serde_json::from_str::<PowerReport>(STORED).unwrap(), stored());
        // A later version says more, at every place.
        let mut later: Value = serde_json::from_str(STORED).unwrap();
        for object in ["", "/levels/0", "/policies/0"] {
            later.pointer_mut(object).unwrap()["something_newer"] = json!({"a": [1]});
        }
        assert_eq!(serde_json::from_value::<PowerReport>(later).unwrap(), stored());
        // An earlier one says less.
        let earlier: PowerReport = serde_json::from_str(r#"{"node":"worker-1","most_watts":1000}"#).unwrap();
        let expected = PowerReport { node: "worker-1".to_owned(), most_watts: 1000.0, ..PowerReport::default() };
        assert_eq!((earlier.watts, &earlier), (None, &expected));
    }

    #[test]
    fn a_report_of_this_version_has_all_that_the_earlier_one_had() {
        let now: Value = serde_json::to_value(stored()).unwrap();
        let before: Value = serde_json::from_str(STORED).unwrap();
        for (key, value) in before.as_object().unwrap() {
            assert_eq!(&now[key], value, "{key}");
        }
    }
}
