//! `energy-agent compare`: runs side by side, and what can be said about the difference. Saved runs, commands that are measured in
//! turns, one command at several clocks of a GPU, or one job on several kinds of nodes.

mod allocation;
mod commands;
mod export;
mod files;
mod hold;
mod jobs;
mod limiter;
mod runs_file;
mod schedule;
mod sweep;

use std::collections::BTreeMap;
use std::ffi::OsString;
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
use self::runs_file::RunsFile;
use self::sweep::{Sweep, Swept};
use crate::cli::measure::CommandMeters;
use crate::cli::report::output;
use crate::cli::run_problem::RunProblem;
use crate::cli::writable::{self, write};
use crate::config::{
    CompareArgs, CompareFormat, Cooldown, JobArgs, Login, MeasureArgs, NodeLabels, RunOutput, WaitFor,
};
use crate::signals;

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

/// Measures, compares and prints. Exit code 2: wrong usage. 3: nothing was measured, or the runs cannot be compared. A job that
/// did not complete: as `measure --job`. After a signal: 128 and its number.
#[must_use]
pub fn run(arguments: &CompareArgs) -> ExitCode {
    compared(arguments).unwrap_or_else(|problem| problem.end())
}

fn compared(arguments: &CompareArgs) -> Result<ExitCode, RunProblem> {
    let wanted = wanted(arguments).map_err(RunProblem::Usage)?;
    for file in [&arguments.json, &arguments.svg, &arguments.export_profile].into_iter().flatten() {
        writable::check(file)?;
    }
    let options = files::options(&arguments.money)?;
    let options = CompareOptions { same_work: arguments.same_work, whole_node: arguments.whole_node, ..options };
    match wanted {
        CompareMode::Files => of_files(arguments, &options),
        CompareMode::Commands(lines, runs) => of_commands(arguments, &lines, runs, options),
        CompareMode::Sweep(runs) => of_sweep(arguments, runs, &options),
        CompareMode::Jobs(file, runs) => return of_jobs(arguments, &file, runs, &options),
    }
    .map(|()| ExitCode::SUCCESS)
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
        (false, Some(_)) if arguments.export_profile.is_some() => {
            Err("--export-profile has to know the class of each command: measure each with `measure --label class=NAME -o FILE`, \
                 then run `compare --export-profile` over these files"
                .to_owned())
        }
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

fn of_files(arguments: &CompareArgs, options: &CompareOptions) -> Result<(), RunProblem> {
    finish(arguments, &files::groups(&arguments.what, arguments.by.as_deref())?, options)
}

fn of_commands(
    arguments: &CompareArgs,
    lines: &[String],
    runs: u32,
    options: CompareOptions,
) -> Result<(), RunProblem> {
    let file = RunsFile(arguments.json.as_deref());
    let ended = signals::end()?;
    let mut meters = meters(arguments)?;
    let measure = &mut |argv: &[OsString], labels: &_| meters.once(&measured(arguments, argv, labels));
    let groups = commands::measure_all(lines, runs, seed(arguments), &ended, measure, file)?;
    file.save(&groups)?;
    // Whoever puts commands side by side says that they do the same.
    finish(arguments, &groups, &CompareOptions { same_work: true, ..options })
}

fn of_jobs(arguments: &CompareArgs, file: &Path, runs: u32, options: &CompareOptions) -> Result<ExitCode, RunProblem> {
    let turns = JobTurns {
        file,
        job: &arguments.job,
        login: &arguments.login,
        on: &arguments.on,
        rounds: runs,
        seed: seed(arguments),
        work: arguments.work.map(|amount| Work { amount, unit: arguments.work_unit.clone() }),
    };
    let runs_file = RunsFile(arguments.json.as_deref());
    let groups = match turns.measure_all(runs_file) {
        Ok(groups) => groups,
        Err(JobCut::Problem(problem)) => return Err(problem),
        Err(JobCut::Ended(why, code)) => {
            eprintln!("error: {}", printable_lines(&why));
            return Ok(ExitCode::from(code));
        }
    };
    runs_file.save(&groups)?;
    finish(arguments, &groups, options).map(|()| ExitCode::SUCCESS)
}

fn of_sweep(arguments: &CompareArgs, runs: u32, options: &CompareOptions) -> Result<(), RunProblem> {
    let file = RunsFile(arguments.json.as_deref());
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
    let measure = &mut |labels: &_| meters.once(&measured(arguments, &arguments.what, labels));
    let swept = sweep.run(&ended, measure, file)?;
    file.save(&swept.groups)?;
    let comparison = shown(arguments, &swept.groups, options)?;
    let best = best(&comparison, sweep.objective)?;
    say(arguments, &advice(&sweep, &swept, best))?;
    draw(arguments, &comparison)?;
    export_profile(arguments, &swept.groups[best].runs)
}

/// Prints the comparison, then writes its files: what is printed is not lost with one of them.
fn finish(arguments: &CompareArgs, groups: &[RunGroup], options: &CompareOptions) -> Result<(), RunProblem> {
    let comparison = shown(arguments, groups, options)?;
    if let Some(objective) = arguments.sweep.best {
        say(arguments, &best_line(objective, &groups[best(&comparison, objective)?]))?;
    }
    draw(arguments, &comparison)?;
    export_profile(arguments, groups.iter().flat_map(|group| &group.runs))
}

/// The group that an objective chooses.
fn best(comparison: &Comparison, objective: Objective) -> Result<usize, RunProblem> {
    comparison.best(objective).ok_or_else(|| {
        let why = if comparison.same_work {
            "no energy that can be compared was measured"
        } else {
            "the runs did different work"
        };
        RunProblem::NotMeasured(format!("no group is the best ({}): {why}", objective.text()))
    })
}

fn best_line(objective: Objective, group: &RunGroup) -> String {
    format!("\nBest ({}): {}\n", objective.text(), group.name)
}

/// Prints lines for people; another format is read by a program.
fn say(arguments: &CompareArgs, lines: &str) -> Result<(), RunProblem> {
    let lines = format!("{}\n", printable_lines(lines));
    if arguments.format == CompareFormat::Table {
        return output::print(&lines);
    }
    eprint!("{lines}");
    Ok(())
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

/// Compares, and prints the result.
fn shown(arguments: &CompareArgs, groups: &[RunGroup], options: &CompareOptions) -> Result<Comparison, RunProblem> {
    let comparison = compare(groups, options).map_err(RunProblem::NotMeasured)?;
    output::print(&text(&comparison, arguments.format)?)?;
    Ok(comparison)
}

/// The picture, if that is asked for.
fn draw(arguments: &CompareArgs, comparison: &Comparison) -> Result<(), RunProblem> {
    let Some(path) = &arguments.svg else { return Ok(()) };
    let drawn = chart::svg(comparison, "Energy over time")
        .context("fewer than two groups have time and energy that can be compared, so there is nothing to draw")?;
    write(path, &drawn)
}

fn seed(arguments: &CompareArgs) -> u64 {
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    eprintln!("the order is that of --seed {seed}");
    seed
}

fn export_profile<'a>(arguments: &CompareArgs, runs: impl IntoIterator<Item = &'a Run>) -> Result<(), RunProblem> {
    match &arguments.export_profile {
        Some(path) => write(path, &export::config_map(runs)?),
        None => Ok(()),
    }
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
