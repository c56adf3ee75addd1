//! GPUs played by the fake NVML library, read by the built program through nvml-wrapper: what is measured, who gets it, and
//! what trouble costs. Inputs and right outcomes come from the field cases in `tests/cases`.

mod common;
#[path = "gpu/energy.rs"]
mod energy;
#[path = "gpu/faults.rs"]
mod faults;
#[path = "gpu/hangs.rs"]
mod hangs;
#[path = "gpu/shares.rs"]
mod shares;
#[path = "gpu/world.rs"]
mod world;
