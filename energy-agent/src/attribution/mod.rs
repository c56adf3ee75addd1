//! Divides what the hardware drew by who ran: one interval's zone energies and CPU usage become, per zone, idle energy,
//! each workload's active energy, and what belongs to nobody known; exactly, in microjoules.

pub mod idle;
pub mod split;
