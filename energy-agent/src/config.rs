//! The command line: every flag is also an environment variable, `ENERGY_AGENT_` and the flag in upper case with
//! underscores (`--web.listen-address` is `ENERGY_AGENT_WEB_LISTEN_ADDRESS`).

mod choice;
mod command;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use clap::Args;

pub use self::choice::{
    Capping, CpuMeter, CyclesEvent, EbpfMode, GpuMode, IdleMethod, IdlePolicy, Level, LogFormat, LogLevel, PodsSource,
};
pub use self::command::{Cli, Command, DoctorArgs, Login, PolicyCommand, ReportFormat, RestoreArgs, TopArgs};
use crate::capping::journal::Folders;
use crate::capping::stated::StatedClocks;
use crate::static_build::IS_STATIC;

/// What the NVIDIA driver calls its library.
const NVML_LIBRARY: &str = "libnvidia-ml.so.1";

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
    /// Root of sysfs: powercap, hwmon, CPU topology, kernel BTF.
    #[arg(long = "path.sysfs", env = "ENERGY_AGENT_PATH_SYSFS", default_value = "/sys", value_name = "DIR")]
    pub sysfs: PathBuf,
    /// Root of procfs: stat, cpuinfo, boot id.
    #[arg(long = "path.procfs", env = "ENERGY_AGENT_PATH_PROCFS", default_value = "/proc", value_name = "DIR")]
    pub procfs: PathBuf,
    /// Root of the cgroup file system. In a hybrid layout, the folder `unified` is found below it.
    #[arg(
        long = "path.cgroupfs",
        env = "ENERGY_AGENT_PATH_CGROUPFS",
        default_value = "/sys/fs/cgroup",
        value_name = "DIR"
    )]
    pub cgroupfs: PathBuf,
    /// Name of this node: the label node_name, and the Node object from which pod names come. Default: NODE_NAME (from the
    /// downward API, fieldRef spec.nodeName), else the host name.
    #[arg(long = "node.name", env = "ENERGY_AGENT_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    /// Time between two readings of all meters, 100ms to 1m.
    #[arg(long = "interval", env = "ENERGY_AGENT_INTERVAL", default_value = "1s", value_parser = interval, value_name = "DURATION")]
    pub interval: Duration,
    /// Source of CPU energy. `auto` uses the first of rapl, perf, hwmon, estimate that works. `none` exports no CPU energy.
    #[arg(long = "meter.cpu", env = "ENERGY_AGENT_METER_CPU", value_enum, default_value_t = CpuMeter::Auto, value_name = "METER")]
    pub meter_cpu: CpuMeter,
    /// In a virtual machine, trust the RAPL zones that the hypervisor shows.
    #[arg(long = "meter.trust-guest", env = "ENERGY_AGENT_METER_TRUST_GUEST")]
    pub trust_guest: bool,
    /// File with coefficients (JSON) that replaces the built-in table of the estimate.
    #[arg(long = "meter.estimate-coefficients", env = "ENERGY_AGENT_METER_ESTIMATE_COEFFICIENTS", value_name = "FILE")]
    pub estimate_coefficients: Option<PathBuf>,
    /// Count CPU time by eBPF. If the kernel refuses, `auto` falls back to cgroup files, and `on` ends with an error.
    #[arg(long = "ebpf", env = "ENERGY_AGENT_EBPF", value_enum, default_value_t = EbpfMode::Auto, value_name = "MODE")]
    pub ebpf: EbpfMode,
    /// Counter by which work is weighed. `auto`: CPU cycles if every CPU counts them, else CPU time. `cpu-clock` is for tests.
    #[arg(long = "ebpf.cycles-event", env = "ENERGY_AGENT_EBPF_CYCLES_EVENT", value_enum, default_value_t = CyclesEvent::Auto, value_name = "EVENT")]
    pub cycles_event: CyclesEvent,
    /// Entries of the (cgroup, package) map; 0 chooses the size from the node.
    #[arg(long = "ebpf.map-entries", env = "ENERGY_AGENT_EBPF_MAP_ENTRIES", default_value_t = 0, value_name = "N")]
    pub map_entries: u32,
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
    /// Folder for state that is kept across restarts (the learned idle baseline, the capping journal).
    #[arg(
        long = "state.directory",
        env = "ENERGY_AGENT_STATE_DIRECTORY",
        default_value = "/var/lib/energy-agent",
        value_name = "DIR"
    )]
    pub state_directory: PathBuf,
    /// Folder for the node's capping lock and for the record of limits, on a file system that ends with the boot. The lock
    /// lets only one agent of the node cap.
    ///
    /// All agents of the node must share this folder, so in a container mount the host's. Only root may open it. The agent
    /// creates it and repairs its mode.
    #[arg(
        long = "run.directory",
        env = "ENERGY_AGENT_RUN_DIRECTORY",
        default_value = "/run/energy-agent",
        value_name = "DIR"
    )]
    pub run_directory: PathBuf,
    /// Where pod names come from. `api`: a watch of the API server for this node's pods (list and watch on pods).
    /// `kubelet`: a request to the node's kubelet at an interval (nodes/proxy). `auto`: `api` if there is a service account
    /// or a kubeconfig, else `none`. `none` shows pods by uid and containers by id.
    #[arg(
        long = "pods.source",
        env = "ENERGY_AGENT_PODS_SOURCE",
        value_enum,
        default_value_t = PodsSource::Auto,
        value_name = "SOURCE"
    )]
    pub pods_source: PodsSource,
    /// Credentials for the API server outside a pod. Default: KUBECONFIG, as for kubectl. The current context is used, and
    /// the server's certificate is always verified.
    #[arg(long = "kubeconfig", env = "ENERGY_AGENT_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the kubelet. Default: https on port 10250 of NODE_IP, or of 127.0.0.1. Over http:// no credentials are sent.
    #[arg(long = "pods.kubelet-url", env = "ENERGY_AGENT_PODS_KUBELET_URL", value_name = "URL")]
    pub kubelet_url: Option<String>,
    /// Authority (PEM) that must have signed the kubelet's certificate. Default: the cluster's authority.
    #[arg(long = "pods.kubelet-ca", env = "ENERGY_AGENT_PODS_KUBELET_CA", value_name = "FILE")]
    pub kubelet_ca: Option<PathBuf>,
    /// Time between two requests to the kubelet, 1s or more. A new pod causes an earlier request.
    #[arg(long = "pods.kubelet-interval", env = "ENERGY_AGENT_PODS_KUBELET_INTERVAL", default_value = "30s", value_parser = kubelet_interval, value_name = "DURATION")]
    pub kubelet_interval: Duration,
    /// Pod labels to export in energy_agent_pod_labels: `app` becomes label_app.
    #[arg(long = "pods.labels", env = "ENERGY_AGENT_PODS_LABELS", value_delimiter = ',', value_name = "LABEL,...")]
    pub pod_labels: Vec<String>,
    /// NVIDIA GPUs. `auto` reads them through the driver's NVML library as soon as it exists. `off` never loads it.
    #[arg(long = "gpu", env = "ENERGY_AGENT_GPU", value_enum, default_value_t = GpuMode::Auto, value_name = "MODE")]
    pub gpu: GpuMode,
    /// Also export GPU values under the names of DCGM exporter (DCGM_FI_DEV_POWER_USAGE and so on), for its dashboards.
    #[arg(long = "gpu.dcgm-names", env = "ENERGY_AGENT_GPU_DCGM_NAMES")]
    pub gpu_dcgm_names: bool,
    /// Socket at which the kubelet says which pod has which GPU. It is used only on nodes with GPUs, and is optional.
    #[arg(
        long = "pods.resources-socket",
        env = "ENERGY_AGENT_PODS_RESOURCES_SOCKET",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock",
        value_name = "FILE"
    )]
    pub pods_resources_socket: PathBuf,
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
    /// GPU clocks to restore after a cap: MIN-MAX in MHz, as nvidia-smi --lock-gpu-clocks sets them, or `open`.
    ///
    /// No driver reports whether the clocks are locked, or to which range. Without this flag a cap ends with the driver's
    /// reset, which also removes an earlier lock. With a range, clocks are never set above MAX, and every restore locks
    /// them to the range again: at the end of a cap or the agent, after a crash, and by `restore`. With `open`, a GPU
    /// that runs below its highest clock without a reason does not count as locked. For one GPU: UUID=MIN-MAX; several
    /// with commas, as in `345-1200,GPU-fd585786-3c80-50f9-8a72-731ad8419df6=open`.
    #[arg(
        long = "capping.gpu-clock-before",
        env = "ENERGY_AGENT_CAPPING_GPU_CLOCK_BEFORE",
        value_parser = StatedClocks::from_str,
        value_name = "[UUID=]MIN-MAX,..."
    )]
    pub gpu_clock_before: Option<StatedClocks>,
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
    /// Maximum number of living processes with series of their own; the others are summed up in comm="other".
    #[arg(
        long = "export.process-max",
        env = "ENERGY_AGENT_EXPORT_PROCESS_MAX",
        default_value_t = 10_000,
        value_name = "N"
    )]
    pub process_max: usize,
    /// Name or path of the NVML library. It comes with the NVIDIA driver; in a container, mount it.
    #[arg(
        long = "nvml.library",
        env = "ENERGY_AGENT_NVML_LIBRARY",
        default_value = NVML_LIBRARY,
        value_parser = nvml_library,
        value_name = "FILE"
    )]
    pub nvml_library: String,
}

