//! GPUs played by the fake NVML library, read by the built program through nvml-wrapper: what is measured, who gets it, and
//! what trouble costs. Inputs and right outcomes come from the field cases in `tests/cases`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod common;
#[path = "gpu/energy.rs"]
mod energy;
#[path = "gpu/faults.rs"]
mod faults;
#[path = "gpu/hangs.rs"]
mod hangs;
#[path = "gpu/moves.rs"]
mod moves;
#[path = "gpu/shares.rs"]
mod shares;
#[path = "gpu/world.rs"]
mod world;
