//! `energy-agent compare`: runs side by side, and what can be said about the difference. Saved runs, commands that are measured in
//! turns, one command at several clocks of a GPU, or one job on several kinds of nodes.

mod allocation;
mod commands;
mod export;
mod files;
mod hold;
mod jobs;
mod limiter;
mod schedule;
mod sweep;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use energy_model::attribution::method::IdleMethod;
use energy_model::printable::printable_lines;
use energy_report::compare::{CompareOptions, Comparison, RunGroup, chart, compare, render};
use energy_report::run::{Run, Work};
use energy_report::sweep::Objective;

use self::hold::HeldClock;
use self::jobs::{JobCut, JobTurns};
use self::sweep::{Sweep, Swept, costs};
use crate::cli::measure::CommandMeters;
use crate::config::{
    CompareArgs, CompareFormat, Cooldown, JobArgs, Login, MeasureArgs, NodeLabels, RunOutput, WaitFor,
};
use crate::signals;

/// Exit code of wrong usage, as clap has it.
const USAGE: u8 = 2;
/// Exit code where nothing was measured, or what was cannot be compared.
const NOT_MEASURED: u8 = 3;

/// What the arguments ask for.
enum CompareMode {
    Files,
    /// Lines for the shell, and how often each is measured.
    Commands(Vec<String>, u32),
    /// How often each setting is measured.
    Sweep(u32),
    /// The file with the job, and how often it runs on each kind of nodes.
    Jobs(PathBuf, u32),
}

/// What came of it: something to print, or an exit code whose reason is printed.
enum Compared {
    Text(String),
    Code(ExitCode),
}

/// Measures, compares and prints. Exit code 2: wrong usage. 3: nothing was measured, or the runs cannot be compared. A job that
/// did not complete: as `measure --job`.
///
/// # Errors
/// When the result cannot be written.
pub fn run(arguments: &CompareArgs) -> Result<ExitCode> {
    let wanted = match wanted(arguments) {
        Ok(wanted) => wanted,
        Err(problem) => return Ok(failed(&problem, USAGE)),
    };
    let compared = files::options(&arguments.money).and_then(|options| {
        let options = CompareOptions { same_work: arguments.same_work, whole_node: arguments.whole_node, ..options };
        match wanted {
            CompareMode::Files => of_files(arguments, &options),
            CompareMode::Commands(lines, runs) => of_commands(arguments, &lines, runs, options),
            CompareMode::Sweep(runs) => of_sweep(arguments, runs, &options),
            CompareMode::Jobs(file, runs) => return of_jobs(arguments, &file, runs, &options),
        }
        .map(Compared::Text)
    });
    match compared {
        Ok(Compared::Text(text)) => print(&text),
        Ok(Compared::Code(code)) => Ok(code),
        Err(error) => Ok(failed(&format!("{error:#}"), NOT_MEASURED)),
    }
}

fn wanted(arguments: &CompareArgs) -> Result<CompareMode, String> {
    let CompareArgs { what, runs, sweep, .. } = arguments;
    if let (Some(file), Some(runs)) = (&arguments.job.job, runs) {
        let is_double = |(number, labels): (usize, &NodeLabels)| arguments.on[..number].contains(labels);
        return match arguments.on.iter().enumerate().find(|it| is_double(*it)) {
            Some((_, double)) => Err(format!("--on {double} is given twice; name other nodes")),
            None if arguments.on.len() < 2 => {
                Err("--job needs two --on at least: compare -r 3 --job job.yaml --on LABEL=A --on LABEL=B".to_owned())
            }
            None => Ok(CompareMode::Jobs(file.clone(), *runs)),
        };
    }
    match (sweep.is_wanted(), runs) {
        (true, Some(_)) if what.is_empty() => {
            Err("a sweep needs a command: compare -r 3 --gpu-clocks 600..1980/8 -- COMMAND".to_owned())
        }
        (true, Some(runs)) => Ok(CompareMode::Sweep(*runs)),
        (false, Some(runs)) => {
            let lines: Option<Vec<String>> = what.iter().map(|line| line.to_str().map(str::to_owned)).collect();
            match lines {
                Some(lines) if lines.len() >= 2 => Ok(CompareMode::Commands(lines, *runs)),
                Some(_) => {
                    Err("--runs needs two commands at least, each in quotes: compare -r 5 'CMD A' 'CMD B'".to_owned())
                }
                None => Err("a command is not UTF-8".to_owned()),
            }
        }
        (_, None) if what.is_empty() => {
            Err("name run files, or commands with --runs: compare a.json b.json; compare -r 5 'CMD A' 'CMD B'"
                .to_owned())
        }
        (_, None) => Ok(CompareMode::Files),
    }
}

