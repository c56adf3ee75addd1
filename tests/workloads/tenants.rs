//! What a tenant writes, in the API and in the cgroup tree, moves no energy, name or limit of anybody else.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod annotations;
mod cgroups;
mod machines;
mod nodes;

/// CPU time on the page against what cpu.stat has, which is in microseconds; a few milliseconds are the runtime's own.
#[track_caller]
fn assert_its_own(shown_ns: u64, truth_ns: u64) {
    let allowed = truth_ns / 20 + 10_000_000;
    assert!(shown_ns.abs_diff(truth_ns) <= allowed, "{shown_ns} ns shown, {truth_ns} ns is true");
}
