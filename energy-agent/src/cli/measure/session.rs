//! Meters of our own, and the runs that are measured by them: each in a cgroup that begins empty and ends with the run.

use std::ffi::OsString;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use energy_cluster::pods::KnownPods;
use energy_host::scope::{NotStarted, RunScope};
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::snapshot::Snapshot;
use energy_model::workload::units::Units;
use tokio::runtime::{Builder, Runtime};

use super::events::{CommandEnd, RunEvents};
use super::recorder::{RunFigures, RunRecorder};
use crate::config::{Config, WaitFor};
use crate::node::Node;

/// How long the GPUs' last readings may take. They are taken by threads of their own, and a busy machine lets them wait.
const LATE_GPUS: Duration = Duration::from_secs(5);
const LATE_GPUS_STEP: Duration = Duration::from_millis(10);

/// One run as it was measured.
#[derive(Debug)]
pub struct MeasuredRun {
    pub figures: RunFigures,
    pub start: SystemTime,
    pub elapsed: Duration,
    pub end: CommandEnd,
    /// As they were at the end.
    pub last: Snapshot,
}

/// Why there are no figures of a run.
#[derive(Debug)]
pub enum RunFailure {
    NotStarted(NotStarted),
    /// The command has run, and nobody counted it.
    NoFigures {
        code: u8,
        error: anyhow::Error,
    },
    Other(anyhow::Error),
}

impl From<anyhow::Error> for RunFailure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

/// Open meters.
pub struct MeasureSession {
    config: Config,
    node: Node,
    told: KnownPods,
    number: u32,
    events: RunEvents,
    /// GPUs' questions to a kubelet belong to it; none is asked.
    _runtime: Runtime,
}

impl MeasureSession {
    /// Opens the meters.
    ///
    /// # Errors
    /// When a demanded meter is refused, or there is no thread to be had.
    pub fn open(config: Config) -> Result<Self> {
        let events = RunEvents::listen()?;
        let runtime = Builder::new_current_thread().build().context("starting the runtime")?;
        let mut node = {
            let _inside = runtime.enter();
            Node::only_measuring(&config).context("opening the meters")?
        };
        node.begin();
        let state = MeterState::down(MeterName::Pods, Reason::Off, "");
        let told = KnownPods { pods: std::sync::Arc::default(), state };
        Ok(Self { config, node, told, number: 0, events, _runtime: runtime })
    }

    pub const fn events(&self) -> &RunEvents {
        &self.events
    }

    /// Runs the command once.
    ///
    /// # Errors
    /// When there is no cgroup for it, or it does not start.
    pub fn run(&mut self, command: &[OsString], wait: WaitFor) -> Result<MeasuredRun, RunFailure> {
        self.number += 1;
        let scope = RunScope::create(&self.config.host.cgroupfs, self.number)?;
        // Only this run has a row of its own.
        let units = Units::matching(&scope.unit().replace('.', "\\.")).map_err(anyhow::Error::msg)?;
        self.node.choose_units(&units);
        let mut recorder = RunRecorder::new(scope.unit(), self.config.host.interval, &self.tick());
        let (name, arguments) = command.split_first().context("no command")?;
        let (start, began) = (SystemTime::now(), Instant::now());
        let child = scope.spawn(Command::new(name).args(arguments), &self.events.early);
        let child = child.map_err(RunFailure::NotStarted)?;
        let Self { config, node, told, events, .. } = self;
        let read = || recorder.add(&node.tick(false, told));
        let end = events.follow(child, wait, config.host.interval, read, |_| Some(&scope));
        if end.is_err() {
            scope.kill();
        }
        let end = end?;
        let last = self.last_tick(&mut recorder, end.at);
        let elapsed = end.at.saturating_duration_since(began);
        Ok(MeasuredRun { figures: recorder.finish(&last), start, elapsed, end, last })
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

    /// Of the warmest GPU; degrees Celsius.
    pub fn temperature(&mut self) -> Option<u32> {
        let snapshot = self.tick();
        snapshot.gpus.iter().filter(|gpu| gpu.current).filter_map(|gpu| gpu.state.temperature_celsius).max()
    }

    fn tick(&mut self) -> Snapshot {
        self.node.tick(false, &self.told)
    }
}
