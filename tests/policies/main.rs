//! Policies of power: where they come from, what they decide, and what is reported of them.

#[path = "../common/mod.rs"]
mod common;

mod capping;
mod objects;
mod policy;
mod policy_sources;
