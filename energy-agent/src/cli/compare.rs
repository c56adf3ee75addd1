//! `energy-agent compare`: runs side by side, and what can be said about the difference.

mod export;
mod files;

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use energy_model::printable::printable_lines;
use energy_report::compare::{CompareOptions, Comparison, chart, compare, render};

use crate::config::{CompareArgs, CompareFormat};

/// Exit code where there is nothing that can be compared.
const NOT_MEASURED: u8 = 3;

/// Prints the comparison. Exit code 3: the runs cannot be compared.
///
/// # Errors
/// When the result cannot be written.
pub fn run(arguments: &CompareArgs) -> Result<ExitCode> {
    match compared(arguments) {
        Ok(comparison) => print(&text(&comparison, arguments.format)?),
        Err(error) => {
            eprintln!("error: {}", printable_lines(&format!("{error:#}")));
            Ok(ExitCode::from(NOT_MEASURED))
        }
    }
}

fn compared(arguments: &CompareArgs) -> Result<Comparison> {
    let options = files::options(&arguments.money)?;
    let options = CompareOptions { same_work: arguments.same_work, whole_node: arguments.whole_node, ..options };
    let groups = files::groups(&arguments.what, arguments.by.as_deref())?;
    let comparison = compare(&groups, &options).map_err(anyhow::Error::msg)?;
    if let Some(path) = &arguments.export_profile {
        let text = export::config_map(groups.iter().flat_map(|group| &group.runs))?;
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &arguments.svg {
        let drawn = chart::svg(&comparison, "Energy over time")
            .context("fewer than two groups have time and energy to draw")?;
        fs::write(path, drawn).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(comparison)
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

fn print(text: &str) -> Result<ExitCode> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever read the lines has enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(ExitCode::SUCCESS),
    }
}
