//! The command line: every flag is also an environment variable, `ENERGY_AGENT_` and the flag in upper case with
//! underscores (`--web.listen-address` is `ENERGY_AGENT_WEB_LISTEN_ADDRESS`). An empty variable counts as unset.

mod choice;
mod command;
mod command_line;
mod compare;
mod controller;
mod environment;
mod kubectl;
mod login;
mod measure;
mod measure_job;
mod report;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use energy_cluster::config::{ClusterConfig, LabelledObjects, ObjectName};
use energy_export::level::Level;
use energy_host::config::HostConfig;
use energy_model::attribution::method::{IdleMethod, IdlePolicy};

pub use self::choice::{Capping, LogFormat, LogLevel, NodeSource, Resources};
pub use self::command::{Cli, Command, DoctorArgs, PolicyCommand, ReportFormat, RestoreArgs, TopArgs};
pub use self::compare::{CompareArgs, CompareFormat, Money, NodeLabels, SweepArgs};
pub use self::controller::ControllerArgs;
pub use self::environment::unknown_variables;
pub use self::kubectl::{ChosenBudgets, ClusterTopArgs, KubectlArgs, KubectlCommand, KubectlPlugin, TopSubject};
pub use self::login::Login;
pub use self::measure::{Cooldown, MeasureArgs, WaitFor};
pub use self::measure_job::{AgentsBy, JobArgs};
pub use self::report::{Moment, ReportArgs, RunFormat, RunOutput};

