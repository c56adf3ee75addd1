//! Values of flags that are one of a few words.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
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
pub enum IdleMethod {
    Learned,
    Ratio,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PodsSource {
    Auto,
    Api,
    Kubelet,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IdlePolicy {
    None,
    Usage,
    Requests,
    Equal,
}

crate::as_str!(IdlePolicy { None => "none", Usage => "usage", Requests => "requests", Equal => "equal" });

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Capping {
    Off,
    On,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GpuMode {
    Auto,
    Off,
}

/// Ordered from the whole to its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Level {
    /// The node's zones, services and all other work outside pods
    Node,
    /// Pods
    Pod,
    /// Containers, in pods and outside
    Container,
    /// Processes; needs eBPF and a second map that is written at every switch between processes
    Process,
}

impl Level {
    pub const ALL: [Self; 4] = [Self::Node, Self::Pod, Self::Container, Self::Process];
}

crate::as_str!(Level { Node => "node", Pod => "pod", Container => "container", Process => "process" });
