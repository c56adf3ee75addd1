//! ClusterPowerBudget: watts that a set of nodes may draw together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::CONTROLLER;
use super::condition::Condition;
use crate::capping::level::{Protect, has_all};
use crate::capping::policy::Mode;

pub const KIND: &str = "ClusterPowerBudget";
pub const PLURAL: &str = "clusterpowerbudgets";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterPowerBudgetSpec {
    pub mode: Mode,
    pub watts: i64,
    pub nodes: NodeSelector,
    /// What is drawn beside what nodes measure, as a part of it. Not used where the meter answers.
    pub overhead_percent: u32,
    /// What a selected node is taken to draw that no agent reports.
    pub unreported_node_watts: i64,
    /// Limits of all nodes together never exceed this part of the budget; `None`: limits follow the power.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oversubscription_percent: Option<u32>,
    /// In the order in which they are cut. Nodes of none are cut last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
    pub control: BudgetControl,
    pub on_controller_loss: OnControllerLoss,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meter: Option<Meter>,
    /// Pods that are not slowed down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protect: Option<Protect>,
    /// Lower budgets for a time; the lowest that applies counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts_from: Option<WattsFrom>,
}

/// One of both is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_false")]
    pub select_all: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tier {
    pub name: String,
    pub match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BudgetControl {
    pub engage_percent: u32,
    pub target_percent: u32,
    pub release_percent: u32,
    pub hold_seconds: u32,
    /// Who writes the PowerLevel.
    pub controller_name: String,
}

/// What nodes do once the writer of the level has been silent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OnControllerLoss {
    pub after_seconds: u32,
    /// `None`: [`LossLimit::StaticShare`] with `oversubscriptionPercent`, else [`LossLimit::Hold`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<LossLimit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossLimit {
    /// No more than the node's part of the budget, and no more than was said last.
    StaticShare,
    /// What was said last.
    Hold,
    /// No limit.
    Release,
}

/// PromQL with one value in watts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meter {
    pub query: String,
}

/// `from` counts, `to` does not; RFC 3339.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Target {
    pub id: String,
    pub from: String,
    pub to: String,
    pub watts: i64,
}

/// The budget follows a query, between bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WattsFrom {
    pub query: String,
    pub min: i64,
    pub max: i64,
    pub stale_after_seconds: u32,
    pub on_stale: OnStale,
}

/// What counts once the query has not been answered for `stale_after_seconds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnStale {
    /// The lower bound.
    #[default]
    Min,
    /// The last answer.
    Last,
}

/// Written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterPowerBudgetStatus {
    pub observed_generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_time: Option<String>,
    /// The budget that counts at present: of `watts`, `targets` and `wattsFrom` the lowest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_watts: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_watts: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level_permille: Option<u32>,
    pub nodes: u32,
    pub limited_nodes: u32,
    pub silent_nodes: u32,
    pub conditions: Vec<Condition>,
}

fn is_false(truth: &bool) -> bool {
    !truth
}

impl Default for BudgetControl {
    fn default() -> Self {
        let controller_name = CONTROLLER.to_owned();
        Self { engage_percent: 99, target_percent: 95, release_percent: 90, hold_seconds: 30, controller_name }
    }
}

impl Default for OnControllerLoss {
    fn default() -> Self {
        Self { after_seconds: 60, limit: None }
    }
}

impl Default for WattsFrom {
    fn default() -> Self {
        Self { query: String::new(), min: 0, max: 0, stale_after_seconds: 300, on_stale: OnStale::Min }
    }
}

impl NodeSelector {
    /// Whether a node with these labels is one of them.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.select_all || (!self.match_labels.is_empty() && has_all(labels, &self.match_labels))
    }
}

impl ClusterPowerBudgetSpec {
    /// The tier of a node with these labels: the first that it has the labels of; empty for none.
    #[must_use]
    pub fn tier_of(&self, labels: &BTreeMap<String, String>) -> &str {
        let tier = self.tiers.iter().find(|tier| has_all(labels, &tier.match_labels));
        tier.map_or("", |tier| &tier.name)
    }

    /// What nodes do once the controller is lost.
    #[must_use]
    pub fn loss_limit(&self) -> LossLimit {
        let usual = if self.oversubscription_percent.is_some() { LossLimit::StaticShare } else { LossLimit::Hold };
        self.on_controller_loss.limit.unwrap_or(usual)
    }
}