#[derive(Clone, Debug, Args)]
pub struct Config {
    /// Address to listen on for the web interface and telemetry; `:9102` means every address.
    #[arg(long = "web.listen-address", env = "ENERGY_AGENT_WEB_LISTEN_ADDRESS", default_value = ":9102", value_parser = listen_address, value_name = "ADDRESS")]
    pub listen_address: SocketAddr,
    /// Path under which metrics are served.
    #[arg(long = "web.telemetry-path", env = "ENERGY_AGENT_WEB_TELEMETRY_PATH", default_value = "/metrics", value_parser = telemetry_path, value_name = "PATH")]
    pub telemetry_path: String,
    /// File with TLS, headers and basic authentication for all paths, in the format of Prometheus' exporter-toolkit. Without
    /// it, plain HTTP is served to everyone. Changes of the file and its certificates need no restart: see
    /// docs/web-config.md.
    #[arg(long = "web.config.file", env = "ENERGY_AGENT_WEB_CONFIG_FILE", value_name = "FILE")]
    pub web_config: Option<PathBuf>,
    /// Only log messages with the given severity or above.
    #[arg(long = "log.level", env = "ENERGY_AGENT_LOG_LEVEL", value_enum, default_value_t = LogLevel::Info, value_name = "LEVEL")]
    pub log_level: LogLevel,
    /// Output format of log messages.
    #[arg(long = "log.format", env = "ENERGY_AGENT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log_format: LogFormat,
    #[command(flatten)]
    pub host: HostConfig,
    /// Name of this node: the label node_name, and the Node object from which pod names come. Default: NODE_NAME (from the
    /// downward API, fieldRef spec.nodeName), else the host name.
    #[arg(long = "node.name", env = "ENERGY_AGENT_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    /// How idle power is separated from active power. `learned`: by a baseline from quiet times, and by Kepler's busy ratio
    /// until it is known. `ratio`: always by Kepler's busy ratio. `none`: all energy is active.
    #[arg(long = "attribution.idle", env = "ENERGY_AGENT_ATTRIBUTION_IDLE", value_enum, default_value_t = IdleMethod::Learned, value_name = "METHOD")]
    pub idle: IdleMethod,
    /// How idle energy is assigned to pods. It is a separate metric (energy_agent_pod_idle_joules_total), never part of
    /// active energy. `usage`: by the active energy of the interval. `requests`: by CPU requests, which need a source of
    /// pods. `equal`: the same share for each pod. `none`: not assigned.
    #[arg(
        long = "attribution.idle-policy",
        env = "ENERGY_AGENT_ATTRIBUTION_IDLE_POLICY",
        value_enum,
        default_value_t = IdlePolicy::None,
        value_name = "POLICY"
    )]
    pub idle_policy: IdlePolicy,
    #[command(flatten)]
    pub cluster: ClusterConfig,
    /// Pod labels to export in energy_agent_pod_labels: `app` becomes label_app.
    #[arg(long = "pods.labels", env = "ENERGY_AGENT_PODS_LABELS", value_delimiter = ',', value_name = "LABEL,...")]
    pub pod_labels: Vec<String>,
    /// Also export GPU values under the names of DCGM exporter (DCGM_FI_DEV_POWER_USAGE and so on), for its dashboards.
    #[arg(long = "gpu.dcgm-names", env = "ENERGY_AGENT_GPU_DCGM_NAMES")]
    pub gpu_dcgm_names: bool,
    /// Power capping. `off`: no policy is read and nothing is capped; limits that an earlier run left are restored. `on`:
    /// policies are active. A policy in mode Enforce caps clocks, power limits and quotas of pods over their budget, and
    /// restores them afterwards.
    #[arg(long = "capping", env = "ENERGY_AGENT_CAPPING", value_enum, default_value_t = Capping::Off, value_name = "MODE")]
    pub capping: Capping,
    /// File with policies, or folder of them (`*.yaml`, `*.yml`, `*.json`), such as a mounted ConfigMap.
    ///
    /// The agent reads it twice a second and needs no restart. A file may have up to 1 MiB. Mount a ConfigMap as a folder: the
    /// kubelet never updates a single file that is mounted by subPath. If a policy is refused, its previous version stays
    /// active. Deleting a file deletes its policies.
    #[arg(long = "capping.policy", env = "ENERGY_AGENT_CAPPING_POLICY", value_name = "PATH")]
    pub capping_policy: Option<PathBuf>,
    /// ConfigMap with policies to watch; each key is a document. Needs list and watch on configmaps in its namespace.
    #[arg(long = "capping.configmap", env = "ENERGY_AGENT_CAPPING_CONFIGMAP", value_parser = object_name, value_name = "NAMESPACE/NAME")]
    pub capping_configmap: Option<ObjectName>,
    /// All ConfigMaps of a namespace that have these labels, as in `energy/energy-agent.io/policies=true`.
    #[arg(
        long = "capping.configmap-selector",
        env = "ENERGY_AGENT_CAPPING_CONFIGMAP_SELECTOR",
        value_parser = labelled_objects,
        value_name = "NAMESPACE/LABELS"
    )]
    pub capping_selector: Option<LabelledObjects>,
    /// What PowerCappingPolicy and ClusterPowerBudget objects may do. `off`: they are not followed. `recommend`: they show what
    /// they would do, and nothing is written, whatever their mode. `enforce`: their mode counts.
    ///
    /// Needs list and watch on powercappingpolicies in all namespaces, and the kinds (`energy-agent policy crd`). A
    /// PowerCappingPolicy selects pods of its own namespace only and never lifts a limit of a document: of both, the lower one
    /// holds.
    #[arg(long = "capping.resources", env = "ENERGY_AGENT_CAPPING_RESOURCES", value_enum, default_value_t = Resources::Off, value_name = "MODE")]
    pub capping_resources: Resources,
    /// Namespace in which the levels of ClusterPowerBudgets are, and the Leases of who writes them. Default: POD_NAMESPACE (from
    /// the downward API, fieldRef metadata.namespace), else energy-agent.
    #[arg(
        long = "capping.resources-namespace",
        env = "ENERGY_AGENT_CAPPING_RESOURCES_NAMESPACE",
        value_name = "NAMESPACE"
    )]
    pub capping_resources_namespace: Option<String>,
    /// Metric levels to export. If a level is left out, its energy is still part of the sums above it.
    ///
    /// With one zone a unit and a pod have 4 series, a container 5, a process 3; each further zone adds two. Processes also
    /// cost a second look-up at each switch between them, some 3 KiB of memory each, and 0.5 % of a core for 5,000.
    #[arg(
        long = "export.levels",
        env = "ENERGY_AGENT_EXPORT_LEVELS",
        value_enum,
        value_delimiter = ',',
        default_value = "node,pod,container",
        value_name = "LEVEL,..."
    )]
    pub levels: Vec<Level>,
    /// Metrics of these levels to export, by name or with `*`. `-NAME` leaves one out; the name of a level selects all of it.
    ///
    /// Empty exports all metrics of the levels. `kepler_*,-*_watts` selects Kepler's totals without power. The agent's own
    /// metrics are always exported. The variable EXPORT_METRICS, a name from the old Kepler's ConfigMap, overrides this
    /// flag.
    #[arg(
        long = "export.metrics",
        env = "ENERGY_AGENT_EXPORT_METRICS",
        default_value = "",
        hide_default_value = true,
        value_name = "NAME,..."
    )]
    pub metrics: String,
    /// Units outside pods to export by name: a regular expression that must match the whole name, as in node_exporter's
    /// `--collector.systemd.unit-include`. The others are summed up in unit="other".
    ///
    /// Empty exports all units except scopes (sessions, desktop programs, `systemd-run --scope`), which are part of the slice
    /// or service that holds them. `.*` exports scopes too. A container outside pods always has series of its own.
    #[arg(
        long = "export.units",
        env = "ENERGY_AGENT_EXPORT_UNITS",
        default_value = "",
        hide_default_value = true,
        value_name = "REGEX"
    )]
    pub units: String,
    /// File of `KEY: value` lines, or folder with one file per key (a mounted ConfigMap), that selects levels and metrics.
    ///
    /// The agent reads it twice a second and needs no restart. Keys: EXPORT_LEVELS, EXPORT_METRICS, EXPORT_UNITS (as the flags), and
    /// SOURCE.COUNTER, SOURCE.CGROUP, SOURCE.KUBELET, SOURCE.GPU: enabled or disabled. A key here overrides the same
    /// variable in the environment, which overrides the flag. If a value is invalid, the previous version stays active.
    #[arg(long = "export.config", env = "ENERGY_AGENT_EXPORT_CONFIG", value_name = "PATH")]
    pub export_config: Option<PathBuf>,
    /// ConfigMap to watch for the same keys; they override those of the file.
    #[arg(long = "export.configmap", env = "ENERGY_AGENT_EXPORT_CONFIGMAP", value_parser = object_name, value_name = "NAMESPACE/NAME")]
    pub export_configmap: Option<ObjectName>,
    /// Also write when each counter of a pod, container, unit or process was 0 (`_created` lines), on pages in the OpenMetrics format.
    ///
    /// A counter that begins between two scrapes has risen already when Prometheus first sees it. With this flag and
    /// `--enable-feature=created-timestamp-zero-ingestion`, Prometheus 3 knows where it began. Without that feature,
    /// Prometheus stores each line as one more series. docs/accuracy.md has the figures.
    #[arg(long = "export.created", env = "ENERGY_AGENT_EXPORT_CREATED")]
    pub export_created: bool,
    /// How long the series of an ended workload stay (state="terminated").
    #[arg(long = "export.terminated-retention", env = "ENERGY_AGENT_EXPORT_TERMINATED_RETENTION", default_value = "2m", value_parser = retention, value_name = "DURATION")]
    pub terminated_retention: Duration,
    /// Maximum number of ended workloads to keep, at most 500 of them outside pods; the oldest are removed first.
    #[arg(
        long = "export.terminated-max",
        env = "ENERGY_AGENT_EXPORT_TERMINATED_MAX",
        default_value_t = 5000,
        value_name = "N"
    )]
    pub terminated_max: usize,
}

