//! Starts the benchmarks and the attacks, which are a program of their own: the other commands need not wait for its build.

use std::process::Command;

use anyhow::Result;

use crate::{cargo, checked, kube_api, root};

/// # Errors
/// When the program does not build, or what it does fails.
pub fn bench(arguments: &[String]) -> Result<()> {
    println!("building the benchmarks");
    checked(cargo().args(["build", "--quiet", "--release", "--locked", "--package", "bench"]))?;
    let mut command = Command::new(root().join("target/release/bench"));
    // Without a row's name all are measured.
    let names_rows = arguments.iter().any(|argument| !argument.starts_with('-'));
    if !names_rows || arguments.iter().any(|argument| argument == "cluster") {
        match kube_api::build() {
            Ok(()) => drop(command.envs(kube_api::programs())),
            Err(error) => println!("no Kubernetes API server, so the row `cluster` cannot be measured: {error:#}"),
        }
    }
    checked(command.arg("bench").args(arguments))
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
