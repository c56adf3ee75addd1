//! Capping with the shipped program: GPUs of the fake driver's plant under budgets, and what really happened to them.

mod figures;
mod kubelet;
mod load;
mod node;
mod plot;
mod runs;
mod score;
mod truth;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use self::runs::{Outcome, run};
use super::{Finding, Scale};
use crate::{cargo, checked};

/// # Errors
/// When the fake NVML library does not build, or a world cannot be made, or an agent does not run.
pub fn capping(scale: Scale, plots: Option<&Path>) -> Result<Vec<Finding>> {
    checked(cargo().args(["build", "--release", "--locked", "--package", "fake-nvml"]))?;
    let seconds = scale.of(300, 30);
    let outcomes = run(seconds)?;
    for Outcome { name, score, .. } in &outcomes {
        println!("  {name}: {}", figures::line(score));
    }
    if let Some(folder) = plots {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        figures::write(folder, &outcomes, seconds)?;
    }
    ensure!(!outcomes.is_empty(), "no scenario was run");
    Ok(figures::findings(&outcomes, seconds))
}
