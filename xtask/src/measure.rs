//! Starts the benchmarks and the attacks, which are a program of their own: the other commands need not wait for its build.

use std::process::Command;

use anyhow::Result;

use crate::{cargo, checked, root};

/// # Errors
/// When the program does not build, or what it does fails.
pub fn bench(arguments: &[String]) -> Result<()> {
    println!("building the benchmarks");
    checked(cargo().args(["build", "--quiet", "--release", "--locked", "--package", "bench"]))?;
    checked(Command::new(root().join("target/release/bench")).arg("bench").args(arguments))
}

/// The program is built as `cargo xtask test` builds it, so that nothing is compiled twice.
///
/// # Errors
/// When the program does not build, or what it does fails.
pub fn chaos(arguments: &[String]) -> Result<()> {
    println!("building the attacks");
    checked(cargo().args(["build", "--quiet", "--locked", "--workspace", "--lib", "--bins", "--examples"]))?;
    checked(Command::new(root().join("target/debug/bench")).arg("chaos").args(arguments))
}
