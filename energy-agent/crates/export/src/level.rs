//! Levels of metrics.

use clap::ValueEnum;

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

energy_model::as_str!(Level {
            Node => "node",
            Pod => "pod",
            Container => "container",
            Process => "process",
});

impl Level {
    pub const ALL: [Self; 4] = [Self::Node, Self::Pod, Self::Container, Self::Process];
}
