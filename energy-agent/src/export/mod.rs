//! What a scrape sees: the snapshot of the last tick as Prometheus text or OpenMetrics, over HTTP.

pub mod gpu_meter;
pub mod http;
pub mod metrics;
pub mod negotiate;
pub mod own;
pub mod page;
pub mod parse;
mod processes;
pub mod series;
pub mod text;
