//! The subcommands, and the flags that they have of their own.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::login::Login;
use super::report::ReportArgs;
use super::{CompareArgs, Config, ControllerArgs, KubectlArgs, MeasureArgs};
use crate::identity;

/// Energy metering per pod, container and service, and power budgets.
///
/// Without a subcommand the exporter runs (`energy-agent run`).
#[derive(Debug, Parser)]
#[command(name = "energy-agent", version, long_version = identity::text(), about, long_about, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: Config,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the exporter (the default).
    Run(Box<Config>),
    /// Show which sources and features work on this machine, what is missing, and the remedy.
    ///
    /// Exit code 0: energy can be attributed to workloads. 1: it cannot, and the table says why.
    Doctor(Box<DoctorArgs>),
    /// Restore clocks, power limits and CPU quotas that a stopped or crashed agent left lowered, from the journal in
    /// --state.directory and the record of this boot in --run.directory.
    ///
    /// Does nothing if no limit is left. A value that another program has set since then stays. Disks may be full or
    /// read-only. Use it in systemd's ExecStopPost= or by hand. Exit code 0: everything is restored. 1: a limit is not
    /// restored, and the text says why; or the journal was damaged or deleted, and the text says what was lost; or an agent
    /// of this node still caps.
    Restore(Box<RestoreArgs>),
    /// Keep sets of nodes within power budgets: one level for each ClusterPowerBudget, which every node works its limit out
    /// from.
    ///
    /// Runs as a Deployment of two replicas, of which one leads; it needs no access to nodes. See docs/cluster.md.
    Controller(Box<ControllerArgs>),
    /// Pods and nodes of a cluster by watts, its budgets, and their release in an emergency: `kubectl energy`.
    ///
    /// A link called kubectl-energy to this program on PATH makes it a plugin of kubectl; the Debian package has one.
    Kubectl(KubectlArgs),
    /// Live table of namespaces, pods, containers and services by power, energy and CPU time; plain lines without a terminal.
    ///
    /// The figures of a row are those of all that is in it. Watts are what work adds to the node's idle power. `?` explains columns
    /// and keys.
    Top(TopArgs),
    /// Run a command and print what it used: energy by part, mean and peak power, time; over several runs with 95 % intervals.
    ///
    /// Needs root: the command runs in a cgroup of its own, and meters are opened for it. Its streams and its exit code stay as
    /// they are (128 and the number for a signal); the figures go to standard error. Exit code 125: this program failed before
    /// the command ran. 126: the command cannot be executed. 127: it was not found.
    Measure(Box<MeasureArgs>),
    /// Compare runs, commands or clocks of a GPU: time, energy, power, cost, and what can be said about the difference.
    ///
    /// Figures are means over the runs of a group, with 95 % intervals by Student's t. A difference is claimed only where the
    /// interval of the ratio does not hold 1 (Welch's t on logarithms, Holm's method for several), and with three runs of each at
    /// least. Runs that did different work are compared by unit of work only. Exit code 2: wrong usage. 3: the runs cannot be
    /// compared.
    Compare(Box<CompareArgs>),
    /// What a pod, job, namespace, unit or node cost: joules, watts, GPUs, money, CO2, and a page with plots.
    ///
    /// From Prometheus (--prometheus) for any time that it keeps, or from a running agent from now on. Energy is the sum of the
    /// counters' rises, so that a job shorter than a scrape interval is counted too. FILE draws a saved run again. Exit code 0:
    /// done. 2: wrong usage. 3: not measured, and the text says why.
    Report(Box<ReportArgs>),
    /// Check power policies offline, explain their fields, or print their JSON Schema or CustomResourceDefinitions.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Print completions of commands and flags for a shell.
    ///
    /// For bash: `energy-agent completion bash > /etc/bash_completion.d/energy-agent`. The Debian package brings them.
    Completion {
        #[arg(value_enum, value_name = "SHELL")]
        shell: Shell,
    },
    /// Write the man pages of all commands to a folder.
    #[command(hide = true)]
    Man {
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Check whether each policy is valid, and say what is wrong.
    ///
    /// Reads documents with policies, manifests of ConfigMaps that hold them, and PowerCappingPolicies. Exit code 0: all are valid. 1: some are not.
    Check {
        /// Files, folders of *.yaml, *.yml and *.json files, or - for standard input.
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Describe the fields of a policy: type, unit, allowed values, default.
    Explain {
        /// Field, as in `budget.watts`. Default: all fields.
        #[arg(value_name = "FIELD")]
        field: Option<String>,
    },
    /// Print the JSON Schema (draft 2020-12) of a document of policies, for editors.
    Schema,
    /// Print the CustomResourceDefinitions of PowerCappingPolicy, ClusterPowerBudget, PowerLevel and NodeFrequencies.
    ///
    /// Install them with `energy-agent policy crd | kubectl apply --server-side -f -`. Agents follow the objects with
    /// --capping.resources.
    Crd,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// How to print the result.
    #[arg(long = "format", env = "ENERGY_AGENT_FORMAT", value_enum, default_value_t = ReportFormat::Text, value_name = "FORMAT")]
    pub format: ReportFormat,
    #[command(flatten)]
    pub run: Config,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Only show what would be done. An agent may be running.
    #[arg(long = "dry-run")]
    pub dry_run: bool,
    #[command(flatten)]
    pub run: Config,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Address of a running agent: HOST:PORT or a URL; https:// for one with TLS (--web.config.file).
    #[arg(default_value = "127.0.0.1:9102", value_name = "ADDRESS")]
    pub address: String,
    /// Time between two refreshes.
    #[arg(long = "interval", default_value = "1s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub interval: Duration,
    /// Print the table once, as plain lines, and end.
    #[arg(long = "once", conflicts_with = "iterations")]
    pub once: bool,
    /// End after this many refreshes; 0 goes on until interrupted.
    #[arg(long = "iterations", default_value_t = 0, value_name = "N")]
    pub iterations: u64,
    /// Maximum number of rows to print without a terminal.
    #[arg(long = "rows", default_value_t = 20, value_name = "N")]
    pub rows: usize,
    /// Show idle rows too.
    #[arg(long = "all")]
    pub all: bool,
    /// Show processes in place of workloads; the agent must export them (--export.levels=node,pod,container,process).
    #[arg(long = "processes")]
    pub processes: bool,
    #[command(flatten)]
    pub login: Login,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    Text,
    Json,
}
