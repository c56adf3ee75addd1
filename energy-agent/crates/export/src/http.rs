//! The web server: metrics, landing page, policies, health and readiness, all answered from the last published snapshot.
//! No request reads a meter; slow clients, idle connections and large headers are bounded ([`crate::connections`]).

use std::convert::Infallible;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, SERVER, VARY};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tower::Service as _;

use crate::SERVER_NAME;
use crate::answer::tracked;
use crate::connections::{self, Connection, Connections};
use crate::encoding::Encoding;
use crate::handshake::handshake;
use crate::negotiate::{self, Coding};
use crate::overview::{self, Overview};
use crate::page::Published;
use crate::policies;
use crate::power;
use crate::self_metrics::SelfMetrics;
use crate::web_config::WebConfig;

/// A client has this long to send the headers of its next request. More than the usual minute between two scrapes.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// Most bytes of a request's headers.
const HEADER_BYTES: usize = 16 * 1024;
/// The kernel gives up a connection on which nothing was taken for this time.
const UNACKNOWLEDGED_MS: u32 = 20_000;
/// Time between two looks at whose time is over.
const LOOK: Duration = Duration::from_millis(500);
/// A connection is closed after the answer under way at this age.
const CONNECTION_AGE: Duration = Duration::from_secs(600);
/// How long answers under way may take to finish after the end was asked for. Half-sent requests wait as long, and on a
/// loaded machine detaching the eBPF programs takes some of the second in which the agent promises to end.
const GRACE: Duration = Duration::from_millis(250);

/// What the server needs to know besides its listener.
#[derive(Clone, Debug)]
pub struct Web {
    /// Path of the metrics page, as `--web.telemetry-path` allows it.
    pub telemetry_path: String,
    /// Time between two ticks, for liveness.
    pub interval: Duration,
    /// `/power` is served: the node follows objects of the cluster.
    pub power: bool,
    pub snapshots: watch::Receiver<Arc<Published>>,
    pub own: Arc<SelfMetrics>,
    pub web_config: watch::Receiver<Arc<WebConfig>>,
}

/// Serves until `shutdown` is done, and returns at most [`GRACE`] later.
///
/// # Errors
/// When the listener cannot take connections any more.
pub async fn serve(listener: TcpListener, web: Web, shutdown: impl Future<Output = ()>) -> Result<()> {
    let (web_config, own) = (web.web_config.clone(), Arc::clone(&web.own));
    serve_pages(listener, router(web), web_config, own, shutdown).await
}

/// Serves these pages, behind the guard of the web configuration; one that is not there is a 404.
///
/// # Errors
/// As [`serve`].
pub(crate) async fn serve_pages(
    listener: TcpListener,
    pages: Router,
    web_config: watch::Receiver<Arc<WebConfig>>,
    own: Arc<SelfMetrics>,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    // The kernel keeps what a closed connection has not read no longer than an open one's.
    if let Err(error) = sockopt::set_tcp_user_timeout(&listener, UNACKNOWLEDGED_MS) {
        tracing::debug!(%error, "no TCP user timeout");
    }
    let router = pages
        .fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found\n") })
        .method_not_allowed_fallback(|| async { (StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed\n") })
        // Before every page and every error.
        .layer(middleware::from_fn_with_state(web_config.clone(), guard));
    let (end, ended) = watch::channel(false);
    let open = Connections::new(connections::open_files(), own);
    let mut connections = JoinSet::new();
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            _ = looks.tick() => open.close_late(Instant::now()),
            accepted = accept(&listener, &open) => {
                let stream = accepted?;
                let (router, ended) = (router.clone(), ended.clone());
                let web_config = Arc::clone(&web_config.borrow());
                let connection = Arc::new(open.open());
                let name = connection.name();
                let task = connections.spawn(async move {
                    serve_connection(stream, &web_config, router, &connection, ended).await;
                });
                open.served_by(name, task);
            }
        }
    }
    drop(listener);
    end.send_replace(true);
    // What is left after the grace is dropped with the set.
    let _ = tokio::time::timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
    Ok(())
}

/// The next connection. Where there are no file descriptors left, one that is open gives way.
async fn accept(listener: &TcpListener, open: &Connections) -> Result<TcpStream> {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, InvalidInput};
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if error.kind() == InvalidInput => return Err(error).context("accepting connections"),
            Err(error)
                if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted) => {}
            // It is closed a moment later.
            Err(_) if open.make_room() => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => {
                tracing::warn!(%error, "no connection accepted");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    web_config: &WebConfig,
    router: Router,
    connection: &Arc<Connection>,
    ended: watch::Receiver<bool>,
) {
    // Until then it costs next to nothing.
    if !matches!(stream.peek(&mut [0]).await, Ok(1)) {
        return;
    }
    connection.talks();
    // Without it the answer is only slower.
    let _ = stream.set_nodelay(true);
    match &web_config.tls {
        None => serve_requests(stream, router, connection, ended).await,
        Some(tls) => {
            if let Some(stream) = handshake(stream, tls).await {
                serve_requests(stream, router, connection, ended).await;
            }
        }
    }
}

