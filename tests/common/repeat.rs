//! Measurements that the machine can spoil, and their repetition: only where the agent itself has counted the cause.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::say;

/// What spoils a measurement through no fault of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A kernel that keeps BPF programs off some tasks hides a scheduler switch now and then, and with it up to a whole
    /// short-lived task.
    HiddenSwitch,
    /// The machine is too busy: a tick is late, so a GPU is read late while its load goes on in real time.
    LateTick,
}

impl Cause {
    const ALL: [Self; 2] = [Self::HiddenSwitch, Self::LateTick];

    /// The agent's count of it.
    const fn metric(self) -> &'static str {
        match self {
            Self::HiddenSwitch => "energy_agent_missed_switches_total ",
            Self::LateTick => "energy_agent_late_ticks_total ",
        }
    }
}

thread_local! {
    /// What the agents of this thread's measurement have counted.
    static COUNTED: RefCell<BTreeMap<(Cause, String), u64>> = RefCell::default();
}

/// Runs a measurement up to three times, until its assertions hold. A failure counts at once where no agent of the measurement
/// was kept from seeing a switch.
pub fn one_of_three(measurement: impl Fn()) {
    repeated(Cause::HiddenSwitch, measurement);
}

/// The same for another cause.
pub fn repeated(cause: Cause, measurement: impl Fn()) {
    for last in [false, false, true] {
        COUNTED.take();
        let Err(reason) = catch_unwind(AssertUnwindSafe(&measurement)) else { return };
        let count = counted(cause);
        if last || count == 0 {
            resume_unwind(reason);
        }
        say("REPEATED", &format!("the agent has counted {count} x {cause:?}"));
    }
}

/// Keeps the counts of an agent, given any page of it.
pub fn note_page(agent: &str, page: &str) {
    for cause in Cause::ALL {
        let count = page.lines().find_map(|line| line.strip_prefix(cause.metric())?.trim().parse().ok());
        note(cause, agent, count.unwrap_or_default());
    }
}

/// Keeps the count of an agent or a meter.
pub fn note(cause: Cause, of: &str, count: u64) {
    COUNTED.with_borrow_mut(|counted| _ = counted.insert((cause, of.to_owned()), count));
}

/// How often it came to the agents and meters of this thread.
pub fn counted(cause: Cause) -> u64 {
    COUNTED.with_borrow(|counted| counted.iter().filter(|((of, _), _)| *of == cause).map(|(_, count)| count).sum())
}
