//! Commands measured in turns.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::mpsc::Receiver;

use anyhow::Result;
use energy_model::printable::{cut, printable};
use energy_report::compare::RunGroup;
use energy_report::run::Run;

use super::runs_file::RunsFile;
use super::schedule::order;
use crate::cli::run_problem::RunProblem;
use crate::signals::{EndSignal, none_yet};

/// Measures a command once. The map has labels for the run.
pub(super) type MeasureLine<'a> = dyn FnMut(&[OsString], &BTreeMap<String, String>) -> Result<Run> + 'a;

/// Runs of each command, so many of each, in an order that the seed gives. A command is a line for the shell. Each run is in the
/// file as soon as it was made.
///
/// # Errors
/// When nothing can be measured, or a signal has come.
pub(super) fn measure_all(
    lines: &[String],
    rounds: u32,
    seed: u64,
    ended: &Receiver<EndSignal>,
    measure: &mut MeasureLine<'_>,
    file: RunsFile<'_>,
) -> Result<Vec<RunGroup>, RunProblem> {
    let mut groups: Vec<RunGroup> = names(lines).into_iter().map(|name| RunGroup { name, runs: Vec::new() }).collect();
    let order = order(lines.len(), rounds, seed, None);
    for (number, thing) in order.iter().enumerate() {
        eprintln!("run {} of {}: {}", number + 1, order.len(), printable(&groups[*thing].name));
        let argv = ["/bin/sh", "-c", &lines[*thing]].map(OsString::from);
        // What was typed is in the file only if that is asked for.
        let labels = BTreeMap::from([
            ("command".to_owned(), (thing + 1).to_string()),
            ("seed".to_owned(), seed.to_string()),
            ("order".to_owned(), (number + 1).to_string()),
        ]);
        groups[*thing].runs.push(measure(&argv, &labels)?);
        file.keep(&groups)?;
        none_yet(ended)?;
    }
    Ok(groups)
}

/// The beginning of each line; with its number where two begin alike.
fn names(lines: &[String]) -> Vec<String> {
    let short: Vec<String> = lines.iter().map(|line| cut(line)).collect();
    let is_double = |name: &String| short.iter().filter(|other| *other == name).count() > 1;
    let named = |(number, name): (usize, &String)| {
        if is_double(name) { format!("{} {name}", number + 1) } else { name.clone() }
    };
    short.iter().enumerate().map(named).collect()
}
