//! When the status of an object is worth a write. Every agent watches budgets and policies, so that each write of theirs is an
//! event for every node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::resources::condition::Condition;
use energy_model::resources::object::{KubeObject, Metadata};
use energy_model::resources::{GROUP, VERSION, api_version};
use energy_model::units::floor_u64;
use serde::Serialize;
use serde_json::{Value, json};

use super::event::ObjectEvent;

/// Watch events a second that status may cause, all agents together.
const EVENTS_A_SECOND: f64 = 1000.0;
/// However few nodes there are.
const MOST_A_SECOND: f64 = 20.0;
/// However many there are.
const LEAST_A_SECOND: f64 = 0.05;
/// Of what only one agent watches.
const OWN_A_SECOND: f64 = 10.0;
/// Figures of this age are written, however little they have moved.
const AGE: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub struct Statuses {
    shared: Allowance,
    own: Allowance,
    written: BTreeMap<StatusKey, Instant>,
}

/// Kind, namespace, name.
type StatusKey = (&'static str, String, String);

/// How fast the status of an object may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusPace {
    /// All agents watch it; changes of state are written at once, figures as far as the rate allows.
    Budget,
    /// All agents watch it, and there may be thousands: as far as the rate allows, changes of state first.
    Policy,
    /// One agent watches it.
    Node,
}

/// How an object stands, as its status would say it.
#[derive(Clone, Debug)]
pub struct StatusDraft {
    pub object: Arc<KubeObject>,
    pub kind: &'static str,
    pub plural: &'static str,
    pub pace: StatusPace,
    /// Without the conditions; what is not known is null.
    pub status: Value,
    pub conditions: Vec<Condition>,
    /// Figures are clearly other ones than those in the object.
    pub has_moved: bool,
    /// Something that is no condition is another state.
    pub is_other: bool,
}

/// A status to write.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    pub kind: &'static str,
    pub path: String,
    pub patch: Value,
    /// Conditions that are different now, of which an Event tells.
    pub news: Vec<Condition>,
    pub object: Arc<KubeObject>,
}

/// Writes that may be made now.
#[derive(Debug, Default)]
struct Allowance {
    writes: f64,
    counted: Option<Instant>,
}

impl Allowance {
    fn grow(&mut self, rate: f64, now: Instant) {
        let passed =
            self.counted.replace(now).map_or(0.0, |before| now.saturating_duration_since(before).as_secs_f64());
        self.writes = (self.writes + rate * passed).min((rate * 5.0).max(1.0));
    }

    fn take(&mut self) -> bool {
        let has = self.writes >= 1.0;
        if has {
            self.writes -= 1.0;
        }
        has
    }
}

impl StatusDraft {
    /// `fields`: what an earlier status may have had that this one has not.
    pub fn new(
        object: &Arc<KubeObject>,
        kind: &'static str,
        plural: &'static str,
        status: &impl Serialize,
        fields: &[&str],
        conditions: &[Condition],
    ) -> Self {
        let mut status = serde_json::to_value(status).unwrap_or_default();
        // A merge patch removes only what it names.
        if let Some(entries) = status.as_object_mut() {
            for field in fields {
                entries.entry(*field).or_insert(Value::Null);
            }
        }
        Self {
            object: Arc::clone(object),
            kind,
            plural,
            pace: StatusPace::Policy,
            status,
            conditions: conditions.to_vec(),
            has_moved: false,
            is_other: false,
        }
    }

    fn key(&self) -> StatusKey {
        let Metadata { namespace, name, .. } = &self.object.metadata;
        (self.kind, namespace.clone(), name.clone())
    }

    fn write(mut self, news: Vec<Condition>) -> StatusWrite {
        let Metadata { namespace, name, resource_version, .. } = &self.object.metadata;
        let place = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
        self.status["conditions"] = json!(self.conditions);
        StatusWrite {
            kind: self.kind,
            path: format!("/apis/{GROUP}/{VERSION}/{place}{}/{name}", self.plural),
            patch: json!({"metadata": {"resourceVersion": resource_version}, "status": self.status}),
            news,
            object: self.object,
        }
    }
}

