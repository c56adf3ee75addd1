//! Agents of other nodes, asked for their reports over connections that stay open.

use std::sync::Arc;
use std::time::Duration;

use energy_model::power_report::PowerReport;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::http::{HeaderValue, Request, StatusCode, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, timeout_at};

/// A report has some 650 bytes; one with hundreds of policies some more.
const MOST_BYTES: usize = 256 * 1024;
/// Asked at the same time. Each is a socket; the next ones follow as these answer.
const AT_ONCE: usize = 256;
/// The agents close connections that are silent for longer than this and some.
const IDLE: Duration = Duration::from_secs(60);

/// Asks agents.
#[derive(Clone)]
pub struct Agents {
    client: Client<HttpConnector, Empty<Bytes>>,
    authorization: Option<HeaderValue>,
}

/// Whom to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub node: Arc<str>,
    /// `HOST:PORT`.
    pub address: Arc<str>,
    /// The round waits for its answer; of the others, it takes what comes meanwhile.
    pub awaited: bool,
}

/// What came of it.
pub struct Answered {
    pub node: Arc<str>,
    /// For people, why there is no report.
    pub report: Result<PowerReport, String>,
}

impl Agents {
    /// `authorization`: the value of that header, for agents that want a login.
    #[must_use]
    pub fn new(authorization: Option<HeaderValue>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(2)));
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(1)
            .build(connector);
        Self { client, authorization }
    }

    /// One round: asks all, and tells what has come until all that are awaited have answered, or `patience` is over.
    pub async fn ask(&self, asked: Vec<Asked>, patience: Duration, mut tell: impl FnMut(Answered)) {
        let deadline = Instant::now() + patience;
        // Those that the round waits for come first.
        let (awaited, others): (Vec<_>, Vec<_>) = asked.into_iter().partition(|asked| asked.awaited);
        let mut awaited_left = awaited.len();
        let mut waiting = awaited.into_iter().chain(others);
        let mut running = FuturesUnordered::new();
        running.extend(waiting.by_ref().take(AT_ONCE).map(|asked| self.one(asked, deadline)));
        while awaited_left > 0 {
            let Some((awaited, answered)) = running.next().await else { return };
            awaited_left -= usize::from(awaited);
            tell(answered);
            running.extend(waiting.next().map(|asked| self.one(asked, deadline)));
        }
        // What else has come by now, and a last moment for those that are not awaited.
        let last = deadline.min(Instant::now() + patience / 4);
        while let Ok(Some((_, answered))) = timeout_at(last, running.next()).await {
            tell(answered);
            running.extend(waiting.next().map(|asked| self.one(asked, deadline)));
        }
    }

    async fn one(&self, asked: Asked, deadline: Instant) -> (bool, Answered) {
        let Asked { node, address, awaited } = asked;
        let report = timeout_at(deadline, self.report(&address)).await;
        let report = report.unwrap_or_else(|_| Err(format!("{address} did not answer in time")));
        let report = report.and_then(|report| {
            if report.node == *node { Ok(report) } else { Err(format!("{address} is the agent of another node")) }
        });
        (awaited, Answered { node, report })
    }

    async fn report(&self, address: &str) -> Result<PowerReport, String> {
        let mut request = Request::get(format!("http://{address}/power"));
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).map_err(|error| format!("{address}: {error}"))?;
        let answer = self.client.request(request).await.map_err(|error| format!("{address}: {error}"))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| format!("{address}: {error}"))?.to_bytes();
        match status {
            StatusCode::OK => serde_json::from_slice(&body).map_err(|error| {
                format!("{address}/power is no report: {}", energy_model::json_fault::json_fault(&error))
            }),
            StatusCode::UNAUTHORIZED => {
                Err(format!("{address}/power wants a login: set --agents.username and --agents.password-file"))
            }
            StatusCode::NOT_FOUND => {
                Err(format!("{address} has no /power: run the agent with --capping.resources=recommend or enforce"))
            }
            other => Err(format!("{address}/power answered {other}")),
        }
    }
}
