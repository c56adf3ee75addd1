//! Runs that a running agent measures: the command gets a scope that the agent shows as a unit, and the figures come from the
//! agent's page. Without root the scope is made by the systemd of the user.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use energy_export::parse::ParsedSample;
use energy_host::scope::RunScope;
use energy_host::user_scope::UserManager;
use energy_report::energy::Window;
use energy_report::gather::{self, Ask, agent_metrics, node_metrics, subject_metrics};
use energy_report::run::{MeasuredBy, Run, Subject, SubjectKind, Warning};
use energy_report::samples::Samples;

use super::events::{CommandEnd, RunEvents, code};
use super::session::RunFailure;
use crate::cli::agent_page::{self, AgentPage};
use crate::config::{MeasureArgs, WaitFor};

/// Shortest time between two questions: a large page costs the agent milliseconds.
const LEAST: Duration = Duration::from_millis(500);
/// How many intervals of the agent the last total may take to be on its page, and how long that is at least.
const LATE_TICKS: u32 = 10;
const LATE: Duration = Duration::from_secs(10);
const LATE_STEP: Duration = Duration::from_millis(100);

/// One run as the agent counted it.
#[derive(Debug)]
pub struct AgentRun {
    pub run: Run,
    pub elapsed: Duration,
    pub end: CommandEnd,
    /// Of the agent.
    pub interval: Duration,
}

/// A running agent of this machine.
pub struct AgentSession {
    page: AgentPage,
    events: RunEvents,
    cgroupfs: PathBuf,
    scopes: ScopeMaker,
    number: u32,
    /// Of the agent.
    interval: Duration,
}

/// Who makes scopes.
enum ScopeMaker {
    /// This process.
    Root,
    User(UserManager),
}

/// The scope of one run.
enum Scope {
    Own(RunScope),
    /// Its name.
    Users(String),
}

impl AgentSession {
    /// Looks whether the agent is there, and who makes the scopes.
    ///
    /// # Errors
    /// When no agent answers, it exports no units, or nobody can make a scope; with the remedy.
    pub fn open(address: &str, arguments: &MeasureArgs) -> Result<Self> {
        let page = AgentPage::new(address, &arguments.login)?;
        let samples = page.fetch()?;
        if !samples.iter().any(|sample| sample.name == "energy_agent_system_cpu_seconds_total") {
            bail!(
                "the agent at {} shows no units; its --export.levels has to name node, and CPU time has to be counted",
                page.url
            );
        }
        let seconds = samples.iter().find(|sample| sample.name == "energy_agent_interval_seconds");
        let interval = Duration::try_from_secs_f64(seconds.map_or(1.0, ParsedSample::number)).unwrap_or(LEAST);
        let scopes = if rustix::process::geteuid().is_root() {
            ScopeMaker::Root
        } else {
            ScopeMaker::User(UserManager::find()?)
        };
        let events = RunEvents::listen()?;
        Ok(Self { page, events, cgroupfs: arguments.host.cgroupfs.clone(), scopes, number: 0, interval })
    }

    pub const fn events(&self) -> &RunEvents {
        &self.events
    }

    /// Of the warmest GPU; degrees Celsius.
    pub fn temperature(&self) -> Option<f64> {
        let samples = self.page.fetch().ok()?;
        let celsius = samples.iter().filter(|sample| sample.name == "energy_agent_node_gpu_temperature_celsius");
        celsius.map(ParsedSample::number).max_by(f64::total_cmp)
    }

    /// Runs the command once.
    ///
    /// # Errors
    /// When there is no scope for it, it does not start, or the agent never shows it.
    pub fn run(&mut self, command: &[OsString], wait: WaitFor) -> Result<AgentRun, RunFailure> {
        self.number += 1;
        let (scope, name) = match &self.scopes {
            ScopeMaker::Root => {
                let scope = RunScope::create_shown(&self.cgroupfs, self.number)?;
                let name = scope.unit().to_owned();
                (Scope::Own(scope), name)
            }
            ScopeMaker::User(manager) => {
                let name = manager.name(self.number);
                (Scope::Users(name.clone()), name)
            }
        };
        let mut seen = SeenUnit::new(&name);
        // Without this page nobody would know that the unit began with the command.
        seen.add(&self.page.fetch()?);
        let (start, began) = (SystemTime::now(), Instant::now());
        let child = self.spawn(&scope, command)?;
        let read = || {
            // An agent that restarts does not answer for a moment.
            if let Ok(samples) = self.page.fetch() {
                seen.add(&samples);
            }
        };
        let every = self.interval.max(LEAST);
        let end = match &scope {
            Scope::Own(scope) => self.events.follow(child, wait, every, read, |_| Some(scope)),
            Scope::Users(name) => {
                self.events.follow(child, wait, every, read, |pid| RunScope::of_process(&self.cgroupfs, pid, name))
            }
        }?;
        // Now it can end on the agent's page.
        drop(scope);
        let elapsed = end.at.saturating_duration_since(began);
        let late = (self.interval * LATE_TICKS).max(LATE);
        let asked = Instant::now();
        let mut trouble = None;
        while !seen.has_ended && asked.elapsed() < late {
            thread::sleep(LATE_STEP.max(self.interval / 4));
            match self.page.fetch() {
                Ok(samples) => seen.add(&samples),
                Err(error) => trouble = Some(error),
            }
        }
        let url = &self.page.url;
        let (first, last) = (seconds(start), seconds(start + elapsed));
        let Some(run) = seen.run((first, last)) else {
            let why = trouble.map_or_else(String::new, |error| format!(" ({error:#})"));
            let text = format!(
                "the agent at {url} never showed the command's scope {name}{why}; it has to be the agent of this machine, and its \
                 --export.units, if it is set, has to match the scope"
            );
            return Err(RunFailure::NoFigures { code: code(end.status), error: anyhow::Error::msg(text) });
        };
        Ok(AgentRun { run, elapsed, end, interval: self.interval })
    }

