//! What happens while a command runs: its end, and signals, which it gets. `measure` goes on until the command has ended.

use std::borrow::Borrow;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use energy_host::early_signals::EarlySignals;
use energy_host::scope::RunScope;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::event::RunEvent;
use super::signals;
use crate::config::WaitFor;

/// How long what ends with the command may take to be gone before it counts as left over.
const GRACE: Duration = Duration::from_millis(50);
const GRACE_STEP: Duration = Duration::from_millis(1);

/// How a command ended.
#[derive(Debug)]
pub struct CommandEnd {
    pub status: ExitStatus,
    pub at: Instant,
    /// Processes that it left behind and that were killed.
    pub killed: usize,
    /// The signal that asked for the end.
    pub interrupted: Option<Signal>,
}

/// Events from now on.
pub struct RunEvents {
    events: Receiver<RunEvent>,
    tell: Sender<RunEvent>,
    /// For the command that is started next.
    pub early: EarlySignals,
}

impl RunEvents {
    /// # Errors
    /// When signals cannot be followed.
    pub fn listen() -> Result<Self> {
        let (tell, events) = channel();
        let early = signals::follow(tell.clone())?;
        Ok(Self { events, tell, early })
    }

    /// Follows a command until it ends, and calls `read` at every interval. What it leaves behind in its scope is killed or
    /// waited for. `scope` is looked for when the command has ended, while its number is still its own.
    ///
    /// # Errors
    /// When there is no thread to be had, or the end cannot be waited for.
    pub fn follow<S: Borrow<RunScope>>(
        &self,
        mut child: Child,
        wait: WaitFor,
        every: Duration,
        mut read: impl FnMut(),
        scope: impl FnOnce(u32) -> Option<S>,
    ) -> Result<CommandEnd> {
        let pid = pid_of(&child)?;
        let tell = self.tell.clone();
        let waiter = thread::Builder::new().name("wait".to_owned()).spawn(move || {
            // It stays a zombie, so that no signal can reach another process by its number.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while waitid(WaitId::Pid(pid), options).is_err_and(|error| error == Errno::INTR) {}
            let _ = tell.send(RunEvent::Ended(Instant::now()));
        });
        if let Err(error) = waiter {
            let _ = child.kill();
            return Err(anyhow::Error::new(error).context("thread to wait for the command"));
        }
        let mut interrupted = None;
        let mut at = self.until_ended(every, &mut read, |signal| {
            interrupted = interrupted.or(Some(signal).filter(|signal| signals::ends(*signal)));
            if !signals::comes_from_terminal(signal) {
                // It may have ended by itself.
                let _ = kill_process(pid, signal);
            }
        });
        let scope = scope(child.id());
        let status = child.wait().context("waiting for the command")?;
        let mut killed = 0;
        let scope = scope.as_ref().map(Borrow::borrow);
        if let Some(scope) = scope.filter(|scope| !is_empty_soon(scope)) {
            match wait {
                WaitFor::Command => killed = kill(scope),
                WaitFor::Children => {
                    (killed, interrupted) = self.wait_for_children(scope, every, &mut read, interrupted);
                    at = Instant::now();
                }
            }
        }
        Ok(CommandEnd { status, at, killed, interrupted })
    }

    /// Returns when the command ended.
    fn until_ended(&self, every: Duration, read: &mut impl FnMut(), mut on_signal: impl FnMut(Signal)) -> Instant {
        let mut due = Instant::now() + every;
        loop {
            match self.events.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(RunEvent::Ended(at)) => return at,
                Ok(RunEvent::Signal(signal)) => on_signal(signal),
                Err(RecvTimeoutError::Timeout) => {
                    read();
                    due = (due + every).max(Instant::now());
                }
                // It holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => return Instant::now(),
            }
        }
    }

    /// Reads until nothing runs in the scope any more. A signal that asks for the end kills what is left.
    fn wait_for_children(
        &self,
        scope: &RunScope,
        every: Duration,
        read: &mut impl FnMut(),
        interrupted: Option<Signal>,
    ) -> (usize, Option<Signal>) {
        let mut due = Instant::now() + every;
        let mut interrupted = interrupted;
        while interrupted.is_none() && !scope.is_empty() {
            match self.events.recv_timeout(GRACE_STEP) {
                Ok(RunEvent::Signal(signal)) => interrupted = Some(signal).filter(|signal| signals::ends(*signal)),
                Ok(RunEvent::Ended(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= due {
                read();
                due = (due + every).max(Instant::now());
            }
        }
        (if scope.is_empty() { 0 } else { kill(scope) }, interrupted)
    }

    /// Waits, unless a signal asks for the end; returns whether one does.
    pub fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(RunEvent::Signal(signal)) if signals::ends(signal) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

fn pid_of(child: &Child) -> Result<Pid> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.context("the command has no process id")
}

/// Whether everything in the scope ends with the command, as the parts of a pipe do.
fn is_empty_soon(scope: &RunScope) -> bool {
    let until = Instant::now() + GRACE;
    while !scope.is_empty() {
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(GRACE_STEP);
    }
    true
}

/// Kills what is left in the scope; how many processes that were.
fn kill(scope: &RunScope) -> usize {
    let count = scope.processes().len();
    scope.kill();
    count
}

/// The exit code of a shell for this end: 128 and the number of a signal.
pub fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code & 0xff).ok()).unwrap_or(u8::MAX)
}
