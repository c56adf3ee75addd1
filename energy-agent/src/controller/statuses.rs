//! The status of each budget: what it says, and when it is worth a write. Every agent watches budgets, so that each write
//! is an event for every node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_cluster::objects::ObjectKey;
use energy_model::capping::policy::Mode;
use energy_model::resources::cluster_power_budget::{ClusterPowerBudgetStatus, KIND, PLURAL};
use energy_model::resources::condition::Condition;
use energy_model::resources::object::KubeObject;
use energy_model::resources::{GROUP, VERSION, api_version};
use energy_model::units::{floor_u64, ratio};
use serde_json::{Value, json};

use super::budgets::{Decided, Round};

/// Watch events a second that status may cause, all agents together.
const EVENTS_A_SECOND: f64 = 1000.0;
/// However few nodes there are.
const MOST_A_SECOND: f64 = 20.0;
/// However many there are.
const LEAST_A_SECOND: f64 = 0.05;
/// Figures that moved by less than this share of the budget are worth no write.
const FIGURES: f64 = 0.02;
/// But at this age they are.
const AGE: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub struct Statuses {
    /// Writes of figures that may be made now, and when they were counted.
    allowed: f64,
    counted: Option<Instant>,
    written: BTreeMap<String, Instant>,
}

/// A status to write.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    pub name: String,
    pub path: String,
    pub patch: Value,
    /// Conditions that are different now.
    pub news: Vec<Condition>,
    pub object: Arc<KubeObject>,
}

impl Statuses {
    /// What to write now: changes of state at once, figures as far as the rate allows, the oldest first.
    pub fn writes(
        &mut self,
        round: &Round,
        objects: &BTreeMap<ObjectKey, Arc<KubeObject>>,
        nodes: usize,
        now: Instant,
        time: &str,
    ) -> Vec<StatusWrite> {
        let rate = (EVENTS_A_SECOND / count(nodes).max(1.0)).clamp(LEAST_A_SECOND, MOST_A_SECOND);
        let passed =
            self.counted.replace(now).map_or(0.0, |before| now.saturating_duration_since(before).as_secs_f64());
        self.allowed = (self.allowed + rate * passed).min((rate * 5.0).max(1.0));
        self.written.retain(|name, _| objects.contains_key(&(String::new(), name.clone())));
        let decided = round.budgets.iter().map(|decided| (&decided.object, status(decided, time)));
        let unread = round.unread.iter().map(|(object, refusal)| (object, refused(object, &refusal.0, time)));
        let mut writes = Vec::new();
        let mut figures = Vec::new();
        for (object, mut status) in decided.chain(unread) {
            let before: ClusterPowerBudgetStatus = serde_json::from_value(object.status.clone()).unwrap_or_default();
            let news = keep_times(&mut status.conditions, &before.conditions);
            if !news.is_empty() || before.observed_generation != status.observed_generation {
                self.written.insert(object.metadata.name.clone(), now);
                writes.push(write(object, &status, news));
            } else if is_worth(&before, &status) || self.is_old(object, now) {
                figures.push((self.written.get(&object.metadata.name).copied(), object, status));
            }
        }
        figures.sort_by_key(|(written, ..)| *written);
        for (_, object, status) in figures {
            if self.allowed < 1.0 {
                break;
            }
            self.allowed -= 1.0;
            self.written.insert(object.metadata.name.clone(), now);
            writes.push(write(object, &status, Vec::new()));
        }
        writes
    }

    fn is_old(&self, object: &KubeObject, now: Instant) -> bool {
        self.written.get(&object.metadata.name).is_none_or(|written| now.saturating_duration_since(*written) >= AGE)
    }
}

fn write(object: &Arc<KubeObject>, status: &ClusterPowerBudgetStatus, news: Vec<Condition>) -> StatusWrite {
    let name = object.metadata.name.clone();
    let mut patch = json!({
        "metadata": {"resourceVersion": object.metadata.resource_version},
        "status": status,
    });
    // A merge patch removes only what it names.
    if let Some(fields) = patch["status"].as_object_mut() {
        for field in ["observedTime", "budgetWatts", "watts", "percent", "limitWatts", "levelPermille"] {
            fields.entry(field).or_insert(Value::Null);
        }
    }
    StatusWrite {
        path: format!("/apis/{GROUP}/{VERSION}/{PLURAL}/{name}"),
        name,
        patch,
        news,
        object: Arc::clone(object),
    }
}

fn status(decided: &Decided, time: &str) -> ClusterPowerBudgetStatus {
    let Decided { object, decision, budget_watts, nodes, limited, silent, .. } = decided;
    let lowest = decision.levels.iter().min().map(|level| u32::from(level.get()));
    ClusterPowerBudgetStatus {
        observed_generation: object.metadata.generation,
        observed_time: Some(time.to_owned()),
        budget_watts: Some(whole(*budget_watts)),
        watts: Some(whole(decision.watts)),
        percent: u32::try_from(floor_u64(100.0 * decision.watts / budget_watts)).ok(),
        limit_watts: Some(whole(decision.limit_watts)),
        level_permille: lowest,
        nodes: number(nodes.len()),
        limited_nodes: number(*limited),
        silent_nodes: number(*silent),
        conditions: conditions(decided, time),
    }
}

fn refused(object: &KubeObject, why: &str, time: &str) -> ClusterPowerBudgetStatus {
    let message = format!("{why}; nothing is limited by it");
    ClusterPowerBudgetStatus {
        observed_generation: object.metadata.generation,
        observed_time: Some(time.to_owned()),
        conditions: vec![condition(object, "Ready", false, "Refused", message, time)],
        ..ClusterPowerBudgetStatus::default()
    }
}

