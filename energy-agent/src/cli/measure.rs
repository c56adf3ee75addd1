//! `energy-agent measure -- COMMAND`: what a command used, over one run or several. The command's own streams and exit code
//! stay as they are; the figures go to standard error and to files.

mod agent_session;
mod curve;
mod describe;
mod event;
mod events;
mod recorder;
mod session;
mod signals;
mod table;

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use energy_cluster::config::PodsSource;
use energy_host::scope::NotStarted;
use energy_model::printable::{printable, printable_lines};
use energy_report::csv::csv;
use energy_report::run::Run;

use self::agent_session::AgentSession;
use self::events::code;
use self::session::{MeasureSession, RunFailure};
use self::table::ShownRun;
use super::report::output;
use super::run_problem::RunProblem;
use crate::config::{Capping, Cli, Config, Cooldown, MeasureArgs, RunFormat};
use crate::signals::EndSignal;

/// Exit codes before the command starts, as `env` has them.
pub const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How much warmer a GPU may be than before the first run; degrees Celsius.
const WARMER: f64 = 2.0;
/// How long that is waited for.
const COOL: Duration = Duration::from_secs(30);
const COOL_STEP: Duration = Duration::from_millis(500);

/// Runs the command and prints what it used. The exit code is the command's.
#[must_use]
pub fn run(arguments: &MeasureArgs) -> ExitCode {
    if let Some(file) = &arguments.job.job {
        return super::measure_job::run(file, arguments);
    }
    match measure(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("energy-agent measure: {}", printable_lines(&format!("{error:#}")));
            ExitCode::from(FAILED)
        }
    }
}

/// Meters that are open, for commands that are measured one at a time.
pub(super) struct CommandMeters(MeasureSession);

impl CommandMeters {
    /// # Errors
    /// When a demanded meter is refused.
    pub fn open(arguments: &MeasureArgs) -> Result<Self> {
        Ok(Self(MeasureSession::open(config(arguments)?)?))
    }

    /// Runs the command once.
    ///
    /// # Errors
    /// When it does not start, or a signal ended it.
    pub fn once(&mut self, arguments: &MeasureArgs) -> Result<Run> {
        let name = describe::command_line(&arguments.command);
        let measured = self.0.run(&arguments.command, arguments.wait).map_err(|failure| match failure {
            RunFailure::NotStarted(NotStarted::NotFound) => anyhow!("{name}: command not found"),
            RunFailure::NotStarted(NotStarted::NotExecutable(error)) => anyhow!("{name} cannot be executed: {error}"),
            RunFailure::NotStarted(NotStarted::Failed(error)) => anyhow!("starting {name}: {error}"),
            RunFailure::Other(error) | RunFailure::NoFigures { error, .. } => error,
        })?;
        if let Some(signal) = measured.end.interrupted {
            return Err(EndSignal::of(signal.as_raw()).into());
        }
        Ok(describe::shown(arguments, measured).run)
    }
}

/// Who measures.
enum Meters {
    Own(Box<MeasureSession>),
    Agent(Box<AgentSession>),
}

impl Meters {
    fn open(arguments: &MeasureArgs) -> Result<Self> {
        Ok(match &arguments.agent {
            Some(address) => Self::Agent(Box::new(AgentSession::open(address, arguments)?)),
            None => Self::Own(Box::new(MeasureSession::open(config(arguments)?)?)),
        })
    }

    /// The figures of one run, its exit code, and whether a signal asked for the end.
    fn run(&mut self, arguments: &MeasureArgs) -> Result<(ShownRun, u8, bool), RunFailure> {
        let MeasureArgs { command, wait, .. } = arguments;
        Ok(match self {
            Self::Own(session) => {
                let measured = session.run(command, *wait)?;
                let (code, interrupted) = (code(measured.end.status), measured.end.interrupted.is_some());
                (describe::shown(arguments, measured), code, interrupted)
            }
            Self::Agent(session) => {
                let measured = session.run(command, *wait)?;
                let (code, interrupted) = (code(measured.end.status), measured.end.interrupted.is_some());
                (describe::shown_by_agent(arguments, measured), code, interrupted)
            }
        })
    }

    /// Of the warmest GPU; degrees Celsius.
    fn temperature(&mut self) -> Option<f64> {
        match self {
            Self::Own(session) => session.temperature().map(f64::from),
            Self::Agent(session) => session.temperature(),
        }
    }

    /// Returns whether a signal asks for the end.
    fn pause(&self, time: Duration) -> bool {
        match self {
            Self::Own(session) => session.events().pause(time),
            Self::Agent(session) => session.events().pause(time),
        }
    }

    /// Waits until no GPU is much warmer than `before`; returns whether a signal asks for the end.
    fn cool(&mut self, before: Option<f64>) -> bool {
        let until = Instant::now() + COOL;
        while Instant::now() < until {
            let warm = self.temperature().zip(before).is_some_and(|(now, before)| now > before + WARMER);
            if !warm {
                return false;
            }
            if self.pause(COOL_STEP) {
                return true;
            }
        }
        false
    }
}

