//! What runs cost: `report`, `measure` and `compare` over real agents.

#[path = "../common/mod.rs"]
mod common;

mod measure;
mod report;
