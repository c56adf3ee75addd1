//! Which level counts at a tick: what budgets, levels and the signs of life of their writers say, seen in the cluster, and
//! how long ago by this node's own clock. Pure; clocks of other machines are never looked at.
//!
//! A level stands while its writer gives signs of life: its Lease changes, or the level itself does. After `staleAfterSeconds`
//! of silence the budget's `onControllerLoss` holds, until the next sign. A level of an earlier epoch is refused for the same
//! time and then taken: the cluster's store may have been restored from a backup.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::capping::level::{Levels, NodeBudget, NodeLevel, Protect, Standing};
use crate::capping::policy::{Authority, Mode, PolicyName};
use crate::resources::cluster_power_budget::LossLimit;
use crate::resources::power_level::{OPEN, PowerLevelSpec};

/// What is seen in the cluster. What was seen last holds while it cannot be asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Ascending by name.
    pub subjects: Vec<FollowedBudget>,
    /// The version of each Lease by its name; another one is a sign of life.
    pub leases: BTreeMap<String, String>,
    /// All was answered since the start.
    pub complete: bool,
}

/// A budget that selects this node, or a policy of scope Total.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowedBudget {
    pub name: PolicyName,
    pub uid: String,
    /// At most what `--capping.resources` allows.
    pub mode: Mode,
    /// Of this node; empty for none.
    pub tier: String,
    pub loss: LossLimit,
    pub protect: Option<Protect>,
    /// As it is in the cluster.
    pub level: Option<PowerLevelSpec>,
}

/// Remembers levels and signs of life from tick to tick.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    held: BTreeMap<(PolicyName, String), Held>,
    leases: BTreeMap<String, (String, Duration)>,
}

#[derive(Clone, Debug)]
struct Held {
    level: PowerLevelSpec,
    /// When the level changed last.
    changed_at: Duration,
    /// Since when the cluster has had one of an earlier epoch.
    older_since: Option<Duration>,
}

impl Follower {
    /// One tick. `now` is a clock that does not go backwards.
    pub fn step(&mut self, seen: &Seen, now: Duration) -> Levels {
        for (name, version) in &seen.leases {
            let lease = self.leases.entry(name.clone()).or_insert_with(|| (version.clone(), now));
            if lease.0 != *version {
                *lease = (version.clone(), now);
            }
        }
        let mut earlier = std::mem::take(&mut self.held);
        let mut levels = Levels { complete: seen.complete, ..Levels::default() };
        for subject in &seen.subjects {
            let key = (subject.name.clone(), subject.uid.clone());
            let held = take(earlier.remove(&key), subject, now);
            let (level, standing) =
                held.as_ref().map_or((NodeLevel::Open, Standing::None), |held| self.judge(held, subject, now));
            let epoch = held.as_ref().map_or(0, |held| held.level.epoch);
            match subject.name.authority {
                Authority::Budget => {
                    let (name, mode, protect) = (subject.name.clone(), subject.mode, subject.protect.clone());
                    levels.budgets.push(NodeBudget { name, mode, level, epoch, standing, protect });
                }
                Authority::Admin | Authority::Tenant => drop(levels.policies.insert(subject.name.clone(), level)),
            }
            self.held.extend(held.map(|held| (key, held)));
        }
        levels
    }

    fn judge(&self, held: &Held, subject: &FollowedBudget, now: Duration) -> (NodeLevel, Standing) {
        let Held { level, changed_at, older_since } = held;
        let renewed_at = self.leases.get(&level.lease_name).map_or(*changed_at, |(_, at)| (*at).max(*changed_at));
        let said = level.permille(&subject.tier);
        let is_stale = now.saturating_sub(renewed_at) >= stale_after(level);
        let (permille, standing) = match (is_stale, subject.loss) {
            (false, _) if older_since.is_some() => (said, Standing::OlderRefused),
            (false, _) => (said, Standing::Followed),
            (true, LossLimit::StaticShare) => (said.min(level.fallback_permille), Standing::WriterLost),
            (true, LossLimit::Hold) => (said, Standing::WriterLost),
            (true, LossLimit::Release) => (OPEN, Standing::WriterLost),
        };
        let level = if permille >= OPEN { NodeLevel::Open } else { NodeLevel::Permille(permille) };
        (level, standing)
    }
}

/// The level that is held from now on. One that is gone while its budget stands is held, as if its writer were silent.
fn take(held: Option<Held>, subject: &FollowedBudget, now: Duration) -> Option<Held> {
    if subject.mode == Mode::Off {
        return None;
    }
    // One that was for an earlier object of the name is none.
    let found = subject.level.as_ref().filter(|level| level.subject.uid == subject.uid);
    let new = |level: &PowerLevelSpec| Held { level: level.clone(), changed_at: now, older_since: None };
    match (held, found) {
        (held, None) => held,
        (None, Some(level)) => Some(new(level)),
        (Some(held), Some(level)) if level.epoch < held.level.epoch => {
            let since = held.older_since.unwrap_or(now);
            if now.saturating_sub(since) >= stale_after(&held.level) {
                return Some(new(level));
            }
            Some(Held { older_since: Some(since), ..held })
        }
        (Some(held), Some(level)) if *level == held.level => Some(Held { older_since: None, ..held }),
        (Some(_), Some(level)) => Some(new(level)),
    }
}

fn stale_after(level: &PowerLevelSpec) -> Duration {
    Duration::from_secs(level.stale_after_seconds.into())
}

#[cfg(test)]
mod tests;
