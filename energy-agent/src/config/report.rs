//! The flags of `report`, and those that other commands that end with a run share with it.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};

use super::login::Login;

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// What the report is of: `pod`, `job`, `namespace`, `unit` or `node` with a NAME, or a run file with
    /// one run or a list of them.
    #[arg(value_name = "KIND|FILE")]
    pub what: String,
    /// NAMESPACE/NAME of a pod or job; the name of a namespace, systemd unit or node.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Prometheus server that scrapes the agents, or one that is compatible; a path such as /prometheus may follow.
    #[arg(long = "prometheus", conflicts_with = "agent", value_name = "URL")]
    pub prometheus: Option<String>,
    /// Running agent to follow where there is no Prometheus: HOST:PORT or a URL. Default: 127.0.0.1:9102.
    #[arg(long = "agent", value_name = "ADDRESS")]
    pub agent: Option<String>,
    /// Beginning of the time to look at: an age such as 2h, or a time such as 2026-11-29T08:00:00Z. Default: 24h for a pod or
    /// job, which counts from its own beginning; 1h for all else.
    #[arg(long = "from", requires = "prometheus", value_parser = moment, value_name = "TIME")]
    pub from: Option<Moment>,
    /// End of it. Default: now.
    #[arg(long = "to", requires = "prometheus", value_parser = moment, value_name = "TIME")]
    pub to: Option<Moment>,
    /// How long to follow an agent. Default: until Ctrl-C, or until the pod has ended.
    #[arg(long = "for", conflicts_with = "prometheus", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub length: Option<Duration>,
    /// Which of several pods of one name.
    #[arg(long = "uid", value_name = "UID")]
    pub uid: Option<String>,
    /// Work that was done, for joules per unit of it.
    #[arg(long = "work", conflicts_with = "work_query", value_parser = positive, value_name = "N")]
    pub work: Option<f64>,
    /// What the work is counted in.
    #[arg(long = "work-unit", default_value = "units", value_name = "UNIT")]
    pub work_unit: String,
    /// PromQL query that gives the work as one number at the end of the run.
    #[arg(long = "work-query", requires = "prometheus", value_name = "PROMQL")]
    pub work_query: Option<String>,
    #[command(flatten)]
    pub output: RunOutput,
    #[command(flatten)]
    pub login: Login,
}

/// How a run is shown, and where it is written.
#[derive(Clone, Debug, Default, Args)]
pub struct RunOutput {
    /// How to print the run.
    #[arg(long = "format", value_enum, default_value_t = RunFormat::Table, value_name = "FORMAT")]
    pub format: RunFormat,
    /// Also write a page with the figures and the plots, without script. Of a list of runs: a page of each, FILE-1 and so on.
    #[arg(long = "html", value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Also write the plots alone. Of a list of runs: one file of each.
    #[arg(long = "svg", value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Also write the run file (docs/run-v1.schema.json), which `report` and `compare` read again.
    #[arg(long = "json", value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the energies as CSV.
    #[arg(long = "csv", value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Also write the figures as Markdown, for a pull request or an issue.
    #[arg(long = "markdown", value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Price of a kilowatt-hour, for the cost.
    #[arg(long = "price-per-kwh", value_parser = positive, value_name = "PRICE")]
    pub price_per_kwh: Option<f64>,
    /// Currency of the price, such as EUR.
    #[arg(long = "currency", requires = "price_per_kwh", value_name = "NAME")]
    pub currency: Option<String>,
    /// Grams of CO2 for a kilowatt-hour, for the emissions.
    #[arg(long = "gco2-per-kwh", value_parser = positive, value_name = "GRAMS")]
    pub gco2_per_kwh: Option<f64>,
    /// Energy of the building by that of the machine, for cost and emissions.
    #[arg(long = "pue", default_value_t = 1.0, value_parser = pue, value_name = "FACTOR")]
    pub pue: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RunFormat {
    #[default]
    Table,
    Json,
    Csv,
    Markdown,
}

/// A time as it is given: so long ago, or a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Ago(Duration),
    At(SystemTime),
}

impl Moment {
    /// Unix time, by a Unix time of now.
    #[must_use]
    pub fn unix(self, now: f64) -> f64 {
        match self {
            Self::Ago(age) => now - age.as_secs_f64(),
            Self::At(time) => time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        }
    }
}

fn moment(text: &str) -> Result<Moment, String> {
    if text == "now" {
        return Ok(Moment::Ago(Duration::ZERO));
    }
    let age = humantime::parse_duration(text).map(Moment::Ago);
    let date = || humantime::parse_rfc3339_weak(text).map(Moment::At);
    age.or_else(|_| date())
        .map_err(|_| "expected an age such as 2h, a time such as 2026-11-29T08:00:00Z, or now".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

fn pue(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 1.0);
    number.ok_or_else(|| "expected a number of 1 or more".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_an_age_or_a_date() {
        let unix = |text: &str| moment(text).unwrap().unix(10_000.0);
        assert_eq!((unix("now"), unix("2h"), unix("1970-01-01T00:01:00Z")), (10_000.0, 2800.0, 60.0));
        assert!(moment("yesterday").is_err());
        for text in ["0", "-1", "nan", "inf", "x"] {
            assert!(positive(text).is_err() && pue(text).is_err(), "{text}");
        }
    }
}
