//! How the agent ends: by every signal, on a terminal, by a crash, while a file hangs, and while nobody reads its log. What
//! was limited is restored each time, or named.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod capped;
mod hangs;
mod log;
mod manager;
mod panics;
mod signals;
