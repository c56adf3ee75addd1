//! Signals that come while a command is being started.
//!
//! Between fork and exec the child still has the handlers of this program. So a Ctrl-C in that moment would end neither: the
//! terminal has sent it to both, and the child's handler takes it. What came until then, and the next that comes, ends the
//! child as it would end the command.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

/// Signals that ask for an end, and whether each came since [`Self::watch`].
#[derive(Clone, Debug, Default)]
pub struct EarlySignals(Vec<(i32, Arc<AtomicBool>)>);

impl EarlySignals {
    /// Takes note of each from now on.
    ///
    /// # Errors
    /// When the kernel refuses a handler.
    pub fn watch(signals: impl IntoIterator<Item = Signal>) -> io::Result<Self> {
        let mut watched = Vec::new();
        for signal in signals {
            let came = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal.as_raw(), Arc::clone(&came))?;
            watched.push((signal.as_raw(), came));
        }
        Ok(Self(watched))
    }

    /// Has the child end by a signal that came before its program begins. Of several steps between fork and exec this has to be
    /// the last.
    pub(crate) fn pass_to(&self, command: &mut Command) {
        let watched = self.0.clone();
        let pass = move || {
            for (number, came) in &watched {
                // SAFETY: signal(2) and raise(3) may be called there; from here on the child has no handler for the number.
                // A handler that runs before that has noted the signal in the child's own memory when it returns.
                unsafe {
                    libc::signal(*number, libc::SIG_DFL);
                    if came.load(Ordering::SeqCst) {
                        libc::raise(*number);
                    }
                }
            }
            Ok(())
        };
        // SAFETY: between fork and exec `pass` makes two system calls for each signal and allocates nothing.
        unsafe { command.pre_exec(pass) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    /// The test is no terminal's, so the handlers are not needed: the flags are what they leave behind.
    #[test]
    fn a_signal_that_came_before_the_program_began_ends_it_and_none_does_not() {
        let flag = |came| Arc::new(AtomicBool::new(came));
        let status = |signals: Vec<(i32, Arc<AtomicBool>)>| {
            let mut command = Command::new("sh");
            command.args(["-c", "exit 3"]);
            EarlySignals(signals).pass_to(&mut command);
            command.status().unwrap()
        };
        assert_eq!(
            status(vec![(libc::SIGINT, flag(false)), (libc::SIGTERM, flag(true))]).signal(),
            Some(libc::SIGTERM)
        );
        assert_eq!(status(vec![(libc::SIGINT, flag(false)), (libc::SIGTERM, flag(false))]).code(), Some(3));
    }
}
