//! The bridge from Climatik's kinds: writes the mirrors of its policies, the clocks that its NodeFrequencies ask for, and the status
//! of its policies. [`energy_model::resources::climatik`] says what they are.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use energy_cluster::api::{Api, ApiError};
use energy_files::log_limit::LogLimit;
use energy_model::meter_state::Reason;
use energy_model::resources::climatik;
use energy_model::resources::object::{KubeObject, Metadata};
use serde_json::{Value, json};
use tokio::time::timeout_at;
use tracing::warn;

use self::plan::{Request, Task, Unfollowed};
use super::sources::SeenCluster;
use super::totals::DecidedPolicy;

/// Owns the fields that the bridge applies, and no others.
const MANAGER: &str = "energy-agent-climatik";
/// Writes in one round; the rest waits for the next one.
const MOST_WRITES: usize = 50;
/// What a round waits for all of them.
const PATIENCE: Duration = Duration::from_secs(1);
/// Before a write that was refused is tried again.
const PAUSE: Duration = Duration::from_secs(30);

pub struct Bridge {
    api: Arc<Api>,
    identity: String,
    /// What was said of an object that cannot be followed, by its path, and whether its Event was taken.
    said: BTreeMap<String, (String, bool)>,
    /// Writes that were refused, by path, until they are tried again.
    paused: BTreeMap<String, (Request, Instant)>,
    /// When status was written, by path.
    stamped: BTreeMap<String, Instant>,
    news: LogLimit<Reason>,
    trouble: Option<String>,
}

impl Bridge {
    pub fn new(api: Arc<Api>, identity: String) -> Self {
        Self {
            api,
            identity,
            said: BTreeMap::new(),
            paused: BTreeMap::new(),
            stamped: BTreeMap::new(),
            news: LogLimit::default(),
            trouble: None,
        }
    }

    /// What keeps the bridge from writing.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// One round: what is not as Climatik's objects ask for is written, until the term is over.
    pub async fn follow(&mut self, seen: &SeenCluster, decided: &[DecidedPolicy], until: Instant) {
        let now = Instant::now();
        let until = until.min(now + PATIENCE);
        let plan = plan::plan(seen, decided, &self.stamped, now);
        self.forget(&plan.known, now);
        self.trouble = None;
        for problem in plan.problems.into_iter().take(MOST_WRITES) {
            self.complain(problem, until).await;
        }
        let is_paused = |task: &Task| self.paused.get(&task.path).is_some_and(|(refused, _)| *refused == task.request);
        let tasks = plan.tasks.into_iter().filter(|task| !is_paused(task));
        for task in tasks.take(MOST_WRITES).collect::<Vec<_>>() {
            match timeout_at(until.into(), self.write(&task)).await {
                Ok(Ok(())) => {
                    if matches!(task.request, Request::Status(_)) {
                        self.stamped.insert(task.path, now);
                    }
                }
                Ok(Err(error)) => self.failed(task, error, until).await,
                // The rest waits for the next round.
                Err(_) => break,
            }
        }
    }

    /// Drops what belongs to objects that are gone.
    fn forget(&mut self, known: &BTreeSet<String>, now: Instant) {
        self.said.retain(|path, _| known.contains(path));
        self.stamped.retain(|path, _| known.contains(path));
        self.paused.retain(|_, (_, until)| *until > now);
    }

    async fn write(&self, task: &Task) -> Result<(), ApiError> {
        let Task { path, request, .. } = task;
        match request {
            Request::Create { collection, object } => self.api.create(collection, object).await,
            Request::Replace(object) => self.api.replace(path, object).await,
            Request::Apply(object) => self.api.apply(path, MANAGER, object).await,
            Request::Status(patch) => self.api.patch_status(path, patch).await,
        }
        .map(drop)
    }

    async fn failed(&mut self, task: Task, error: ApiError, until: Instant) {
        let is_apply = matches!(task.request, Request::Apply(_));
        let message = match error {
            ApiError::Conflict if is_apply => {
                "another manager has set the clock of one of these devices; its clock stays".to_owned()
            }
            // Written by somebody else or deleted meanwhile: the next round knows it.
            ApiError::Conflict | ApiError::Absent => return,
            ApiError::Invalid(trouble) => trouble.to_string(),
            // Not the object's fault.
            ApiError::Failed(trouble) => {
                if self.news.is(trouble.reason, Instant::now()) {
                    warn!(object = task.path, problem = %trouble, "what Climatik's objects ask for can't be written");
                }
                self.trouble = Some(format!("{}: {trouble}", task.path));
                return;
            }
        };
        self.paused.insert(task.path, (task.request, Instant::now() + PAUSE));
        if let Some((kind, object)) = task.about {
            self.complain(Unfollowed { kind, object, message }, until).await;
        }
    }

    /// Says what is wrong with an object of Climatik, once, in the log and by an Event.
    async fn complain(&mut self, problem: Unfollowed, until: Instant) {
        let Unfollowed { kind, object, message } = problem;
        let Metadata { namespace, name, .. } = &object.metadata;
        let path = plan::path_of(kind, &object.metadata);
        match self.said.get(&path).filter(|(said, _)| *said == message) {
            Some((_, true)) => return,
            Some((_, false)) => {}
            None => {
                let object = format!("{kind} {namespace}/{name}");
                warn!(object, problem = message, "an object of Climatik is not followed");
            }
        }
        let event = self.event(kind, &object, &message);
        let collection = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let posted = timeout_at(until.into(), self.api.create(&collection, &event)).await;
        self.said.insert(path, (message, matches!(posted, Ok(Ok(_)))));
    }

    fn event(&self, kind: &str, object: &KubeObject, message: &str) -> Value {
        let Metadata { namespace, name, uid, .. } = &object.metadata;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let short = |text: &str, most: usize| text.chars().take(most).collect::<String>();
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": format!("{}.{:x}", short(name, 200), since.as_nanos())},
            "eventTime": humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
            "action": "Bridge",
            "reason": "NotFollowed",
            "type": "Warning",
            "regarding": {
                "apiVersion": format!("{}/{}", climatik::GROUP, climatik::VERSION),
                "kind": kind, "namespace": namespace, "name": name, "uid": uid,
            },
            "note": short(message, 1000),
            "reportingController": "energy-agent-controller",
            "reportingInstance": short(&self.identity, 120),
        })
    }
}
