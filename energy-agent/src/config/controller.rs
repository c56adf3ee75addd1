//! Flags of `energy-agent controller`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use energy_cluster::https::{ClientTls, HttpLogin};
use energy_cluster::prometheus;

use super::choice::{LogFormat, LogLevel, NodeSource};
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
    /// Where the power of nodes comes from: every agent's `/power`, or one query to `--controller.prometheus`, which also knows
    /// nodes that have only DCGM exporter. Prometheus says less (docs/cluster.md): no policy with scope Total is kept by it.
    #[arg(long = "controller.source", env = "ENERGY_AGENT_CONTROLLER_SOURCE", value_enum, default_value_t = NodeSource::Agents, value_name = "SOURCE")]
    pub source: NodeSource,
    /// Prometheus server that answers `spec.meter` and `spec.wattsFrom` of budgets, such as `http://prometheus:9090`. Without it,
    /// overheadPercent counts in place of a meter, and the lowest value in place of `wattsFrom`.
    #[arg(long = "controller.prometheus", env = "ENERGY_AGENT_CONTROLLER_PROMETHEUS", value_parser = prometheus, value_name = "URL")]
    pub prometheus: Option<String>,
    /// Follow objects of Climatik (group climatik.io): each PowerCappingPolicy becomes one of power.energy-agent.io, in mode
    /// Recommend if no annotation says another, and NodeFrequencies become clocks of their nodes. See
    /// docs/migrate-from-climatik.md.
    #[arg(long = "climatik.bridge", env = "ENERGY_AGENT_CLIMATIK_BRIDGE")]
    pub climatik_bridge: bool,
    /// Namespace whose NodeFrequencies of Climatik are followed. Who may write them there lowers clocks of any node.
    #[arg(long = "climatik.namespace", env = "ENERGY_AGENT_CLIMATIK_NAMESPACE", default_value = "climatik-project", value_parser = namespace, value_name = "NAMESPACE")]
    pub climatik_namespace: String,
    /// User name for agents with `--web.config.file`.
    #[arg(
        long = "agents.username",
        env = "ENERGY_AGENT_AGENTS_USERNAME",
        requires = "password_file",
        value_parser = user_name,
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
    /// Authority (PEM) that has signed the certificates of the agents. With it they are asked by TLS.
    #[arg(long = "agents.ca-file", env = "ENERGY_AGENT_AGENTS_CA_FILE", value_name = "FILE")]
    pub agents_ca: Option<PathBuf>,
    /// Name in the certificates of the agents, which are asked by their addresses. Default: the address.
    #[arg(
        long = "agents.server-name",
        env = "ENERGY_AGENT_AGENTS_SERVER_NAME",
        requires = "agents_ca",
        value_name = "NAME"
    )]
    pub agents_server_name: Option<String>,
    /// Client certificate (PEM) for agents that require one.
    #[arg(
        long = "agents.cert-file",
        env = "ENERGY_AGENT_AGENTS_CERT_FILE",
        requires = "agents_key",
        value_name = "FILE"
    )]
    pub agents_cert: Option<PathBuf>,
    /// Private key (PEM) of that certificate.
    #[arg(
        long = "agents.key-file",
        env = "ENERGY_AGENT_AGENTS_KEY_FILE",
        requires = "agents_cert",
        value_name = "FILE"
    )]
    pub agents_key: Option<PathBuf>,
    /// How often Prometheus scrapes the agents and DCGM exporter, for `--controller.source=prometheus`; the longest counts. A node whose last scrape is older than two
    /// and a half of this is silent.
    #[arg(long = "prometheus.scrape-interval", env = "ENERGY_AGENT_PROMETHEUS_SCRAPE_INTERVAL", default_value = "15s", value_parser = interval, value_name = "DURATION")]
    pub scrape_interval: Duration,
    /// Authority (PEM) that has signed the certificate of `--controller.prometheus`.
    #[arg(long = "prometheus.ca-file", env = "ENERGY_AGENT_PROMETHEUS_CA_FILE", value_name = "FILE")]
    pub prometheus_ca: Option<PathBuf>,
    /// User name for `--controller.prometheus`.
    #[arg(long = "prometheus.username", env = "ENERGY_AGENT_PROMETHEUS_USERNAME", requires = "prometheus_password_file", value_parser = user_name, conflicts_with = "prometheus_token_file", value_name = "NAME")]
    pub prometheus_username: Option<String>,
    /// File with its password; a line break at its end is ignored.
    #[arg(
        long = "prometheus.password-file",
        env = "ENERGY_AGENT_PROMETHEUS_PASSWORD_FILE",
        requires = "prometheus_username",
        value_name = "FILE"
    )]
    pub prometheus_password_file: Option<PathBuf>,
    /// File with a token for `--controller.prometheus`, such as that of a service account; it is read anew every minute.
    #[arg(
        long = "prometheus.bearer-token-file",
        env = "ENERGY_AGENT_PROMETHEUS_BEARER_TOKEN_FILE",
        value_name = "FILE"
    )]
    pub prometheus_token_file: Option<PathBuf>,
}

/// A report is too old after so many intervals, in halves.
const STALE_HALVES: u32 = 5;

impl ControllerArgs {
    /// A node whose last report is older is silent.
    pub fn patience(&self) -> Duration {
        let between = match self.source {
            NodeSource::Agents => self.interval,
            NodeSource::Prometheus => self.interval.max(self.scrape_interval),
        };
        between * STALE_HALVES / 2
    }

    /// A level is raised no sooner after a raise: Prometheus has the same figures in several rounds.
    pub const fn raise_every(&self) -> Duration {
        match self.source {
            NodeSource::Agents => Duration::ZERO,
            NodeSource::Prometheus => self.scrape_interval,
        }
    }

    /// How agents are asked.
    pub fn agents_tls(&self) -> ClientTls {
        ClientTls {
            authority: self.agents_ca.clone(),
            own: self.agents_cert.clone().zip(self.agents_key.clone()),
            server_name: self.agents_server_name.clone(),
        }
    }

    pub fn agents_login(&self) -> Option<HttpLogin> {
        let (user, password_file) = self.username.clone().zip(self.password_file.clone())?;
        Some(HttpLogin::Basic { user, password_file })
    }

    /// How Prometheus is asked.
    pub fn prometheus_tls(&self) -> ClientTls {
        ClientTls { authority: self.prometheus_ca.clone(), ..ClientTls::default() }
    }

    pub fn prometheus_login(&self) -> Option<HttpLogin> {
        let basic = self.prometheus_username.clone().zip(self.prometheus_password_file.clone());
        let basic = basic.map(|(user, password_file)| HttpLogin::Basic { user, password_file });
        basic.or_else(|| Some(HttpLogin::Bearer { token_file: self.prometheus_token_file.clone()? }))
    }
}

fn user_name(text: &str) -> Result<String, String> {
    if text.contains(':') { Err("a name cannot have a colon".to_owned()) } else { Ok(text.to_owned()) }
}

/// It becomes a part of a path.
fn namespace(text: &str) -> Result<String, String> {
    let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = (1..=63).contains(&text.len()) && text.bytes().all(is_label);
    if is_name { Ok(text.to_owned()) } else { Err("expected the name of a namespace".to_owned()) }
}

fn prometheus(text: &str) -> Result<String, String> {
    prometheus::api(text).map(|_| text.to_owned())
}

fn interval(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text).map_err(|error| format!("{error}; expected a duration such as 5s"))?;
    if parsed < Duration::from_millis(100) { Err("expected 100ms or more".to_owned()) } else { Ok(parsed) }
}
