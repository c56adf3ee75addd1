//! What happened to knobs: a line in the log at once, and a list for whom it concerns.

use energy_model::capping::managed_knob::change::{KnobChange, KnobChangeKind};
use tracing::{info, warn};

/// Changes since they were last taken.
#[derive(Debug, Default)]
pub struct Changes {
    pub all: Vec<KnobChange>,
    /// How many of them are in the log.
    logged: usize,
}

impl Changes {
    /// Writes those to the log that are new.
    pub fn log(&mut self) {
        self.all.iter().skip(self.logged).for_each(log);
        self.logged = self.all.len();
    }

    /// All since the last call; the log has them.
    pub fn take(&mut self) -> Vec<KnobChange> {
        self.log();
        self.logged = 0;
        std::mem::take(&mut self.all)
    }
}

fn log(change: &KnobChange) {
    let KnobChange { knob, policy, kind, detail } = change;
    let policy = policy.as_ref().map(ToString::to_string).unwrap_or_default();
    match kind {
        KnobChangeKind::Foreign => warn!(%knob, policy, "another program writes it: {detail}"),
        KnobChangeKind::Locked => warn!(%knob, policy, "its clocks are left alone while this shows: {detail}"),
        KnobChangeKind::Resized => {
            info!(%knob, policy, "the pod was resized, its new limit is restored later: {detail}")
        }
        KnobChangeKind::Reverted => info!(%knob, policy, "set again: {detail}"),
        KnobChangeKind::Restored => info!(%knob, policy, "restored: {detail}"),
        KnobChangeKind::RestoreFailed => {
            warn!(%knob, policy, error = detail, "cannot be restored, it stays in the journal and the agent tries again");
        }
        KnobChangeKind::Refused(state) => {
            warn!(%knob, policy, reason = state.as_str(), error = detail, "cannot be limited, the agent tries again later");
        }
        KnobChangeKind::Recovered => info!(%knob, policy, "can be limited again: {detail}"),
    }
}
