//! Pods by name: the built program beside a Kubernetes API server, with pods that are objects there and cgroups here.

mod common;
#[path = "kubernetes/faults.rs"]
mod faults;
#[path = "common/kubernetes/mod.rs"]
mod kubernetes;
#[path = "kubernetes/lifecycle.rs"]
mod lifecycle;