impl Config {
    /// Where levels and Leases are.
    #[must_use]
    pub(crate) fn resources_namespace(&self) -> String {
        let of_pod = || std::env::var("POD_NAMESPACE").ok().filter(|name| !name.is_empty());
        self.capping_resources_namespace.clone().or_else(of_pod).unwrap_or_else(|| "energy-agent".to_owned())
    }

    /// Some source of policies is named.
    #[must_use]
    pub const fn has_policies(&self) -> bool {
        self.capping_policy.is_some()
            || self.capping_configmap.is_some()
            || self.capping_selector.is_some()
            || !matches!(self.capping_resources, Resources::Off)
    }
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.replacen("localhost", "127.0.0.1", 1) };
    full.parse().map_err(|_| "expected [ADDRESS]:PORT, such as :9102 or 127.0.0.1:9102".to_owned())
}

fn telemetry_path(text: &str) -> Result<String, String> {
    let reserved = ["/", "/healthz", "/policies", "/power", "/readyz"];
    if !text.starts_with('/') || reserved.contains(&text) || text.contains(['{', '}', '*', '?', '#']) {
        return Err(format!("expected a path such as /metrics, other than {}", reserved.join(", ")));
    }
    Ok(text.to_owned())
}

fn object_name(text: &str) -> Result<ObjectName, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ObjectName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err("expected NAMESPACE/NAME, such as energy/energy-agent".to_owned()),
    }
}

fn labelled_objects(text: &str) -> Result<LabelledObjects, String> {
    match text.split_once('/') {
        Some((namespace, labels)) if !namespace.is_empty() && !labels.is_empty() && !namespace.contains('=') => {
            Ok(LabelledObjects { namespace: namespace.to_owned(), labels: labels.to_owned() })
        }
        _ => Err("expected NAMESPACE/LABELS, such as energy/energy-agent.io/policies=true".to_owned()),
    }
}

fn retention(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; expected a duration such as 2m or 90s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_port_listens_everywhere() {
        assert_eq!(listen_address(":9102").unwrap().to_string(), "[::]:9102");
        assert_eq!(listen_address("localhost:1").unwrap().to_string(), "127.0.0.1:1");
        assert!(listen_address("9102").is_err());
    }

    #[test]
    fn every_flag_has_a_variable_of_the_same_name() {
        use clap::CommandFactory;
        for arg in Cli::command().get_arguments().filter(|arg| arg.get_long().is_some()) {
            let flag = arg.get_long().unwrap();
            if flag == "help" || flag == "version" {
                continue;
            }
            let variable = format!("ENERGY_AGENT_{}", flag.to_uppercase().replace(['.', '-'], "_"));
            assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(variable.as_str()));
        }
    }
}
