//! Meters of our own, and the runs that are measured by them: each in a cgroup that begins empty and ends with the run.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use energy_cluster::pods::KnownPods;
use energy_host::scope::{NotStarted, RunScope};
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::snapshot::Snapshot;
use energy_model::workload::units::Units;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::runtime::{Builder, Runtime};

use super::event::RunEvent;
use super::recorder::{RunFigures, RunRecorder};
use super::signals;
use crate::config::{Config, WaitFor};
use crate::node::Node;

/// How long what ends with the command may take to be gone before it counts as left over.
const GRACE: Duration = Duration::from_millis(50);
const GRACE_STEP: Duration = Duration::from_millis(1);
/// How long the GPUs' last readings may take. They are taken by threads of their own, and a busy machine lets them wait.
const LATE_GPUS: Duration = Duration::from_secs(5);
const LATE_GPUS_STEP: Duration = Duration::from_millis(10);

/// One run as it was measured.
#[derive(Debug)]
pub struct MeasuredRun {
    pub figures: RunFigures,
    pub start: SystemTime,
    pub elapsed: Duration,
    pub status: ExitStatus,
    /// Processes that the command left behind and that were killed.
    pub killed: usize,
    /// A signal asked for the end.
    pub interrupted: bool,
    /// As they were at the end.
    pub last: Snapshot,
}

/// Why there are no figures of a run.
#[derive(Debug)]
pub enum RunFailure {
    NotStarted(NotStarted),
    Other(anyhow::Error),
}

/// Open meters.
pub struct MeasureSession {
    config: Config,
    node: Node,
    told: KnownPods,
    number: u32,
    events: Receiver<RunEvent>,
    tell: Sender<RunEvent>,
    /// GPUs' questions to a kubelet belong to it; none is asked.
    _runtime: Runtime,
}

impl MeasureSession {
    /// Opens the meters.
    ///
    /// # Errors
    /// When a demanded meter is refused, or there is no thread to be had.
    pub fn open(config: Config) -> Result<Self> {
        let (tell, events) = channel();
        signals::follow(tell.clone())?;
        let runtime = Builder::new_current_thread().build().context("starting the runtime")?;
        let mut node = {
            let _inside = runtime.enter();
            Node::only_measuring(&config).context("opening the meters")?
        };
        node.begin();
        let state = MeterState::down(MeterName::Pods, Reason::Off, "");
        let told = KnownPods { pods: std::sync::Arc::default(), state };
        Ok(Self { config, node, told, number: 0, events, tell, _runtime: runtime })
    }

    /// Runs the command once.
    ///
    /// # Errors
    /// When there is no cgroup for it, or it does not start.
    pub fn run(&mut self, command: &[OsString], wait: WaitFor) -> Result<MeasuredRun, RunFailure> {
        self.number += 1;
        let scope = RunScope::create(&self.config.host.cgroupfs, self.number).map_err(RunFailure::Other)?;
        // Only this run has a row of its own.
        let units = Units::matching(&scope.unit().replace('.', "\\.")).map_err(anyhow::Error::msg);
        self.node.choose_units(&units.map_err(RunFailure::Other)?);
        let mut recorder = RunRecorder::new(scope.unit(), self.config.host.interval, &self.tick());
        let (name, arguments) = command.split_first().context("no command").map_err(RunFailure::Other)?;
        let (start, began) = (SystemTime::now(), Instant::now());
        let mut child = scope.spawn(Command::new(name).args(arguments)).map_err(RunFailure::NotStarted)?;
        let tell = self.tell.clone();
        let pid = pid_of(&child).map_err(RunFailure::Other)?;
        let waiter = thread::Builder::new().name("wait".to_owned()).spawn(move || {
            // It stays a zombie, so that no signal can reach another process by its number.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while waitid(WaitId::Pid(pid), options).is_err_and(|error| error == Errno::INTR) {}
            let _ = tell.send(RunEvent::Ended(Instant::now()));
        });
        if let Err(error) = waiter {
            scope.kill();
            return Err(RunFailure::Other(anyhow::Error::new(error).context("thread to wait for the command")));
        }
        let mut interrupted = false;
        let mut end = self.follow(&mut recorder, |signal| {
            interrupted |= signals::ends(signal);
            if !signals::comes_from_terminal(signal) {
                // It may have ended by itself.
                let _ = kill_process(pid, signal);
            }
        });
        let status = child.wait().context("waiting for the command").map_err(RunFailure::Other)?;
        let mut killed = 0;
        if !is_empty_soon(&scope) {
            match wait {
                WaitFor::Command => killed = kill(&scope),
                WaitFor::Children => {
                    (killed, interrupted) = self.wait_for_children(&scope, &mut recorder, interrupted);
                    end = Instant::now();
                }
            }
        }
        let last = self.last_tick(&mut recorder, end);
        let elapsed = end.saturating_duration_since(began);
        Ok(MeasuredRun { figures: recorder.finish(&last), start, elapsed, status, killed, interrupted, last })
    }

