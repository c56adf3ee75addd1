//! What the agent computes with, and how. In come readings ([`sample::Sample`]), pods, policies and elapsed times as values;
//! out go attributions, totals, the [`snapshot::Snapshot`] that every reader sees, and the limits that policies ask for.
//!
//! It knows no file, socket, thread, log, kernel interface or cluster: every function is arithmetic or a decision over its
//! arguments, and the same input gives the same output.
#![forbid(unsafe_code)]

pub mod advice;
pub mod attribution;
pub mod build;
pub mod capping;
pub mod cpu;
pub mod follower;
pub mod gpu;
pub mod json_fault;
pub mod label;
pub mod ledger;
pub mod meter_state;
pub mod nearest;
pub mod power_report;
pub mod printable;
pub mod process;
pub mod process_ledger;
pub mod resources;
pub mod sample;
pub mod snapshot;
pub mod table;
pub mod turns;
pub mod units;
pub mod workload;
pub mod zone;
