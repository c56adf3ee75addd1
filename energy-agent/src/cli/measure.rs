//! `energy-agent measure -- COMMAND`: what a command used, over one run or several. The command's own streams and exit code
//! stay as they are; the figures go to standard error and to files.

mod curve;
mod describe;
mod event;
mod recorder;
mod session;
mod signals;
mod table;

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser as _;
use energy_cluster::config::PodsSource;
use energy_host::scope::NotStarted;
use energy_model::printable::{printable, printable_lines};
use energy_report::run::Run;

use self::session::{MeasureSession, RunFailure, code};
use self::table::ShownRun;
use crate::config::{Capping, Cli, Config, Cooldown, MeasureArgs};

/// Exit codes before the command starts, as `env` has them.
pub const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How much warmer a GPU may be than before the first run; degrees Celsius.
const WARMER: u32 = 2;
/// How long that is waited for.
const COOL: Duration = Duration::from_secs(30);

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
            RunFailure::Other(error) => error,
        })?;
        ensure!(!measured.interrupted, "ended by a signal");
        Ok(describe::shown(arguments, measured).run)
    }
}

fn measure(arguments: &MeasureArgs) -> Result<u8> {
    let mut session = MeasureSession::open(config(arguments)?)?;
    let before = session.temperature();
    let total = arguments.warmups + arguments.runs;
    let mut shown: Vec<ShownRun> = Vec::new();
    let (mut last, mut cut_short) = (0, None);
    for number in 1..=total {
        if number > 1 && pause(arguments, &mut session, before) {
            cut_short = Some(format!("a signal came before run {number} of {total}"));
            break;
        }
        if let Some(prepare) = &arguments.prepare {
            let mut shell = Command::new("sh");
            // What the command prints stays its own.
            let stderr = io::stderr().as_fd().try_clone_to_owned().context("standard error")?;
            let status = shell.arg("-c").arg(prepare).stdout(Stdio::from(stderr)).status();
            let status = status.context("starting sh for --prepare")?;
            ensure!(status.success(), "--prepare ended with {status}; the command was not run");
        }
        let measured = match session.run(&arguments.command, arguments.wait) {
            Ok(measured) => measured,
            Err(RunFailure::NotStarted(why)) => return not_started(arguments, why),
            Err(RunFailure::Other(error)) => return Err(error),
        };
        last = code(measured.status);
        let is_cut_short = measured.interrupted || last != 0;
        // A run that failed did other work than those before it.
        if number > arguments.warmups && (!is_cut_short || shown.is_empty()) {
            shown.push(describe::shown(arguments, measured));
        }
        if is_cut_short && number < total {
            cut_short = Some(format!("run {number} of {total} ended with exit code {last}, so no other was made"));
            break;
        }
    }
    let title = printable(&describe::command_line(&arguments.command)).into_owned();
    eprint!("{}", table::text(&title, arguments.warmups, &shown));
    if let Some(why) = cut_short {
        eprintln!("warning: {why}");
    }
    write_files(arguments, shown)?;
    Ok(last)
}

/// Returns whether a signal asks for the end.
fn pause(arguments: &MeasureArgs, session: &mut MeasureSession, before: Option<u32>) -> bool {
    match arguments.cooldown {
        Cooldown::Time(time) => session.pause(time),
        Cooldown::Temperature => session.cool(before, WARMER, COOL),
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
    let agent = Cli::try_parse_from(["energy-agent"]).context("a variable ENERGY_AGENT_... in the environment")?;
    let mut config = Config { host: arguments.host.clone(), idle: arguments.idle, capping: Capping::Off, ..agent.run };
    config.cluster.pods_source = PodsSource::None;
    Ok(config)
}

fn write_files(arguments: &MeasureArgs, shown: Vec<ShownRun>) -> Result<()> {
    let runs: Vec<Run> = shown.into_iter().map(|shown| shown.run).collect();
    if let Some(file) = &arguments.output.json {
        let text = match &runs[..] {
            [run] if arguments.runs == 1 => serde_json::to_string_pretty(run),
            runs => serde_json::to_string_pretty(runs),
        };
        let text = text.context("the run file")? + "\n";
        fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}
