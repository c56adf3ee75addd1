//! energy-agent: which pod used how many joules. The kernel says who ran, the hardware says what was drawn, attribution
//! divides the second by the first, and a scrape reads the result.

pub mod attribution;
pub mod config;
pub mod export;
pub mod ledger;
pub mod meter;
pub mod report;
pub mod snapshot;
pub mod units;
pub mod workload;
