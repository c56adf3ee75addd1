//! Every test, with what they need set up first.

use anyhow::Result;

use crate::{cargo, checked, tools};

/// Runs the whole suite, or what `arguments` select.
///
/// # Errors
/// When a tool can't be had or a test fails.
pub fn test(arguments: &[String]) -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked"]).args(arguments);
    if !tools::on_path("promtool") {
        let prometheus = tools::unpacked("prometheus")?;
        command.env("PATH", tools::path_with(&prometheus.join("usr/bin"))?);
    }
    checked(&mut command)
}

/// Runs the unit tests, property tests among them, with `cases` random inputs for each property.
///
/// # Errors
/// When a property does not hold; the input that breaks it is printed and kept beside the source.
pub fn fuzz(cases: u32) -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--release", "--locked", "--package", "energy-agent", "--lib"]);
    checked(command.env("PROPTEST_CASES", cases.to_string()))
}
