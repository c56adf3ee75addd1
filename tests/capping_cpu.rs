//! CPU capping through the built program: real cgroups whose quotas throttle, and trees of plain files for clocks and
//! power limits. What counts is what the kernel's files say, not what the agent says of itself.

#![allow(clippy::unwrap_used, reason = "tests panic")]

#[path = "capping_cpu/clocks.rs"]
mod clocks;
mod common;
#[path = "capping_cpu/crash.rs"]
mod crash;
#[path = "capping_cpu/disks.rs"]
mod disks;
#[path = "common/kubernetes/mod.rs"]
mod kubernetes;
#[path = "capping_cpu/one_agent.rs"]
mod one_agent;
#[path = "capping_cpu/overlap.rs"]
mod overlap;
#[path = "capping_cpu/package.rs"]
mod package;
#[path = "capping_cpu/plant.rs"]
mod plant;
#[path = "capping_cpu/quota.rs"]
mod quota;
#[path = "capping_cpu/telemetry.rs"]
mod telemetry;
#[path = "capping_cpu/world.rs"]
mod world;
