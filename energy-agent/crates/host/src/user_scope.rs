//! Scopes that the systemd of a user makes for commands. Without root a process has no other way to a cgroup of its own.
//!
//! `systemd-run --scope` asks for the scope, joins it and executes the command in its own place. So the command is a child of
//! this process, with its streams and its exit code.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{self, Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use energy_model::printable::cut;
use energy_model::workload::units::MEASURED_SCOPE;

use crate::early_signals::EarlySignals;
use crate::scope::NotStarted;

const PROGRAM: &str = "systemd-run";
const FLAGS: [&str; 4] = ["--user", "--scope", "--quiet", "--collect"];
const REMEDY: &str = "log in as this user (ssh, or a console), or have root start its manager (loginctl enable-linger USER) and set \
                      XDG_RUNTIME_DIR=/run/user/UID; or run as root";

/// The systemd of this user, which makes scopes.
#[derive(Debug)]
pub struct UserManager(());

impl UserManager {
    /// Has it make a scope for a moment, to see that it does.
    ///
    /// # Errors
    /// When there is none, with the remedy.
    pub fn find() -> Result<Self> {
        let tried = Command::new(PROGRAM).args(FLAGS).args(["--", "true"]).stdin(Stdio::null()).output();
        let tried = match tried {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!(
                    "without root, systemd has to make a cgroup for the command, and there is no {PROGRAM}; run as root"
                )
            }
            tried => tried.with_context(|| format!("starting {PROGRAM}"))?,
        };
        if !tried.status.success() {
            let said = String::from_utf8_lossy(&tried.stderr);
            let why = cut(said.lines().next().unwrap_or("no reason given")).to_string();
            bail!(
                "without root, the systemd of this user has to make a cgroup for the command, and does not: {why}; {REMEDY}"
            );
        }
        Ok(Self(()))
    }

    /// A name for a scope, by which a running agent shows it as a unit of its own.
    #[must_use]
    pub fn name(&self, number: u32) -> String {
        format!("{MEASURED_SCOPE}{}-{number}.scope", process::id())
    }

    /// Starts the command in the scope of this name.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(&self, name: &str, command: &[OsString], signals: &EarlySignals) -> Result<Child, NotStarted> {
        // What systemd-run says of it has the exit code of a command that ran.
        let program = command.first().map(OsString::as_os_str).unwrap_or_default();
        look_for(program)?;
        let mut run = Command::new(PROGRAM);
        run.args(FLAGS).arg(format!("--unit={name}")).arg("--").args(command);
        signals.pass_to(&mut run);
        run.spawn().map_err(NotStarted::Failed)
    }
}

/// Looks for a program as `exec` does.
fn look_for(program: &OsStr) -> Result<(), NotStarted> {
    if Path::new(program).components().count() > 1 || program.as_encoded_bytes().contains(&b'/') {
        return executable(Path::new(program));
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut best = NotStarted::NotFound;
    for folder in env::split_paths(&folders) {
        match executable(&folder.join(program)) {
            Ok(()) => return Ok(()),
            Err(NotStarted::NotFound) => {}
            Err(other) => best = other,
        }
    }
    Err(best)
}

fn executable(file: &Path) -> Result<(), NotStarted> {
    match fs::metadata(file) {
        Ok(data) if data.is_file() && data.permissions().mode() & 0o111 != 0 => Ok(()),
        Ok(_) => Err(NotStarted::NotExecutable(io::Error::from(ErrorKind::PermissionDenied))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(NotStarted::NotFound)
        }
        Err(error) => Err(NotStarted::NotExecutable(error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    #[test]
    fn a_program_is_looked_for_as_exec_does() {
        assert!(look_for(OsStr::new("sh")).is_ok() && look_for(OsStr::new("/bin/sh")).is_ok());
        for missing in ["no-such-program-of-the-test", "/no/such/program", ""] {
            assert!(
                matches!(look_for(OsStr::new(missing)), Err(NotStarted::NotFound | NotStarted::NotExecutable(_))),
                "{missing}"
            );
        }
        assert!(matches!(look_for(OsStr::new("/etc/passwd")), Err(NotStarted::NotExecutable(_))));
        assert!(matches!(look_for(OsStr::new("/no/such/program")), Err(NotStarted::NotFound)));
    }
}
