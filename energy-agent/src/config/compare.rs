//! The flags of `energy-agent compare`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use energy_host::config::HostConfig;
use energy_report::sweep::{Objective, SweepRange};

#[derive(Debug, Args)]
#[command(
    mut_arg("interval", |flag| flag.default_value("100ms")),
    mut_arg("run_directory", |flag| flag.hide(true)),
    mut_arg("process_max", |flag| flag.hide(true)),
    mut_arg("map_entries", |flag| flag.hide(true)),
)]
pub struct CompareArgs {
    /// Run files (JSON) that `measure`, `report` or `compare` has written; a file may hold one run or a list of runs. With --runs:
    /// commands, each a line for the shell. With a sweep: one command with its arguments, after --.
    #[arg(value_name = "FILE|COMMAND")]
    pub what: Vec<OsString>,
    /// Measure commands, each so many times: one after the other in an order that is shuffled in each round.
    #[arg(short = 'r', long = "runs", value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    pub runs: Option<u32>,
    /// Begins the shuffled order. Default: another one each time; it is printed, and in the runs' label `seed`.
    #[arg(long = "seed", requires = "runs", value_name = "N")]
    pub seed: Option<u64>,
    /// Group runs by this label. `gpu` is the model of the GPUs; `node`, `name` and `class` are known without a label. Default:
    /// the runs of a file are a group.
    ///
    /// The first group is what the others are compared with.
    #[arg(long = "by", conflicts_with = "runs", value_name = "LABEL")]
    pub by: Option<String>,
    /// Format of standard output.
    #[arg(long = "format", value_enum, default_value_t = CompareFormat::Table, value_name = "FORMAT")]
    pub format: CompareFormat,
    /// Write all runs that are measured to this file.
    #[arg(long = "json", requires = "runs", value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the groups over time and energy to this file (SVG), with the Pareto front and 95 % intervals.
    #[arg(long = "svg", value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write a ConfigMap with energy and time of each class of work on each model of GPU, for a scheduler. After a sweep: of the
    /// best setting.
    #[arg(long = "export-profile", value_name = "FILE")]
    pub export_profile: Option<PathBuf>,
    /// The runs did the same work, although their commands, images or amounts of work differ.
    #[arg(long = "same-work")]
    pub same_work: bool,
    /// Compare what the whole nodes used during the runs, idle energy included. The node should do nothing else.
    #[arg(long = "whole-node")]
    pub whole_node: bool,
    /// The work that one run does, for joules per unit of it.
    #[arg(long = "work", requires = "runs", value_parser = above_zero, value_name = "N")]
    pub work: Option<f64>,
    /// What the work is counted in, as in `images`.
    #[arg(long = "work-unit", requires = "work", default_value = "units", value_name = "UNIT")]
    pub work_unit: String,
    /// Keep the command lines in the file of --json. They may hold secrets, so only their digests are kept without this flag.
    #[arg(long = "record-command", requires = "runs")]
    pub record_command: bool,
    #[command(flatten)]
    pub sweep: SweepArgs,
    #[command(flatten)]
    pub money: Money,
    #[command(flatten)]
    pub host: HostConfig,
}

/// A command at several clocks or power limits of a GPU.
#[derive(Clone, Debug, Args)]
pub struct SweepArgs {
    /// Sweep over this many GPU clocks from LOW to HIGH in MHz, such as 600..1980/8.
    ///
    /// The clocks are locked through the agent's journal, so that they are restored after any end (`energy-agent restore` after a
    /// kill). Refused while an agent caps on this node, another process uses the GPU, or it is in MIG mode.
    #[arg(long = "gpu-clocks", requires = "runs", value_name = "LOW..HIGH/N")]
    pub gpu_clocks: Option<SweepRange>,
    /// Sweep over this many power limits in watts. With --gpu-clocks: over each with each.
    #[arg(long = "gpu-power", requires = "runs", value_name = "LOW..HIGH/N")]
    pub gpu_power: Option<SweepRange>,
    /// The GPU to sweep, by UUID or index. Default: the only one.
    #[arg(long = "on-gpu", value_name = "GPU")]
    pub on_gpu: Option<String>,
    /// What is best: energy, edp (energy times time), time, or slowdown:FACTOR, the least energy at up to FACTOR times the time
    /// without a limit.
    #[arg(long = "best", default_value = "energy", value_name = "OBJECTIVE")]
    pub best: Objective,
    /// Go on between the clocks beside the best one, by the golden section, down to one step of the GPU.
    #[arg(long = "refine", requires = "gpu_clocks")]
    pub refine: bool,
}

impl SweepArgs {
    #[must_use]
    pub const fn is_wanted(&self) -> bool {
        self.gpu_clocks.is_some() || self.gpu_power.is_some()
    }
}

/// What energy and hardware cost.
#[derive(Clone, Debug, Default, Args)]
pub struct Money {
    /// File (YAML or JSON) with prices of an hour of hardware: `perHour` by GPU model or by LABEL=VALUE, and `currency`.
    #[arg(long = "prices", value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// Price of a kilowatt hour.
    #[arg(long = "price-per-kwh", value_name = "PRICE", value_parser = not_negative)]
    pub price_per_kwh: Option<f64>,
    /// Currency of both prices, as it is printed.
    #[arg(long = "currency", value_name = "CODE")]
    pub currency: Option<String>,
    /// Carbon intensity of the electricity: grams of CO2 equivalent per kilowatt hour.
    #[arg(long = "gco2-per-kwh", value_name = "GRAMS", value_parser = not_negative)]
    pub grams_per_kwh: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompareFormat {
    Table,
    Json,
    Csv,
    /// For a pull request.
    Markdown,
}

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("expected a number above 0".to_owned()),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number, such as 0.30".to_owned())?;
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err("expected a number from 0 on".to_owned()) }
}