fn of_files(arguments: &CompareArgs, options: &CompareOptions) -> Result<String> {
    let groups = files::groups(&arguments.what, arguments.by.as_deref())?;
    export_profile(arguments, groups.iter().flat_map(|group| &group.runs))?;
    let mut text = shown(arguments, &groups, options)?;
    if let Some(objective) = arguments.sweep.best {
        let best = best(&groups, objective, options)?;
        add(arguments, &mut text, &best_line(objective, &groups[best]));
    }
    Ok(text)
}

fn of_commands(arguments: &CompareArgs, lines: &[String], runs: u32, options: CompareOptions) -> Result<String> {
    let ended = signals::end()?;
    let mut meters = meters(arguments)?;
    let groups = commands::measure_all(lines, runs, seed(arguments), &ended, &mut |argv, labels| {
        meters.once(&measured(arguments, argv, labels))
    })?;
    save(arguments, &groups)?;
    export_profile(arguments, groups.iter().flat_map(|group| &group.runs))?;
    // Whoever puts commands side by side says that they do the same.
    let options = CompareOptions { same_work: true, ..options };
    shown(arguments, &groups, &options)
}

fn of_jobs(arguments: &CompareArgs, file: &Path, runs: u32, options: &CompareOptions) -> Result<Compared> {
    let turns = JobTurns {
        file,
        job: &arguments.job,
        login: &arguments.login,
        on: &arguments.on,
        rounds: runs,
        seed: seed(arguments),
        work: arguments.work.map(|amount| Work { amount, unit: arguments.work_unit.clone() }),
    };
    let groups = match turns.measure_all(&mut |groups| save(arguments, groups)) {
        Ok(groups) => groups,
        Err(JobCut::Problem(problem)) => return Ok(Compared::Code(problem.end())),
        Err(JobCut::Ended(why, code)) => return Ok(Compared::Code(failed(&why, code))),
    };
    export_profile(arguments, groups.iter().flat_map(|group| &group.runs))?;
    shown(arguments, &groups, options).map(Compared::Text)
}

fn of_sweep(arguments: &CompareArgs, runs: u32, options: &CompareOptions) -> Result<String> {
    let ended = signals::end()?;
    let flags = &arguments.sweep;
    let sweep = Sweep {
        host: &arguments.host,
        gpu: flags.on_gpu.as_deref(),
        resources_socket: &flags.resources_socket,
        clocks: flags.gpu_clocks,
        power: flags.gpu_power,
        rounds: runs,
        objective: flags.best.unwrap_or(Objective::Energy),
        refine: flags.refine,
        seed: seed(arguments),
        options,
    };
    let mut meters = meters(arguments)?;
    let swept = sweep.run(&ended, &mut |labels| meters.once(&measured(arguments, &arguments.what, labels)))?;
    save(arguments, &swept.groups)?;
    let best = best(&swept.groups, sweep.objective, options)?;
    export_profile(arguments, &swept.groups[best].runs)?;
    let mut text = shown(arguments, &swept.groups, options)?;
    add(arguments, &mut text, &advice(&sweep, &swept, best));
    Ok(text)
}

/// The group that an objective chooses.
fn best(groups: &[RunGroup], objective: Objective, options: &CompareOptions) -> Result<usize> {
    let costs = costs(groups, objective, options);
    let known = costs.iter().enumerate().filter_map(|(place, cost)| Some((place, (*cost)?)));
    known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(place, _)| place).context("no energy was measured")
}

fn best_line(objective: Objective, group: &RunGroup) -> String {
    format!("\nBest ({}): {}\n", objective.text(), group.name)
}

/// Adds lines for people; another format is read by a program.
fn add(arguments: &CompareArgs, text: &mut String, lines: &str) {
    let lines = format!("{}\n", printable_lines(lines));
    if arguments.format == CompareFormat::Table { text.push_str(&lines) } else { eprint!("{lines}") }
}

