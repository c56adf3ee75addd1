//! What a tenant writes, in the API and in the cgroup tree, moves no energy, name or limit of anybody else.

#![allow(clippy::unwrap_used, reason = "tests panic")]

#[path = "tenants/annotations.rs"]
mod annotations;
#[path = "tenants/cgroups.rs"]
mod cgroups;
mod common;
#[path = "common/kubernetes/mod.rs"]
mod kubernetes;
#[path = "tenants/machines.rs"]
mod machines;
#[path = "tenants/nodes.rs"]
mod nodes;
#[path = "capping_cpu/world.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod world;

/// CPU time on the page against what cpu.stat has, which is in microseconds; a few milliseconds are the runtime's own.
#[track_caller]
fn assert_its_own(shown_ns: u64, truth_ns: u64) {
    let allowed = truth_ns / 20 + 10_000_000;
    assert!(shown_ns.abs_diff(truth_ns) <= allowed, "{shown_ns} ns shown, {truth_ns} ns is true");
}
