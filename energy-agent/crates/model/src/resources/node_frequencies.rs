//! NodeFrequencies: upper ends of the ranges of clocks that recommenders ask for on one node, and how the node stands.

use serde::{Deserialize, Serialize};

use super::condition::Condition;

pub const KIND: &str = "NodeFrequencies";
pub const PLURAL: &str = "nodefrequencies";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeFrequenciesSpec {
    /// The object's name where it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_frequencies: Vec<GpuFrequency>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_frequencies: Vec<CpuFrequency>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GpuFrequency {
    pub uuid: String,
    /// MHz.
    pub graphics_frequency: u32,
    /// After this the bound is gone; RFC 3339. `None`: it stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CpuFrequency {
    pub core_id: u32,
    /// MHz.
    pub frequency: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<String>,
}

/// Written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeFrequenciesStatus {
    pub observed_generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_watts: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
    /// What the node can be held at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor_watts: Option<i64>,
    /// What it may draw at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_watts: Option<i64>,
    /// Of its GPUs, the models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub gpus: u32,
    pub lowered_gpus: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_frequencies: Vec<GpuFrequencyStatus>,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GpuFrequencyStatus {
    pub uuid: String,
    /// MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling_frequency: Option<u32>,
    /// MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graphics_frequency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
}
