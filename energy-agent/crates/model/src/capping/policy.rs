//! What an operator asks for: which pods, what budget, by which means. One struct for all sources. How a document writes it,
//! with names, ranges and defaults, is in [`schema::fields`].

mod check;
pub mod document;
pub mod json_schema;
pub mod object;
mod problems;
mod read;
mod rules;
pub mod schema;
pub mod syntax;
pub mod unit;
pub mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::schema::words;
use self::yaml::NOTHING;
use crate::workload::names::Pod;

/// Identity of a policy; the order is the last word between two that select the same pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyName {
    pub authority: Authority,
    /// Empty where the document names none.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// Who has written a policy. Each authority decides about a pod for itself; across them the lowest ceiling holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Authority {
    /// Who runs the nodes: documents in files and ConfigMaps.
    #[default]
    Admin,
    /// Who may write a PowerCappingPolicy in a namespace.
    Tenant,
    /// A ClusterPowerBudget.
    Budget,
}

crate::as_str!(Authority { Admin => "admin", Tenant => "tenant", Budget => "budget" });

impl Authority {
    /// By its word.
    #[must_use]
    pub(crate) fn of(word: &str) -> Option<Self> {
        [Self::Admin, Self::Tenant, Self::Budget].into_iter().find(|authority| authority.as_str() == word)
    }
}

/// One policy, valid in itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub name: PolicyName,
    pub mode: Mode,
    /// The highest decides.
    pub priority: i32,
    pub selector: Selector,
    pub budget: BudgetSpec,
    pub control: Control,
    pub actuators: Actuators,
}

words! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum Mode {
        Off = "Off",
        /// Everything but the writes.
        #[default]
        Recommend = "Recommend",
        Enforce = "Enforce",
    }
}

/// Which pods. All parts have to agree; an empty one selects nothing unless `select_all`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub match_labels: BTreeMap<String, String>,
    pub match_expressions: Vec<Requirement>,
    /// Empty: every namespace. With `PolicyName::namespace` set, that one only.
    pub namespaces: Vec<String>,
    pub select_all: bool,
}

/// As in a Kubernetes label selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

words! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Operator {
        In = "In",
        NotIn = "NotIn",
        Exists = "Exists",
        DoesNotExist = "DoesNotExist",
    }
}

/// How much power, of what, and for whom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetSpec {
    pub amount: Amount,
    pub scope: BudgetScope,
    pub components: Components,
    /// Power is the mean over this time; at least a tick.
    pub window: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Watts(f64),
    /// Of the highest power seen while nothing was capped.
    PercentOfPeak {
        percent: f64,
        lookback: Duration,
    },
}

words! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum BudgetScope {
        /// Each selected pod has the budget for itself.
        PerPod = "PerPod",
        /// All selected pods of the node share it.
        PerNode = "PerNode",
        /// All selected pods of the cluster share it: the node follows the level that a controller sets.
        Total = "Total",
    }
}

/// What is counted and capped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Components {
    pub gpu: bool,
    pub cpu: bool,
}

words! {
    /// A part of a pod that one policy decides about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Component {
        Gpu = "gpu",
        Cpu = "cpu",
    }
}

crate::as_str!(Component { Gpu => "gpu", Cpu => "cpu" });

/// How the budget is kept. `engage`, `target` and `release` are shares of the budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    pub algorithm: Algorithm,
    pub engage: f64,
    pub target: f64,
    pub release: f64,
    /// After a cut, the ceiling is not raised for this long.
    pub hold: Duration,
    /// The ceilings that the budget comes to for a busy device are held always, also while the power is low.
    pub standing: bool,
    pub on_telemetry_loss: TelemetryLoss,
    /// How long [`TelemetryLoss::Hold`] holds before everything is given back.
    pub telemetry_timeout: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    Ratio,
    /// Clocks come from NodeFrequencies; where they fail, as [`Algorithm::Ratio`].
    External,
    /// A measured profile, ascending by clock and power.
    Table(Vec<Point>),
}

/// At this clock, the device draws this much under full load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub clock_mhz: u32,
    pub watts: f64,
}

words! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TelemetryLoss {
        Hold = "Hold",
        Release = "Release",
        Floor = "Floor",
    }
}

/// By which means, and how far down.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Actuators {
    pub gpu: GpuActuators,
    pub cpu: CpuActuators,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuActuators {
    pub locked_clocks: bool,
    pub power_limit: bool,
    pub min_clock_mhz: Option<u32>,
    /// A GPU that other pods use as well may be capped, where their policies say so too.
    pub allow_shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuActuators {
    pub frequency: bool,
    pub quota: bool,
    pub rapl_limit: bool,
    pub min_frequency_mhz: Option<u32>,
    /// CPUs' worth of run time a second.
    pub min_cpus: Option<f64>,
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.authority {
            Authority::Admin => {}
            Authority::Tenant => f.write_str("PowerCappingPolicy ")?,
            Authority::Budget => f.write_str("ClusterPowerBudget ")?,
        }
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

crate::as_str!(Mode { Off => "off", Recommend => "recommend", Enforce => "enforce" });

crate::as_str!(BudgetScope { PerPod => "per_pod", PerNode => "per_node", Total => "total" });

impl Policy {
    /// Whether it selects the pod.
    #[must_use]
    pub fn selects(&self, pod: &Pod) -> bool {
        let Selector { match_labels, match_expressions, namespaces, select_all } = &self.selector;
        let named = match_labels.len() + match_expressions.len() + namespaces.len() > 0;
        (*select_all || named)
            && (self.name.namespace.is_empty() || self.name.namespace == pod.namespace)
            && (namespaces.is_empty() || namespaces.iter().any(|namespace| *namespace == *pod.namespace))
            && match_labels.iter().all(|(key, value)| pod.labels.get(key) == Some(value))
            && match_expressions.iter().all(|requirement| requirement.holds(&pod.labels))
    }
}

impl Requirement {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl Default for GpuActuators {
    fn default() -> Self {
        read::gpu(&NOTHING).expect("every field of it has a default or may be absent")
    }
}

impl Default for CpuActuators {
    fn default() -> Self {
        read::cpu(&NOTHING).expect("every field of it has a default or may be absent")
    }
}

impl Default for Control {
    fn default() -> Self {
        read::control(&NOTHING).expect("every field of it has a default or may be absent")
    }
}
