//! `energy-agent completion` and `energy-agent man`: what shells and man(1) know of the program, made from its flags.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap_complete::Shell;

use crate::config::Cli;

/// Prints the completions for a shell.
///
/// # Errors
/// When nothing can be printed.
pub fn run(shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command_line(), "energy-agent", &mut script);
    match io::stdout().lock().write_all(&script) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Writes a page for the program and one for each of its commands.
///
/// # Errors
/// When the folder cannot be written.
pub fn write_man_pages(folder: &Path) -> Result<ExitCode> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    clap_mangen::generate_to(Cli::command_line(), folder).with_context(|| folder.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}
