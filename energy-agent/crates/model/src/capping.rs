//! Holds pods to a power budget: policies and what was measured become the whole desired state of the hardware's limits,
//! which is written, kept up and given back.

pub mod change;
pub mod controller;
pub mod journal_entry;
pub mod knob;
pub mod level;
pub mod managed_knob;
pub mod observation;
pub mod policy;
pub mod quantity;
pub mod source;
pub mod stated;
pub mod status;
