//! Flags of `energy-agent controller`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use energy_cluster::prometheus::PromqlClient;

use super::choice::{LogFormat, LogLevel};
use super::listen_address;

#[derive(Clone, Debug, Args)]
pub struct ControllerArgs {
    /// Address to listen on for metrics, health and the page /budgets; `:9103` means every address.
    #[arg(long = "web.listen-address", env = "ENERGY_AGENT_WEB_LISTEN_ADDRESS", default_value = ":9103", value_parser = listen_address, value_name = "ADDRESS")]
    pub listen_address: SocketAddr,
    /// File with TLS, headers and basic authentication for all paths, in the format of Prometheus' exporter-toolkit.
    #[arg(long = "web.config.file", env = "ENERGY_AGENT_WEB_CONFIG_FILE", value_name = "FILE")]
    pub web_config: Option<PathBuf>,
    /// Only log messages with the given severity or above.
    #[arg(long = "log.level", env = "ENERGY_AGENT_LOG_LEVEL", value_enum, default_value_t = LogLevel::Info, value_name = "LEVEL")]
    pub log_level: LogLevel,
    /// Output format of log messages.
    #[arg(long = "log.format", env = "ENERGY_AGENT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// Credentials for the API server outside a pod. Default: KUBECONFIG, as for kubectl.
    #[arg(long = "kubeconfig", env = "ENERGY_AGENT_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the agents. Their PowerLevels and the Leases of the controller are there too.
    #[arg(
        long = "controller.namespace",
        env = "ENERGY_AGENT_CONTROLLER_NAMESPACE",
        default_value = "energy-agent",
        value_name = "NAMESPACE"
    )]
    pub namespace: String,
    /// Headless Service of the agents: in its EndpointSlices the controller finds every agent's address.
    #[arg(
        long = "controller.service",
        env = "ENERGY_AGENT_CONTROLLER_SERVICE",
        default_value = "energy-agent",
        value_name = "NAME"
    )]
    pub service: String,
    /// Time between two rounds: all agents are asked for their power, then every budget is decided.
    #[arg(long = "controller.interval", env = "ENERGY_AGENT_CONTROLLER_INTERVAL", default_value = "5s", value_parser = interval, value_name = "DURATION")]
    pub interval: Duration,
    /// Lease that decides which replica leads.
    #[arg(
        long = "controller.lease",
        env = "ENERGY_AGENT_CONTROLLER_LEASE",
        default_value = "energy-agent-controller",
        value_name = "NAME"
    )]
    pub lease: String,
    /// A leader that has not renewed the Lease for this time is replaced. Three intervals or more.
    #[arg(long = "controller.lease-duration", env = "ENERGY_AGENT_CONTROLLER_LEASE_DURATION", default_value = "15s", value_parser = interval, value_name = "DURATION")]
    pub lease_duration: Duration,
    /// Name of this replica in the Lease; no two replicas may have the same. Default: POD_NAME, else the host name and the
    /// process id.
    #[arg(long = "controller.identity", env = "ENERGY_AGENT_CONTROLLER_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,
    /// Prometheus server that answers `spec.meter` and `spec.wattsFrom` of budgets, such as `http://prometheus:9090`. Without it,
    /// overheadPercent counts in place of a meter, and the lowest value in place of `wattsFrom`.
    #[arg(long = "controller.prometheus", env = "ENERGY_AGENT_CONTROLLER_PROMETHEUS", value_parser = prometheus, value_name = "URL")]
    pub prometheus: Option<String>,
    /// User name for agents with `--web.config.file`.
    #[arg(
        long = "agents.username",
        env = "ENERGY_AGENT_AGENTS_USERNAME",
        requires = "password_file",
        value_name = "NAME"
    )]
    pub username: Option<String>,
    /// File with its password; a line break at its end is ignored.
    #[arg(
        long = "agents.password-file",
        env = "ENERGY_AGENT_AGENTS_PASSWORD_FILE",
        requires = "username",
        value_name = "FILE"
    )]
    pub password_file: Option<PathBuf>,
}

fn prometheus(text: &str) -> Result<String, String> {
    PromqlClient::new(text).map(|_| text.to_owned())
}

fn interval(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text).map_err(|error| format!("{error}; expected a duration such as 5s"))?;
    if parsed < Duration::from_millis(100) { Err("expected 100ms or more".to_owned()) } else { Ok(parsed) }
}
