//! Reports for people on a terminal: what this machine offers, who uses how much, and what was given back.

pub mod doctor;
pub mod restore;
pub mod top;
