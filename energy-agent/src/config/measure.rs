//! The flags of `energy-agent measure`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use energy_host::config::HostConfig;
use energy_model::attribution::method::IdleMethod;

use super::measure_job::JobArgs;
use super::{Login, RunOutput};

#[derive(Debug, Args)]
#[command(
    mut_arg("json", |flag| flag.short('o').help(JSON)),
    mut_arg("job", |flag| flag.conflicts_with_all(["command", "warmups", "prepare", "cooldown", "record_command", "wait"])),
    mut_arg("format", |flag| flag.help("How to print the figures: to standard error, and those of --job to standard output")),
    mut_arg("html", |flag| flag.help("Also write a page with the figures and the plots, without script; one for each run")),
    mut_arg("svg", |flag| flag.help("Also write the plots alone; one file for each run")),
    mut_arg("price_per_kwh", |flag| flag.requires("job")),
    mut_arg("gco2_per_kwh", |flag| flag.requires("job")),
    mut_arg("pue", |flag| flag.requires("job")),
    mut_arg("interval", |flag| flag.default_value("100ms")),
    mut_arg("run_directory", |flag| flag.hide(true)),
    mut_arg("process_max", |flag| flag.hide(true)),
    mut_arg("gpu_clock_before", |flag| flag.hide(true)),
    mut_arg("map_entries", |flag| flag.hide(true)),
)]
pub struct MeasureArgs {
    /// Measured runs, one after the other.
    #[arg(short = 'r', long = "runs", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: u32,
    /// Runs before them whose figures do not count.
    #[arg(short = 'w', long = "warmups", default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub warmups: u32,
    /// Shell command before each run. It is not measured, and what it prints goes to standard error.
    #[arg(long = "prepare", value_name = "COMMAND")]
    pub prepare: Option<OsString>,
    /// Pause between two runs: a duration, or `temp`: until no GPU is more than 2 degrees warmer than before the first run,
    /// for 30 s at most.
    #[arg(long = "cooldown", default_value = "0s", value_parser = cooldown, value_name = "DURATION|temp")]
    pub cooldown: Cooldown,
    #[command(flatten)]
    pub output: RunOutput,
    /// Label of the runs, by which `compare --by` groups them; may be given several times.
    #[arg(long = "label", value_parser = label, value_name = "KEY=VALUE")]
    pub labels: Vec<(String, String)>,
    /// The work that one run does, for joules per unit of it.
    #[arg(long = "work", value_parser = work, value_name = "N")]
    pub work: Option<f64>,
    /// What the work is counted in, as in `images`.
    #[arg(long = "work-unit", requires = "work", default_value = "units", value_name = "UNIT")]
    pub work_unit: String,
    /// Keep the command line in the file. It may hold secrets, so only its digest is kept without this flag. The environment
    /// is never kept.
    #[arg(long = "record-command")]
    pub record_command: bool,
    /// When a run ends. `command`: with the command; processes that it leaves behind are killed. `children`: with the last
    /// process that it left behind.
    #[arg(long = "wait", value_enum, default_value_t = WaitFor::Command, value_name = "FOR")]
    pub wait: WaitFor,
    /// How idle power is separated from active power, as for `run`.
    #[arg(long = "attribution.idle", env = "ENERGY_AGENT_ATTRIBUTION_IDLE", value_enum, default_value_t = IdleMethod::Learned, value_name = "METHOD")]
    pub idle: IdleMethod,
    /// Running agent of this machine to measure with, in place of meters of its own: HOST:PORT or a URL. Then root is not needed:
    /// the command runs in a scope that the systemd of the user makes. The agent's interval bounds the detail.
    #[arg(long = "agent", conflicts_with = "job", value_name = "ADDRESS")]
    pub agent: Option<String>,
    #[command(flatten)]
    pub host: HostConfig,
    /// The command and its arguments. No shell reads them.
    #[arg(last = true, required_unless_present = "job", value_name = "COMMAND")]
    pub command: Vec<OsString>,
    #[command(flatten)]
    pub login: Login,
    #[command(flatten)]
    pub job: JobArgs,
}

/// What `--json` is for here.
const JSON: &str =
    "File for the figures (energy-agent.io/run/v1): one run, or a list of several. `report` and `compare` read it";

/// The pause between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cooldown {
    Time(Duration),
    Temperature,
}

/// What the end of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    Command,
    Children,
}

fn cooldown(text: &str) -> Result<Cooldown, String> {
    if text == "temp" {
        return Ok(Cooldown::Temperature);
    }
    let time = humantime::parse_duration(text);
    time.map(Cooldown::Time).map_err(|error| format!("{error}; expected a duration such as 10s, or temp"))
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as branch=main".to_owned()),
    }
}

fn work(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number, such as 50000".to_owned())?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err("expected a number above 0".to_owned()) }
}