    /// Reads at every interval until the command ends; returns when that was.
    fn follow(&mut self, recorder: &mut RunRecorder, mut on_signal: impl FnMut(Signal)) -> Instant {
        let mut due = Instant::now() + self.config.host.interval;
        loop {
            match self.events.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(RunEvent::Ended(at)) => return at,
                Ok(RunEvent::Signal(signal)) => on_signal(signal),
                Err(RecvTimeoutError::Timeout) => {
                    recorder.add(&self.tick());
                    due = (due + self.config.host.interval).max(Instant::now());
                }
                // It holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => return Instant::now(),
            }
        }
    }

    /// Reads until each GPU has a reading that was taken after the end: what it used until then is in that one.
    fn last_tick(&mut self, recorder: &mut RunRecorder, end: Instant) -> Snapshot {
        let until = Instant::now() + LATE_GPUS;
        loop {
            let last = self.tick();
            recorder.add(&last);
            if self.node.gpus_read_since(end) || Instant::now() >= until {
                return last;
            }
            thread::sleep(LATE_GPUS_STEP);
        }
    }

    /// Reads until nothing runs in the scope any more. A signal that asks for the end kills what is left.
    fn wait_for_children(&mut self, scope: &RunScope, recorder: &mut RunRecorder, interrupted: bool) -> (usize, bool) {
        let mut due = Instant::now() + self.config.host.interval;
        let mut interrupted = interrupted;
        while !interrupted && !scope.is_empty() {
            match self.events.recv_timeout(GRACE_STEP) {
                Ok(RunEvent::Signal(signal)) => interrupted |= signals::ends(signal),
                Ok(RunEvent::Ended(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= due {
                recorder.add(&self.tick());
                due = (due + self.config.host.interval).max(Instant::now());
            }
        }
        (if scope.is_empty() { 0 } else { kill(scope) }, interrupted)
    }

    /// Waits, unless a signal asks for the end; returns whether one does.
    pub fn pause(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(RunEvent::Signal(signal)) if signals::ends(signal) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// Waits until no GPU is more than `degrees` warmer than `before`, `patience` at most; returns whether a signal asks for
    /// the end.
    pub fn cool(&mut self, before: Option<u32>, degrees: u32, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            let warm = self.temperature().zip(before).is_some_and(|(now, before)| now > before + degrees);
            if !warm {
                return false;
            }
            if self.pause(self.config.host.interval) {
                return true;
            }
        }
        false
    }

    /// Of the warmest GPU; degrees Celsius.
    pub fn temperature(&mut self) -> Option<u32> {
        let snapshot = self.tick();
        snapshot.gpus.iter().filter(|gpu| gpu.current).filter_map(|gpu| gpu.state.temperature_celsius).max()
    }

    fn tick(&mut self) -> Snapshot {
        self.node.tick(false, &self.told)
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
