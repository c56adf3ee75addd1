//! Pods by name: the built program beside a Kubernetes API server, with pods that are objects there and cgroups here.
#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod churn;
mod containers;
mod faults;
mod lifecycle;
mod namespace;
mod rights;
mod sources;
mod watches;
