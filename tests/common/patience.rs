//! How long a test waits for what it asserts. No test says how fast anything is: a wait ends when nothing moves any more, and
//! at last after a time that three slow machines would not need.

use std::fs;
use std::time::{Duration, Instant};

/// A wait in which no process of the test has run for this long has nothing to wait for.
const STILL: Duration = Duration::from_secs(120);
/// A process that runs for ever, and does not do what is waited for, is waited for this many times as long.
const TIMES: u32 = 3;

/// Looked at between two looks at what is waited for.
pub struct Patience {
    began: Instant,
    until: Instant,
    left: u32,
    ran: u64,
}

impl Patience {
    pub fn new() -> Self {
        let began = Instant::now();
        Self { began, until: began + STILL, left: TIMES - 1, ran: children_ran() }
    }

    /// Whether the wait has to end.
    pub fn is_over(&mut self) -> bool {
        if Instant::now() < self.until {
            return false;
        }
        let ran = children_ran();
        if self.left == 0 || ran == self.ran {
            return true;
        }
        (self.until, self.left, self.ran) = (self.until + STILL, self.left - 1, ran);
        false
    }

    /// Panics when the wait has to end.
    #[track_caller]
    pub fn check(&mut self, what: &str) {
        assert!(!self.is_over(), "waited {:?} for {what}", self.began.elapsed());
    }
}

/// CPU time of the processes that this thread has started and that still run, in ticks of the kernel's clock. Where the kernel
/// does not list them, what the whole machine ran.
fn children_ran() -> u64 {
    let Ok(children) = fs::read_to_string("/proc/thread-self/children") else {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        return stat.lines().next().unwrap_or_default().split_whitespace().skip(1).take(3).filter_map(number).sum();
    };
    let ran = |pid: &str| -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may have spaces and brackets. User and system time are fields 14 and 15, the state is field 3.
        Some(stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2).filter_map(number).sum())
    };
    children.split_whitespace().filter_map(ran).sum()
}

fn number(word: &str) -> Option<u64> {
    word.parse().ok()
}
