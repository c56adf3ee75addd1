//! A watch of one ConfigMap into what happened to it.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::mpsc;

use crate::config::ObjectName;
use crate::workload::kubernetes::{Credentials, Server};

/// Time between two tries to make use of credentials.
const RETRY: Duration = Duration::from_secs(10);
/// Too old a version was asked for; the list that follows is not worth a word.
const EXPIRED: u16 = 410;

/// Something about the ConfigMap that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there, with these keys and values.
    Found(Vec<(String, String)>),
    /// The API server says that there is none.
    Gone,
    /// The API server cannot be asked, for this reason; what it said before holds.
    Trouble(String),
}

/// `ConfigMap NAMESPACE/NAME`, for messages.
#[must_use]
pub fn title(object: &ObjectName) -> String {
    format!("ConfigMap {}/{}", object.namespace, object.name)
}

/// Tells what happens to `object`, until nobody listens. Each change and each trouble is told once.
pub async fn run(credentials: Option<Credentials>, object: ObjectName, tell: mpsc::Sender<Change>) {
    let mut teller = Teller { last: None, tell };
    let Some(credentials) = credentials else {
        let remedy = "run in a pod with a service account, or name a file by --kubeconfig";
        teller.tell(Change::Trouble(format!("no credentials for a cluster; {remedy}"))).await;
        return;
    };
    let server = loop {
        match credentials.client().await {
            Ok(server) => break server,
            Err(trouble) if !teller.tell(Change::Trouble(trouble.message.clone())).await => return,
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    };
    follow(&server, &object, &mut teller).await;
}

async fn follow(server: &Server, object: &ObjectName, teller: &mut Teller) {
    let config = watcher::Config::default().fields(&format!("metadata.name={}", object.name));
    let events = watcher(Api::<ConfigMap>::namespaced(server.client.clone(), &object.namespace), config);
    let mut events = pin!(events.default_backoff());
    // What a list has found so far: only at its end it is known whether the object is there.
    let mut listed = Change::Gone;
    while let Some(event) = events.next().await {
        let change = match event {
            Ok(Event::Init) => {
                listed = Change::Gone;
                continue;
            }
            Ok(Event::InitApply(map)) => {
                listed = found(map);
                continue;
            }
            Ok(Event::InitDone) => listed.clone(),
            Ok(Event::Apply(map)) => found(map),
            Ok(Event::Delete(_)) => Change::Gone,
            Err(error) => match problem(server, error, object) {
                Some(problem) => Change::Trouble(problem),
                None => continue,
            },
        };
        if !teller.tell(change).await {
            return;
        }
    }
}

fn found(map: ConfigMap) -> Change {
    Change::Found(map.data.unwrap_or_default().into_iter().collect())
}

fn problem(server: &Server, error: watcher::Error, object: &ObjectName) -> Option<String> {
    let of = format!("configmaps {} in namespace {}", object.name, object.namespace);
    let (error, verb) = match error {
        watcher::Error::InitialListFailed(error) => (error, "list"),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => (error, "watch"),
        watcher::Error::WatchError(status) if status.code == EXPIRED => return None,
        watcher::Error::WatchError(status) => (kube::Error::Api(status), "watch"),
        watcher::Error::NoResourceVersion => return Some(format!("watch {of}: the server names no version")),
    };
    Some(server.trouble(&error, verb, &of).message)
}

struct Teller {
    last: Option<Change>,
    tell: mpsc::Sender<Change>,
}

impl Teller {
    /// Tells what was not told last; `false` when nobody listens any more.
    async fn tell(&mut self, change: Change) -> bool {
        if self.last.as_ref() == Some(&change) {
            return !self.tell.is_closed();
        }
        self.last = Some(change.clone());
        self.tell.send(change).await.is_ok()
    }
}
