//! The pods of this node from the API server: one list, then one watch that goes on where the last one ended. In steady
//! state nothing else is sent.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::{FutureExt as _, StreamExt as _};
use kube::Error;
use kube::api::{ListParams, VersionMatch, WatchEvent, WatchParams};
use kube::core::Request;
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::Teller;
use super::backoff::Backoff;
use super::object::Object;
use crate::workload::kubernetes::{Credentials, Server, Trouble};
use crate::workload::names::Pod;

const PODS: &str = "/api/v1/pods";
/// What is asked for, in the words of RBAC.
pub const OBJECT: &str = "pods at cluster scope";
/// A list, and the beginning of a watch, are answered sooner.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The server ends a watch after this time, as client-go's do; one silent for longer is dead.
const WATCH_SECONDS: u32 = 290;
const WATCH_MARGIN: Duration = Duration::from_secs(5);
/// A watch that ends sooner without an event is taken for a failure, so that a proxy which cuts every one is not asked
/// without pause.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// Permissions change seldom, and by hand.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(30);
const PAGE: u32 = 500;

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
    /// As it should, or after something was told.
    Resume,
    /// The version is too old (410).
    Expired,
    Failed(Trouble),
}

/// Lists, watches and goes on for ever.
pub async fn run(credentials: Credentials, node: String, mut teller: Teller) {
    let source = format!("API server, {credentials}");
    let mut backoff = Backoff::new();
    let mut age = Age::Any;
    // The cluster's server, and the version that the next watch starts from.
    let (mut server, mut version): (Option<Server>, Option<String>) = (None, None);
    loop {
        let ended = match (&server, &mut version) {
            (None, _) => match credentials.client().await {
                Ok(new) => {
                    server = Some(new);
                    continue;
                }
                Err(trouble) => End::Failed(trouble),
            },
            (Some(server), None) => match list(server, &node, age).await {
                Ok((pods, listed)) => {
                    if pods.is_empty() && credentials == Credentials::ServiceAccount {
                        warn!(
                            node,
                            "the API server knows no pod on this node, not even the agent's own: --node.name must be the name of the Node object (env NODE_NAME from spec.nodeName)"
                        );
                    }
                    teller.replace(pods);
                    teller.answered(&source);
                    version = Some(listed);
                    continue;
                }
                Err(trouble) => End::Failed(trouble),
            },
            (Some(server), Some(version)) => watch(server, &node, version, &mut teller, &source).await,
        };
        let mut pause = backoff.pause();
        match ended {
            End::Resume => {
                backoff.reset();
                continue;
            }
            End::Expired => {
                debug!("the watch of pods is too old, listing them again");
                (version, age) = (None, Age::Latest);
            }
            End::Failed(trouble) => {
                teller.failed(&trouble);
                match trouble.reason {
                    "forbidden" => pause = pause.max(FORBIDDEN_PAUSE),
                    "unreachable" | "error" => {}
                    // Token, certificates or the files they are in may have been renewed.
                    _ => {
                        if let Some(server) = server.take().filter(|_| trouble.reason == "unauthorized") {
                            server.wait(pause).await;
                            continue;
                        }
                    }
                }
            }
        }
        sleep(pause).await;
    }
}

/// All pods of the node, and the version of that list.
///
/// # Errors
/// When the server does not answer, refuses, or answers with something else.
pub async fn list(server: &Server, node: &str, age: Age) -> Result<(Vec<Pod>, String), Trouble> {
    #[derive(Deserialize)]
    struct List {
        metadata: Metadata,
        items: Vec<Object>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        #[serde(default)]
        resource_version: String,
        #[serde(default, rename = "continue")]
        next: String,
    }
    let mut pods = Vec::new();
    let mut parameters = ListParams::default().fields(&format!("spec.nodeName={node}"));
    if age == Age::Latest {
        parameters = parameters.limit(PAGE);
    } else {
        // With a limit the server's cache would not be asked.
        (parameters.resource_version, parameters.version_match) =
            (Some("0".to_owned()), Some(VersionMatch::NotOlderThan));
    }
    loop {
        let request = Request::new(PODS)
            .list(&parameters)
            .map_err(|error| server.trouble(&Error::BuildRequest(error), "list", OBJECT))?;
        let answer = timeout(ANSWER_TIMEOUT, server.client.request_text(request)).await;
        let text = answer
            .map_err(|_| server.silence("list", OBJECT, ANSWER_TIMEOUT))?
            .map_err(|error| server.trouble(&error, "list", OBJECT))?;
        let List { metadata, items } =
            serde_json::from_str(&text).map_err(|error| server.trouble(&Error::SerdeError(error), "list", OBJECT))?;
        pods.extend(items.into_iter().map(Pod::from));
        if metadata.next.is_empty() {
            return Ok((pods, metadata.resource_version));
        }
        parameters.continue_token = Some(metadata.next);
        (parameters.resource_version, parameters.version_match) = (None, None);
    }
}