impl Config {
    /// Where capping keeps what has to come back.
    #[must_use]
    pub fn folders(&self) -> Folders {
        Folders { state: self.state_directory.clone(), run: self.run_directory.clone() }
    }

    /// Some source of policies is named.
    #[must_use]
    pub const fn has_policies(&self) -> bool {
        self.capping_policy.is_some() || self.capping_configmap.is_some() || self.capping_selector.is_some()
    }
}

/// A namespaced object of the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    pub namespace: String,
    pub name: String,
}

/// Objects of one namespace of the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledObjects {
    pub namespace: String,
    /// As in `kubectl --selector`.
    pub labels: String,
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.replacen("localhost", "127.0.0.1", 1) };
    full.parse().map_err(|_| "expected [ADDRESS]:PORT, such as :9102 or 127.0.0.1:9102".to_owned())
}

fn telemetry_path(text: &str) -> Result<String, String> {
    let reserved = ["/", "/healthz", "/policies", "/readyz"];
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

fn kubelet_interval(text: &str) -> Result<Duration, String> {
    let parsed =
        humantime::parse_duration(text).map_err(|error| format!("{error}; expected a duration such as 30s"))?;
    if parsed < Duration::from_secs(1) { Err("expected 1s or more".to_owned()) } else { Ok(parsed) }
}

fn nvml_library(text: &str) -> Result<String, String> {
    if IS_STATIC && text != NVML_LIBRARY {
        return Err("this is the static build, which cannot load it; on nodes with GPUs run the package or the image"
            .to_owned());
    }
    Ok(text.to_owned())
}

fn interval(text: &str) -> Result<Duration, String> {
    let parsed =
        humantime::parse_duration(text).map_err(|error| format!("{error}; expected a duration such as 1s or 500ms"))?;
    if parsed < Duration::from_millis(100) || parsed > Duration::from_secs(60) {
        return Err("expected 100ms to 1m".to_owned());
    }
    Ok(parsed)
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
