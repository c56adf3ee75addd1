//! What a scrape sees: the snapshot of the last tick as Prometheus text or OpenMetrics, over HTTP.

pub mod ahead;
mod decimal;
mod deflate;
pub mod gpu_meter;
mod gzip;
mod handshake;
mod hash;
pub mod http;
mod huffman;
pub mod layers;
pub mod metrics;
pub mod nearest;
pub mod negotiate;
pub mod own;
pub mod page;
pub mod parse;
pub mod policies;
mod processes;
pub mod protection;
pub mod selection;
pub mod selection_source;
pub mod series;
pub mod settings;
pub mod settings_file;
pub mod text;
