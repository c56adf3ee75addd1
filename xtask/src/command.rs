//! Other programs, run to their end from the workspace's folder. The program of the benchmarks takes this file as well.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The workspace's folder.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(|folder| folder.join("Cargo.lock").is_file()).map(Path::to_owned).unwrap_or_default()
}

/// The cargo that runs this.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    forget_package(command.current_dir(root()));
    command
}

/// Removes the variables that describe this program's package to it. A build script that looks at it (ring's does) would run
/// again, and all that depends on it be compiled again, whenever a cargo is called from here and then by hand.
pub fn forget_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it can't be started or ends with another status than success; names the command.
pub fn checked(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {}", command.get_program().display()))?;
    ensure!(status.success(), "{} {} ended with {status}", command.get_program().display(), shown(command));
    Ok(())
}

/// What a command prints.
///
/// # Errors
/// When it can't be started or ends with another status than success; names the command.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {}", command.get_program().display()))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    let program = command.get_program().display();
    ensure!(output.status.success(), "{program} {} ended with {}: {complaint}", shown(command), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn shown(command: &Command) -> String {
    command.get_args().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
