//! Capping with the shipped program: GPUs of the fake driver's plant under budgets, and what really happened to them.

pub mod cpu;
mod curves;
pub mod edits;
mod figures;
pub mod kubelet;
mod load;
mod node;
mod runs;
mod score;
pub mod ticks;
mod truth;

use std::path::Path;

use anyhow::Result;

use self::runs::run;
use super::{Finding, Scale};
use crate::{cargo, checked};

/// As long as the controller's own simulation: what it learns of a load is learned within the first minutes.
const SECONDS: u32 = 900;

/// # Errors
/// When the fake NVML library does not build, or a world cannot be made, or an agent does not run.
pub fn gpus(scale: Scale, plots: Option<&Path>) -> Result<Vec<Finding>> {
    build()?;
    let seconds = scale.of(SECONDS, 30);
    let outcomes = run(seconds)?;
    for outcome in &outcomes {
        println!("  {}: {}", outcome.title(), figures::line(&outcome.score));
    }
    if let Some(folder) = plots {
        figures::write(folder, &outcomes, seconds)?;
    }
    Ok(figures::findings(&outcomes, seconds))
}

fn build() -> Result<()> {
    checked(cargo().args(["build", "--release", "--locked", "--package", "fake-nvml"]))
}
