//! What capping writes to the machine, and what is restored at each end.

#[path = "../common/mod.rs"]
mod common;

mod capping_cpu;
mod ends;
mod file_knobs;
mod gpu_knobs;
mod restore;