async fn serve_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    client: &Arc<Connection>,
    mut ended: watch::Receiver<bool>,
) {
    let service = service_fn(|mut request: Request<Incoming>| {
        let (mut router, client) = (router.clone(), Arc::clone(client));
        async move {
            client.asks();
            request.extensions_mut().insert(Arc::clone(&client));
            let response = router.call(request.map(Body::new)).await?;
            Ok::<_, Infallible>(tracked(response, &client).await)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // Errors are the client's: it went away, was too slow, or sent no HTTP.
    tokio::select! {
        _ = connection.as_mut() => return,
        // The guard that comes back must not live on: it cannot cross an await.
        () = async { drop(ended.wait_for(|ended| *ended).await) } => {}
        () = tokio::time::sleep(CONNECTION_AGE) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(HEADER_TIMEOUT, connection).await;
}

/// What the pages are made of.
struct Pages {
    web: Web,
    encoding: Encoding,
    started: Instant,
}

impl Deref for Pages {
    type Target = Web;

    fn deref(&self) -> &Web {
        &self.web
    }
}

fn router(web: Web) -> Router {
    Router::new()
        // A telemetry path such as /:metrics is unusual, not an error.
        .without_v07_checks()
        .route("/", get(landing))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route(policies::PATH, get(status_of_policies))
        .route(power::PATH, get(power_report))
        .route(&web.telemetry_path, get(metrics))
        .with_state(Arc::new(Pages { web, encoding: Encoding::default(), started: Instant::now() }))
}

/// Lets a request pass or not by the configuration of this moment, whenever the connection was made.
async fn guard(
    State(web_config): State<watch::Receiver<Arc<WebConfig>>>,
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
    next: Next,
) -> Response {
    let web_config = Arc::clone(&web_config.borrow());
    let mut response = match web_config.refuse(request.headers(), &connection).await {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    response.headers_mut().insert(SERVER, HeaderValue::from_static(SERVER_NAME));
    response.headers_mut().extend(web_config.headers.clone());
    response
}

async fn metrics(State(web): State<Arc<Pages>>, headers: HeaderMap) -> Response {
    let start = Instant::now();
    let format = negotiate::format(&joined(&headers, ACCEPT));
    let coding = negotiate::coding(&joined(&headers, ACCEPT_ENCODING));
    let body = match web.encoding.page(format, coding, &web.snapshots, web.interval, &web.own).await {
        Ok(body) => body,
        Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    };
    web.own.scrape_took(start.elapsed());
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    if coding == Coding::Gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// All values of a header as one list; bytes that are no text are left out.
pub(crate) fn joined(headers: &HeaderMap, name: HeaderName) -> String {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",")
}

async fn healthz(State(web): State<Arc<Pages>>) -> Response {
    let age = web.snapshots.borrow().completed.elapsed();
    match stalled(age, web.interval) {
        None => "ok\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason).into_response(),
    }
}

/// Why the tick loop counts as dead: no tick for ten intervals, and at least 15 seconds.
fn stalled(age: Duration, interval: Duration) -> Option<String> {
    let limit = (interval * 10).max(Duration::from_secs(15));
    (age > limit).then(|| format!("no tick for {} s, expected one every {interval:?}\n", age.as_secs()))
}

async fn readyz(State(web): State<Arc<Pages>>) -> Response {
    match web.snapshots.borrow().snapshot.ticks {
        0 => (StatusCode::SERVICE_UNAVAILABLE, "there was no tick yet\n").into_response(),
        _ => "ok\n".into_response(),
    }
}

async fn status_of_policies(State(web): State<Arc<Pages>>, uri: Uri, headers: HeaderMap) -> Response {
    let published = Arc::clone(&web.snapshots.borrow());
    if published.is_stale(web.interval) {
        let seconds = published.completed.elapsed().as_secs();
        let text = format!("no tick for {seconds} s: the state of the policies is not known\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    policies::answer(&published.snapshot, &uri, &joined(&headers, ACCEPT))
}

async fn power_report(State(web): State<Arc<Pages>>) -> Response {
    let published = Arc::clone(&web.snapshots.borrow());
    if published.is_stale(web.interval) {
        let seconds = published.completed.elapsed().as_secs();
        return (StatusCode::SERVICE_UNAVAILABLE, format!("no tick for {seconds} s: the power is not known\n"))
            .into_response();
    }
    power::answer(&published.snapshot, web.power)
}

async fn landing(State(web): State<Arc<Pages>>) -> Response {
    let published = Arc::clone(&web.snapshots.borrow());
    let age = published.completed.elapsed();
    let stale = || format!("No tick for {} s: the figures of now are not known.", age.as_secs());
    overview::answer(&Overview {
        snapshot: &published.snapshot,
        export: &published.export,
        uptime: web.started.elapsed(),
        telemetry_path: &web.telemetry_path,
        power: web.power,
        stale: published.is_stale(web.interval).then(stale),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tick_loop_is_dead_after_ten_intervals_but_not_before_15_seconds() {
        let seconds = Duration::from_secs;
        assert_eq!(stalled(seconds(15), seconds(1)), None);
        assert_eq!(stalled(seconds(16), seconds(1)).unwrap(), "no tick for 16 s, expected one every 1s\n");
        assert_eq!(stalled(seconds(599), seconds(60)), None);
        assert!(stalled(seconds(601), seconds(60)).is_some());
    }
}
