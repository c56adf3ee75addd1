//! A library with the ABI of NVML, the NVIDIA Management Library, over a folder of files: what programs that load NVML
//! find, a test or a user plays in `state.json`; see the README beside it.

mod abi;
pub mod clock;
pub mod export;
pub mod folder;
pub mod plant;
pub mod returns;
pub mod spent;
pub mod state;
pub mod units;
mod world;
