//! `cargo xtask gpu-check`: the GPU meter and the agent beside the card's own counter, with two CUDA processes.

use std::process::Command;

use anyhow::Result;

use crate::{cargo, checked, root};

/// # Errors
/// When something does not build, or NVML or CUDA does not work.
pub fn check(library: &str, seconds: u64) -> Result<()> {
    let build = ["build", "--release", "--locked", "-p", "energy-agent", "--bins"];
    checked(cargo().args(build).args(["--example", "cuda-load", "--example", "gpu-check"]))?;
    let release = root().join("target/release");
    let examples = release.join("examples");
    checked(
        Command::new(examples.join("gpu-check"))
            .args([release.join("energy-agent"), examples.join("cuda-load")])
            .args([library, &seconds.to_string()]),
    )
}
