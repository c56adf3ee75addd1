//! Where the machine is found and how it is read: the flags of meters, eBPF, GPUs and the folders of capping.

use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use clap::{Args, ValueEnum};
use energy_model::capping::stated::StatedClocks;

use crate::static_build::IS_STATIC;

/// What the NVIDIA driver calls its library.
const NVML_LIBRARY: &str = "libnvidia-ml.so.1";

/// Flags of this crate, each also an environment variable.
#[derive(Clone, Debug, Args)]
pub struct HostConfig {
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
    /// NVIDIA GPUs. `auto` reads them through the driver's NVML library as soon as it exists. `off` never loads it.
    #[arg(long = "gpu", env = "ENERGY_AGENT_GPU", value_enum, default_value_t = GpuMode::Auto, value_name = "MODE")]
    pub gpu: GpuMode,
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

impl HostConfig {
    /// Where capping keeps what has to come back.
    #[must_use]
    pub fn folders(&self) -> Folders {
        Folders { state: self.state_directory.clone(), run: self.run_directory.clone() }
    }
}

/// Where the agent keeps what it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    /// `--state.directory`
    pub state: PathBuf,
    /// `--run.directory`
    pub run: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CpuMeter {
    Auto,
    Rapl,
    Perf,
    Hwmon,
    Estimate,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EbpfMode {
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CyclesEvent {
    Auto,
    Cycles,
    CpuClock,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GpuMode {
    Auto,
    Off,
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
