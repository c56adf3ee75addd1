//! The controller of cluster budgets, against the API server and fifty simulated nodes; and against Prometheus.
#![allow(clippy::unwrap_used, reason = "tests panic")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

mod agents;
mod api;
mod backup;
mod controller;
mod dice;
#[path = "../policies/capping/world.rs"]
#[allow(dead_code, reason = "of a node with GPUs, some is used here")]
mod gpu_world;
mod nodes;
mod observer;
mod policies;
mod queries;
mod replica;
mod rights;
mod source;

/// One test at a time: fifty nodes, two controllers and their observer are load enough.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
