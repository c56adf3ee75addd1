//! What runs cost: `report`, `measure` and `compare` over real agents.

#[path = "../common/mod.rs"]
mod common;

mod accelerators;
mod compare;
mod job;
mod measure;
mod measure_agent;
mod report;
mod schema;
