//! One power budget for many nodes. In come what the nodes report and what the budget says; out comes one level for each
//! tier, from which every node works out its own limit: `floor + level * (most - floor)`.
//!
//! Pure: the time is an argument, and nothing here knows Kubernetes.
#![forbid(unsafe_code)]

pub mod factor;
mod highs;
pub mod law;
pub mod member;
pub mod permille;
pub mod settings;
mod solve;
#[cfg(test)]
mod tests;
