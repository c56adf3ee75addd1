//! Files that people and other programs write, read safely. In come paths; out go bytes, a version that has stayed the same for
//! two readings, or a fault that never repeats what is in the file.
//!
//! A file system that hangs costs a bounded number of threads and stops no caller. It knows no format: what the bytes mean is
//! the caller's.
#![forbid(unsafe_code)]

pub mod config_file;
pub mod log_limit;
pub mod mounted;
pub mod private;
pub mod reader;
pub mod reload;
pub mod stable_read;
