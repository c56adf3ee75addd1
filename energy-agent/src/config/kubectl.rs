//! Flags of `kubectl energy`, which is this program under the name `kubectl-energy`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Power of pods and nodes, and power budgets of a cluster.
#[derive(Debug, Parser)]
#[command(name = "kubectl-energy", bin_name = "kubectl energy", version, about)]
pub struct KubectlPlugin {
    #[command(flatten)]
    pub arguments: KubectlArgs,
}

#[derive(Debug, Args)]
pub struct KubectlArgs {
    #[command(subcommand)]
    pub command: KubectlCommand,
    /// Credentials for the API server. Default: KUBECONFIG, as for kubectl. The current context is used.
    #[arg(long = "kubeconfig", env = "ENERGY_AGENT_KUBECONFIG", global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum KubectlCommand {
    /// Pods or nodes by watts, the highest first, as their agents say now.
    ///
    /// Reads the pages of all agents through the API server: needs list on pods and get on pods/proxy in the namespace of the
    /// agents. Exit code 1: a page could not be read, and the text says which; the others are shown.
    Top(ClusterTopArgs),
    /// ClusterPowerBudgets with their power and level, and what there is to say of each.
    Budgets,
    /// Release budgets in an emergency: nodes open at their next tick, with or without a controller.
    ///
    /// Sets mode Off on those in mode Enforce, and notes on them that they were released. Needs get, list and patch on
    /// clusterpowerbudgets. Other limits stay: documents and PowerCappingPolicies. Exit code 1: a budget could not be released.
    Release(ChosenBudgets),
    /// Put budgets back into the mode that they had before `release`.
    Resume(ChosenBudgets),
}

#[derive(Debug, Args)]
pub struct ClusterTopArgs {
    #[arg(value_enum, default_value_t = TopSubject::Pods)]
    pub subject: TopSubject,
    /// Only pods of this namespace.
    #[arg(short = 'n', long = "namespace", value_name = "NAME")]
    pub namespace: Option<String>,
    /// Namespace of the agents.
    #[arg(long = "agents.namespace", default_value = "energy-agent", value_name = "NAME")]
    pub agents_namespace: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopSubject {
    #[value(alias = "pod")]
    Pods,
    #[value(alias = "node")]
    Nodes,
}

#[derive(Debug, Args)]
pub struct ChosenBudgets {
    /// Names of ClusterPowerBudgets.
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "BUDGET")]
    pub names: Vec<String>,
    /// All of them.
    #[arg(long = "all")]
    pub all: bool,
}
