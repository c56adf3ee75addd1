//! All objects of one kind that a selector names: one list, then one watch that goes on where the last one ended. In steady
//! state nothing else is sent.

use std::pin::pin;
use std::time::{Duration, Instant};

use energy_model::advice::Advice;
use energy_model::meter_state::Reason;
use futures_util::{FutureExt as _, StreamExt as _};
use kube::Error;
use kube::api::{ListParams, VersionMatch, WatchEvent, WatchParams};
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::backoff::Backoff;
use super::{ClusterError, Credentials, Server};

/// A list, and the beginning of a watch, are answered sooner.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The server ends a watch after this time, as client-go's do; one silent for longer is dead.
const WATCH_SECONDS: u32 = 290;
const WATCH_MARGIN: Duration = Duration::from_secs(5);
/// A server tells its version about once a minute (a bookmark). One that has told nothing for so long may not have reached ours:
/// etcd was restored from a backup, and until its versions are as high again such a watch says nothing at all.
const QUIET: Duration = Duration::from_secs(240);
/// A watch that ends sooner without an event is taken for a failure, so that a proxy which cuts every one is not asked
/// without pause.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// Permissions change seldom, and by hand.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(30);
/// So do the kinds that there are: all nodes ask for one that nobody has installed.
const ABSENT_PAUSE: Duration = Duration::from_secs(15);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Such as `/api/v1/pods`.
    pub path: String,
    /// The same in the words of RBAC.
    pub object: String,
    pub fields: Option<String>,
    pub labels: Option<String>,
    /// Objects in one answer, where that is limited.
    pub page: u32,
}

/// As far as the watch itself looks into an object.
pub trait Watched: Clone + DeserializeOwned {
    fn version(&self) -> &str;
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard<T> {
    /// All objects there are.
    All(Vec<T>),
    /// One that is new or has changed.
    Applied(T),
    Deleted(T),
    /// The server answers: its reports until now are complete.
    Answered,
    /// It does not; its earlier reports hold.
    Failed(ClusterError),
}

/// How fresh a list has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// From the server's cache: cheap for it, and the watch that follows catches up.
    Any,
    /// The stored state: a cache may be as old as the version that has just expired.
    Latest,
}

/// Why a watch ended.
enum End {
    /// As it should, or after some reports.
    Resume,
    /// As it should, and without a report.
    Quiet,
    /// The version is too old (410).
    Expired,
    Failed(ClusterError),
}

/// Lists, watches and goes on for ever. A new client is made whenever credentials or certificates were refused: they may
/// have been renewed.
pub async fn run<T: Watched>(credentials: Credentials, query: Query, tell: impl FnMut(Heard<T>)) {
    run_from(credentials, query, Age::Any, tell).await;
}

/// The same with a first list of this age.
pub(crate) async fn run_from<T: Watched>(credentials: Credentials, query: Query, age: Age, tell: impl FnMut(Heard<T>)) {
    run_until_quiet(credentials, query, age, QUIET, tell).await;
}

/// The same, with a list after each time of this length in which nothing was told.
async fn run_until_quiet<T: Watched>(
    credentials: Credentials,
    query: Query,
    mut age: Age,
    quiet: Duration,
    mut tell: impl FnMut(Heard<T>),
) {
    let mut backoff = Backoff::new();
    // The cluster's server, and the version that the next watch starts from.
    let (mut server, mut version): (Option<Server>, Option<String>) = (None, None);
    let mut told = Instant::now();
    loop {
        let ended = match (&server, &mut version) {
            (None, _) => match credentials.client().await {
                Ok(new) => {
                    server = Some(new);
                    continue;
                }
                Err(trouble) => End::Failed(trouble),
            },
            (Some(server), None) => match list(server, &query, age).await {
                Ok((objects, listed)) => {
                    tell(Heard::All(objects));
                    tell(Heard::Answered);
                    (version, told) = (Some(listed), Instant::now());
                    continue;
                }
                Err(trouble) => End::Failed(trouble),
            },
            (Some(server), Some(version)) => watch(server, &query, version, &mut tell).await,
        };
        let mut pause = backoff.pause();
        match ended {
            End::Resume | End::Quiet => {
                backoff.reset();
                match ended {
                    End::Quiet if told.elapsed() < quiet => {}
                    End::Quiet => {
                        debug!(query.path, "nothing was told for long, listing again");
                        version = None;
                    }
                    _ => told = Instant::now(),
                }
                server = server.filter(|server| !server.is_expiring());
                continue;
            }
            End::Expired => {
                debug!(query.path, "the watch is too old, listing again");
                (version, age) = (None, Age::Latest);
            }
            End::Failed(trouble) => {
                let reason = trouble.reason;
                match reason {
                    Reason::Forbidden => pause = pause.max(FORBIDDEN_PAUSE),
                    // Not in step with other nodes.
                    Reason::Absent => pause += ABSENT_PAUSE,
                    _ => {}
                }
                let refused = server.take_if(|_| trouble.needs_new_client());
                tell(Heard::Failed(trouble));
                if let Some(server) = refused.filter(|_| reason == Reason::Unauthorized) {
                    server.wait(pause).await;
                    continue;
                }
            }
        }
        sleep(pause).await;
    }
}

