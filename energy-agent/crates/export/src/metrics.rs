//! Every metric of the agent: name, type, labels and HELP in one table. `docs/metrics.md` is generated from it, and the
//! series are written by [`crate::series`] (from the snapshot) and [`crate::self_metrics`] (the agent about itself).

use std::fmt::Write as _;

use crate::level::Level;
use crate::settings::SourceSwitch;

/// What a family's samples mean to a scraper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
}

energy_model::as_str!(FamilyKind { Counter => "counter", Gauge => "gauge", Histogram => "histogram" });

/// One family.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Full sample name; counters end in `_total`.
    pub name: &'static str,
    pub kind: FamilyKind,
    /// Labels that a series may have; one with an empty value is left out.
    pub labels: &'static [&'static str],
    /// Exported as `--export.levels` and `--export.metrics` choose; always where it is `None`.
    pub level: Option<Level>,
    /// Hidden where this source is turned off.
    pub source: Option<SourceSwitch>,
    pub help: &'static str,
}

const ZONE: &[&str] = &["zone", "path", "source", "socket", "die", "node_name"];
const CONTAINER: &[&str] = &["container_id", "container_name", "runtime", "state", "pod_id", "node_name"];
const CONTAINER_ZONE: &[&str] =
    &["container_id", "container_name", "runtime", "state", "pod_id", "node_name", "zone", "source"];
const POD: &[&str] = &["pod_id", "pod_name", "pod_namespace", "state", "node_name"];
const POD_ZONE: &[&str] = &["pod_id", "pod_name", "pod_namespace", "state", "node_name", "zone", "source"];
const GPU: &[&str] = &["gpu", "gpu_uuid", "gpu_name", "vendor", "node_name"];
const GPU_SOURCE: &[&str] = &["gpu", "gpu_uuid", "gpu_name", "vendor", "node_name", "source"];
const HOLDER: &[&str] = &[
    "gpu",
    "gpu_uuid",
    "pod_id",
    "pod_name",
    "pod_namespace",
    "container_name",
    "container_id",
    "node_name",
    "evidence",
];
const POD_SOURCE: &[&str] = &["pod_id", "pod_name", "pod_namespace", "state", "node_name", "source"];
const CONTAINER_SOURCE: &[&str] =
    &["container_id", "container_name", "runtime", "state", "pod_id", "node_name", "source"];
const UNIT_SOURCE: &[&str] = &["unit", "state", "node_name", "source"];
const DCGM: &[&str] = &["gpu", "UUID", "device", "modelName", "Hostname", "namespace", "pod", "container"];
const POD_IDLE: &[&str] = &["pod_id", "pod_name", "pod_namespace", "state", "node_name", "zone", "source", "policy"];
const IDLE: &[&str] = &["policy", "zone", "source", "node_name"];
const PROCESS: &[&str] = &["pid", "comm", "exe", "type", "container_id", "vm_id", "node_name"];
const PROCESS_ZONE: &[&str] =
    &["pid", "comm", "exe", "type", "state", "container_id", "vm_id", "node_name", "zone", "source"];
const PROCESS_SOURCE: &[&str] =
    &["pid", "comm", "exe", "type", "state", "container_id", "vm_id", "node_name", "source"];
const POLICY: &[&str] = &["policy", "policy_namespace", "authority", "node_name"];
const SUBJECT: &[&str] =
    &["policy", "policy_namespace", "authority", "pod_id", "pod_name", "pod_namespace", "node_name"];
const KNOB: &[&str] = &["actuator", "device", "node_name"];
const LIMIT: &[&str] = &["actuator", "device", "policy", "policy_namespace", "authority", "node_name"];
const UNIT: &[&str] = &["unit", "state", "node_name"];
const UNIT_ZONE: &[&str] = &["unit", "state", "node_name", "zone", "source"];

const fn first(sources: &[SourceSwitch]) -> Option<SourceSwitch> {
    match sources {
        [source, ..] => Some(*source),
        [] => None,
    }
}

macro_rules! metrics {
    ($($id:ident = $name:literal $kind:ident $level:expr, $labels:expr, $(of $source:ident,)? $help:literal;)*) => {
        $(pub const $id: Metric = Metric {
            name: $name,
            kind: FamilyKind::$kind,
            labels: $labels,
            level: $level,
            source: first(&[$(SourceSwitch::$source)?]),
            help: $help,
        };)*
        /// All families, in the order of the documentation.
        pub const ALL: &[Metric] = &[$($id),*];
    };
}

