//! Capping with the shipped program: GPUs of the fake driver's plant under budgets, and what really happened to them.

mod cpu;
mod edits;
mod figures;
mod kubelet;
mod load;
mod node;
mod plot;
mod runs;
mod score;
mod ticks;
mod truth;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use self::runs::run;
use super::{Finding, Scale};
use crate::{cargo, checked};

/// # Errors
/// When the fake NVML library does not build, or a world cannot be made, or an agent does not run.
pub fn capping(scale: Scale, plots: Option<&Path>) -> Result<Vec<Finding>> {
    checked(cargo().args(["build", "--release", "--locked", "--package", "fake-nvml"]))?;
    let seconds = scale.of(300, 30);
    let outcomes = run(seconds)?;
    for outcome in &outcomes {
        println!("  {}: {}", outcome.title(), figures::line(&outcome.score));
    }
    let course = cpu::run(scale)?;
    if let Some(folder) = plots {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        figures::write(folder, &outcomes, seconds)?;
        figures::keep(folder, "cpu-quota.svg", &course.chart().svg())?;
    }
    let mut findings = figures::findings(&outcomes, seconds);
    findings.extend(course.findings());
    findings.extend(edits::edits(scale)?);
    findings.extend(ticks::ticks(scale)?);
    Ok(findings)
}
