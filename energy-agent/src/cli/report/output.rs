//! Runs as the user wants to see them: printed, and written to files.

use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use energy_model::printable::printable_lines;
use energy_report::csv::csv;
use energy_report::figures::Tariff;
use energy_report::markdown::markdown;
use energy_report::page::{page, plots};
use energy_report::run::Run;
use energy_report::table::table;

use crate::cli::run_problem::RunProblem;
use crate::cli::writable;
use crate::config::{RunFormat, RunOutput};

/// Adds the costs that were asked for, prints the runs and writes their files. `is_list`: more than one was asked for.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(runs: &mut [Run], is_list: bool, output: &RunOutput) -> Result<(), RunProblem> {
    if runs.is_empty() {
        return Ok(());
    }
    let RunOutput { price_per_kwh, currency, gco2_per_kwh, pue, .. } = output.clone();
    let tariff = Tariff { pue, per_kwh: price_per_kwh, currency, gco2_per_kwh };
    runs.iter_mut().for_each(|run| run.price(&tariff));
    let each = |text: fn(&Run) -> String| runs.iter().map(text).collect::<Vec<_>>().join("\n");
    // What is printed is not lost with a file that cannot be written.
    print(&match output.format {
        RunFormat::Table => each(|run| printable_lines(&table(run)) + "\n"),
        RunFormat::Json => json(runs, is_list)?,
        RunFormat::Csv => csv(runs),
        RunFormat::Markdown => each(markdown),
    })?;
    files(runs, is_list, &each(markdown), output)
}

/// Looks whether the files can be written, before something is measured that is to be in them.
///
/// # Errors
/// When one cannot be.
pub(crate) fn check(output: &RunOutput, is_list: bool) -> Result<(), RunProblem> {
    let RunOutput { json, csv, markdown, html, svg, .. } = output;
    let of_all = [json, csv, markdown].into_iter().flatten().cloned();
    let of_each = [html, svg].into_iter().flatten().map(|file| if is_list { numbered(file, 1) } else { file.clone() });
    of_all.chain(of_each).try_for_each(|file| writable::check(&file))
}

/// Writes the files: a run file, a table of CSV and one of Markdown hold all runs, a page or picture is of one. One that cannot be
/// written keeps no other from it.
///
/// # Errors
/// When one cannot be written.
pub(crate) fn files(runs: &[Run], is_list: bool, markdown: &str, output: &RunOutput) -> Result<(), RunProblem> {
    let mut problems = Vec::new();
    let mut keep = |file: &Path, text: Result<String, RunProblem>| {
        let written = text.and_then(|text| writable::write(file, &text));
        problems.extend(written.err().map(|problem| problem.to_string()));
    };
    if let Some(file) = &output.json {
        keep(file, json(runs, is_list));
    }
    if let Some(file) = &output.csv {
        keep(file, Ok(csv(runs)));
    }
    if let Some(file) = &output.markdown {
        keep(file, Ok(markdown.to_owned()));
    }
    for (number, run) in (1..).zip(runs) {
        let of_run = |file: &Option<PathBuf>| {
            let file = file.as_deref()?;
            Some(if is_list { numbered(file, number) } else { file.to_owned() })
        };
        if let Some(file) = of_run(&output.html) {
            keep(&file, Ok(page(run)));
        }
        if let Some(file) = of_run(&output.svg) {
            let plots = plots(run).ok_or_else(|| {
                let text = "the run has too few readings for a plot; scrape more often, or measure for longer";
                RunProblem::NotMeasured(format!("{}: {text}", file.display()))
            });
            keep(&file, plots);
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(RunProblem::NotMeasured(problems.join("\n"))) }
}

/// One run, or a list of them, as a run file.
///
/// # Errors
/// Never for runs of finite numbers.
pub(crate) fn json(runs: &[Run], is_list: bool) -> Result<String, RunProblem> {
    let text = match runs {
        [run] if !is_list => run.to_json(),
        runs => serde_json::to_string_pretty(runs).map(|text| text + "\n"),
    };
    text.map_err(|error| RunProblem::NotMeasured(format!("the run as JSON: {error}")))
}

/// `page.html` of the second run is `page-2.html`.
fn numbered(file: &Path, number: u32) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let extension = file.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    file.with_file_name(format!("{stem}-{number}{extension}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_runs_has_a_page_of_its_own() {
        for (file, expected) in [("a/page.html", "a/page-2.html"), ("page", "page-2"), ("a.b.svg", "a.b-2.svg")] {
            assert_eq!(numbered(Path::new(file), 2), Path::new(expected));
        }
    }
}
