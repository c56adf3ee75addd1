//! What may happen while a command runs.

use std::time::Instant;

use rustix::process::Signal;

#[derive(Clone, Copy, Debug)]
pub enum RunEvent {
    /// The command ended, then.
    Ended(Instant),
    Signal(Signal),
}
