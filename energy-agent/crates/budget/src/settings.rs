//! What a budget says of how it is to be kept. Shares of the budget: 0.95 is 95 %.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Names of the tiers in the order in which they are cut; the last one is for nodes of no tier.
    pub tiers: Vec<String>,
    /// Over this the level is lowered.
    pub engage: f64,
    /// To this.
    pub target: f64,
    /// Under this for the hold, it is raised.
    pub release: f64,
    pub hold: Duration,
    /// Limits never add up to more than this share. `None`: the budget reacts to power only.
    pub oversubscription: Option<f64>,
    /// Nodes follow the level. If not, it is only recommended, and power does not follow it.
    pub enforced: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tiers: vec![String::new()],
            engage: 0.99,
            target: 0.95,
            release: 0.90,
            hold: Duration::from_secs(30),
            oversubscription: None,
            enforced: true,
        }
    }
}
