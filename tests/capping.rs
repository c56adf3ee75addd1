//! Capping through the built program: pods of an API server in real cgroups, GPUs of the fake driver's plant, policies in
//! a file. What counts is what the driver holds, not what the agent says of itself.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod common;
#[path = "capping/gpu.rs"]
mod gpu;
#[path = "common/kubernetes/mod.rs"]
mod kubernetes;
#[path = "capping/world.rs"]
mod world;