/// All of the objects, and the version of that list.
///
/// # Errors
/// When the server does not answer, refuses, or answers with something else.
pub async fn list<T: Watched>(server: &Server, query: &Query, age: Age) -> Result<(Vec<T>, String), ClusterError> {
    #[derive(Deserialize)]
    struct List<T> {
        metadata: ListMeta,
        items: Vec<T>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ListMeta {
        #[serde(default)]
        resource_version: String,
        #[serde(default, rename = "continue")]
        next: String,
    }
    let Query { path, object, fields, labels, page } = query;
    let mut objects = Vec::new();
    let mut parameters =
        ListParams { field_selector: fields.clone(), label_selector: labels.clone(), ..ListParams::default() };
    if age == Age::Latest {
        parameters = parameters.limit(*page);
    } else {
        // With a limit the server's cache would not be asked.
        (parameters.resource_version, parameters.version_match) =
            (Some("0".to_owned()), Some(VersionMatch::NotOlderThan));
    }
    loop {
        let request = Request::new(path.as_str())
            .list(&parameters)
            .map_err(|error| server.trouble(&Error::BuildRequest(error), "list", object))?;
        let answer = timeout(ANSWER_TIMEOUT, server.client.request_text(request)).await;
        let text = answer
            .map_err(|_| server.silence("list", object, ANSWER_TIMEOUT))?
            .map_err(|error| server.trouble(&error, "list", object))?;
        let List::<T> { metadata, items } =
            serde_json::from_str(&text).map_err(|error| server.trouble(&Error::SerdeError(error), "list", object))?;
        objects.extend(items);
        if metadata.next.is_empty() {
            return Ok((objects, metadata.resource_version));
        }
        parameters.continue_token = Some(metadata.next);
        (parameters.resource_version, parameters.version_match) = (None, None);
    }
}

/// One watch, from its first byte to its end; `version` moves on with it.
async fn watch<T: Watched>(
    server: &Server,
    query: &Query,
    version: &mut String,
    tell: &mut impl FnMut(Heard<T>),
) -> End {
    let Query { path, object, fields, labels, .. } = query;
    let failed = |error: &Error| match error {
        Error::Api(status) if status.code == 410 => End::Expired,
        error => End::Failed(server.trouble(error, "watch", object)),
    };
    let parameters = WatchParams {
        field_selector: fields.clone(),
        label_selector: labels.clone(),
        ..WatchParams::default().timeout(WATCH_SECONDS)
    };
    let request = match Request::new(path.as_str()).watch(&parameters, version) {
        Ok(request) => request,
        Err(error) => return failed(&Error::BuildRequest(error)),
    };
    let began = Instant::now();
    let stream = match timeout(ANSWER_TIMEOUT, server.client.request_events::<T>(request)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return failed(&error),
        Err(_) => return End::Failed(server.silence("watch", object, ANSWER_TIMEOUT)),
    };
    let mut stream = pin!(stream);
    let silent = Duration::from_secs(WATCH_SECONDS.into()) + WATCH_MARGIN;
    // A watch that is refused in its first moment must not look like an answer, else each try would be one more line.
    let (mut heard, mut lasts) = (false, false);
    loop {
        let mut next = match timeout(if lasts { silent } else { SHORT_WATCH }, stream.next()).await {
            Err(_) if !lasts => {
                lasts = true;
                tell(Heard::Answered);
                continue;
            }
            next => next.ok().flatten(),
        };
        if next.is_none() {
            return if heard {
                End::Resume
            } else if began.elapsed() >= SHORT_WATCH {
                End::Quiet
            } else {
                let what = format!("watch at {} ended at once, without an event", server.url);
                let remedy = "does a proxy in front of the API server cut it?";
                End::Failed(ClusterError::new(Reason::Unreachable, Advice::new(what, remedy)))
            };
        }
        // What has arrived together is reported together.
        let mut outcome = Ok(());
        while let Some(event) = next {
            match take(event, version, tell) {
                Ok(told) => heard |= told,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            next = stream.next().now_or_never().flatten();
        }
        if heard {
            lasts = true;
            tell(Heard::Answered);
        }
        if let Err(error) = outcome {
            return failed(&error);
        }
    }
}

/// Takes in one event; whether it was one.
fn take<T: Watched>(
    event: Result<WatchEvent<T>, Error>,
    version: &mut String,
    tell: &mut impl FnMut(Heard<T>),
) -> Result<bool, Error> {
    let told = match event {
        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
            let told = object.version().to_owned();
            tell(Heard::Applied(object));
            told
        }
        Ok(WatchEvent::Deleted(object)) => {
            let told = object.version().to_owned();
            tell(Heard::Deleted(object));
            told
        }
        Ok(WatchEvent::Bookmark(bookmark)) => bookmark.metadata.resource_version,
        Ok(WatchEvent::Error(status)) => return Err(Error::Api(status)),
        // kube takes a line that is no event for a Status, and one of an unknown type then says nothing (FC-106).
        Err(Error::Api(status)) if status.code == 0 => {
            debug!(?status, "event of the watch ignored");
            return Ok(false);
        }
        // A type of event that is newer than this program, or a line that was cut; the stream says which by going on.
        Err(Error::SerdeError(error)) => {
            debug!(%error, "event of the watch ignored");
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    // Versions are opaque: the last one received is where to go on, whatever its digits.
    if !told.is_empty() {
        *version = told;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use std::fs;

    use energy_model::resources::object::KubeObject;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// How often a server was asked for a list before its second watch. Its watches last `lasts` and tell nothing: it has not
    /// reached the version that they are asked from.
    async fn lists(lasts: Duration, quiet: Duration) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("kubeconfig");
        let server = format!("http://{}", listener.local_addr().unwrap());
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "t",
            "clusters": [{"name": "t", "cluster": {"server": server}}],
            "users": [{"name": "t", "user": {}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        });
        fs::write(&file, text.to_string()).unwrap();
        let query =
            Query { path: "/api/v1/pods".to_owned(), object: "pods".to_owned(), fields: None, labels: None, page: 500 };
        let credentials = Credentials::find(Some(&file)).unwrap();
        let watching = tokio::spawn(run_until_quiet(credentials, query, Age::Any, quiet, |_: Heard<KubeObject>| {}));
        let (mut lists, mut watches) = (0, 0);
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            let is_watch = String::from_utf8_lossy(&request[..length]).contains("watch=true");
            let mut answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n".to_vec();
            if is_watch {
                watches += 1;
                if watches == 2 {
                    watching.abort();
                    return lists;
                }
            } else {
                lists += 1;
                answer.extend(json!({"metadata": {"resourceVersion": "9"}, "items": []}).to_string().into_bytes());
            }
            stream.write_all(&answer).await.unwrap();
            if is_watch {
                tokio::spawn(async move {
                    sleep(lasts).await;
                    drop(stream);
                });
            }
        }
    }

    #[tokio::test]
    async fn a_watch_that_tells_nothing_for_long_is_begun_anew_by_a_list() {
        let lasts = SHORT_WATCH * 2;
        assert_eq!(lists(lasts, Duration::from_secs(3600)).await, 1);
        assert_eq!(lists(lasts, SHORT_WATCH).await, 2);
    }
}