fn measure(arguments: &MeasureArgs) -> Result<u8> {
    output::check(&arguments.output, arguments.runs > 1).map_err(|problem| anyhow!("{problem}"))?;
    let mut meters = Meters::open(arguments)?;
    let mut made = MadeRuns::default();
    let ended = made.make(arguments, &mut meters);
    // What was measured before a problem is not lost.
    if ended.is_ok() || !made.shown.is_empty() {
        show(arguments, made.shown, made.cut_short);
    }
    match ended {
        Ok(()) => Ok(made.last),
        Err(RunFailure::NotStarted(why)) => not_started(arguments, why),
        Err(RunFailure::NoFigures { code, error }) => {
            eprintln!("warning: there are no figures of a run: {}", printable_lines(&format!("{error:#}")));
            Ok(code)
        }
        Err(RunFailure::Other(error)) => Err(error),
    }
}

/// The runs by now.
#[derive(Default)]
struct MadeRuns {
    shown: Vec<ShownRun>,
    /// Exit code of the last one.
    last: u8,
    /// Why there are not as many as were asked for.
    cut_short: Option<String>,
}

impl MadeRuns {
    /// Runs the command as often as it is asked for.
    ///
    /// # Errors
    /// When it cannot be run or measured once more.
    fn make(&mut self, arguments: &MeasureArgs, meters: &mut Meters) -> Result<(), RunFailure> {
        let before = meters.temperature();
        let total = arguments.warmups + arguments.runs;
        for number in 1..=total {
            if number > 1 && pause(arguments, meters, before) {
                self.cut_short = Some(format!("a signal came before run {number} of {total}"));
                break;
            }
            if let Some(command) = &arguments.prepare {
                prepare(command)?;
            }
            let (run, code, interrupted) = meters.run(arguments)?;
            self.last = code;
            let is_cut_short = interrupted || code != 0;
            // A run that failed did other work than those before it.
            if number > arguments.warmups && (!is_cut_short || self.shown.is_empty()) {
                self.shown.push(run);
            }
            if is_cut_short && number < total {
                self.cut_short =
                    Some(format!("run {number} of {total} ended with exit code {code}, so no other was made"));
                break;
            }
        }
        Ok(())
    }
}

/// What the shell command prints goes to standard error: standard output is the measured command's own.
fn prepare(command: &OsStr) -> Result<()> {
    let stderr = io::stderr().as_fd().try_clone_to_owned().context("standard error")?;
    let status = Command::new("sh").arg("-c").arg(command).stdout(Stdio::from(stderr)).status();
    let status = status.context("starting sh for --prepare")?;
    ensure!(status.success(), "--prepare ended with {status}; the command was not run");
    Ok(())
}

/// Prints the figures to standard error, and writes the files. The command has run, so that its exit code counts whatever becomes of
/// them.
fn show(arguments: &MeasureArgs, shown: Vec<ShownRun>, cut_short: Option<String>) {
    let title = printable(&describe::command_line(&arguments.command)).into_owned();
    let MeasureArgs { warmups, output, .. } = arguments;
    let is_list = arguments.runs > 1;
    let table = table::text(&title, *warmups, &shown);
    let markdown = table::markdown(&title, *warmups, &shown);
    let runs: Vec<Run> = shown.into_iter().map(|shown| shown.run).collect();
    let warn = |problem: RunProblem| eprintln!("warning: {}", printable_lines(&problem.to_string()));
    match output.format {
        RunFormat::Table => eprint!("{table}"),
        RunFormat::Markdown => eprint!("{markdown}"),
        RunFormat::Csv => eprint!("{}", csv(&runs)),
        RunFormat::Json => output::json(&runs, is_list).map_or_else(warn, |text| eprint!("{text}")),
    }
    if let Some(why) = cut_short {
        eprintln!("warning: {why}");
    }
    if let Err(problem) = output::files(&runs, is_list, &markdown, output) {
        warn(problem);
    }
}

/// Returns whether a signal asks for the end.
fn pause(arguments: &MeasureArgs, meters: &mut Meters, before: Option<f64>) -> bool {
    match arguments.cooldown {
        Cooldown::Time(time) => meters.pause(time),
        Cooldown::Temperature => meters.cool(before),
    }
}

fn not_started(arguments: &MeasureArgs, why: NotStarted) -> Result<u8> {
    let name = arguments.command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    let name = printable(&name);
    match why {
        NotStarted::NotFound => {
            eprintln!("energy-agent measure: {name}: command not found");
            Ok(NOT_FOUND)
        }
        NotStarted::NotExecutable(error) => {
            eprintln!("energy-agent measure: {name} cannot be executed: {error}");
            Ok(NOT_EXECUTABLE)
        }
        NotStarted::Failed(error) => Err(error).with_context(|| format!("starting {name}")),
    }
}

/// An agent that only measures: with the flags given here, and what else is in the environment.
fn config(arguments: &MeasureArgs) -> Result<Config> {
    let agent = Cli::read(["energy-agent"]).context("a variable ENERGY_AGENT_... in the environment")?;
    let mut config = Config { host: arguments.host.clone(), idle: arguments.idle, capping: Capping::Off, ..agent.run };
    config.cluster.pods_source = PodsSource::None;
    Ok(config)
}