metrics! {
    NODE_JOULES = "kepler_node_cpu_joules_total" Counter Some(Level::Node), ZONE,
        "Energy of one zone since the agent started. The label source says how it was obtained: from a counter (rapl, rapl_mmio, perf), from a board sensor (hwmon), or estimated from CPU load (estimate). Add up only package and dram zones.";
    NODE_ACTIVE_JOULES = "kepler_node_cpu_active_joules_total" Counter Some(Level::Node), ZONE,
        "Energy above the idle baseline. It equals pods + system + retired + unattributed of the same zone and source, exactly.";
    NODE_IDLE_JOULES = "kepler_node_cpu_idle_joules_total" Counter Some(Level::Node), ZONE,
        "Energy that the zone would have used if nothing ran (the label idle of energy_agent_attribution_info names the method). active + idle equals kepler_node_cpu_joules_total, exactly.";
    NODE_UNATTRIBUTED_JOULES = "energy_agent_node_cpu_unattributed_joules_total" Counter Some(Level::Node), ZONE,
        "Part of the active energy that could not be charged to a workload, because the usage meter missed the time or nothing ran.";
    NODE_WATTS = "kepler_node_cpu_watts" Gauge Some(Level::Node), ZONE,
        "Mean power of one zone over the last interval; absent if the interval was not measured.";
    NODE_ACTIVE_WATTS = "kepler_node_cpu_active_watts" Gauge Some(Level::Node), ZONE,
        "Mean power above the idle baseline over the last interval.";
    NODE_IDLE_WATTS = "kepler_node_cpu_idle_watts" Gauge Some(Level::Node), ZONE,
        "Mean idle power over the last interval.";
    NODE_USAGE_RATIO = "kepler_node_cpu_usage_ratio" Gauge Some(Level::Node), &["node_name"],
        "Busy share of the online CPUs' time in the last interval, 0 to 1, from the kernel's accounting, without I/O wait and stolen time.";
    NODE_INFO = "kepler_node_cpu_info" Gauge Some(Level::Node),
        &["processor", "vendor_id", "model_name", "physical_id", "core_id", "node_name"],
        "One logical CPU, as /proc/cpuinfo describes it; always 1.";
    RETIRED_JOULES = "energy_agent_retired_cpu_joules_total" Counter Some(Level::Node), &["zone", "source", "node_name"],
        "Active energy of ended workloads after their own series were removed.";
    NODE_GPU_INFO = "kepler_node_gpu_info" Gauge Some(Level::Node), GPU, of Gpu,
        "A GPU that the agent reads, even if it supports only some values; always 1.";
    NODE_GPU_JOULES = "kepler_node_gpu_joules_total" Counter Some(Level::Node), GPU_SOURCE, of Gpu,
        "Energy of one GPU including its memory since the agent started: from its counter (source=nvml), or its power integrated over the driver's time stamps (nvml_integrated).";
    NODE_GPU_ACTIVE_JOULES = "kepler_node_gpu_active_joules_total" Counter Some(Level::Node), GPU_SOURCE, of Gpu,
        "Energy above the GPU's idle power. Over all GPUs of a source it equals pods + system + retired + unattributed, exactly.";
    NODE_GPU_IDLE_JOULES = "kepler_node_gpu_idle_joules_total" Counter Some(Level::Node), GPU_SOURCE, of Gpu,
        "Energy that the GPU would have used if nothing ran (the label idle of energy_agent_node_gpu_attribution_info names the method). active + idle equals kepler_node_gpu_joules_total, exactly.";
    GPU_UNATTRIBUTED_JOULES = "energy_agent_node_gpu_unattributed_joules_total" Counter Some(Level::Node), GPU_SOURCE, of Gpu,
        "Part of the GPU's active energy that could not be charged to a workload.";
    NODE_GPU_WATTS = "kepler_node_gpu_watts" Gauge Some(Level::Node), GPU_SOURCE, of Gpu,
        "Mean power of one GPU over the interval of its last reading; absent if it was not measured.";
    NODE_GPU_ACTIVE_WATTS = "kepler_node_gpu_active_watts" Gauge Some(Level::Node), GPU_SOURCE, of Gpu,
        "Mean power above the GPU's idle power over the interval of its last reading.";
    NODE_GPU_IDLE_WATTS = "kepler_node_gpu_idle_watts" Gauge Some(Level::Node), GPU_SOURCE, of Gpu,
        "Mean idle power over the interval of the GPU's last reading.";
    GPU_ATTRIBUTION_INFO = "energy_agent_node_gpu_attribution_info" Gauge Some(Level::Node),
        &["gpu", "gpu_uuid", "gpu_name", "vendor", "node_name", "method", "idle"], of Gpu,
        "How the GPU's energy is divided; always 1. method: samples (SM time of each process), mps (the part of the MPS server is divided among its clients), context (only one container or pod has contexts), allocation (the kubelet gave it to one), mig-activity or mig-slices (MIG instances), none. idle: learned, ratio (utilisation) or none.";
    GPU_UTILIZATION = "energy_agent_node_gpu_utilization_ratio" Gauge Some(Level::Node), GPU, of Gpu,
        "Share of the driver's last sample period in which a kernel ran on the GPU, 0 to 1.";
    GPU_MEMORY_UTILIZATION = "energy_agent_node_gpu_memory_utilization_ratio" Gauge Some(Level::Node), GPU, of Gpu,
        "Share of the driver's last sample period in which the GPU's memory was read or written, 0 to 1.";
    GPU_MEMORY_USED = "energy_agent_node_gpu_memory_used_bytes" Gauge Some(Level::Node), GPU, of Gpu,
        "GPU memory in use, including the driver's own.";
    GPU_MEMORY_TOTAL = "energy_agent_node_gpu_memory_total_bytes" Gauge Some(Level::Node), GPU, of Gpu,
        "GPU memory installed.";
    GPU_TEMPERATURE = "energy_agent_node_gpu_temperature_celsius" Gauge Some(Level::Node), GPU, of Gpu,
        "Temperature of the GPU's die.";
    GPU_SM_CLOCK = "energy_agent_node_gpu_sm_clock_hertz" Gauge Some(Level::Node), GPU, of Gpu,
        "Clock of the streaming multiprocessors.";
    GPU_POWER_LIMIT = "energy_agent_node_gpu_power_limit_watts" Gauge Some(Level::Node), GPU, of Gpu,
        "Power limit that the driver enforces.";
    GPU_THROTTLE_REASONS = "energy_agent_node_gpu_throttle_reasons" Gauge Some(Level::Node),
        &["gpu", "gpu_uuid", "gpu_name", "vendor", "node_name", "reason"], of Gpu,
        "1 if the clocks are currently limited for this reason, 0 if not: gpu_idle, applications_clocks_setting, sw_power_cap, hw_slowdown, sync_boost, sw_thermal_slowdown, hw_thermal_slowdown, hw_power_brake_slowdown, display_clock_setting.";
    GPU_RETIRED_JOULES = "energy_agent_retired_gpu_joules_total" Counter Some(Level::Node), &["source", "node_name"], of Gpu,
        "Active GPU energy of ended workloads after their own series were removed.";
    SYSTEM_GPU_JOULES = "energy_agent_system_gpu_joules_total" Counter Some(Level::Node), UNIT_SOURCE, of Gpu,
        "Active GPU energy outside pods by systemd unit or cgroup; absent for units that never used a GPU.";
    SYSTEM_GPU_WATTS = "energy_agent_system_gpu_watts" Gauge Some(Level::Node), UNIT_SOURCE, of Gpu,
        "Mean active GPU power of a unit over the GPUs' last readings.";
    DCGM_SM_CLOCK = "DCGM_FI_DEV_SM_CLOCK" Gauge Some(Level::Node), DCGM,
        "SM clock in MHz, as DCGM exporter has it (--gpu.dcgm-names).";
    DCGM_MEM_CLOCK = "DCGM_FI_DEV_MEM_CLOCK" Gauge Some(Level::Node), DCGM,
        "Memory clock in MHz, as DCGM exporter has it (--gpu.dcgm-names).";
    DCGM_GPU_TEMP = "DCGM_FI_DEV_GPU_TEMP" Gauge Some(Level::Node), DCGM,
        "Temperature in degrees Celsius, as DCGM exporter has it (--gpu.dcgm-names).";
    DCGM_POWER_USAGE = "DCGM_FI_DEV_POWER_USAGE" Gauge Some(Level::Node), DCGM,
        "Current power in watts, as DCGM exporter has it (--gpu.dcgm-names).";
    DCGM_POWER_LIMIT = "DCGM_FI_DEV_POWER_MGMT_LIMIT" Gauge Some(Level::Node), DCGM,
        "Power limit in watts, as DCGM exporter has it (--gpu.dcgm-names).";
    DCGM_ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" Gauge Some(Level::Node), DCGM,
        "Energy in millijoules, as DCGM exporter has it, but since the agent started. The type is gauge because the name does not end in _total (--gpu.dcgm-names).";
    DCGM_GPU_UTIL = "DCGM_FI_DEV_GPU_UTIL" Gauge Some(Level::Node), DCGM,
        "GPU utilisation in percent, as DCGM exporter has it (--gpu.dcgm-names).";
    DCGM_MEM_COPY_UTIL = "DCGM_FI_DEV_MEM_COPY_UTIL" Gauge Some(Level::Node), DCGM,
        "Utilisation of the GPU's memory in percent, as DCGM exporter has it (--gpu.dcgm-names).";
    DCGM_FB_USED = "DCGM_FI_DEV_FB_USED" Gauge Some(Level::Node), DCGM,
        "GPU memory in use in MiB, as DCGM exporter has it (--gpu.dcgm-names).";
    DCGM_FB_FREE = "DCGM_FI_DEV_FB_FREE" Gauge Some(Level::Node), DCGM,
        "Free GPU memory in MiB, as DCGM exporter has it (--gpu.dcgm-names).";
    POD_GPU_JOULES = "kepler_pod_gpu_joules_total" Counter Some(Level::Pod), POD_SOURCE, of Gpu,
        "Active GPU energy of a pod over all GPUs: the exact sum of its containers; absent for pods that never used a GPU.";
    POD_GPU_WATTS = "kepler_pod_gpu_watts" Gauge Some(Level::Pod), POD_SOURCE, of Gpu,
        "Mean active GPU power of a pod over the GPUs' last readings.";
    GPU_HOLDER_INFO = "energy_agent_gpu_holder_info" Gauge Some(Level::Pod), HOLDER, of Gpu,
        "A container that holds a GPU, or a MIG instance of it, or held it when it ended; always 1. container_id: of a container outside pods, or without a name. evidence: allocation (the kubelet gave it), samples (a process was seen to work on it), context (a process has a context on it).";
    CONTAINER_GPU_JOULES = "kepler_container_gpu_joules_total" Counter Some(Level::Container), CONTAINER_SOURCE, of Gpu,
        "Active GPU energy of a container over all GPUs. Energy of a pod that belongs to no container is in the container POD.";
    CONTAINER_GPU_WATTS = "kepler_container_gpu_watts" Gauge Some(Level::Container), CONTAINER_SOURCE, of Gpu,
        "Mean active GPU power of a container over the GPUs' last readings.";
    IDLE_UNASSIGNED_JOULES = "energy_agent_idle_unassigned_joules_total" Counter Some(Level::Node), IDLE,
        "Idle energy that the policy could not assign to a pod, because there was no pod or all weights were 0. The idle energy of all zones of a kind and source equals pods + unassigned + retired, exactly.";
    RETIRED_IDLE_JOULES = "energy_agent_retired_idle_joules_total" Counter Some(Level::Node), IDLE,
        "Idle energy that was assigned to ended pods, after their own series were removed.";
    POD_JOULES = "kepler_pod_cpu_joules_total" Counter Some(Level::Pod), POD_ZONE,
        "Active energy of a pod: the exact sum of its containers, including the container POD and containers that ended before their names were known.";
    POD_WATTS = "kepler_pod_cpu_watts" Gauge Some(Level::Pod), POD_ZONE,
        "Mean active power of a pod over the last interval.";
    POD_IDLE_JOULES = "energy_agent_pod_idle_joules_total" Counter Some(Level::Pod), POD_IDLE,
        "Part of the node's idle energy that --attribution.idle-policy assigned to a pod. It is never part of the pod's active energy (kepler_pod_cpu_joules_total). Absent without a policy.";
    POD_CPU_SECONDS = "energy_agent_pod_cpu_seconds_total" Counter Some(Level::Pod), POD, of Cgroup,
        "Time that the pod's tasks ran on a CPU, as the usage meter counted it (label meter of energy_agent_attribution_info).";
    POD_CPU_CYCLES = "energy_agent_pod_cpu_cycles_total" Counter Some(Level::Pod), POD, of Counter,
        "Unhalted CPU cycles that the pod's tasks used, from a hardware counter; absent if there is none.";
    POD_SWITCHES = "energy_agent_pod_context_switches_total" Counter Some(Level::Pod), POD, of Cgroup,
        "Number of times that a task of the pod was switched out, counted by eBPF; absent without eBPF.";
    POD_LABELS = "energy_agent_pod_labels" Gauge Some(Level::Pod), &["pod_id", "pod_name", "pod_namespace", "node_name", "label_*"],
        "Kubernetes labels of a pod that --pods.labels selects. Characters that are invalid in a label name are replaced by _. If two labels would have the same name, _conflict1, _conflict2 are added. Always 1.";
    CONTAINER_UNIT_INFO = "energy_agent_container_unit_info" Gauge Some(Level::Container),
        &["container_id", "runtime", "unit", "node_name"],
        "The unit of a container outside pods; always 1. The series of the unit include those of the container.";
    CONTAINER_JOULES = "kepler_container_cpu_joules_total" Counter Some(Level::Container), CONTAINER_ZONE,
        "Active energy of a container: the zone's active energy divided by CPU cycles or CPU time (label weight of energy_agent_attribution_info). The energy of containers outside pods is also part of their unit.";
    CONTAINER_WATTS = "kepler_container_cpu_watts" Gauge Some(Level::Container), CONTAINER_ZONE,
        "Mean active power of a container over the last interval.";
    CONTAINER_CPU_SECONDS = "kepler_container_cpu_seconds_total" Counter Some(Level::Container), CONTAINER, of Cgroup,
        "Time that the container's tasks ran on a CPU, as the usage meter counted it (label meter of energy_agent_attribution_info).";
    CONTAINER_CPU_CYCLES = "energy_agent_container_cpu_cycles_total" Counter Some(Level::Container), CONTAINER, of Counter,
        "Unhalted CPU cycles that the container's tasks used, from a hardware counter; absent if there is none.";
    CONTAINER_SWITCHES = "energy_agent_container_context_switches_total" Counter Some(Level::Container), CONTAINER, of Cgroup,
        "Number of times that a task of the container was switched out, counted by eBPF; absent without eBPF.";
    SYSTEM_JOULES = "energy_agent_system_cpu_joules_total" Counter Some(Level::Node), UNIT_ZONE,
        "Active energy outside pods by systemd unit or cgroup, including containers outside pods. unit=kernel: the kernel's own threads, and interrupts if the kernel accounts for them separately. unit=other: units that --export.units leaves out.";
    SYSTEM_WATTS = "energy_agent_system_cpu_watts" Gauge Some(Level::Node), UNIT_ZONE,
        "Mean active power of a unit over the last interval.";
    SYSTEM_CPU_SECONDS = "energy_agent_system_cpu_seconds_total" Counter Some(Level::Node), UNIT, of Cgroup,
        "Time that the unit's tasks ran on a CPU, as the usage meter counted it (label meter of energy_agent_attribution_info).";
    SYSTEM_CPU_CYCLES = "energy_agent_system_cpu_cycles_total" Counter Some(Level::Node), UNIT, of Counter,
        "Unhalted CPU cycles that the unit's tasks used, from a hardware counter; absent if there is none.";
    SYSTEM_SWITCHES = "energy_agent_system_context_switches_total" Counter Some(Level::Node), UNIT, of Cgroup,
        "Number of times that a task of the unit was switched out, counted by eBPF; absent without eBPF.";
    PROCESS_JOULES = "kepler_process_cpu_joules_total" Counter Some(Level::Process), PROCESS_ZONE,
        "Active energy of a process: the energy of its workload, divided by CPU time among the workload's processes. type=kernel is the sum of all kernel threads. The series with comm=other and no pid holds processes without a series of their own. All process series plus unattributed energy equal the node's active energy, exactly.";
    PROCESS_WATTS = "kepler_process_cpu_watts" Gauge Some(Level::Process), PROCESS_ZONE,
        "Mean active power of a process over the last interval.";
    PROCESS_GPU_JOULES = "kepler_process_gpu_joules_total" Counter Some(Level::Process), PROCESS_SOURCE, of Gpu,
        "Active GPU energy that can be assigned to a single process, over all GPUs. The rest of the workloads' GPU energy is in comm=other without pid. All process series plus unattributed energy equal the node's active GPU energy, exactly. Only with eBPF process accounting.";
    PROCESS_GPU_WATTS = "kepler_process_gpu_watts" Gauge Some(Level::Process), PROCESS_SOURCE, of Gpu,
        "Mean active GPU power of a process over the GPUs' last readings.";
    PROCESS_SECONDS = "kepler_process_cpu_seconds_total" Counter Some(Level::Process), PROCESS,
        "Time that the process's threads ran on a CPU since it got its series, counted by eBPF.";
    KEPLER_BUILD_INFO = "kepler_build_info" Gauge None, &["arch", "branch", "revision", "version", "node_name"],
        "Version of the agent; always 1.";
    BUILD_INFO = "energy_agent_build_info" Gauge None, &["arch", "branch", "ebpf", "revision", "rustversion", "version"],
        "What the agent was built from; always 1. revision: the commit. ebpf: the first digits of the eBPF object's SHA-256. rustversion: the compiler.";
    METER_UP = "energy_agent_meter_up" Gauge None, &["meter", "reason"],
        "1 if a meter works, 0 if not. The label reason says why; the landing page has the details.";
    GPU_UP = "energy_agent_gpu_up" Gauge None, &["gpu", "gpu_uuid", "reason", "node_name"],
        "1 if a GPU that the driver lists, or has listed, can be read, 0 if not. reason: ok, doubtful (read, but its counter does not fit its power), absent, permission, version_mismatch, symbol, lost, reset_required, hanging, frozen (its counter stands still), error.";
    GPU_XIDS = "energy_agent_gpu_xid_errors_total" Counter None, &["gpu", "gpu_uuid", "node_name"],
        "Critical XID errors that the driver reported for a GPU; the log has their numbers.";
    GPU_READING = "energy_agent_gpu_reading_seconds" Gauge None, &["gpu", "gpu_uuid", "node_name"],
        "Time that the driver took for the last reading of a GPU. Each GPU has its own thread.";
    GPU_IGNORED = "energy_agent_gpu_samples_ignored_total" Counter None, &["reason"],
        "Invalid utilisation samples of GPU processes, which are ignored: of a process that does not exist (exited), from the future, of process 0 (no_process), above 100 percent, or repeated (past).";
    ATTRIBUTION_INFO = "energy_agent_attribution_info" Gauge None, &["meter", "program", "weight", "idle"],
        "How energy is divided: the usage meter, its eBPF program, the weight, and the method for idle energy; always 1.";
    POLICY_INFO = "energy_agent_policy_info" Gauge None, &["policy", "policy_namespace", "authority", "node_name", "mode", "scope", "source"],
        "An active policy; always 1. authority: tenant (a PowerCappingPolicy) or budget (a ClusterPowerBudget), absent for documents; mode: off, recommend (everything except the writes) or enforce; scope: per_pod, per_node or total; source: the file, ConfigMap or object it was read from. A tenant's policy has series only on nodes with pods that it selects.";
    POLICY_STATE = "energy_agent_policy_state" Gauge None,
        &["policy", "policy_namespace", "authority", "pod_id", "pod_name", "pod_namespace", "node_name", "state"],
        "The state of one budget, of a pod or (without pod labels) of the node; always 1. state: off, open (nothing is capped), capping, recommending (would be capped), unreachable (at the floor and still over), telemetry_lost, no_actuator, learning.";
    POLICY_BUDGET = "energy_agent_policy_budget_watts" Gauge None, SUBJECT,
        "Power that the policy allows; absent while the budget is a percentage of a peak that is not known yet.";
    POLICY_POWER = "energy_agent_policy_power_watts" Gauge None, SUBJECT,
        "Power that is compared with the budget: the mean over the policy's window; absent if it was not measured.";
    POLICY_HEADROOM = "energy_agent_policy_headroom_watts" Gauge None, SUBJECT,
        "Budget minus power; below 0 if power is over the budget; absent if one of them is not known.";
    POLICY_CEILING = "energy_agent_policy_ceiling_ratio" Gauge None, SUBJECT,
        "Share of the full range that the policy currently allows, 0 to 1. 1 means that nothing is capped.";
    POLICY_OVER_SECONDS = "energy_agent_policy_over_budget_seconds_total" Counter None, SUBJECT,
        "Time over the budget since the agent started. It goes on if a policy of this name returns.";
    POLICY_OVER_JOULES = "energy_agent_policy_over_budget_joules_total" Counter None, SUBJECT,
        "Energy beyond the budget since the agent started. It goes on if a policy of this name returns.";
    POLICY_CONFLICTS = "energy_agent_policy_conflicts" Gauge None, POLICY,
        "Pods that the policy selects, but about which a policy of higher rank decides, in whole or in part; /policies names it.";
    POLICY_PROBLEMS = "energy_agent_policy_problems" Gauge None, &["source", "node_name"],
        "Policies and documents of a source that were refused; /policies and the log say why. A tenant's object has a series only on nodes with pods of its namespace.";
    POLICY_SOURCE_UP = "energy_agent_policy_source_up" Gauge None, &["source", "reason", "node_name"],
        "1 if a file or ConfigMap with policies can be read, 0 if it cannot be read. Its previous version then stays active. The label reason says why.";
    NODE_POWER = "energy_agent_node_power_watts" Gauge None, &["node_name"],
        "What the node draws, as budgets over many nodes count it: its GPUs, and its CPUs where they are measured; absent if some of it was not measured in the last five seconds.";
    NODE_RANGE = "energy_agent_node_power_range_watts" Gauge None, &["bound", "node_name"],
        "What the node can be held at (bound floor: idle power, and devices at their lowest clocks or limits) and what its devices may draw together (bound most). A level of a budget over many nodes is a share of this range.";
    NODE_LIMIT = "energy_agent_node_limit_watts" Gauge None, &["budget", "node_name"],
        "What the node may draw by all enforced ClusterPowerBudgets together; absent if none limits it. budget: the one without which it would draw more, absent if it draws less by itself.";
    BUDGET_FLOOR = "energy_agent_node_budget_floor_watts" Gauge None, &["budget", "node_name"],
        "What the node can be held at for a ClusterPowerBudget whose protected pods raise that; absent for all others.";
    BUDGET_LEVEL = "energy_agent_node_budget_level_ratio" Gauge None, &["budget", "standing", "node_name"],
        "Level of a ClusterPowerBudget that selects this node, as the node follows it, 0 to 1; 1 is open. standing: none (nobody has said one), followed, writer_lost (onControllerLoss holds), older_refused (the level in the cluster is of an earlier leader).";
    CAP_LIMIT_HERTZ = "energy_agent_cap_limit_hertz" Gauge None, LIMIT,
        "Clock limit that a policy asks for; absent if no policy asks for one.";
    CAP_LIMIT_WATTS = "energy_agent_cap_limit_watts" Gauge None, LIMIT,
        "Power limit that a policy asks for; absent if no policy asks for one.";
    CAP_LIMIT_CPUS = "energy_agent_cap_limit_cpus" Gauge None, LIMIT,
        "CPU quota that a policy asks for, in CPUs; absent if no policy asks for one.";
    CAP_FOUND_HERTZ = "energy_agent_cap_found_hertz" Gauge None, KNOB,
        "Clock limit that the device had at the last reading; absent if it has none or it cannot be read.";
    CAP_FOUND_WATTS = "energy_agent_cap_found_watts" Gauge None, KNOB,
        "Power limit that the device had at the last reading; absent if it has none or it cannot be read.";
    CAP_FOUND_CPUS = "energy_agent_cap_found_cpus" Gauge None, KNOB,
        "CPU quota that the cgroup had at the last reading, in CPUs; absent if it has none.";
    CAP_UP = "energy_agent_cap_up" Gauge None, &["actuator", "device", "node_name", "reason"],
        "1 if a limit can be used, 0 if not. reason: ok, unsupported, no_permission, rejected, not_effective (a write succeeded but had no effect), yielded (another program writes it), unreachable, error.";
    CAP_CLAMPED = "energy_agent_cap_clamped" Gauge None, KNOB,
        "1 if the limit was raised to the minimum of the device, 0 if not.";
    CAP_WRITES = "energy_agent_cap_writes_total" Counter None, &["actuator", "device", "node_name", "result"],
        "Writes of a limit by result: ok, failed, restored (original value written), deferred (delayed because there were too many in the last minute).";
    CAP_RESTORE_PENDING = "energy_agent_cap_restore_pending" Gauge None, &[],
        "Limits that no policy asks for any more and that could not be restored so far.";
    CAP_RESTORE_FAILURES = "energy_agent_cap_restore_failures_total" Counter None, &[],
        "Failed attempts to restore a limit.";
    JOURNAL_REPAIRS = "energy_agent_capping_journal_repairs_total" Counter None, &[],
        "How often another program had removed or changed the capping journal or the record of this boot. The agent then wrote it again.";
    TICKS = "energy_agent_ticks_total" Counter None, &[],
        "Completed readings of all meters.";
    LATE_TICKS = "energy_agent_late_ticks_total" Counter None, &[],
        "Readings that began more than half an interval late.";
    INTERVAL = "energy_agent_interval_seconds" Gauge None, &[],
        "Length of the last interval, from the monotonic clock. All watts are means over it.";
    LAST_TICK = "energy_agent_last_tick_timestamp_seconds" Gauge None, &[],
        "Unix time at which the exported values were read.";
    ZONE_WRAPS = "energy_agent_zone_wraps_total" Counter None, &[],
        "How often an energy counter passed its maximum. Its energy is still counted correctly.";
    ZONE_RESETS = "energy_agent_zone_resets_total" Counter None, &[],
        "Energy counters that fell without an explanation. No energy was charged for the interval.";
    ZONE_GAPS = "energy_agent_zone_gaps_total" Counter None, &[],
        "Intervals in which an energy counter may have wrapped more than once. Only the part that is certain was charged.";
    ZONE_READ_ERRORS = "energy_agent_zone_read_errors_total" Counter None, &[],
        "Readings of energy counters that failed.";
    MISSED_SWITCHES = "energy_agent_missed_switches_total" Counter None, &[],
        "Scheduler switches at which the kernel did not run the eBPF program, noticed at the next switch. The time in between is divided by the scheduler's own records.";
    MAP_DROPS = "energy_agent_usage_map_drops_total" Counter None, &[],
        "Updates that were lost because the eBPF usage map was full; their energy is unattributed. Absent without eBPF.";
    EVENT_DROPS = "energy_agent_cgroup_events_dropped_total" Counter None, &[],
        "Events of new or removed cgroups that were lost because the buffer was full. Absent without eBPF.";
    PROCESS_MAP_DROPS = "energy_agent_process_map_drops_total" Counter Some(Level::Process), &[],
        "Updates that were lost because the eBPF map of processes was full; their energy is in comm=other.";
    PROCESS_EVENT_DROPS = "energy_agent_process_events_dropped_total" Counter Some(Level::Process), &[],
        "Events of processes (end, exec, new name) that were lost because the buffer was full. The agent then searches /proc.";
    PROCESS_EXE_ERRORS = "energy_agent_process_exe_errors_total" Counter Some(Level::Process), &[],
        "Living processes with an empty label exe, because /proc shows no binary for them or that of another process.";
    CYCLES_FALLBACKS = "energy_agent_cycles_fallback_intervals_total" Counter None, &[],
        "Intervals that were weighed by CPU time, because a cycle counter was missing or shared. Absent without eBPF.";
    UNKNOWN_CGROUPS = "energy_agent_unknown_cgroups_total" Counter None, &[],
        "Cgroups that used CPU time, but with a path that was never found.";
    EBPF_RUN = "energy_agent_ebpf_run_seconds_total" Counter None, &[],
        "CPU time of the agent's eBPF programs as the kernel counts it; absent while kernel.bpf_stats_enabled is 0.";
    LOG_LOST = "energy_agent_log_lines_lost_total" Counter None, &[],
        "Log lines that were lost because standard error was not read. The agent does not wait for a reader.";
    DUPLICATES = "energy_agent_duplicate_series_total" Counter None, &[],
        "Series that were left out of a page because they were on it already. More than 0 is a bug in the agent.";
    EXPORT_VALID = "energy_agent_export_config_valid" Gauge None, &[],
        "1 if the selection from flags, environment, --export.config and --export.configmap is active. 0 if part of it is invalid or cannot be read, and the previous version stays active; the landing page and the log say which part.";
    EXPORT_CHANGED = "energy_agent_export_config_last_change_timestamp_seconds" Gauge None, &[],
        "Unix time at which the current selection of levels and metrics became active.";
    CAPPING_EVENTS = "energy_agent_capping_events_total" Counter None, &["result"],
        "Kubernetes Events about policies and limits: posted, or dropped (too many at once, refused, or the API server was unreachable for 10 minutes). Absent without --capping=on and credentials for a cluster.";
    CONNECTIONS_CLOSED = "energy_agent_web_connections_closed_total" Counter None, &["reason"],
        "Connections that the web server closed before their clients did. reason: idle (no request in time, or closed in favour of a newer connection), slow (an answer was not read in time, or kept an old page in memory).";
    WEB_CONFIG_VALID = "energy_agent_web_config_valid" Gauge None, &[],
        "1 if the last version of --web.config.file, with its certificates, keys and users, is active. 0 if it is invalid or cannot be read, and the previous version stays active; the log says why. Absent without the flag.";
    LOST_READINGS = "energy_agent_lost_readings_total" Counter None, &["file"],
        "Readings of configuration that were given up because the file system did not answer for 5 s. The agent starts each again. file: web_config, policies, export_config. Absent if no such file is used.";
    TICK_DURATION = "energy_agent_tick_duration_seconds" Histogram None, &[],
        "Time to read all meters and divide the energy.";
    SCRAPE_DURATION = "energy_agent_scrape_duration_seconds" Histogram None, &[],
        "Time to answer a request for metrics, without sending it.";
}

