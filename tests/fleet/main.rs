//! The controller of cluster budgets, against the API server and fifty simulated nodes.
#![allow(clippy::unwrap_used, reason = "tests panic")]

#[path = "../common/mod.rs"]
mod common;

mod api;
mod controller;
mod nodes;
mod observer;
mod replica;
mod rights;
