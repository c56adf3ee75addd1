//! Capping through the built program: pods of an API server in real cgroups, GPUs of the fake driver's plant, policies in
//! a file. What counts is what the driver holds, not what the agent says of itself. The plant runs in real time: a machine
//! that stalls for a second spoils a measurement, which is then made again.

#![allow(clippy::unwrap_used, reason = "tests panic")]
#![allow(clippy::float_cmp, reason = "what is set comes back as it was written")]

#[path = "capping/budgets.rs"]
mod budgets;
#[path = "capping/clock_locks.rs"]
mod clock_locks;
mod common;
#[path = "capping/conflicts.rs"]
mod conflicts;
#[path = "capping/edits.rs"]
mod edits;
#[path = "capping/endings.rs"]
mod endings;
#[path = "capping/events.rs"]
mod events;
#[path = "capping/faults.rs"]
mod faults;
#[path = "capping/figures.rs"]
mod figures;
#[path = "capping/gpu.rs"]
mod gpu;
#[path = "common/kubernetes/mod.rs"]
mod kubernetes;
#[path = "capping/map.rs"]
mod map;
#[path = "capping/refusals.rs"]
mod refusals;
#[path = "capping/releases.rs"]
mod releases;
#[path = "capping/world.rs"]
mod world;
