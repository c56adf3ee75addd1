//! What others read: metrics, the web server, dashboards and the documentation.

#[path = "../common/mod.rs"]
mod common;

mod dashboards;
mod docs;
mod export;
mod house;
mod kepler;
mod kepler_dashboards;
mod promql;
mod web_config;
mod web_crowd;
