//! What is measured: hardware counters, the kernel's switches, GPUs, and whose work it was.

#[path = "../common/mod.rs"]
mod common;

mod cgroups;
mod degraded;
mod ebpf;
mod gpu;
mod gpu_shares;
mod idle_policy;
mod processes;
mod rapl;
mod sensors;
