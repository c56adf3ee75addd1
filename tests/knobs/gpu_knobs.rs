//! Clocks and power limits of GPUs written through the real wrapper: the meter over the fake NVML library, whose log says
//! what the driver received. Inputs and right outcomes come from the field cases in `tests/cases`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod limits;
mod locks;
mod trouble;
mod world;
