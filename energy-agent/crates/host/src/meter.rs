//! Meters: energy counters, the usage meter and the CPUs, each behind the one thing it can be asked for.

pub mod btf;
pub mod cgroupfs;
pub mod counter;
pub mod cpu;
pub mod deadline;
mod denial;
pub mod ebpf;
pub mod energy;
pub mod estimate;
pub mod gpu;
pub mod hwmon;
mod interrupts;
pub mod perf;
pub mod perf_event;
pub mod powercap;
pub mod rapl;
pub mod sampler;
mod sockets;
mod state_log;
mod still;
mod trapezoid;
