//! The flags of `energy-agent compare`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Run files (JSON) that `measure` or `report` has written. A file may hold one run or a list of runs.
    #[arg(required = true, value_name = "FILE")]
    pub what: Vec<OsString>,
    /// Group runs by this label. `gpu` is the model of the GPUs; `node`, `name` and `class` are known without a label. Default:
    /// the runs of a file are a group.
    ///
    /// The first group is what the others are compared with.
    #[arg(long = "by", value_name = "LABEL")]
    pub by: Option<String>,
    /// Format of standard output.
    #[arg(long = "format", value_enum, default_value_t = CompareFormat::Table, value_name = "FORMAT")]
    pub format: CompareFormat,
    /// Draw the groups over time and energy to this file (SVG), with the Pareto front and 95 % intervals.
    #[arg(long = "svg", value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write a ConfigMap with energy and time of each class of work on each model of GPU, for a scheduler.
    #[arg(long = "export-profile", value_name = "FILE")]
    pub export_profile: Option<PathBuf>,
    /// The runs did the same work, although their commands, images or amounts of work differ.
    #[arg(long = "same-work")]
    pub same_work: bool,
    /// Compare what the whole nodes used during the runs, idle energy included. The node should do nothing else.
    #[arg(long = "whole-node")]
    pub whole_node: bool,
    #[command(flatten)]
    pub money: Money,
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

fn not_negative(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number, such as 0.30".to_owned())?;
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err("expected a number from 0 on".to_owned()) }
}
