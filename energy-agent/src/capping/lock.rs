//! One capping agent per node: a lock on a file in a folder of the host that only root can open, whatever the state folders
//! of the agents are and whichever namespaces they run in.
//!
//! `flock` belongs to the file itself, so a pod that has the folder mounted and a service of the host see the same lock,
//! and the kernel drops it with its holder. The folder is in `/run`: it ends with the boot, as limits do, it does not fill
//! up with the disk, and nobody but root can make it. Files of sysfs and cgroups would need no folder, but many of them
//! can be opened by every user, who could then hold the lock.

use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::private;
use crate::workload::kubernetes::in_cluster;

const FILE: &str = "capping.lock";
/// The names of the agent's files in the folder begin so.
pub const FILES: [&str; 1] = ["capping"];
/// What is read of the file.
const MAX_BYTES: u64 = 4096;

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
    Held(String),
    /// The folder is the container's own, so that no other agent can see the lock.
    Unshared(String),
    /// The folder or the file cannot be used: no other agent has it either.
    Unusable(anyhow::Error),
}

/// Who holds it, for people; written by the holder.
#[derive(Serialize, Deserialize)]
struct Holder {
    pid: u32,
    /// A process id means nothing elsewhere.
    pid_namespace: String,
    state_directory: PathBuf,
}

impl NodeLock {
    /// Takes the lock of the node for an agent that keeps its journal in `state`.
    ///
    /// # Errors
    /// See [`NotLocked`].
    pub fn take(run: &Path, state: &Path) -> Result<Self, NotLocked> {
        if in_cluster() && !is_mounted(run) {
            return Err(NotLocked::Unshared(format!(
                "{0} is no volume of the node, so other agents on the node cannot see that this one caps; mount the host's {0} \
                 (hostPath, DirectoryOrCreate), as deploy/components/capping does",
                run.display()
            )));
        }
        let path = run.join(FILE);
        let open = || {
            private::folder(run, &FILES)?;
            private::open_to_lock(&path)
        };
        let remedy = "set --run.directory to a folder that only root can open and that all agents of the node share";
        let mut file = open().context(remedy).map_err(NotLocked::Unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(NotLocked::Held(held(&path, &mut file))),
            Err(TryLockError::Error(error)) => {
                let locking = format!("locking {}; {remedy}", path.display());
                return Err(NotLocked::Unusable(anyhow::Error::new(error).context(locking)));
            }
        }
        let holder =
            Holder { pid: std::process::id(), pid_namespace: pid_namespace(), state_directory: state.to_owned() };
        let text = serde_json::to_string(&holder).expect("texts and numbers are always JSON");
        // Only people miss it.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{text}"));
        Ok(Self { path, file })
    }

    /// Whether other agents find this file, and no other, in its place.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let inode = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let there = fs::symlink_metadata(&self.path).map(inode);
        matches!((there, self.file.metadata().map(inode)), (Ok(there), Ok(held)) if there == held)
    }
}

/// Who holds the lock, and what to do about it.
fn held(path: &Path, file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.take(MAX_BYTES).read_to_string(&mut text);
    let who = match serde_json::from_str::<Holder>(&text) {
        Ok(Holder { pid, pid_namespace: namespace, .. }) if namespace == pid_namespace() => format!("process {pid}"),
        Ok(Holder { state_directory, .. }) => {
            format!("an energy-agent of another container (its --state.directory is {})", state_directory.display())
        }
        Err(_) => "another process".to_owned(),
    };
    format!("{who} caps by {}; end that energy-agent first, which restores everything", path.display())
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
