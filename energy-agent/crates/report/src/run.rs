//! The run file, `energy-agent.io/run/v1`: what one run of a command, job or workload cost, and how that is known. Every
//! command reads and writes it. A later version only adds keys, so a reader ignores keys that it does not know.

mod read;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::read::Unreadable;

/// The value of `apiVersion`.
pub const API_VERSION: &str = "energy-agent.io/run/v1";
/// The warning of a run that had its GPU alone: all the GPU's energy is the run's, idle energy included.
pub const WHOLE_GPU: &str = "whole_gpu";

/// One run. Times are seconds since the Unix epoch, energy is in whole microjoules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Run {
    pub api_version: String,
    /// A random name of this run, the same in the label `energy-agent.io/run` of its objects.
    pub id: String,
    pub subject: Subject,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// Labels by which runs are grouped: `--label` and, for a job, its node selector.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Node>,
    pub measured: Measured,
    /// When the workload began to run: queue and image time are before it.
    pub start: f64,
    pub end: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
    /// Parts that add up, in the order package, dram, gpu, idle. Measured and estimated energy are different parts.
    pub energy: Vec<Energy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// What the nodes used meanwhile, the run included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_energy: Vec<Energy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUse>,
    /// Limits that were active, and the policies that set them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    /// Pods of a job, retries included; their energy is part of `energy`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodPart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// What the energy costs, where a price or an intensity was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<Prices>,
}

/// What ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    pub kind: SubjectKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the object, or of the program without its arguments.
    pub name: String,
    /// Runs of one class do the same kind of work; see docs/jobs.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Only with --record-command. The environment is never recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command_line: Vec<String>,
    /// SHA-256 over the command line or the images with their commands: equal digests did the same thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SubjectKind {
    #[default]
    Command,
    Pod,
    Job,
    Namespace,
    Unit,
    Node,
    Vm,
}

impl SubjectKind {
    /// For people.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Pod => "pod",
            Self::Job => "job",
            Self::Namespace => "namespace",
            Self::Unit => "unit",
            Self::Node => "node",
            Self::Vm => "virtual machine",
        }
    }
}

/// The work that the run did, to compare joules per unit of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Work {
    pub amount: f64,
    pub unit: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_driver: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    pub uuid: String,
    pub index: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// How the figures came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    pub by: MeasuredBy,
    /// Longest time between two readings that belong to the run.
    pub interval_seconds: f64,
    /// Seen time by run time, at most 1. Below 0.98 the energy is a lower bound ("at least").
    pub coverage: f64,
    /// Labels of energy_agent_attribution_info: meter, program, weight, idle.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attribution: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MeasuredBy {
    /// Meters of the command itself.
    Own,
    /// The page of a running agent.
    Agent,
    Prometheus,
}

/// Time before the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Waited {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_seconds: Option<f64>,
}

/// The energy of one zone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Energy {
    pub part: Part,
    /// Name of the zone as on the page: `package-0`, `dram`, a GPU's UUID.
    pub zone: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The label `source`: how the meter knows it.
    pub source: String,
    /// Not a meter's reading but a model's.
    #[serde(default)]
    pub estimated: bool,
    pub microjoules: u64,
    /// Largest power that was seen: the largest that the agent said of one of its intervals, or mean between two readings or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_watts: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Part {
    Package,
    Dram,
    /// Zones of the CPU that are neither: core, uncore, psys. They are within others and never added.
    Other,
    Gpu,
    /// Idle energy that an idle policy handed to the workload.
    Idle,
}

/// A GPU that the run held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GpuUse {
    pub uuid: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<MeanMax>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_utilization: Option<MeanMax>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celsius: Option<MeanMax>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_hertz: Option<MeanMax>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MeanMax {
    pub mean: f64,
    pub max: f64,
}

/// A limit that was active during the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// The policy, or empty for a limit that somebody else set.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub policy: String,
    /// The device and knob: `GPU-... graphics clock`.
    pub what: String,
    pub value: f64,
    pub unit: String,
}

/// One curve of a panel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Series {
    pub panel: Panel,
    /// What the legend says: `GPU 0`, `package-0`, `limit`.
    pub label: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// What a value says of the time before it.
    #[serde(default)]
    pub kind: SeriesKind,
    /// Seconds since the Unix epoch, and the value in the panel's unit.
    pub points: Vec<(f64, f64)>,
}

/// How the values of a curve are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SeriesKind {
    /// Readings of an instant.
    #[default]
    Reading,
    /// Means since the reading before.
    Mean,
    /// A limit that was active.
    Limit,
}

/// The panels of the page, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Panel {
    /// 0 to 1.
    GpuUtilization,
    /// Degrees Celsius.
    GpuTemperature,
    /// 0 to 1.
    GpuMemoryUtilization,
    /// Watts.
    GpuPower,
    /// Watts.
    CpuPower,
    /// Hertz, limits as curves of their own.
    Clock,
}

/// One pod of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodPart {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    pub start: f64,
    pub end: f64,
    pub microjoules: u64,
    #[serde(default)]
    pub estimated_microjoules: u64,
    /// As Kubernetes has it: `Succeeded`, `Failed`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub succeeded: bool,
    /// Exit code of a command; 128 and the number for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The reason as Kubernetes names it: `BackoffLimitExceeded`, `ErrImagePull`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Prices and what follows from them; measured and estimated energy have costs of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Prices {
    /// The energy of the building by that of the machine.
    pub pue: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_kwh: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// Grams of CO2 for a kilowatt-hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gco2_per_kwh: Option<f64>,
    pub measured: Charge,
    pub estimated: Charge,
}

/// What an amount of energy costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Charge {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gco2: Option<f64>,
}

/// What a reader has to know about a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Warning {
    /// A fixed word, such as `agent_restarted`.
    pub code: String,
    pub message: String,
}

impl Run {
    /// As it is written to a file.
    ///
    /// # Errors
    /// Never for a run of finite numbers.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

#[cfg(test)]
mod tests;
