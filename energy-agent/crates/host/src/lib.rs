//! The machine, read and written. In come the roots of sysfs, procfs and cgroupfs, NVML, and the limits to set; out go samples,
//! cgroup owners and the knobs as they are.
//!
//! The only crate with `unsafe`: eBPF maps, perf events, NVML and the allocator are reached from here. It knows no cluster,
//! no policy document and no page: what a limit is for is decided elsewhere.

pub mod advice;
pub mod boot;
pub mod capping;
pub mod clock;
pub mod config;
pub mod container;
pub mod early_signals;
pub(crate) mod errand;
pub mod memory;
pub mod meter;
pub mod scope;
pub mod static_build;
pub mod user_scope;
pub mod workload;
