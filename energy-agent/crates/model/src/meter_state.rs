//! Whether a meter works, and if not, why: the names and reasons that the agent decides on, and that labels show.

use crate::advice::Advice;
use crate::as_str;

/// Whether a meter works, and if not, why: one row of `energy_agent_meter_up`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterState {
    pub meter: MeterName,
    pub reason: Reason,
    /// For people: what is missing, which file, and the remedy. Never a label.
    pub detail: Advice,
}

impl MeterState {
    /// The meter works.
    #[must_use]
    pub fn up(meter: MeterName, detail: impl Into<Advice>) -> Self {
        Self { meter, reason: Reason::Ok, detail: detail.into() }
    }

    /// The meter does not work.
    #[must_use]
    pub fn down(meter: MeterName, reason: Reason, detail: impl Into<Advice>) -> Self {
        Self { meter, reason, detail: detail.into() }
    }

    #[must_use]
    pub fn is_up(&self) -> bool {
        self.reason == Reason::Ok
    }
}

/// A meter, or a source of something that meters need; the value of the label `meter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeterName {
    Rapl,
    Perf,
    Hwmon,
    /// Sensors of the whole machine, beside any meter of the CPUs.
    Board,
    Estimate,
    Ebpf,
    Cycles,
    CgroupEvents,
    Processes,
    ProcessEvents,
    Cgroupfs,
    Nvml,
    /// One GPU, for `doctor` only.
    Gpu,
    IdlePolicy,
    HostPid,
    Capping,
    Pods,
    PodResources,
    ResourceSlices,
    Tick,
}

as_str!(MeterName {
    Rapl => "rapl",
    Perf => "perf",
    Hwmon => "hwmon",
    Board => "board",
    Estimate => "estimate",
    Ebpf => "ebpf",
    Cycles => "cycles",
    CgroupEvents => "cgroup_events",
    Processes => "processes",
    ProcessEvents => "process_events",
    Cgroupfs => "cgroupfs",
    Nvml => "nvml",
    Gpu => "gpu",
    IdlePolicy => "idle_policy",
    HostPid => "host_pid",
    Capping => "capping",
    Pods => "pods",
    PodResources => "pod_resources",
    ResourceSlices => "resource_slices",
    Tick => "tick",
});

/// Why a meter or a source works or does not; the value of the label `reason`. Of several reasons that hold at once the
/// greatest is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Ok,
    /// It works, and what it shows is not plausible.
    Doubtful,
    /// Turned off by a flag.
    Off,
    /// Another meter is used.
    Unused,
    /// No answer yet.
    Starting,
    Connecting,
    /// It is not there (any more).
    Absent,
    /// Its counter does not move.
    Frozen,
    Error,
    /// A call or a file has not answered in time.
    Hanging,
    Permission,
    /// A virtual machine shows counters that need not be its own.
    Guest,
    /// The processes of the host are out of sight.
    Restricted,
    /// The library and the kernel module are of different drivers.
    VersionMismatch,
    /// A static build cannot load the library.
    StaticBuild,
    /// The library lacks a function.
    Symbol,
    /// The GPU fell off the bus.
    Lost,
    ResetRequired,
    /// The cluster gives no permission.
    Forbidden,
    /// The cluster refuses the credentials.
    Unauthorized,
    /// The server cannot be verified.
    Tls,
    /// The server does not answer.
    Unreachable,
    /// A setting or credential file cannot be used.
    Config,
    /// More than the agent reads.
    Limit,
    Unreadable,
    /// Different at each reading.
    Changing,
    /// Another agent caps on this node.
    OtherAgent,
    RunDirectory,
    Journal,
}

as_str!(Reason {
    Ok => "ok",
    Doubtful => "doubtful",
    Off => "off",
    Unused => "unused",
    Starting => "starting",
    Connecting => "connecting",
    Absent => "absent",
    Frozen => "frozen",
    Error => "error",
    Hanging => "hanging",
    Permission => "permission",
    Guest => "guest",
    Restricted => "restricted",
    VersionMismatch => "version_mismatch",
    StaticBuild => "static_build",
    Symbol => "symbol",
    Lost => "lost",
    ResetRequired => "reset_required",
    Forbidden => "forbidden",
    Unauthorized => "unauthorized",
    Tls => "tls",
    Unreachable => "unreachable",
    Config => "config",
    Limit => "limit",
    Unreadable => "unreadable",
    Changing => "changing",
    OtherAgent => "other_agent",
    RunDirectory => "run_directory",
    Journal => "journal",
});

/// What usage is counted by; the labels `meter` and `program` of `energy_agent_attribution_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageMeter {
    Ebpf(Program),
    /// `cpu.stat` of every cgroup.
    Files,
    None,
}

impl UsageMeter {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ebpf(_) => MeterName::Ebpf.as_str(),
            Self::Files => MeterName::Cgroupfs.as_str(),
            Self::None => "none",
        }
    }

    /// The value of the label `program`, empty without a program.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Ebpf(program) => program.as_str(),
            Self::Files | Self::None => "",
        }
    }
}

/// The form of the scheduler's eBPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Knows who is running now.
    TpBtf,
    /// Does not.
    RawTracepoint,
}

as_str!(Program { TpBtf => "tp_btf", RawTracepoint => "raw_tracepoint" });

/// What work is weighed by; the value of the label `weight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightUnit {
    #[default]
    Runtime,
    Cycles,
    DistributedCycles,
    CpuClock,
}

as_str!(WeightUnit {
    Runtime => "runtime",
    Cycles => "cycles",
    DistributedCycles => "distributed_cycles",
    CpuClock => "cpu_clock",
});
