//! The flags of `energy-agent compare`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use energy_host::config::HostConfig;
use energy_report::sweep::{Objective, SweepRange};

use super::{JobArgs, Login};

#[derive(Debug, Args)]
#[command(
    mut_arg("job", |flag| {
        flag.requires_all(["runs", "on"]).conflicts_with_all(["what", "by", "gpu_clocks", "gpu_power", "record_command"]).help(JOB).long_help(JOB_LONG)
    }),
    mut_arg("interval", |flag| flag.default_value("100ms")),
    mut_arg("run_directory", |flag| flag.hide(true)),
    mut_arg("process_max", |flag| flag.hide(true)),
    mut_arg("map_entries", |flag| flag.hide(true)),
)]
pub struct CompareArgs {
    /// Run files (JSON) that `measure`, `report` or `compare` has written; a file may hold one run or a list of runs. With --runs:
    /// commands, each a line for the shell. With a sweep: one command with its arguments, after --. With --job: nothing.
    #[arg(value_name = "FILE|COMMAND")]
    pub what: Vec<OsString>,
    /// Measure commands, each so many times: one after the other in an order that is shuffled in each round.
    #[arg(short = 'r', long = "runs", value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    pub runs: Option<u32>,
    /// Begins the shuffled order. Default: another one each time; it is printed, and in the runs' label `seed`.
    #[arg(long = "seed", requires = "runs", value_name = "N")]
    pub seed: Option<u64>,
    /// Group runs by this label. `gpu` is the model of the GPUs; `node`, `name` and `class` are known without a label. Default:
    /// the runs of a file are a group.
    ///
    /// The first group is what the others are compared with.
    #[arg(long = "by", conflicts_with = "runs", value_name = "LABEL")]
    pub by: Option<String>,
    /// Format of standard output.
    #[arg(long = "format", value_enum, default_value_t = CompareFormat::Table, value_name = "FORMAT")]
    pub format: CompareFormat,
    /// Write all runs that are measured to this file, each as soon as it was made.
    #[arg(long = "json", requires = "runs", value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the groups over time and energy to this file (SVG), with the Pareto front and 95 % intervals.
    #[arg(long = "svg", value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write a ConfigMap with energy and time of each class of work on each model of GPU, for a scheduler. After a sweep: of the
    /// best setting, with the GPU's idle energy.
    ///
    /// The class is the runs' label `class` (`measure --label class=NAME`), else that of the job, else the name of the command. Lines
    /// for the shell have none, so commands are measured and saved one by one for this.
    #[arg(long = "export-profile", value_name = "FILE")]
    pub export_profile: Option<PathBuf>,
    /// The runs did the same work, although their commands, images or amounts of work differ, or nothing says what they did (reports
    /// of pods and nodes).
    #[arg(long = "same-work")]
    pub same_work: bool,
    /// Compare what the whole nodes used during the runs, idle energy included. The node should do nothing else.
    #[arg(long = "whole-node")]
    pub whole_node: bool,
    /// The work that one run does, for joules per unit of it.
    #[arg(long = "work", requires = "runs", value_parser = above_zero, value_name = "N")]
    pub work: Option<f64>,
    /// What the work is counted in, as in `images`.
    #[arg(long = "work-unit", requires = "work", default_value = "units", value_name = "UNIT")]
    pub work_unit: String,
    /// Keep the command lines in the file of --json. They may hold secrets, so only their digests are kept without this flag.
    #[arg(long = "record-command", requires = "runs")]
    pub record_command: bool,
    #[command(flatten)]
    pub sweep: SweepArgs,
    #[command(flatten)]
    pub money: Money,
    #[command(flatten)]
    pub host: HostConfig,
    #[command(flatten)]
    pub login: Login,
    /// With --job: nodes that have this label, or several labels with commas between them. The job runs --runs times on each,
    /// in turns; give it twice or more. The labels are also labels of the runs, for --prices and --by.
    #[arg(long = "on", requires = "job", value_name = "KEY=VALUE")]
    pub on: Vec<NodeLabels>,
    #[command(flatten)]
    pub job: JobArgs,
}

/// What `--job` is for here.
const JOB: &str = "File (YAML or JSON) with one Job or Pod, to compare the nodes of each --on by it";
const JOB_LONG: &str = "File (YAML or JSON) with one Job or Pod, to compare the nodes of each --on by it.

It runs on the nodes of each --on in turns, with their labels in its nodeSelector, as `measure --job` runs it: created, followed to \
its end, and deleted, also after Ctrl-C or an error. Exit code 0: all completed. 1: one failed, did not start or end in time, or was \
deleted; the runs before it are in the file of --json. 2: wrong usage, or the API server refuses the file. 3: not measured.";

/// Labels that a node must have: `KEY=VALUE`, several with commas between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLabels(pub BTreeMap<String, String>);

