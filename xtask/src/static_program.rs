//! The static program: the agent as one file that runs on any Linux, whatever C library that has.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::build::{self, Arch, Linking, Options, VERSION};
use crate::{checked, output, root};

/// Builds the program, and looks whether it is one file.
///
/// # Errors
/// When the build fails, or the program needs a loader or a library.
pub fn make(options: &Options) -> Result<()> {
    let Options { arch, .. } = *options;
    let program = options.program(Linking::Static)?;
    ensure_static(arch, &program)?;
    let folder = root().join("target/static");
    let file = options.output(folder.join(format!("energy-agent-{VERSION}-linux-{}", arch.name())));
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    checked(Command::new(build::tool(arch, "strip")).arg("-o").arg(&file).arg(&program))?;
    println!("{}: {} MB", file.display(), build::megabytes(fs::metadata(&file)?.len()));
    Ok(())
}

/// # Errors
/// When the file names a loader (INTERP) or a library (NEEDED), or is no program for this processor.
fn ensure_static(arch: Arch, program: &Path) -> Result<()> {
    let readelf = build::tool(arch, "readelf");
    let said =
        output(Command::new(readelf).args(["--wide", "--file-header", "--program-headers", "--dynamic"]).arg(program))?;
    let machine = match arch {
        Arch::Amd64 => "X86-64",
        Arch::Arm64 => "AArch64",
    };
    let program = program.display();
    ensure!(said.contains(machine), "{program} is no program for {}", arch.name());
    let needs: Vec<&str> =
        said.lines().map(str::trim).filter(|line| line.starts_with("INTERP") || line.contains("(NEEDED)")).collect();
    ensure!(needs.is_empty(), "{program} is not static: {}", needs.join(", "));
    Ok(())
}
