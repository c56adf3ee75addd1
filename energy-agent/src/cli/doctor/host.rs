//! The rows about where the agent runs: PID namespace and state directory.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use energy_host::workload::pid_namespace;
use energy_model::attribution::method::IdleMethod;

use super::{CheckRow, CheckStatus};
use crate::config::Config;

pub fn pid_namespace(procfs: &Path) -> CheckRow {
    let name = "pid_namespace";
    match pid_namespace::restriction(procfs) {
        None => CheckRow::ok(name, "that of the host"),
        Some(detail) => CheckRow::new(name, CheckStatus::Fallback, detail, pid_namespace::REMEDY),
    }
}

pub fn state_directory(config: &Config) -> CheckRow {
    let name = "state_directory";
    let directory = &config.host.state_directory;
    if config.idle != IdleMethod::Learned {
        let detail = "nothing to save: --attribution.idle learns nothing";
        return CheckRow::new(name, CheckStatus::Off, detail, "");
    }
    // The agent makes the folder; what has to be writable then is the one it is made in.
    let existing = directory.ancestors().find(|folder| folder.exists()).unwrap_or(directory);
    match write_probe(existing) {
        Ok(()) if existing == directory => CheckRow::ok(name, format!("{} is writable", directory.display())),
        Ok(()) => CheckRow::ok(name, format!("{} can be created", directory.display())),
        Err(error) => CheckRow::new(
            name,
            CheckStatus::Missing,
            format!(
                "{}: {}: {error}; the learned idle power is lost at restart",
                directory.display(),
                existing.display()
            ),
            "set --state.directory to a writable folder (in a container, a hostPath volume)",
        ),
    }
}

/// Makes a file in the folder and removes it.
fn write_probe(folder: &Path) -> io::Result<()> {
    let file = folder.join(format!(".energy-agent-doctor-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&file)?;
    fs::remove_file(&file)
}
