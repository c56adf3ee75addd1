//! What the black-box tests share. Every test crate uses a part of it.
#![allow(dead_code, unused_imports, reason = "each test crate uses a part of this")]
#![allow(clippy::unwrap_used, reason = "tests panic")]

pub mod agent;
pub mod busy_node;
pub mod cgroup;
pub mod crash;
pub mod crowd;
pub mod fuse;
pub mod kept;
pub mod kubernetes;
pub mod manifests;
pub mod mount;
pub mod network;
pub mod nvml;
pub mod page;
pub mod plant;
pub mod pod_resources;
pub mod powercap;
pub mod prometheus;
pub mod quota;
pub mod shipped;
pub mod tree;

use std::fs::File;
use std::panic::catch_unwind;

/// One test at a time, of all test programs that run: their loads would disturb each other's timing.
pub fn alone() -> File {
    let turn = File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/alone")).unwrap();
    turn.lock().unwrap();
    turn
}

/// Runs a measurement whose result a single scheduler switch can spoil, up to three times, until its assertions hold.
///
/// A kernel that keeps BPF programs off some tasks (this can be one) hides a switch now and then, and with it up to a
/// whole short-lived task. What is wrong is wrong each time.
pub fn one_of_three(measurement: fn()) {
    for last in [false, false, true] {
        match catch_unwind(measurement) {
            Ok(()) => return,
            Err(reason) if last => std::panic::resume_unwind(reason),
            Err(_) => println!("spoiled, once more"),
        }
    }
}
