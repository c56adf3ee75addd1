//! Clocks and power limits of GPUs written through the real wrapper: the meter over the fake NVML library, whose log says
//! what the driver received. Inputs and right outcomes come from the field cases in `tests/cases`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod common;
#[path = "gpu_knobs/limits.rs"]
mod limits;
#[path = "gpu_knobs/locks.rs"]
mod locks;
#[path = "gpu_knobs/once.rs"]
mod once;
#[path = "gpu_knobs/trouble.rs"]
mod trouble;
#[path = "gpu_knobs/world.rs"]
mod world;
