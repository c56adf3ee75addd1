//! `/`: what the node draws now, what draws most, and which meters work, as a page for people. It reads the snapshot and
//! changes nothing.

mod consumers;
mod html;

use std::time::Duration;

use axum::response::Response;
use energy_model::snapshot::Snapshot;

use crate::page_or_json;
use crate::selection::ActiveSelection;

/// What the page is made of besides the snapshot.
pub(crate) struct Overview<'a> {
    pub snapshot: &'a Snapshot,
    pub export: &'a ActiveSelection,
    /// Since the web server started, which is when counting began.
    pub uptime: Duration,
    pub telemetry_path: &'a str,
    /// `/power` is served.
    pub power: bool,
    /// Why the figures are not those of now.
    pub stale: Option<String>,
}

pub(crate) fn answer(overview: &Overview<'_>) -> Response {
    page_or_json::page(html::page(overview))
}
