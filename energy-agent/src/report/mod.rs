//! Reports for people on a terminal: what this machine offers, and who uses how much.

pub mod doctor;
pub mod top;
