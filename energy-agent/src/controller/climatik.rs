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
use energy_model::resources::object::Metadata;
use tokio::time::timeout_at;
use tracing::warn;

use self::plan::{BridgePlan, Request, Task, Unfollowed};
use super::event::ObjectEvent;
use super::sources::SeenCluster;
use super::totals::DecidedPolicy;
use super::writer::number;

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
    /// What was said of an object that cannot be followed, by its path.
    said: BTreeMap<String, SaidOfObject>,
    /// Writes that are not made again until then, by path: they were refused, or changed nothing.
    paused: BTreeMap<String, (Request, Instant)>,
    /// When status was written, by path.
    stamped: BTreeMap<String, Instant>,
    /// Paths of the last write and of the last object that was complained about: the next round goes on behind them, so that
    /// many objects of one tenant do not hold up the others.
    last: [String; 2],
    news: LogLimit<Reason>,
    trouble: Option<String>,
}

/// What was said of an object.
struct SaidOfObject {
    message: String,
    /// When its Event is posted again; `None`: it was taken.
    again: Option<Instant>,
}

impl SaidOfObject {
    /// Whether this is still to be said.
    fn is_open(&self, message: &str, now: Instant) -> bool {
        self.message != message || self.again.is_some_and(|again| again <= now)
    }
}

/// In the order of their paths, from behind `last` on and round.
fn take_turns<T>(items: &mut [T], path: impl Fn(&T) -> String, last: &str) {
    items.sort_by_cached_key(&path);
    let first = items.partition_point(|item| *path(item) <= *last);
    items.rotate_left(first);
}

impl Bridge {
    pub fn new(api: Arc<Api>, identity: String) -> Self {
        Self {
            api,
            identity,
            said: BTreeMap::new(),
            paused: BTreeMap::new(),
            stamped: BTreeMap::new(),
            last: [String::new(), String::new()],
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
        let BridgePlan { mut tasks, mut problems, known } = plan::plan(seen, decided, &self.stamped, now);
        self.forget(&known, now);
        self.trouble = None;
        tasks.retain(|task| self.paused.get(&task.path).is_none_or(|(request, _)| *request != task.request));
        take_turns(&mut tasks, |task| task.path.clone(), &self.last[0]);
        for task in tasks.into_iter().take(MOST_WRITES) {
            if !self.follow_one(task, until).await {
                return;
            }
        }
        problems
            .retain(|problem| self.said.get(&problem.path()).is_none_or(|said| said.is_open(&problem.message, now)));
        take_turns(&mut problems, Unfollowed::path, &self.last[1]);
        for problem in problems.into_iter().take(MOST_WRITES) {
            self.complain(problem, until).await;
        }
    }

    /// Returns false where the time is over: the rest waits for the next round.
    async fn follow_one(&mut self, task: Task, until: Instant) -> bool {
        // A request that is begun after the term may still be sent.
        if Instant::now() >= until {
            return false;
        }
        self.last[0].clone_from(&task.path);
        match timeout_at(until.into(), self.write(&task)).await {
            Ok(Ok(())) => {
                if matches!(task.request, Request::Status(_)) {
                    self.stamped.insert(task.path, Instant::now());
                } else {
                    self.pause(task.path, task.request);
                }
            }
            Ok(Err(error)) => self.failed(task, error, until).await,
            Err(_) => return false,
        }
        true
    }

    fn pause(&mut self, path: String, request: Request) {
        self.paused.insert(path, (request, Instant::now() + PAUSE));
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
        let Task { path, request, about } = task;
        let is_apply = matches!(request, Request::Apply(_));
        let message = match error {
            ApiError::Conflict if is_apply => {
                Some("another manager has set the clock of one of these devices; its clock stays".to_owned())
            }
            // Written by somebody else or deleted meanwhile: a round that knows it asks for something else.
            ApiError::Conflict | ApiError::Absent => None,
            ApiError::Invalid(trouble) => Some(trouble.to_string()),
            // The API server is not there, or does not allow it, as in a namespace that is being deleted.
            ApiError::Failed(trouble) => {
                if self.news.is(trouble.reason, Instant::now()) {
                    warn!(object = path, problem = %trouble, "what Climatik's objects ask for can't be written");
                }
                self.trouble = Some(format!("{path}: {trouble}"));
                None
            }
        };
        self.pause(path, request);
        if let Some(((kind, object), message)) = about.zip(message) {
            self.complain(Unfollowed { kind, object, message }, until).await;
        }
    }

    /// Says what is wrong with an object of Climatik, once, in the log and by an Event.
    async fn complain(&mut self, problem: Unfollowed, until: Instant) {
        let now = Instant::now();
        let path = problem.path();
        let before = self.said.get(&path).filter(|said| said.message == problem.message);
        if now >= until || before.is_some_and(|said| !said.is_open(&problem.message, now)) {
            return;
        }
        let Unfollowed { kind, object, message } = problem;
        let Metadata { namespace, name, .. } = &object.metadata;
        if before.is_none() {
            let object = format!("{kind} {namespace}/{name}");
            warn!(object, problem = message, "an object of Climatik is not followed");
        }
        self.last[1].clone_from(&path);
        let time = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        let event = ObjectEvent {
            api_version: &format!("{}/{}", climatik::GROUP, climatik::VERSION),
            kind,
            about: &object.metadata,
            action: "Bridge",
            reason: "NotFollowed",
            is_bad: true,
            note: &message,
        };
        let (collection, event) = event.of(&self.identity, number(), &time);
        let posted = timeout_at(until.into(), self.api.create(&collection, &event)).await;
        let again = (!matches!(posted, Ok(Ok(_)))).then(|| now + PAUSE);
        self.said.insert(path, SaidOfObject { message, again });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifty_objects_of_one_tenant_keep_nobody_from_their_turn() {
        // 120 of a tenant, and one behind them; each round takes fifty.
        let all: Vec<String> =
            (0..120).map(|index| format!("/aaa/{index:03}")).chain(["/zzz/one".to_owned()]).collect();
        let (mut last, mut rounds) = (String::new(), Vec::new());
        for _ in 0..3 {
            let mut turn = all.clone();
            turn.reverse();
            take_turns(&mut turn, Clone::clone, &last);
            turn.truncate(MOST_WRITES);
            last.clone_from(&turn[MOST_WRITES - 1]);
            rounds.push(turn);
        }
        assert_eq!([&rounds[0][0], &rounds[1][0], &rounds[2][0]], ["/aaa/000", "/aaa/050", "/aaa/100"]);
        assert!(rounds[2].contains(&"/zzz/one".to_owned()) && rounds[2].contains(&"/aaa/028".to_owned()));
    }
}
