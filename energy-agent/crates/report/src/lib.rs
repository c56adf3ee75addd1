//! What a run cost. In come samples of counters and run files; out go the energy of a run, statistics over several, and
//! their tables, pages and pictures.
//!
//! It knows no meter, no Prometheus, no cluster and no file: every function is arithmetic or text over its arguments.
#![forbid(unsafe_code)]

pub mod chart;
pub mod compare;
pub mod csv;
pub mod energy;
pub mod figures;
pub mod gather;
pub mod markdown;
mod markup;
pub mod number;
pub mod page;
pub mod run;
pub mod samples;
pub mod stats;
pub mod sweep;
pub mod table;
mod time;