impl Statuses {
    /// What to write now: what is urgent, then changes of state, then figures, the oldest first. `nodes`: how many agents there
    /// are.
    pub fn writes(&mut self, drafts: Vec<StatusDraft>, nodes: usize, now: Instant) -> Vec<StatusWrite> {
        let rate = (EVENTS_A_SECOND / f64::from(number(nodes)).max(1.0)).clamp(LEAST_A_SECOND, MOST_A_SECOND);
        self.shared.grow(rate, now);
        self.own.grow(OWN_A_SECOND, now);
        let keys: BTreeSet<StatusKey> = drafts.iter().map(StatusDraft::key).collect();
        self.written.retain(|key, _| keys.contains(key));
        let (mut writes, mut waiting) = (Vec::new(), Vec::new());
        for mut draft in drafts {
            let before = conditions_of(&draft.object);
            let news = keep_times(&mut draft.conditions, &before);
            let generation = draft.object.status["observedGeneration"].as_i64().unwrap_or_default();
            let is_news = !news.is_empty() || draft.is_other || generation != draft.object.metadata.generation;
            if is_news && draft.pace == StatusPace::Budget {
                self.written.insert(draft.key(), now);
                writes.push(draft.write(news));
            } else if is_news
                || draft.has_moved
                || says_otherwise(&draft.conditions, &before)
                || self.is_old(&draft.key(), now)
            {
                waiting.push((!is_news, self.written.get(&draft.key()).copied(), draft, news));
            }
        }
        waiting.sort_by_key(|(is_figures, written, ..)| (*is_figures, *written));
        for (_, _, draft, news) in waiting {
            let allowance = if draft.pace == StatusPace::Node { &mut self.own } else { &mut self.shared };
            if allowance.take() {
                self.written.insert(draft.key(), now);
                writes.push(draft.write(news));
            }
        }
        writes
    }

    fn is_old(&self, key: &StatusKey, now: Instant) -> bool {
        self.written.get(key).is_none_or(|written| now.saturating_duration_since(*written) >= AGE)
    }
}

/// What keeps an object from being ready is for another cause now, by the same reason.
fn says_otherwise(conditions: &[Condition], before: &[Condition]) -> bool {
    let unready = |conditions: &[Condition]| {
        let found = conditions.iter().find(|condition| condition.kind == "Ready" && condition.status == "False");
        found.map(|condition| condition.message.clone())
    };
    unready(conditions) != unready(before)
}

fn conditions_of(object: &KubeObject) -> Vec<Condition> {
    serde_json::from_value(object.status["conditions"].clone()).unwrap_or_default()
}

pub fn condition(object: &KubeObject, kind: &str, is: bool, reason: &str, message: String, time: &str) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: if is { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        // The API server takes 32 KiB.
        message: message.chars().take(2000).collect(),
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

/// That an object which has just come is open and in its budget is no news.
pub fn is_news(object: &KubeObject, condition: &Condition) -> bool {
    let is_first = object.status["conditions"].as_array().is_none_or(Vec::is_empty);
    let is_usual = matches!(condition.reason.as_str(), "Running" | "UnderBudget" | "Open" | "NoPods" | "Off");
    !(is_first && is_usual)
}

/// A condition as an Event about its object: where it is made, and the Event.
pub fn event(write: &StatusWrite, news: &Condition, identity: &str, number: u64, time: &str) -> (String, Value) {
    let is_bad = matches!(
        news.reason.as_str(),
        "Refused" | "NoNodes" | "TooManySilent" | "MeterStale" | "WattsFromStale" | "FloorsExceedBudget" | "OverBudget"
    );
    let note: String = news.message.chars().take(500).collect();
    let event = ObjectEvent {
        api_version: &api_version(),
        kind: write.kind,
        about: &write.object.metadata,
        action: &news.kind,
        reason: &news.reason,
        is_bad,
        note: &note,
    };
    event.of(identity, number, time)
}

pub fn shown(watts: f64) -> String {
    if watts >= 1e6 {
        format!("{:.2} MW", watts / 1e6)
    } else if watts >= 1e4 {
        format!("{:.1} kW", watts / 1e3)
    } else {
        format!("{watts:.0} W")
    }
}

pub fn whole(watts: f64) -> i64 {
    i64::try_from(floor_u64(watts.max(0.0))).unwrap_or(i64::MAX)
}

pub fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
