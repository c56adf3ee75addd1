//! Measurements that a hidden scheduler switch can spoil, and their repetition.
//!
//! A kernel that keeps BPF programs off some tasks hides a switch now and then, and with it up to a whole short-lived task.
//! The agent counts such switches. A measurement is repeated only where that count has moved.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::say;

const HIDDEN: &str = "energy_agent_missed_switches_total ";

thread_local! {
    /// By the agent that counted them; of this thread's measurement.
    static COUNTED: RefCell<BTreeMap<String, u64>> = RefCell::default();
}

/// Runs a measurement up to three times, until its assertions hold. A failure counts at once where no agent of the measurement
/// was kept from seeing a switch.
pub fn one_of_three(measurement: impl Fn()) {
    for last in [false, false, true] {
        COUNTED.take();
        let Err(reason) = catch_unwind(AssertUnwindSafe(&measurement)) else { return };
        let hidden = counted();
        if last || hidden == 0 {
            resume_unwind(reason);
        }
        say("REPEATED", &format!("the kernel hid {hidden} scheduler switches from the agent"));
    }
}

/// Keeps the count of an agent, given any page of it.
pub fn note_page(agent: &str, page: &str) {
    let count = page.lines().find_map(|line| line.strip_prefix(HIDDEN)?.trim().parse().ok());
    note(agent, count.unwrap_or_default());
}

/// Keeps the count of a meter.
pub fn note(meter: &str, count: u64) {
    COUNTED.with_borrow_mut(|counted| _ = counted.insert(meter.to_owned(), count));
}

/// Switches that were hidden from the agents and meters of this thread.
pub fn counted() -> u64 {
    COUNTED.with_borrow(|counted| counted.values().sum())
}
