//! `/policies`: how policies and limits stand after the last tick, as JSON for programs and as a page for people. It reads
//! the snapshot and changes nothing.

mod html;
mod json;
mod wording;

use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use energy_model::snapshot::Snapshot;

use crate::page_or_json;

pub const PATH: &str = "/policies";

const OFF: &str = "capping is off (--capping=off): no policy is read and no limit is set; --capping=on turns it on\n";

/// Answers a request for `uri` that says `accept`.
#[must_use]
pub fn answer(snapshot: &Snapshot, uri: &Uri, accept: &str) -> Response {
    let Some(status) = &snapshot.capping else { return (StatusCode::NOT_FOUND, OFF).into_response() };
    let (page, document) = (|| html::page(snapshot, status), || json::document(snapshot, status));
    page_or_json::answer(uri, accept, page, document)
}
