//! `energy-agent policy`: says offline whether policies are right, explains their fields, and prints their JSON Schema.

mod explain;
mod manifest;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use energy_files::config_file::{self, FileError};
use energy_model::capping::policy::document::{PolicyDocument, parse_at};
use energy_model::capping::policy::unit::plain;
use energy_model::capping::policy::yaml::MAX_BYTES;
use energy_model::capping::policy::{Amount, BudgetScope, Policy, PolicyName, json_schema};
use energy_model::printable::printable;
use energy_model::resources::definitions;

use crate::config::PolicyCommand;

/// Exit code of wrong usage, as clap has it.
const USAGE: u8 = 2;

/// Exit code 0: everything is right. 1: something is not. 2: there is no such field.
///
/// # Errors
/// When the report cannot be written.
pub fn run(command: &PolicyCommand) -> Result<ExitCode> {
    let mut out = io::stdout().lock();
    let written = match command {
        PolicyCommand::Check { paths } => check(&mut out, paths),
        PolicyCommand::Schema => {
            let schema = schema();
            write!(out, "{schema}").map(|()| ExitCode::SUCCESS)
        }
        PolicyCommand::Crd => write!(out, "{}", definitions()?).map(|()| ExitCode::SUCCESS),
        PolicyCommand::Explain { field } => match explain::explain(field.as_deref().unwrap_or_default()) {
            Ok(text) => write!(out, "{text}").map(|()| ExitCode::SUCCESS),
            Err(problem) => {
                eprintln!("error: {problem}");
                Ok(ExitCode::from(USAGE))
            }
        },
    };
    match written {
        // Whoever read the lines has enough: `energy-agent policy explain | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        written => Ok(written?),
    }
}

/// The JSON Schema of a policy document, as it is printed.
#[must_use]
pub fn schema() -> String {
    format!("{:#}\n", json_schema::document())
}

/// The CustomResourceDefinitions, as they are printed. Words that other readers of YAML take for a truth value are in quotes.
///
/// # Errors
/// Never, but for a fault of the writer of YAML.
pub fn definitions() -> Result<String> {
    let mut text = String::from("# Printed by `energy-agent policy crd`.\n");
    for definition in definitions::all() {
        text += &format!("---\n{}", serde_saphyr::to_string(&definition)?);
    }
    Ok(text)
}

/// Policies, where they were found.
enum FoundPolicies {
    Document {
        /// `FILE`, or `FILE: ConfigMap ns/name key k`.
        place: String,
        text: String,
        /// Of its ConfigMap.
        namespace: String,
        /// Where it begins in the file.
        first_line: usize,
    },
    /// A PowerCappingPolicy.
    Object { place: String, name: PolicyName, policy: Result<Box<Policy>, Vec<String>> },
}

fn check(out: &mut impl Write, paths: &[PathBuf]) -> io::Result<ExitCode> {
    let mut right = true;
    for path in paths.iter().flat_map(|path| files(path)) {
        let found = path.and_then(|path| {
            let text = read(&path).map_err(|fault| format!("{}: {fault}", path.display()))?;
            Ok(manifest::documents(&path.display().to_string(), text))
        });
        match found {
            Ok(found) => {
                for item in found {
                    right &= report(out, item)?;
                }
            }
            Err(problem) => {
                right = false;
                writeln!(out, "{}", printable(&problem))?;
            }
        }
    }
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints what is in a document; whether it is right.
fn report(out: &mut impl Write, found: Result<FoundPolicies, String>) -> io::Result<bool> {
    let (place, PolicyDocument { policies, problems }) = match found {
        Ok(FoundPolicies::Document { place, text, namespace, first_line }) => {
            (place, parse_at(&text, &namespace, first_line))
        }
        Ok(FoundPolicies::Object { place, policy: Ok(policy), .. }) => {
            (place, PolicyDocument { policies: vec![*policy], problems: Vec::new() })
        }
        Ok(FoundPolicies::Object { place, name, policy: Err(problems) }) => {
            let problems = problems.into_iter().map(|problem| (Some(name.clone()), problem)).collect();
            (place, PolicyDocument { policies: Vec::new(), problems })
        }
        Err(problem) => {
            writeln!(out, "{}", printable(&problem))?;
            return Ok(false);
        }
    };
    let place = printable(&place);
    for policy in &policies {
        writeln!(out, "{place}: policy {}: ok ({})", policy.name, summary(policy))?;
    }
    for (name, problem) in &problems {
        match name {
            Some(name) => writeln!(out, "{place}: policy {}: {problem}", printable(&name.to_string()))?,
            None => writeln!(out, "{place}: {problem}")?,
        }
    }
    if policies.is_empty() && problems.is_empty() {
        writeln!(out, "{place}: ok (no policies)")?;
    }
    Ok(problems.is_empty())
}

/// `Enforce, 400 W PerPod gpu`.
fn summary(policy: &Policy) -> String {
    let Policy { mode, budget, .. } = policy;
    let amount = match budget.amount {
        Amount::Watts(watts) => format!("{} W", plain(watts)),
        Amount::PercentOfPeak { percent, lookback } => {
            format!("{} % of the peak of {} h", plain(percent), plain(lookback.as_secs_f64() / 3600.0))
        }
    };
    let scope = match budget.scope {
        BudgetScope::PerPod => "PerPod",
        BudgetScope::PerNode => "PerNode",
        BudgetScope::Total => "Total",
    };
    let counted = match (budget.components.gpu, budget.components.cpu) {
        (true, true) => "gpu+cpu",
        (true, false) => "gpu",
        _ => "cpu",
    };
    format!("{mode:?}, {amount} {scope} {counted}")
}

/// A file itself; of a folder, what the agent would read of it.
fn files(path: &Path) -> Vec<Result<PathBuf, String>> {
    if path == Path::new("-") || !path.is_dir() {
        return vec![Ok(path.to_owned())];
    }
    let wrong = |error: &dyn std::fmt::Display| vec![Err(format!("{}: {error}", path.display()))];
    let mut files = match fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries.iter().map(fs::DirEntry::path).filter(|path| is_policy_file(path)).collect::<Vec<_>>(),
        Err(error) => return wrong(&error),
    };
    if files.is_empty() {
        return wrong(&"no *.yaml, *.yml or *.json file in this folder");
    }
    files.sort();
    files.into_iter().map(Ok).collect()
}

fn is_policy_file(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    !name.starts_with('.')
        && matches!(ending, Some("yaml" | "yml" | "json"))
        && fs::metadata(path).is_ok_and(|found| !found.is_dir())
}

/// By the reader of the agent: what it would not read is not right either.
fn read(path: &Path) -> Result<String, FileError> {
    // A manifest is a little larger than what is in it.
    let most = 4 * MAX_BYTES;
    if path != Path::new("-") {
        return config_file::text(path, most);
    }
    let mut text = Vec::new();
    io::stdin().take(u64::try_from(most).unwrap_or(u64::MAX)).read_to_end(&mut text)?;
    String::from_utf8(text).map_err(|error| FileError::NotText(error.utf8_error().valid_up_to()))
}
