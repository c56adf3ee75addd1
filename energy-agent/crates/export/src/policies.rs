//! `/policies`: how policies and limits stand after the last tick, as JSON for programs and as a page for people. It reads
//! the snapshot and changes nothing.

mod html;
mod json;
mod wording;

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, VARY};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{Html, IntoResponse as _, Response};
use energy_model::snapshot::Snapshot;

use crate::negotiate;

pub const PATH: &str = "/policies";

const OFF: &str = "capping is off (--capping=off): no policy is read and no limit is set; --capping=on turns it on\n";
/// What the page may do: look like something.
pub(crate) const ALLOWED: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Answers a request for `uri` that says `accept`.
#[must_use]
pub fn answer(snapshot: &Snapshot, uri: &Uri, accept: &str) -> Response {
    let Some(status) = &snapshot.capping else { return (StatusCode::NOT_FOUND, OFF).into_response() };
    let mut response = if is_for_people(uri.query().unwrap_or_default(), accept) {
        let mut response = Html(html::page(snapshot, status)).into_response();
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(ALLOWED));
        response
    } else {
        let mut response = format!("{}\n", json::document(snapshot, status)).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    response
}

/// A word in the query overrides what the client accepts.
pub(crate) fn is_for_people(query: &str, accept: &str) -> bool {
    match query.split('&').find_map(|pair| pair.strip_prefix("format=")) {
        Some("json") => false,
        Some("html") => true,
        _ => negotiate::prefers_html(accept),
    }
}
