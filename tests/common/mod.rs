//! What the black-box tests share. Every test crate uses a part of it.
#![allow(dead_code, reason = "each test crate uses a part of this")]
#![allow(clippy::unwrap_used, reason = "tests panic")]

pub mod cgroup;
pub mod tree;
