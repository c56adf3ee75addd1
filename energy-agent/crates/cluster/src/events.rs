//! Changes of state as Kubernetes Events: taken without waiting, sent by a task of their own as far as the cluster lets it.

mod bucket;
mod object;

use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_files::log_limit::LogLimit;
use energy_model::capping::change::Change;
use energy_model::meter_state::Reason;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::bucket::Buckets;
use crate::kubernetes::backoff::Backoff;
use crate::kubernetes::{ClusterError, Credentials, Server};

/// What waits to be sent; the bucket lets fewer through.
const QUEUE: usize = 64;
/// An API server that is there answers sooner.
const ANSWER: Duration = Duration::from_secs(10);
/// Older ones are not sent any more while the server is away.
const LATE: Duration = Duration::from_secs(600);
/// How long the end of the agent waits for what it said last.
const LAST: Duration = Duration::from_secs(2);
/// In the words of RBAC.
const OBJECT: &str = "events.events.k8s.io";

/// Where the tick puts what happened.
pub struct Outbox {
    queue: mpsc::Sender<Noted>,
    buckets: Buckets,
    count: CountEvent,
}

/// Called once for each event: whether the cluster has it (`true`), or will never have it.
pub type CountEvent = Arc<dyn Fn(bool) + Send + Sync>;

struct Noted {
    change: Change,
    at: Timestamp,
    since: Instant,
}

/// The task that sends: it ends when the outbox is gone and everything in it has been dealt with.
pub struct Sending(JoinHandle<()>);

/// Sends events about this node in a task of the current runtime.
#[must_use]
pub fn start(credentials: Credentials, node: Arc<str>, count: CountEvent) -> (Outbox, Sending) {
    let (queue, noted) = mpsc::channel(QUEUE);
    let poster = Poster { credentials, server: None, news: LogLimit::default(), failing: false };
    let sending = tokio::spawn(run(poster, node, noted, Arc::clone(&count)));
    (Outbox { queue, buckets: Buckets::new(Instant::now()), count }, Sending(sending))
}

impl Sending {
    /// After the outbox is gone: lets the last events go out, for a moment.
    pub async fn finish(self) {
        if timeout(LAST, self.0).await.is_err() {
            warn!(
                "the agent ends, and the last events were not posted: the API server did not accept them within {LAST:?}"
            );
        }
    }
}

impl Outbox {
    /// Never waits: too many at a time are counted and left out.
    pub fn post(&mut self, change: Change) {
        let since = Instant::now();
        let may = self.buckets.take(&change.about, change.policy.as_ref(), since);
        let noted = Noted { change, at: Timestamp::now(), since };
        if !may || self.queue.try_send(noted).is_err() {
            (self.count)(false);
        }
    }
}

async fn run(mut poster: Poster, node: Arc<str>, mut noted: mpsc::Receiver<Noted>, count: CountEvent) {
    while let Some(Noted { change, at, since }) = noted.recv().await {
        let posted = poster.deliver(&object::event(&change, &node, at), since).await;
        count(posted);
    }
}

struct Poster {
    credentials: Credentials,
    server: Option<Server>,
    news: LogLimit<Reason>,
    failing: bool,
}

/// Why an event was not taken.
enum PostFailure {
    /// It never will be.
    Final(ClusterError),
    /// Perhaps later.
    Passing(ClusterError),
}

impl Poster {
    /// Tries until the event is too old; whether the server has it.
    async fn deliver(&mut self, event: &Event, since: Instant) -> bool {
        let mut backoff = Backoff::new();
        loop {
            match self.post(event).await {
                Ok(()) => {
                    if std::mem::take(&mut self.failing) {
                        info!("events are posted again");
                    }
                    return true;
                }
                Err(failure) => {
                    let (trouble, is_final) = match failure {
                        PostFailure::Final(trouble) => (trouble, true),
                        PostFailure::Passing(trouble) => (trouble, false),
                    };
                    if self.news.is(trouble.reason, Instant::now()) {
                        warn!(
                            reason = trouble.reason.as_str(),
                            problem = %trouble,
                            "events cannot be posted; everything else goes on"
                        );
                        self.failing = true;
                    }
                    self.server.take_if(|_| trouble.needs_new_client());
                    if is_final || since.elapsed() > LATE {
                        return false;
                    }
                }
            }
            sleep(backoff.pause()).await;
        }
    }

    async fn post(&mut self, event: &Event) -> Result<(), PostFailure> {
        let server = match self.server.take().filter(|server| !server.is_expiring()) {
            Some(server) => server,
            None => self.credentials.client().await.map_err(PostFailure::Passing)?,
        };
        let server = self.server.insert(server);
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(server.client.clone(), namespace);
        let parameters = PostParams::default();
        match timeout(ANSWER, api.create(&parameters, event)).await {
            Err(_) => Err(PostFailure::Passing(server.silence("create", OBJECT, ANSWER))),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                let trouble = server.trouble(&error, "create", OBJECT);
                match error {
                    // The answer to an earlier try was lost.
                    kube::Error::Api(status) if status.code == 409 => Ok(()),
                    kube::Error::Api(status)
                        if (400..500).contains(&status.code) && ![401, 408, 429].contains(&status.code) =>
                    {
                        Err(PostFailure::Final(trouble))
                    }
                    _ => Err(PostFailure::Passing(trouble)),
                }
            }
        }
    }
}