/// One watch, from its first byte to its end; `version` moves on with it.
async fn watch(server: &Server, node: &str, version: &mut String, teller: &mut Teller, source: &str) -> End {
    let failed = |error: &Error| match error {
        Error::Api(status) if status.code == 410 => End::Expired,
        error => End::Failed(server.trouble(error, "watch", OBJECT)),
    };
    let parameters = WatchParams::default().fields(&format!("spec.nodeName={node}")).timeout(WATCH_SECONDS);
    let request = match Request::new(PODS).watch(&parameters, version) {
        Ok(request) => request,
        Err(error) => return failed(&Error::BuildRequest(error)),
    };
    let began = Instant::now();
    let stream = match timeout(ANSWER_TIMEOUT, server.client.request_events::<Object>(request)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return failed(&error),
        Err(_) => return End::Failed(server.silence("watch", OBJECT, ANSWER_TIMEOUT)),
    };
    let mut stream = pin!(stream);
    let silent = Duration::from_secs(WATCH_SECONDS.into()) + WATCH_MARGIN;
    // A watch that is refused in its first moment must not look like an answer, else each try would be one more line.
    let (mut heard, mut lasts) = (false, false);
    loop {
        let mut next = match timeout(if lasts { silent } else { SHORT_WATCH }, stream.next()).await {
            Err(_) if !lasts => {
                lasts = true;
                teller.answered(source);
                continue;
            }
            next => next.ok().flatten(),
        };
        if next.is_none() {
            return if heard || began.elapsed() >= SHORT_WATCH {
                End::Resume
            } else {
                let message = format!(
                    "watch at {} ended at once, without an event; a proxy before the API server that cuts it?",
                    server.url
                );
                End::Failed(Trouble { reason: "unreachable", message })
            };
        }
        // What has arrived together is told together.
        let mut outcome = Ok(());
        while let Some(event) = next {
            match take(event, version, teller) {
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
            teller.answered(source);
        }
        if let Err(error) = outcome {
            return failed(&error);
        }
    }
}

/// Takes in one event; whether it was one.
fn take(event: Result<WatchEvent<Object>, Error>, version: &mut String, teller: &mut Teller) -> Result<bool, Error> {
    let now = Instant::now();
    let told = match event {
        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
            let told = object.metadata.resource_version.clone();
            teller.book.apply(object.into(), now);
            told
        }
        Ok(WatchEvent::Deleted(object)) => {
            teller.book.delete(&object.metadata.uid, now);
            object.metadata.resource_version
        }
        Ok(WatchEvent::Bookmark(bookmark)) => bookmark.metadata.resource_version,
        Ok(WatchEvent::Error(status)) => return Err(Error::Api(status)),
        // kube takes a line that is no event for a Status, and one of an unknown type then says nothing (FC-106).
        Err(Error::Api(status)) if status.code == 0 => {
            debug!(?status, "event of the watch left out");
            return Ok(false);
        }
        // A type of event that is newer than this program, or a line that was cut; the stream says which by going on.
        Err(Error::SerdeError(error)) => {
            debug!(%error, "event of the watch left out");
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    // Versions are opaque: the last one told is where to go on, whatever its digits.
    if !told.is_empty() {
        *version = told;
    }
    Ok(true)
}