/// Which setting is best, and how it is held.
fn advice(sweep: &Sweep<'_>, swept: &Swept, best: usize) -> String {
    let group = &swept.groups[best];
    let setting = swept.settings[best];
    let mut text = best_line(sweep.objective, group);
    let Some(point) = HeldClock::of(setting, &group.runs) else { return text };
    let others = swept.settings.iter().zip(&swept.groups).filter(|(other, _)| other.power_mw == setting.power_mw);
    let points = others.filter_map(|(other, group)| HeldClock::of(*other, &group.runs)).collect();
    text.push_str(&format!(
        "\nTo hold it for a command on this machine, lock the clock and tell the agent so:\n  \
         nvidia-smi --id={gpu} --lock-gpu-clocks=0,{mhz}\n  energy-agent run --capping.gpu-clock-before={gpu}=0-{mhz}\n\
         \nTo hold it for pods, save this policy as clock.yaml, name the pods, and start the agent with --capping=on \
         --capping.policy=clock.yaml:\n\n{policy}",
        gpu = swept.gpu,
        mhz = point.clock_mhz,
        policy = hold::policy(point, points)
    ));
    text
}

/// The comparison as text, and its picture if that is asked for.
fn shown(arguments: &CompareArgs, groups: &[RunGroup], options: &CompareOptions) -> Result<String> {
    let comparison = compare(groups, options).map_err(anyhow::Error::msg)?;
    if let Some(path) = &arguments.svg {
        let drawn = chart::svg(&comparison, "Energy over time")
            .context("fewer than two groups have time and energy to draw")?;
        write(path, &drawn)?;
    }
    text(&comparison, arguments.format)
}

fn seed(arguments: &CompareArgs) -> u64 {
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    eprintln!("the order is that of --seed {seed}");
    seed
}

/// Writes the runs to the file of --json.
fn save(arguments: &CompareArgs, groups: &[RunGroup]) -> Result<()> {
    let Some(path) = &arguments.json else { return Ok(()) };
    let mut runs: Vec<&Run> = groups.iter().flat_map(|group| &group.runs).collect();
    runs.sort_by(|a, b| a.start.total_cmp(&b.start));
    write(path, &format!("{}\n", serde_json::to_string_pretty(&runs)?))
}

fn export_profile<'a>(arguments: &CompareArgs, runs: impl IntoIterator<Item = &'a Run>) -> Result<()> {
    match &arguments.export_profile {
        Some(path) => write(path, &export::config_map(runs)?),
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn text(comparison: &Comparison, format: CompareFormat) -> Result<String> {
    Ok(match format {
        // Names are somebody else's.
        CompareFormat::Table => format!("{}\n", printable_lines(&render::table(comparison))),
        CompareFormat::Markdown => format!("{}\n", printable_lines(&render::markdown(comparison))),
        CompareFormat::Csv => render::csv(comparison),
        CompareFormat::Json => format!("{}\n", serde_json::to_string_pretty(comparison)?),
    })
}

fn failed(problem: &str, code: u8) -> ExitCode {
    eprintln!("error: {}", printable_lines(problem));
    ExitCode::from(code)
}

fn print(text: &str) -> Result<ExitCode> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever read the lines has enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn meters(arguments: &CompareArgs) -> Result<CommandMeters> {
    CommandMeters::open(&measured(arguments, &[], &BTreeMap::new()))
}

/// How a command is measured, and its labels.
fn measured(arguments: &CompareArgs, command: &[OsString], labels: &BTreeMap<String, String>) -> MeasureArgs {
    MeasureArgs {
        runs: 1,
        warmups: 0,
        prepare: None,
        cooldown: Cooldown::Time(Duration::ZERO),
        output: RunOutput::default(),
        labels: labels.clone().into_iter().collect(),
        work: arguments.work,
        work_unit: arguments.work_unit.clone(),
        record_command: arguments.record_command,
        wait: WaitFor::Command,
        idle: IdleMethod::Learned,
        agent: None,
        host: arguments.host.clone(),
        command: command.to_vec(),
        login: Login::default(),
        job: JobArgs::default(),
    }
}
