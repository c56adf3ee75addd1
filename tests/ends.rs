//! How the agent ends: by every signal, on a terminal, by a crash, while a file hangs, and while nobody reads its log. What
//! was limited is restored each time, or named.

#![allow(clippy::unwrap_used, reason = "tests panic")]

#[path = "ends/capped.rs"]
mod capped;
mod common;
#[path = "ends/hangs.rs"]
mod hangs;
#[path = "common/kubernetes/mod.rs"]
mod kubernetes;
#[path = "ends/log.rs"]
mod log;
#[path = "ends/manager.rs"]
mod manager;
#[path = "ends/panics.rs"]
mod panics;
#[allow(dead_code, reason = "a part of it is used here")]
#[path = "capping_cpu/plant.rs"]
mod plant;
#[path = "ends/signals.rs"]
mod signals;
#[allow(dead_code, reason = "a part of it is used here")]
#[path = "capping_cpu/world.rs"]
mod world;
