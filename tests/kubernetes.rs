//! Pods by name: the built program beside a Kubernetes API server, with pods that are objects there and cgroups here.
#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

#[path = "kubernetes/churn.rs"]
mod churn;
mod common;
#[path = "kubernetes/containers.rs"]
mod containers;
#[path = "kubernetes/faults.rs"]
mod faults;
#[path = "common/kubernetes/mod.rs"]
mod kubernetes;
#[path = "kubernetes/lifecycle.rs"]
mod lifecycle;
#[path = "kubernetes/namespace.rs"]
mod namespace;
#[path = "kubernetes/rights.rs"]
mod rights;
#[path = "kubernetes/sources.rs"]
mod sources;
#[path = "kubernetes/watches.rs"]
mod watches;
