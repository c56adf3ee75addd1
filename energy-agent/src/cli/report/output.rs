//! A run as the user wants to see it: printed, and written to files.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use energy_model::printable::printable_lines;
use energy_report::csv::csv;
use energy_report::figures::Tariff;
use energy_report::markdown::markdown;
use energy_report::page::{page, plots};
use energy_report::run::Run;
use energy_report::table::table;

use crate::cli::run_problem::RunProblem;
use crate::config::{RunFormat, RunOutput};

/// Adds the costs that were asked for, prints the run and writes its files.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(run: &mut Run, output: &RunOutput) -> Result<(), RunProblem> {
    let RunOutput { price_per_kwh, currency, gco2_per_kwh, pue, .. } = output.clone();
    run.price(&Tariff { pue, per_kwh: price_per_kwh, currency, gco2_per_kwh });
    let json = run.to_json().map_err(|error| RunProblem::NotMeasured(format!("the run as JSON: {error}")))?;
    if let Some(file) = &output.json {
        save(file, &json)?;
    }
    if let Some(file) = &output.html {
        save(file, &page(run))?;
    }
    if let Some(file) = &output.svg {
        let plots = plots(run).ok_or_else(|| {
            let text = "the run has too few readings for a plot; scrape more often, or measure for longer";
            RunProblem::NotMeasured(format!("{}: {text}", file.display()))
        })?;
        save(file, &plots)?;
    }
    print(&match output.format {
        RunFormat::Table => printable_lines(&table(run)) + "\n",
        RunFormat::Json => json,
        RunFormat::Csv => csv(run),
        RunFormat::Markdown => markdown(run),
    })
}

/// Prints a text; a reader that has enough is no error.
pub(crate) fn print(text: &str) -> Result<(), RunProblem> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(RunProblem::NotMeasured(format!("writing to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn save(file: &Path, text: &str) -> Result<(), RunProblem> {
    fs::write(file, text).map_err(|error| RunProblem::NotMeasured(format!("writing {}: {error}", file.display())))
}