/// The text of `docs/metrics.md`; `process` are name, type and HELP of the process metrics.
#[must_use]
pub fn documentation(process: &[(String, FamilyKind, String)]) -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         <!-- Generated from energy-agent/crates/export/src/metrics.rs; UPDATE_DOCS=1 cargo test -p energy-agent --test export writes it anew. -->\n\n\
         A label with an empty value is left out. A value that was not measured has no series. Counters start at 0 with the agent\n\
         and never fall as long as their series exists. The label `source` of every energy series says how its value was obtained.\n",
    );
    let sections = [
        (Some(Level::Node), "Node, and work outside pods (`--export.levels=node`)"),
        (Some(Level::Pod), "Pods (`--export.levels=pod`)"),
        (Some(Level::Container), "Containers (`--export.levels=container`)"),
        (Some(Level::Process), "Processes (`--export.levels=process`, off by default)"),
        (None, "The agent itself (always)"),
    ];
    for (level, title) in sections {
        if ALL.iter().all(|metric| metric.level != level) {
            continue;
        }
        write!(text, "\n## {title}\n\n| name | type | labels | meaning |\n| --- | --- | --- | --- |\n")
            .expect("a String takes every write");
        for metric in ALL.iter().filter(|metric| metric.level == level) {
            let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            row(&mut text, metric.name, metric.kind, &labels.join(", "), metric.help);
        }
        if level.is_none() {
            for (name, kind, help) in process {
                row(&mut text, name, *kind, "", help);
            }
        }
    }
    text
}

fn row(text: &mut String, name: &str, kind: FamilyKind, labels: &str, help: &str) {
    writeln!(text, "| `{name}` | {} | {labels} | {help} |", kind.as_str()).expect("a String takes every write");
}
