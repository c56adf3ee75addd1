//! Holds pods to a power budget: policies and what was measured become the whole desired state of the hardware's limits,
//! which is written, kept up and given back.

pub mod actuator;
pub mod change;
pub mod controller;
pub mod events;
pub mod files;
pub mod journal;
pub mod knob;
pub mod lock;
pub mod observation;
pub mod policy;
pub mod quantity;
pub mod source;
pub mod stated;
pub mod status;
