//! The node's knobs: found, written, kept in a journal and restored.

pub mod actuator;
pub mod files;
pub mod journal;
pub mod lock;
