//! Run files and the file of prices, read and grouped.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use energy_report::compare::prices::HourlyPrices;
use energy_report::compare::{CompareOptions, RunGroup};
use energy_report::run::Run;

use crate::cli::run_problem::RunProblem;
use crate::config::Money;

/// A run of a day with ten curves of a second has some 20 MB.
const MAX_RUN_BYTES: u64 = 256 << 20;
const MAX_PRICES_BYTES: u64 = 1 << 20;

/// Groups the runs of files: by a label, or by file.
///
/// # Errors
/// Usage, when a file cannot be read or is no run file. Else when a run lacks the label, or there is one group.
pub(super) fn groups(files: &[OsString], by: Option<&str>) -> Result<Vec<RunGroup>, RunProblem> {
    let names = names(files);
    let mut runs = Vec::new();
    for (file, name) in files.iter().zip(names) {
        let path = Path::new(file);
        for run in read(path).map_err(usage)? {
            let group = match by {
                None => name.clone(),
                Some(by) => run.group(by).with_context(|| {
                    format!(
                        "{}: a run has no label {by:?}; add it with --label {by}=VALUE when you measure",
                        path.display()
                    )
                })?,
            };
            runs.push((group, run));
        }
    }
    let groups = RunGroup::by(runs);
    if groups.len() < 2 {
        let only = groups.first().map(|group| group.name.as_str()).unwrap_or_default();
        return Err(RunProblem::NotMeasured(format!(
            "all runs are of one group ({only}), so there is nothing to compare; name another file or another --by LABEL"
        )));
    }
    Ok(groups)
}

/// Names of files without folder and ending; whole where two would be equal.
fn names(files: &[OsString]) -> Vec<String> {
    let short = |file: &OsString| Path::new(file).file_stem().unwrap_or(file).to_string_lossy().into_owned();
    let different: BTreeSet<String> = files.iter().map(short).collect();
    let is_clear = different.len() == files.len();
    files.iter().map(|file| if is_clear { short(file) } else { file.to_string_lossy().into_owned() }).collect()
}

/// The runs of a file: one, or a list of them.
fn read(path: &Path) -> Result<Vec<Run>> {
    let place = || path.display().to_string();
    let runs = Run::parse_all(text(path, MAX_RUN_BYTES)?.as_bytes()).with_context(place)?;
    if !runs.iter().all(|run| run.start.is_finite() && run.end.is_finite() && run.end > run.start) {
        bail!("{}: a run ends before it starts", place());
    }
    Ok(runs)
}

fn usage(error: anyhow::Error) -> RunProblem {
    RunProblem::Usage(format!("{error:#}"))
}

/// Prices, and what a user says of energy.
///
/// # Errors
/// Usage, when the file of prices cannot be read, or names another currency.
pub(super) fn options(money: &Money) -> Result<CompareOptions, RunProblem> {
    let prices = money.prices.as_deref().map(prices).transpose().map_err(usage)?;
    let stated = prices.as_ref().map(|prices| prices.currency.clone()).filter(|currency| !currency.is_empty());
    let currency = match (&money.currency, stated) {
        (Some(flag), Some(file)) if *flag != file => {
            return Err(RunProblem::Usage(format!(
                "--currency is {flag:?} and the file of prices says {file:?}; a sum has one currency"
            )));
        }
        (flag, file) => flag.clone().or(file).unwrap_or_default(),
    };
    let (per_kwh, grams_per_kwh) = (money.price_per_kwh, money.grams_per_kwh);
    Ok(CompareOptions { prices, per_kwh, currency, grams_per_kwh, ..CompareOptions::default() })
}

fn prices(path: &Path) -> Result<HourlyPrices> {
    let place = path.display();
    let text = text(path, MAX_PRICES_BYTES)?;
    let prices: HourlyPrices = serde_saphyr::from_str(&text).map_err(|_| {
        anyhow::anyhow!(
            "{place}: not a file of prices; expected `currency: EUR` and `perHour: {{\"NVIDIA L4\": 0.71}}`"
        )
    })?;
    prices.check().map_err(anyhow::Error::msg).with_context(|| place.to_string())?;
    Ok(prices)
}

fn text(path: &Path, most: u64) -> Result<String> {
    let place = || path.display().to_string();
    let file = File::open(path).with_context(place)?;
    if !file.metadata().with_context(place)?.is_file() {
        bail!("{}: not a file", place());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).with_context(place)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most {
        bail!("{}: larger than {} MiB", place(), most >> 20);
    }
    String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{}: not UTF-8", place()))
}
