//! One view for two readers: a page for people, JSON for programs. Neither is cached, and the page may load nothing.

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, VARY};
use axum::http::{HeaderValue, Uri};
use axum::response::{Html, IntoResponse as _, Response};
use serde_json::Value;

use crate::negotiate;

/// What the page may do: look like something.
const ALLOWED: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Answers a request for `uri` that says `accept`; only what is asked for is made.
pub(crate) fn answer(uri: &Uri, accept: &str, html: impl FnOnce() -> String, json: impl FnOnce() -> Value) -> Response {
    let mut response = if is_for_people(uri.query().unwrap_or_default(), accept) {
        page(html())
    } else {
        let mut response = format!("{}\n", json()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

/// A page for people alone.
pub(crate) fn page(html: String) -> Response {
    let mut response = Html(html).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(ALLOWED));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A word in the query overrides what the client accepts.
fn is_for_people(query: &str, accept: &str) -> bool {
    match query.split('&').find_map(|pair| pair.strip_prefix("format=")) {
        Some("json") => false,
        Some("html") => true,
        _ => negotiate::prefers_html(accept),
    }
}
