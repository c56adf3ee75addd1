//! CPU capping through the built program: real cgroups whose quotas throttle, and trees of plain files for clocks and
//! power limits. What counts is what the kernel's files say, not what the agent says of itself.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod clocks;
mod crash;
mod disks;
mod one_agent;
mod overlap;
mod package;
mod quota;
mod telemetry;
