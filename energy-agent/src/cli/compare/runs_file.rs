//! The file of `--json`: all runs that were measured by now.

use std::path::Path;

use anyhow::Context as _;
use energy_report::compare::RunGroup;
use energy_report::run::Run;

use crate::cli::run_problem::RunProblem;
use crate::cli::writable::write;

/// The file, if one is asked for.
#[derive(Clone, Copy)]
pub(super) struct RunsFile<'a>(pub Option<&'a Path>);

impl RunsFile<'_> {
    /// Writes the runs by now, so that none is lost with a later one. What is no plain file, as a pipe, gets all of them in the end.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep(&self, groups: &[RunGroup]) -> Result<(), RunProblem> {
        let is_plain = |path: &Path| path.is_file() || !path.exists();
        if self.0.is_some_and(is_plain) { self.save(groups) } else { Ok(()) }
    }

    /// Writes all runs, in the order in which they began.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, groups: &[RunGroup]) -> Result<(), RunProblem> {
        let Some(path) = self.0 else { return Ok(()) };
        let mut runs: Vec<&Run> = groups.iter().flat_map(|group| &group.runs).collect();
        runs.sort_by(|a, b| a.start.total_cmp(&b.start));
        write(path, &format!("{}\n", serde_json::to_string_pretty(&runs).context("the runs as JSON")?))
    }
}
