//! Reports for people on a terminal: what this machine offers, who uses how much, whether policies are right, and what
//! was given back.

pub mod compare;
pub mod doctor;
pub mod policy;
pub mod restore;
pub mod top;