pub fn conditions(decided: &Decided, time: &str) -> Vec<Condition> {
    let Decided { object, spec, refusal, budget_watts, decision, stale, nodes, silent, .. } = decided;
    let (is_ready, reason, message) = if let Some(refusal) = refusal {
        (false, "Refused", format!("{}; the previous version stays in force", refusal.0))
    } else if nodes.is_empty() {
        (false, "NoNodes", "no node has these labels; correct spec.nodes or label the nodes".to_owned())
    } else if decision.too_many_silent {
        (
            false,
            "TooManySilent",
            format!("{silent} of {} nodes are silent: the level is lowered, never raised", nodes.len()),
        )
    } else if let Some((reason, why)) = stale {
        (false, *reason, why.clone())
    } else {
        (true, "Running", format!("{} nodes", nodes.len()))
    };
    let (watts, budget) = (shown(decision.watts), shown(*budget_watts));
    let (in_budget, why, figures) = if let Some(floors) = decision.floors_exceed {
        let floors = shown(floors);
        (
            false,
            "FloorsExceedBudget",
            format!("floors {floors}: the nodes can't be held at {budget}; take nodes away or raise the budget"),
        )
    } else if decision.watts > *budget_watts {
        (false, "OverBudget", format!("{watts} of {budget}"))
    } else {
        (true, "UnderBudget", format!("{watts} of {budget}"))
    };
    let is_limiting = decision.levels.iter().any(|level| !level.is_open());
    let tiers = spec.settings.tiers.iter().zip(&decision.levels).filter(|(_, level)| !level.is_open());
    let tiers: Vec<String> = tiers
        .map(|(tier, level)| {
            let tier = if tier.is_empty() { String::new() } else { format!("tier {tier} ") };
            format!("{tier}level {}", level.get())
        })
        .collect();
    let limit = shown(decision.limit_watts);
    let limiting = match (is_limiting, spec.spec.mode) {
        (true, Mode::Enforce) => ("Limited", format!("{}: at most {limit}", tiers.join(", "))),
        (true, _) => ("WouldLimit", format!("{}: at most {limit}, were it enforced", tiers.join(", "))),
        (false, _) => ("Open", "nothing is limited".to_owned()),
    };
    vec![
        condition(object, "Ready", is_ready, reason, message, time),
        condition(object, "InBudget", in_budget, why, figures, time),
        condition(object, "Limiting", is_limiting, limiting.0, limiting.1, time),
    ]
}

fn condition(object: &KubeObject, kind: &str, is: bool, reason: &str, message: String, time: &str) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: if is { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: time.to_owned(),
        observed_generation: Some(object.metadata.generation),
    }
}

/// A condition whose status is as before keeps its time; returns those that say something else.
fn keep_times(conditions: &mut [Condition], before: &[Condition]) -> Vec<Condition> {
    let mut news = Vec::new();
    for condition in conditions {
        match before.iter().find(|before| before.kind == condition.kind) {
            Some(before) if before.status == condition.status => {
                condition.last_transition_time.clone_from(&before.last_transition_time);
                if before.reason != condition.reason {
                    news.push(condition.clone());
                }
            }
            _ => news.push(condition.clone()),
        }
    }
    news
}

/// Whether figures have moved enough.
fn is_worth(before: &ClusterPowerBudgetStatus, status: &ClusterPowerBudgetStatus) -> bool {
    let moved = |a: Option<i64>, b: Option<i64>| {
        let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
        ratio(a.abs_diff(b), status.budget_watts.unwrap_or_default().unsigned_abs().max(1)) > FIGURES
    };
    let counts = |status: &ClusterPowerBudgetStatus| (status.nodes, status.silent_nodes, status.level_permille);
    moved(before.watts, status.watts)
        || moved(before.budget_watts, status.budget_watts)
        || counts(before) != counts(status)
}

/// A condition as an Event about its budget, for `kubectl describe`; `None`: nothing to tell.
pub fn event(write: &StatusWrite, news: &Condition, identity: &str, number: u64, time: &str) -> Value {
    let KubeObject { metadata, .. } = &*write.object;
    let is_bad = matches!(
        news.reason.as_str(),
        "Refused" | "NoNodes" | "TooManySilent" | "MeterStale" | "WattsFromStale" | "FloorsExceedBudget" | "OverBudget"
    );
    let instance: String = identity.chars().take(120).collect();
    let note: String = news.message.chars().take(500).collect();
    let name: String = metadata.name.chars().take(200).collect();
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "default", "name": format!("{name}.{number:x}")},
        "eventTime": time,
        "action": news.kind,
        "reason": news.reason,
        "type": if is_bad { "Warning" } else { "Normal" },
        "regarding": {"apiVersion": api_version(), "kind": KIND, "name": metadata.name, "uid": metadata.uid},
        "note": note,
        "reportingController": "energy-agent-controller",
        "reportingInstance": instance,
    })
}

fn shown(watts: f64) -> String {
    if watts >= 1e6 {
        format!("{:.2} MW", watts / 1e6)
    } else if watts >= 1e4 {
        format!("{:.1} kW", watts / 1e3)
    } else {
        format!("{watts:.0} W")
    }
}

fn whole(watts: f64) -> i64 {
    i64::try_from(floor_u64(watts.max(0.0))).unwrap_or(i64::MAX)
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn count(number: usize) -> f64 {
    f64::from(self::number(number))
}
