//! Budgets and nodes after a round of the controller, as the pages show them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

#[derive(Clone, Debug)]
pub struct View {
    /// Name of this replica, and of the one that leads.
    pub identity: String,
    pub leader: Option<String>,
    pub leads: bool,
    pub epoch: i64,
    pub taken: SystemTime,
    pub completed: Instant,
    pub rounds: u64,
    /// How long the last decision took.
    pub decision: Duration,
    /// What keeps the cluster from being followed or written to.
    pub troubles: Vec<String>,
    pub counts: Counts,
    /// Ascending by the number of nodes.
    pub budgets: Vec<BudgetRow>,
    /// Of scope Total, as `namespace/name`.
    pub policies: Vec<BudgetRow>,
    pub nodes: Vec<NodeView>,
}

/// Since the program began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub reports: u64,
    pub missing_reports: u64,
    /// PowerLevels, the Lease of levels, status and Events.
    pub writes: u64,
    pub failed_writes: u64,
    /// Somebody else had written the object.
    pub conflicts: u64,
    /// Leadership taken.
    pub terms: u64,
}

#[derive(Clone, Debug)]
pub struct BudgetRow {
    pub name: String,
    /// `Recommend` or `Enforce`.
    pub mode: &'static str,
    /// The smallest budget that has all of its nodes.
    pub parent: Option<String>,
    pub budget_watts: f64,
    pub watts: f64,
    pub limit_watts: f64,
    pub tiers: Vec<TierView>,
    pub fallback_permille: u16,
    pub limited: usize,
    pub silent: usize,
    pub unreported: usize,
    /// Places in [`View::nodes`].
    pub nodes: Vec<usize>,
    /// Type, whether it is so, reason, message.
    pub conditions: Vec<(String, bool, String, String)>,
    /// One for each round, the last one last.
    pub history: Vec<HistoryPoint>,
}

#[derive(Clone, Debug)]
pub struct TierView {
    /// Empty: nodes of no tier.
    pub name: String,
    pub permille: u16,
}

#[derive(Clone, Copy, Debug)]
pub struct HistoryPoint {
    pub watts: f64,
    pub permille: u16,
}

#[derive(Clone, Debug)]
pub struct NodeView {
    pub name: Arc<str>,
    pub state: NodeStanding,
    /// Why it is silent.
    pub trouble: Option<String>,
    pub watts: Option<f64>,
    pub floor_watts: Option<f64>,
    pub most_watts: Option<f64>,
    /// `None`: open.
    pub limit_watts: Option<f64>,
    pub limited_by: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStanding {
    Reporting,
    /// It reported once, or has an agent that never did.
    Silent,
    /// It has no agent.
    Unreported,
}

energy_model::as_str!(NodeStanding { Reporting => "reporting", Silent => "silent", Unreported => "unreported" });

impl View {
    /// Before the first round.
    #[must_use]
    pub fn blank(identity: &str) -> Self {
        Self {
            identity: identity.to_owned(),
            leader: None,
            leads: false,
            epoch: 0,
            taken: SystemTime::now(),
            completed: Instant::now(),
            rounds: 0,
            decision: Duration::ZERO,
            troubles: Vec::new(),
            counts: Counts::default(),
            budgets: Vec::new(),
            policies: Vec::new(),
            nodes: Vec::new(),
        }
    }
}

impl BudgetRow {
    /// The level of the tier that is cut most.
    #[must_use]
    pub(crate) fn permille(&self) -> u16 {
        self.tiers.iter().map(|tier| tier.permille).min().unwrap_or(1000)
    }
}
