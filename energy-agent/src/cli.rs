//! Reports for people on a terminal: what this machine offers, who uses how much, what a run cost, whether policies are
//! right, and what was given back.

mod agent_page;
mod client;
pub mod compare;
pub mod completion;
pub mod doctor;
pub mod kubectl;
pub mod measure;
mod measure_job;
pub mod policy;
pub mod report;
pub mod restore;
mod run_problem;
pub mod top;
mod writable;