    fn spawn(&self, scope: &Scope, command: &[OsString]) -> Result<Child, RunFailure> {
        let (program, arguments) = command.split_first().context("no command")?;
        let early = &self.events.early;
        match (scope, &self.scopes) {
            (Scope::Own(scope), _) => scope.spawn(Command::new(program).args(arguments), early),
            (Scope::Users(name), ScopeMaker::User(manager)) => manager.spawn(name, command, early),
            (Scope::Users(_), ScopeMaker::Root) => unreachable!("root makes scopes itself"),
        }
        .map_err(RunFailure::NotStarted)
    }
}

/// Seconds since the Unix epoch.
pub fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// What the pages so far say of one unit and of the node.
struct SeenUnit<'a> {
    /// The scope; the unit on the page may have the name of a user's manager before it.
    scope: &'a str,
    of_unit: BTreeSet<&'static str>,
    of_node: BTreeSet<&'static str>,
    samples: Samples,
    is_there: bool,
    has_ended: bool,
    /// Times of the first page and the last.
    first: f64,
    last: f64,
}

impl<'a> SeenUnit<'a> {
    fn new(scope: &'a str) -> Self {
        Self {
            scope,
            of_unit: subject_metrics(SubjectKind::Unit).into_iter().collect(),
            of_node: node_metrics().into_iter().chain(agent_metrics()).collect(),
            samples: Samples::default(),
            is_there: false,
            has_ended: false,
            first: f64::INFINITY,
            last: 0.0,
        }
    }

    fn add(&mut self, page: &[ParsedSample]) {
        let at = agent_page::time(page);
        (self.first, self.last) = (self.first.min(at), self.last.max(at));
        let (mut running, mut ended) = (false, false);
        for sample in page {
            let is_unit = self.of_unit.contains(sample.name.as_str()) && self.is_unit(sample.label("unit"));
            if is_unit {
                self.is_there = true;
                if sample.label("state") == "terminated" { ended = true } else { running = true }
            }
            if is_unit || self.of_node.contains(sample.name.as_str()) {
                self.samples.add(agent_page::series(sample, at));
            }
        }
        self.has_ended = ended && !running;
    }

    fn is_unit(&self, unit: &str) -> bool {
        unit.strip_suffix(self.scope).is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }

    /// The figures; `ran` is when the command did.
    fn run(self, ran: (f64, f64)) -> Option<Run> {
        let Self { scope, samples, is_there, has_ended, first, last, .. } = self;
        if !is_there {
            return None;
        }
        let ask = Ask {
            id: String::new(),
            subject: Subject { kind: SubjectKind::Unit, name: scope.to_owned(), ..Subject::default() },
            by: MeasuredBy::Agent,
            // From the page before the command on.
            window: Window { from: first, to: last },
            pods: Vec::new(),
            ran: Some(ran),
        };
        let mut run = gather::run(&samples, &ask)?;
        if !has_ended && !run.warnings.iter().any(|warning| warning.code == "end_not_seen") {
            let message =
                "The agent did not show the end of the command's scope, so a part of the energy may be missing.";
            run.warnings.push(Warning { code: "end_not_seen".to_owned(), message: message.to_owned() });
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_the_scope_alone_or_below_a_users_manager() {
        let seen = SeenUnit::new("energy-agent-measure-7-1.scope");
        for (unit, expected) in [
            ("energy-agent-measure-7-1.scope", true),
            ("user@1000.service/energy-agent-measure-7-1.scope", true),
            ("energy-agent-measure-77-1.scope", false),
            ("x-energy-agent-measure-7-1.scope", false),
            ("other", false),
        ] {
            assert_eq!(seen.is_unit(unit), expected, "{unit}");
        }
    }
}
