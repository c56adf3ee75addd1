//! The kinds of `power.energy-agent.io` as they are on the wire, and their definitions for the API server. Agents and the
//! controller use the same types.

pub mod climatik;
pub mod cluster_power_budget;
pub mod condition;
pub mod definitions;
pub mod node_frequencies;
pub mod object;
pub mod power_capping_policy;
pub mod power_level;

/// The group of all kinds.
pub const GROUP: &str = "power.energy-agent.io";
/// Fields are only added to it: there is no conversion.
pub const VERSION: &str = "v1alpha1";
/// Who writes levels where an object names nobody else.
pub const CONTROLLER: &str = "power.energy-agent.io/level";
/// The Lease that the writer of levels renews, in the namespace of the agents.
pub const LEVELS_LEASE: &str = "energy-agent-levels";

/// `power.energy-agent.io/v1alpha1`, as objects and owner references have it.
#[must_use]
pub fn api_version() -> String {
    format!("{GROUP}/{VERSION}")
}
