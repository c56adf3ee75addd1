//! The flags of `--job`, for `energy-agent measure` and `energy-agent compare`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "A Job or Pod of a cluster (--job)")]
pub struct JobArgs {
    /// File (YAML or JSON) with one Job or Pod to run in a cluster and measure there, in place of a command.
    ///
    /// It is created, followed to its end, and deleted, also after Ctrl-C or an error. The label energy-agent.io/run on it and
    /// its pods names the run. Exit code 0: it completed. 1: it failed, did not start or end in time, or was deleted. 2: wrong usage, or
    /// the API server refuses the file. 3: not measured.
    #[arg(long = "job", value_name = "FILE")]
    pub job: Option<PathBuf>,
    /// Namespace to create it in. Default: that of the file, else that of the credentials.
    #[arg(short = 'n', long = "namespace", requires = "job", value_name = "NAME")]
    pub namespace: Option<String>,
    /// Credentials for the API server. Default: KUBECONFIG, as for kubectl.
    #[arg(long = "kubeconfig", env = "ENERGY_AGENT_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current context.
    #[arg(long = "context", requires = "job", value_name = "NAME")]
    pub context: Option<String>,
    /// Prometheus server that scrapes the agents; the figures come from it.
    #[arg(long = "prometheus", requires = "job", conflicts_with = "agents", value_name = "URL")]
    pub prometheus: Option<String>,
    /// Where there is no Prometheus. `direct`: read the agents' pages through the API server (get on pods/proxy, list on pods in
    /// their namespace).
    #[arg(long = "agents", requires = "job", value_enum, value_name = "HOW")]
    pub agents: Option<AgentsBy>,
    /// Namespace of the agents, for --agents.
    #[arg(long = "agents.namespace", requires = "agents", default_value = "energy-agent", value_name = "NAME")]
    pub agents_namespace: String,
    /// Longest time from the creation of the object to its end.
    #[arg(long = "timeout", requires = "job", default_value = "1h", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
    /// Longest time without a running container while one is to run, as when no node has room or an image cannot be pulled.
    #[arg(long = "start-timeout", requires = "job", default_value = "5m", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub start_timeout: Duration,
    /// Do not delete the object.
    #[arg(long = "keep", requires = "job")]
    pub keep: bool,
}

/// How agents are asked without Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AgentsBy {
    Direct,
}
