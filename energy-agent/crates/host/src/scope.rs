//! The cgroup that one command runs in: what it and its children use is the cgroup's, from the first moment on.
//!
//! It is made before the command, which joins it between fork and exec, and removed after it. What a killed process left
//! behind is removed by the next one.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use energy_model::workload::units::MEASURED_SCOPE;
use rustix::process::{Pid, Signal, kill_process};

use crate::early_signals::EarlySignals;
use crate::workload::tree::{v2_root, walk};

/// Below the root of cgroup v2.
const SLICE: &str = "energy-agent.slice";
const PREFIX: &str = "measure-";
const SUFFIX: &str = ".scope";

/// How long killed processes may take to be gone.
const END: Duration = Duration::from_secs(5);
const END_STEP: Duration = Duration::from_millis(2);

/// How often the slice may vanish while a cgroup is made in it.
const MOST_TRIES: u32 = 20;

/// What the child says when it cannot join the cgroup: no exec fails with it.
const NOT_JOINED: i32 = libc::EOWNERDEAD;

/// A cgroup of its own.
#[derive(Debug)]
pub struct RunScope {
    /// What was made here, and is removed on drop if it is empty; `None`: systemd has made the cgroup and removes it.
    slice: Option<PathBuf>,
    dir: PathBuf,
    name: String,
}

/// Why a command did not start.
#[derive(Debug)]
pub enum NotStarted {
    NotFound,
    NotExecutable(io::Error),
    /// For another reason than the program itself.
    Failed(io::Error),
}

impl RunScope {
    /// Makes the cgroup `measure-PID-NUMBER.scope` of this process, and removes what dead ones left behind.
    ///
    /// # Errors
    /// When there is no cgroup v2, or it may not be written.
    pub fn create(cgroupfs: &Path, number: u32) -> Result<Self> {
        Self::named(cgroupfs, format!("{PREFIX}{}-{number}{SUFFIX}", process::id()))
    }

    /// The same with a name by which a running agent shows it as a unit of its own.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_shown(cgroupfs: &Path, number: u32) -> Result<Self> {
        Self::named(cgroupfs, format!("{MEASURED_SCOPE}{}-{number}{SUFFIX}", process::id()))
    }

    fn named(cgroupfs: &Path, name: String) -> Result<Self> {
        let slice = v2_root(cgroupfs)?.join(SLICE);
        let dir = slice.join(&name);
        let remedy = "run as root, where cgroup v2 can be written";
        // Another process that ends removes the slice when it is empty, maybe right now.
        let mut tries = 0;
        loop {
            fs::create_dir_all(&slice).with_context(|| format!("making the cgroup {}; {remedy}", slice.display()))?;
            remove_left_over(&slice);
            match fs::create_dir(&dir) {
                Ok(()) => return Ok(Self { slice: Some(slice), dir, name }),
                Err(error) if error.kind() == ErrorKind::NotFound && tries < MOST_TRIES => tries += 1,
                Err(error) => {
                    return Err(error).with_context(|| format!("making the cgroup {}; {remedy}", dir.display()));
                }
            }
        }
    }

    /// The scope of this name that systemd has made for a process, which may be a zombie by now. `None`: the process is not in
    /// it, or the scope is gone.
    #[must_use]
    pub fn of_process(cgroupfs: &Path, pid: u32, name: &str) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let dir = v2_root(cgroupfs).ok()?.join(path);
        let is_there = path.rsplit('/').next() == Some(name) && dir.is_dir();
        is_there.then(|| Self { slice: None, dir, name: name.to_owned() })
    }

    /// The unit that its work is charged to.
    #[must_use]
    pub fn unit(&self) -> &str {
        &self.name
    }

    /// Starts the command in the cgroup. It gets `signals` that came while it was started.
    ///
    /// # Errors
    /// When the program cannot be started, or the cgroup cannot be joined.
    pub fn spawn(&self, command: &mut Command, signals: &EarlySignals) -> Result<Child, NotStarted> {
        let procs = OpenOptions::new().write(true).open(self.dir.join("cgroup.procs")).map_err(NotStarted::Failed)?;
        // 0 stands for whoever writes it.
        let join = move || match rustix::io::write(&procs, b"0") {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::from_raw_os_error(NOT_JOINED)),
        };
        // SAFETY: between fork and exec `join` makes one system call, write(2), and allocates nothing.
        unsafe { command.pre_exec(join) };
        signals.pass_to(command);
        command.spawn().map_err(|error| match error.kind() {
            _ if error.raw_os_error() == Some(NOT_JOINED) => {
                let detail = format!("the command cannot join the cgroup {}", self.dir.display());
                NotStarted::Failed(io::Error::other(detail))
            }
            ErrorKind::NotFound => NotStarted::NotFound,
            ErrorKind::OutOfMemory | ErrorKind::WouldBlock => NotStarted::Failed(error),
            _ => NotStarted::NotExecutable(error),
        })
    }

    /// Processes in the cgroup and below it.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        for folder in walk(&self.dir).unwrap_or_default() {
            let text = fs::read_to_string(self.dir.join(&folder.path).join("cgroup.procs")).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        }
        pids
    }

    /// Whether no process is left in it, nor below it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let events = fs::read_to_string(self.dir.join("cgroup.events")).unwrap_or_default();
        !events.lines().any(|line| line == "populated 1")
    }

    /// Kills what is in it and waits until that is gone. Returns whether it is.
    pub fn kill(&self) -> bool {
        let until = Instant::now() + END;
        while !self.is_empty() {
            // The file came with Linux 5.14.
            if fs::write(self.dir.join("cgroup.kill"), "1").is_err() {
                for pid in self.processes() {
                    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                        // It may have ended by itself.
                        let _ = kill_process(pid, Signal::KILL);
                    }
                }
            }
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(END_STEP);
        }
        true
    }
}

impl Drop for RunScope {
    fn drop(&mut self) {
        let Some(slice) = &self.slice else { return };
        remove(&self.dir);
        // It stays while another command runs below it.
        let _ = fs::remove_dir(slice);
    }
}

/// Removes the cgroups of processes that are gone. One in which something still runs stays: the kernel removes none that has
/// processes.
fn remove_left_over(slice: &Path) {
    for entry in fs::read_dir(slice).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(owner_of);
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            remove(&entry.path());
        }
    }
}

/// The process that made the cgroup of this name.
fn owner_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(MEASURED_SCOPE));
    number?.strip_suffix(SUFFIX)?.split_once('-')?.0.parse().ok()
}

/// Removes a cgroup and all below it, from the leaves up, as far as they are empty.
fn remove(dir: &Path) {
    for folder in walk(dir).unwrap_or_default().iter().rev() {
        let _ = fs::remove_dir(dir.join(&folder.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_whose_the_cgroup_is() {
        for name in ["measure-4711-3.scope", "energy-agent-measure-4711-3.scope"] {
            assert_eq!(owner_of(name), Some(4711), "{name}");
        }
        for other in ["measure-.scope", "measure-4711.scope", "session-1-2.scope", "measure-x-1.scope", "measure-1-1"] {
            assert_eq!(owner_of(other), None, "{other}");
        }
    }
}
