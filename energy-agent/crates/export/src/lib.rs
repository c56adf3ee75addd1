//! A snapshot as Prometheus text, OpenMetrics and pages, over HTTP. In come what the tick published, the selection of metrics and
//! the web configuration; out go answers to requests, each page encoded once per tick and format.
//!
//! It knows no meter, no cluster and no policy source, and it changes nothing: a scrape reads what the last tick left.
#![forbid(unsafe_code)]

mod answer;
pub mod budgets;
pub mod connections;
mod decimal;
mod encoding;
mod gzip;
mod handshake;
mod html;
pub mod http;
pub mod layers;
pub mod level;
pub mod metrics;
pub mod negotiate;
mod overview;
pub mod page;
mod page_or_json;
pub mod parse;
pub mod policies;
mod power;
pub mod selection;
pub mod self_metrics;
pub mod series;
pub mod settings;
pub mod settings_file;
pub mod text;
pub mod web_config;

/// The header `Server` of every answer, also of those that ask for a login or for TLS.
pub const SERVER_NAME: &str = "energy-agent";