impl FromStr for NodeLabels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let label = |text: &str| -> Result<(String, String), String> {
            let expected = || "expected KEY=VALUE, such as nvidia.com/gpu.product=NVIDIA-L4".to_owned();
            let (key, value) = text.split_once('=').ok_or_else(expected)?;
            let is_valid = |text: &str| {
                text.chars().all(|letter| letter.is_ascii_alphanumeric() || ['-', '_', '.', '/'].contains(&letter))
            };
            if key.is_empty() || !is_valid(key) {
                return Err(expected());
            }
            if value.len() > 63 || value.contains('/') || !is_valid(value) {
                return Err(format!("{value:?} is no value of a label; kubectl get nodes --show-labels lists them"));
            }
            Ok((key.to_owned(), value.to_owned()))
        };
        let labels = text.split(',').map(label).collect::<Result<Vec<_>, _>>()?;
        let count = labels.len();
        let labels = BTreeMap::from_iter(labels);
        if labels.len() < count { Err("a label is named twice".to_owned()) } else { Ok(Self(labels)) }
    }
}

impl fmt::Display for NodeLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels: Vec<String> = self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&labels.join(","))
    }
}

/// A command at several clocks or power limits of a GPU.
#[derive(Clone, Debug, Args)]
pub struct SweepArgs {
    /// Sweep over this many GPU clocks from LOW to HIGH in MHz, such as 600..1980/8.
    ///
    /// The clocks are locked through the agent's journal, so that they are restored after any end (`energy-agent restore` after a
    /// kill). Refused while an agent caps on this node, another process uses the GPU, a pod has it, or it is in MIG mode.
    #[arg(long = "gpu-clocks", requires = "runs", value_name = "LOW..HIGH/N")]
    pub gpu_clocks: Option<SweepRange>,
    /// Sweep over this many power limits in watts. With --gpu-clocks: over each with each.
    #[arg(long = "gpu-power", requires = "runs", value_name = "LOW..HIGH/N")]
    pub gpu_power: Option<SweepRange>,
    /// The GPU to sweep, by UUID or index. Default: the only one.
    #[arg(long = "on-gpu", value_name = "GPU")]
    pub on_gpu: Option<String>,
    /// Socket at which the kubelet says which pod has which GPU: a sweep is refused on a pod's GPU.
    #[arg(
        long = "pods.resources-socket",
        env = "ENERGY_AGENT_PODS_RESOURCES_SOCKET",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock",
        value_name = "FILE"
    )]
    pub resources_socket: PathBuf,
    /// Name the best group: by energy (the default of a sweep), edp (energy times time), time, or slowdown:FACTOR, the least energy at
    /// up to FACTOR times the time without a limit. Without a sweep: up to FACTOR times the time of the first group.
    #[arg(long = "best", value_name = "OBJECTIVE")]
    pub best: Option<Objective>,
    /// Go on between the clocks beside the best one, by the golden section, down to one step of the GPU.
    #[arg(long = "refine", requires = "gpu_clocks")]
    pub refine: bool,
}

impl SweepArgs {
    #[must_use]
    pub const fn is_wanted(&self) -> bool {
        self.gpu_clocks.is_some() || self.gpu_power.is_some()
    }
}

/// What energy and hardware cost.
#[derive(Clone, Debug, Default, Args)]
pub struct Money {
    /// File (YAML or JSON) with prices of an hour of hardware: `perHour` by GPU model or by LABEL=VALUE, and `currency`.
    #[arg(long = "prices", value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// Price of a kilowatt hour.
    #[arg(long = "price-per-kwh", value_name = "PRICE", value_parser = not_negative)]
    pub price_per_kwh: Option<f64>,
    /// Currency of both prices, as it is printed.
    #[arg(long = "currency", value_name = "CODE")]
    pub currency: Option<String>,
    /// Carbon intensity of the electricity: grams of CO2 equivalent per kilowatt hour.
    #[arg(long = "gco2-per-kwh", value_name = "GRAMS", value_parser = not_negative)]
    pub grams_per_kwh: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompareFormat {
    Table,
    Json,
    Csv,
    /// For a pull request.
    Markdown,
}

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("expected a number above 0".to_owned()),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number, such as 0.30".to_owned())?;
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err("expected a number from 0 on".to_owned()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    #[test]
    fn labels_of_nodes_are_read_and_written() {
        let labels: NodeLabels = "zone=a,nvidia.com/gpu.product=NVIDIA-L4".parse().unwrap();
        assert_eq!(labels.0["nvidia.com/gpu.product"], "NVIDIA-L4");
        assert_eq!(labels.to_string(), "nvidia.com/gpu.product=NVIDIA-L4,zone=a");
        assert_eq!("node-role.kubernetes.io/gpu=".parse::<NodeLabels>().unwrap().0["node-role.kubernetes.io/gpu"], "");
        for wrong in ["", "a", "=b", "a=b,", "a=b c", "a=b,a=c", "a=x/y", "a b=c"] {
            assert!(wrong.parse::<NodeLabels>().is_err(), "{wrong}");
        }
    }
}
