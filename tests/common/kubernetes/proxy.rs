//! Stands between the agent and the API server: counts what is asked, and makes the faults that a server or the network
//! has in the field.

use std::collections::BTreeSet;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, Response};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use hyper::body::Incoming;
use kube::Client;
use serde_json::Value;
use tokio::sync::{broadcast, mpsc};

use super::cluster::Cluster;
use super::server::Server;
use super::{Query, status_object};
use crate::common::agent::wait_for;

/// A request that came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// With the parameters.
    pub path: String,
    pub is_watch: bool,
    /// The watch's resource version.
    pub version: String,
    pub token: String,
}

/// What a kind of request is answered with.
#[derive(Clone, Debug, Default)]
pub enum Answer {
    /// What the server says.
    #[default]
    Pass,
    /// A refusal: HTTP status and body.
    Refuse(u16, Value),
    /// What the server says, and a gateway's refusal in its place: the server has done what was asked.
    Lose,
    /// Nothing, for ever.
    Hold,
    /// An open watch on which nothing comes but what the test sends.
    Quiet,
    /// What the server says, once the gate is open: the request arrives late there.
    Late(Gate),
}

/// Closed at first.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<AtomicBool>);

impl Gate {
    pub fn open(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    async fn passed(&self) {
        while !self.0.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Answer {
    /// The API server's own words for a status.
    pub fn status(code: u16) -> Self {
        let (reason, message) = match code {
            401 => ("Unauthorized", "Unauthorized"),
            410 => ("Expired", "too old resource version: 1 (2)"),
            500 => ("InternalError", "an error on the server has prevented the request from succeeding"),
            _ => ("Unknown", "no reason"),
        };
        Self::Refuse(code, status_object(code, reason, message))
    }
}

/// The faults at present; by default there are none.
#[derive(Default)]
pub struct Faults {
    /// For all requests but watches.
    pub lists: Answer,
    pub watches: Answer,
    /// Time before each answer.
    pub delay: Duration,
    /// Type of the watch events that are swallowed, such as `DELETED`.
    pub swallowed: Option<&'static str>,
    /// The answer to requests with this text in their path, in place of both.
    pub of_path: Vec<(&'static str, Answer)>,
    /// Tokens that are accepted; all tokens if it is empty.
    pub tokens: BTreeSet<String>,
    /// Address of the web server that the proxies of all pods lead to; the tests' API server has none.
    pub pods_lead_to: Option<String>,
}

/// The body of a watch as it comes.
type Events = BoxStream<'static, Result<Bytes, axum::Error>>;

/// What happens to every open watch.
#[derive(Clone)]
enum Interference {
    Line(Bytes),
    End,
}

pub struct Proxy {
    server: Server,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: Client,
    faults: Mutex<Faults>,
    asked: Mutex<Vec<Asked>>,
    /// Writes that the server took.
    accepted: Mutex<Vec<Asked>>,
    /// Those that it did not take, with its HTTP status.
    refused: Mutex<Vec<(Asked, u16)>>,
    open_watches: AtomicUsize,
    ended_watches: AtomicUsize,
    interference: broadcast::Sender<Interference>,
}

impl Proxy {
    pub fn start(cluster: &Cluster) -> Self {
        let shared = Arc::new(Shared {
            upstream: cluster.client.clone(),
            faults: Mutex::default(),
            asked: Mutex::default(),
            accepted: Mutex::default(),
            refused: Mutex::default(),
            open_watches: AtomicUsize::new(0),
            ended_watches: AtomicUsize::new(0),
            interference: broadcast::channel(64).0,
        });
        let kept = Arc::clone(&shared);
        let server = Server::start(
            None,
            Arc::new(move |request| {
                let shared = Arc::clone(&shared);
                Box::pin(async move { shared.answer(request).await })
            }),
        );
        Self { server, shared: kept }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// To change the faults, for requests from now on.
    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.shared.faults.lock().unwrap()
    }

    /// Everything that was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// The writes among them that the server took.
    pub fn accepted(&self) -> Vec<Asked> {
        self.shared.accepted.lock().unwrap().clone()
    }

    pub fn refused(&self) -> Vec<(Asked, u16)> {
        self.shared.refused.lock().unwrap().clone()
    }

    pub fn lists(&self) -> usize {
        self.asked().iter().filter(|asked| !asked.is_watch).count()
    }

    pub fn watches(&self) -> usize {
        self.asked().iter().filter(|asked| asked.is_watch).count()
    }

    /// Waits until a watch is open.
    pub fn wait_for_watch(&self) {
        wait_for("a watch", || (self.shared.open_watches.load(Ordering::SeqCst) > 0).then_some(()));
    }

    /// Ends every open watch, as a server does after its time.
    pub fn end_watches(&self) {
        let ended = || self.shared.ended_watches.load(Ordering::SeqCst);
        let wanted = ended() + self.shared.open_watches.load(Ordering::SeqCst);
        let _ = self.shared.interference.send(Interference::End);
        // The agent may have come back with another one by then.
        wait_for("the watches to end", || (ended() >= wanted).then_some(()));
    }

    /// Puts an event into every open watch.
    pub fn send(&self, event: &Value) {
        let _ = self.shared.interference.send(Interference::Line(Bytes::from(format!("{event}\n"))));
    }

    /// Ends every open watch in the middle of an event.
    pub fn end_in_a_line(&self, event: &Value) {
        let text = event.to_string();
        let half = Bytes::copy_from_slice(&text.as_bytes()[..text.len() / 2]);
        let _ = self.shared.interference.send(Interference::Line(half));
        self.end_watches();
    }

    /// Closes the port, and cuts every connection.
    pub fn go_away(&self) {
        self.server.close();
    }

    pub fn come_back(&self) {
        self.server.open();
    }
}

/// What a pod answers, or that it does not, as the API server says it.
async fn through_pod(url: String) -> Response<Body> {
    let asked = tokio::task::spawn_blocking(move || ureq::get(&url).call()?.body_mut().read_to_string()).await.unwrap();
    match asked {
        Ok(page) => Response::builder().body(Body::from(page)).unwrap(),
        Err(error) => super::status(503, "ServiceUnavailable", &format!("error trying to reach service: {error}")),
    }
}

impl Shared {
    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let query = Query::of(&parts.uri);
        let is_watch = query.is_watch();
        let header = |name: &str| parts.headers.get(name).map_or("", |value| value.to_str().unwrap());
        let path = parts.uri.path_and_query().unwrap().as_str();
        let token = header("authorization").trim_start_matches("Bearer ").trim().to_owned();
        let asked = Asked {
            method: parts.method.to_string(),
            path: path.to_owned(),
            is_watch,
            version: query.get("resourceVersion").to_owned(),
            token: token.clone(),
        };
        self.asked.lock().unwrap().push(asked.clone());
        let (answer, delay) = {
            let faults = self.faults.lock().unwrap();
            let of_path = faults.of_path.iter().find(|(text, _)| path.contains(text)).map(|(_, answer)| answer);
            let answer = of_path.unwrap_or(if is_watch { &faults.watches } else { &faults.lists });
            let refused = !faults.tokens.is_empty() && !faults.tokens.contains(&token);
            (if refused { Answer::status(401) } else { answer.clone() }, faults.delay)
        };
        tokio::time::sleep(delay).await;
        match &answer {
            Answer::Hold => pending().await,
            Answer::Late(gate) => gate.passed().await,
            Answer::Refuse(code, body) => {
                let response = Response::builder().status(*code).header("content-type", "application/json");
                return response.body(Body::from(format!("{body}\n"))).unwrap();
            }
            Answer::Quiet => {
                let ok = Response::builder().header("content-type", "application/json").body(Body::empty()).unwrap();
                return self.relayed(ok, stream::pending().boxed());
            }
            Answer::Pass | Answer::Lose => {}
        }
        let leads_to = self.faults.lock().unwrap().pods_lead_to.clone();
        if let (Some(address), Some((_, rest))) = (leads_to, path.split_once("/proxy/")) {
            return through_pod(format!("http://{address}/{rest}")).await;
        }
        let body = to_bytes(Body::new(body), 1 << 20).await.unwrap();
        let mut request = Request::builder().method(&parts.method).uri(path);
        for name in ["accept", "content-type"] {
            if let Some(value) = parts.headers.get(name) {
                request = request.header(name, value);
            }
        }
        match self.upstream.send(request.body(kube::client::Body::from(body)).unwrap()).await {
            Ok(_) if matches!(answer, Answer::Lose) => super::status(504, "Timeout", "the gateway has lost the answer"),
            Ok(response) => {
                if asked.method != "GET" && response.status().is_success() {
                    self.accepted.lock().unwrap().push(asked);
                } else if asked.method != "GET" {
                    self.refused.lock().unwrap().push((asked, response.status().as_u16()));
                }
                self.pass(response, is_watch)
            }
            Err(error) => {
                let body = status_object(502, "BadGateway", &error.to_string()).to_string();
                Response::builder().status(502).body(Body::from(body)).unwrap()
            }
        }
    }

    fn pass(self: &Arc<Self>, response: Response<kube::client::Body>, is_watch: bool) -> Response<Body> {
        let (parts, body) = response.into_parts();
        let mut answer = Response::builder().status(parts.status);
        if let Some(kind) = parts.headers.get("content-type") {
            answer = answer.header("content-type", kind);
        }
        let answer = answer.body(Body::new(body)).unwrap();
        if !is_watch || !parts.status.is_success() {
            return answer;
        }
        let (parts, body) = answer.into_parts();
        self.relayed(Response::from_parts(parts, Body::empty()), body.into_data_stream().boxed())
    }

    /// The answer with a watch's events as its body.
    fn relayed(self: &Arc<Self>, mut answer: Response<Body>, events: Events) -> Response<Body> {
        let (lines, receiver) = mpsc::channel(64);
        let (shared, interference) = (Arc::clone(self), self.interference.subscribe());
        self.open_watches.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            shared.relay(events, lines, interference).await;
            shared.open_watches.fetch_sub(1, Ordering::SeqCst);
            shared.ended_watches.fetch_add(1, Ordering::SeqCst);
        });
        *answer.body_mut() = super::stream(receiver);
        answer
    }

    /// Hands the lines of a watch on.
    async fn relay(
        &self,
        mut events: Events,
        to: mpsc::Sender<Bytes>,
        mut interference: broadcast::Receiver<Interference>,
    ) {
        let mut rest: Vec<u8> = Vec::new();
        loop {
            tokio::select! {
                chunk = events.next() => {
                    let Some(Ok(chunk)) = chunk else { return };
                    rest.extend(&chunk);
                    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                        let line: Vec<u8> = rest.drain(..=end).collect();
                        if !self.is_swallowed(&line) && to.send(Bytes::from(line)).await.is_err() {
                            return;
                        }
                    }
                }
                event = interference.recv() => match event {
                    Ok(Interference::Line(line)) => drop(to.send(line).await),
                    Ok(Interference::End) | Err(_) => return,
                },
                () = to.closed() => return,
            }
        }
    }

    fn is_swallowed(&self, line: &[u8]) -> bool {
        let swallowed = self.faults.lock().unwrap().swallowed;
        swallowed.is_some_and(|kind| serde_json::from_slice::<Value>(line).is_ok_and(|event| event["type"] == kind))
    }
}
