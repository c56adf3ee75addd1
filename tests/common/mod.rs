//! What the black-box tests share. Every test crate uses a part of it.
#![allow(dead_code, reason = "each test crate uses a part of this")]
#![allow(clippy::unwrap_used, reason = "tests panic")]

pub mod agent;
pub mod cgroup;
pub mod page;
pub mod powercap;
pub mod tree;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: their loads would disturb each other's timing.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
