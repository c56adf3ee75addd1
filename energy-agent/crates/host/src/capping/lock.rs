//! One capping agent per node: a lock on a file in a folder of the host that only root can open, whatever the state folders
//! of the agents are and whichever namespaces they run in.
//!
//! `flock` belongs to the file itself, so a pod that has the folder mounted and a service of the host see the same lock,
//! and the kernel drops it with its holder. The folder is in `/run`: it ends with the boot, as limits do, it does not fill
//! up with the disk, and nobody but root can make it. Files of sysfs and cgroups would need no folder, but many of them
//! can be opened by every user, who could then hold the lock.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use energy_model::advice::Advice;

use anyhow::{Context as _, Result};
use energy_files::private;
use serde::{Deserialize, Serialize};

use crate::container::in_cluster;

const FILE: &str = "capping.lock";
/// The names of the agent's files in the folder begin so.
pub(crate) const FILES: [&str; 1] = ["capping"];
/// What is read of the file.
const MAX_BYTES: u64 = 4096;

/// A look takes the lock for much less than this many pauses.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Held until it is dropped.
#[derive(Debug)]
pub struct NodeLock {
    path: PathBuf,
    file: File,
}

/// Why there is no lock.
#[derive(Debug)]
pub enum NotLocked {
    /// Another agent caps on this node, or `energy-agent restore` is at work.
    Held(Advice),
    /// The folder is the container's own, so that no other agent can see the lock.
    Unshared(Advice),
    /// The folder or the file cannot be used: no other agent has it either.
    Unusable(anyhow::Error),
}

/// Who holds it, for people; written by the holder.
#[derive(Debug, Serialize, Deserialize)]
pub struct LockHolder {
    pid: u32,
    /// A process id means nothing elsewhere.
    pid_namespace: String,
    pub state_directory: PathBuf,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid_namespace == pid_namespace() {
            return write!(f, "process {}", self.pid);
        }
        let state = self.state_directory.display();
        write!(f, "an energy-agent of another container (its --state.directory is {state})")
    }
}

/// The lock as it is at the moment.
#[derive(Debug)]
pub enum LockState {
    Free,
    /// `None`: the holder has not said who it is.
    Held(Option<LockHolder>),
}

/// The file in the run folder that is locked.
#[must_use]
pub fn path(run: &Path) -> PathBuf {
    run.join(FILE)
}

/// Looks at the lock of the node; makes, repairs and keeps nothing.
///
/// # Errors
/// As [`NodeLock::take`], but for a lock that is held.
pub fn look(run: &Path) -> Result<LockState, NotLocked> {
    check_shared(run)?;
    let path = path(run);
    let Some(mut file) = private::open(&path).map_err(NotLocked::Unusable)? else { return Ok(LockState::Free) };
    // Shared with others who look, and for a moment only: see `lock`.
    match file.try_lock_shared() {
        Ok(()) => Ok(LockState::Free),
        Err(TryLockError::WouldBlock) => Ok(LockState::Held(read_holder(&mut file))),
        Err(TryLockError::Error(error)) => {
            Err(NotLocked::Unusable(anyhow::Error::new(error).context(format!("locking {}", path.display()))))
        }
    }
}

impl NodeLock {
    /// Takes the lock of the node for an agent that keeps its journal in `state`.
    ///
    /// # Errors
    /// See [`NotLocked`].
    pub fn take(run: &Path, state: &Path) -> Result<Self, NotLocked> {
        check_shared(run)?;
        let path = path(run);
        let open = || {
            private::folder(run, &FILES)?;
            private::open_to_lock(&path)
        };
        let remedy = "set --run.directory to a folder that only root can open and that all agents of the node share";
        let mut file = open().context(remedy).map_err(NotLocked::Unusable)?;
        match lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(NotLocked::Held(held(&path, &mut file))),
            Err(TryLockError::Error(error)) => {
                let locking = format!("locking {}; {remedy}", path.display());
                return Err(NotLocked::Unusable(anyhow::Error::new(error).context(locking)));
            }
        }
        let holder =
            LockHolder { pid: std::process::id(), pid_namespace: pid_namespace(), state_directory: state.to_owned() };
        let text = serde_json::to_string(&holder).expect("texts and numbers are always JSON");
        // Only people miss it.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{text}"));
        Ok(Self { path, file })
    }

    /// Whether other agents find this file, and no other, in its place.
    #[must_use]
    pub(crate) fn is_in_place(&self) -> bool {
        let inode = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let there = fs::symlink_metadata(&self.path).map(inode);
        matches!((there, self.file.metadata().map(inode)), (Ok(there), Ok(held)) if there == held)
    }
}

/// Locks the file, at once or not at all; but waits for those who only look.
fn lock(file: &File) -> Result<(), TryLockError> {
    for _ in 0..LOOKS {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {}
            outcome => return outcome,
        }
        // An agent that caps shares it with nobody.
        file.try_lock_shared()?;
        file.unlock().map_err(TryLockError::Error)?;
        thread::sleep(PAUSE);
    }
    file.try_lock()
}

/// In a pod, the folder has to be the node's.
fn check_shared(run: &Path) -> Result<(), NotLocked> {
    if in_cluster() && !is_mounted(run) {
        let run = run.display();
        return Err(NotLocked::Unshared(Advice::new(
            format!("{run} is not a volume of the node, so other agents on the node cannot see that this one caps"),
            format!("mount the host's {run} (hostPath, DirectoryOrCreate), as deploy/components/capping does"),
        )));
    }
    Ok(())
}

/// Who holds the lock, and what to do about it.
fn held(path: &Path, file: &mut File) -> Advice {
    let who = read_holder(file).map_or_else(|| "another process".to_owned(), |holder| holder.to_string());
    let what = format!("{who} caps by {}", path.display());
    Advice::new(what, "stop that energy-agent first, which restores everything")
}

fn read_holder(file: &mut File) -> Option<LockHolder> {
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// The name of this process's own; empty where /proc does not say.
fn pid_namespace() -> String {
    fs::read_link("/proc/self/ns/pid").map(|name| name.display().to_string()).unwrap_or_default()
}

/// Whether the folder, or one that it is in, is mounted from elsewhere.
fn is_mounted(folder: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // https://docs.kernel.org/filesystems/proc.html#proc-pid-mountinfo: the fifth field, in which spaces are escaped.
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    points.filter(|&point| point != "/").any(|point| folder.starts_with(point))
}

#[cfg(test)]
mod tests;
