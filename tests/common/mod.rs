//! What the black-box tests share. Every test crate uses a part of it.
#![allow(dead_code, unused_imports, reason = "each test crate uses a part of this")]
#![allow(clippy::unwrap_used, reason = "tests panic")]

pub mod agent;
pub mod busy_node;
pub mod cargo;
pub mod cgroup;
pub mod crash;
pub mod crowd;
pub mod fuse;
pub mod kept;
pub mod kubernetes;
pub mod looks;
pub mod manifests;
pub mod mount;
pub mod network;
pub mod nvml;
pub mod page;
pub mod patience;
pub mod plant;
pub mod pod_resources;
pub mod powercap;
pub mod prometheus;
pub mod quota;
pub mod repeat;
pub mod shipped;
pub mod skip;
pub mod tree;

use std::fs::File;
use std::io::{self, Write as _};
use std::thread;

pub use self::repeat::one_of_three;

/// One test at a time, of all test programs that run: their loads would disturb each other's timing.
pub fn alone() -> File {
    let turn = File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/alone")).unwrap();
    turn.lock().unwrap();
    turn
}

/// Writes a line about this test past the capture of its output.
pub fn say(what: &str, why: &str) {
    let test = thread::current();
    let line = format!("{what}: {}: {why}\n", test.name().unwrap_or("?"));
    // The macros are captured; this is not.
    let _ = io::stderr().write_all(line.as_bytes());
}
