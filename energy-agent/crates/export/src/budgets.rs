//! The pages of the controller: metrics, health, and `/budgets`, how every budget and node stands, as JSON for programs and as a
//! page for people. They read what the last round left, and change nothing.

mod html;
mod json;
mod series;
pub mod view;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::view::View;
use crate::http::{self, joined};
use crate::negotiate;
use crate::page_or_json;
use crate::self_metrics::SelfMetrics;
use crate::text::Writer;
use crate::web_config::WebConfig;

/// What the pages are made of.
#[derive(Clone, Debug)]
pub struct BudgetPages {
    pub views: watch::Receiver<Arc<View>>,
    /// Between two rounds, for liveness.
    pub interval: Duration,
    pub own: Arc<SelfMetrics>,
    pub web_config: watch::Receiver<Arc<WebConfig>>,
}

/// Serves until `shutdown` is done.
///
/// # Errors
/// When the listener cannot take connections any more.
pub async fn serve(listener: TcpListener, pages: BudgetPages, shutdown: impl Future<Output = ()>) -> Result<()> {
    let (web_config, own) = (pages.web_config.clone(), Arc::clone(&pages.own));
    let router = Router::new()
        .route("/", get(|| async { Redirect::temporary("/budgets") }))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/budgets", get(budgets))
        .with_state(pages);
    http::serve_pages(listener, router, web_config, own, shutdown).await
}

async fn healthz(State(pages): State<BudgetPages>) -> Response {
    let age = pages.views.borrow().completed.elapsed();
    let limit = (pages.interval * 10).max(Duration::from_secs(15));
    if age <= limit {
        return "ok\n".into_response();
    }
    let text = format!("no round for {} s, expected one every {:?}\n", age.as_secs(), pages.interval);
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

/// A replica that waits for the leader's end is ready too.
async fn readyz(State(pages): State<BudgetPages>) -> Response {
    if pages.views.borrow().rounds > 0 {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "there was no round yet\n").into_response()
}

async fn metrics(State(pages): State<BudgetPages>, headers: HeaderMap) -> Response {
    let format = negotiate::format(&joined(&headers, ACCEPT));
    let mut writer = Writer::new(format);
    series::write(&mut writer, &pages.views.borrow());
    pages.own.write(&mut writer);
    let (text, duplicates) = writer.finish();
    pages.own.found_duplicates(&duplicates);
    let mut response = text.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response
}

async fn budgets(State(pages): State<BudgetPages>, uri: Uri, headers: HeaderMap) -> Response {
    let view = Arc::clone(&pages.views.borrow());
    page_or_json::answer(&uri, &joined(&headers, ACCEPT), || html::page(&view), || json::document(&view))
}
