//! What a run cost. In come samples of counters and run files; out go the energy of a run, statistics over several, and
//! their tables, pages and pictures.
//!
//! It knows no meter, no Prometheus, no cluster and no file: every function is arithmetic or text over its arguments.
#![forbid(unsafe_code)]

pub mod compare;
pub mod run;
mod stats;
