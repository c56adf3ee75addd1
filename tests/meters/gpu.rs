//! GPUs played by the fake NVML library, read by the built program through nvml-wrapper: what is measured, who gets it, and
//! what trouble costs. Inputs and right outcomes come from the field cases in `tests/cases`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod energy;
mod faults;
mod hangs;
mod moves;
mod shares;
mod world;
