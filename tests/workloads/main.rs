//! Whose work it was: pods, containers, units and their names, also where tenants attack.

#[path = "../common/mod.rs"]
mod common;

mod environ;
mod identity;
mod kubelet;
mod kubernetes;
mod pod_resources;
mod pods;
mod selection;
mod tenants;
mod units;
