//! Reports for people on a terminal: what this machine offers, who uses how much, and whether policies are right.

pub mod doctor;
pub mod policy;
pub mod top;
