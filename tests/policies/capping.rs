//! Capping through the built program: pods of an API server in real cgroups, GPUs of the fake driver's plant, policies in
//! a file. What counts is what the driver holds, not what the agent says of itself. The plant runs in real time: a machine
//! that stalls for a second spoils a measurement, which is then made again.

#![allow(clippy::unwrap_used, reason = "tests panic")]
#![allow(clippy::float_cmp, reason = "what is set comes back as it was written")]

mod budgets;
mod clock_locks;
mod conflicts;
mod edits;
mod endings;
mod events;
mod faults;
mod figures;
mod gpu;
mod map;
mod refusals;
mod releases;
pub mod world;
