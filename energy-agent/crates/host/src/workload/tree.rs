//! The cgroup v2 hierarchy as folders: where it is mounted, and which cgroups exist. A cgroup's id is the inode number
//! of its folder.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use energy_model::advice::Advice;
use energy_model::sample::CgroupId;

/// One cgroup found by [`walk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    pub id: CgroupId,
    /// Index of the parent in the same walk, always a smaller one; `None` for the root.
    pub parent: Option<usize>,
    /// Below the root, without a leading `/`; empty for the root itself.
    pub path: PathBuf,
}

impl Folder {
    /// The path as cgroup events write it: beginning with `/`, bytes that are no UTF-8 replaced.
    #[must_use]
    pub fn cgroup_path(&self) -> String {
        format!("/{}", self.path.to_string_lossy())
    }
}

/// The root of the cgroup v2 hierarchy: `cgroupfs` itself, or `unified` below it on hybrid systems.
///
/// # Errors
/// When neither is a cgroup v2 folder (one that holds `cgroup.controllers`); says what is there and the remedy.
pub fn v2_root(cgroupfs: &Path) -> anyhow::Result<PathBuf> {
    for root in [cgroupfs.to_owned(), cgroupfs.join("unified")] {
        if root.join("cgroup.controllers").exists() {
            return Ok(root);
        }
    }
    let entries = fs::read_dir(cgroupfs).with_context(|| format!("looking for cgroup v2 at {}", cgroupfs.display()))?;
    let names: BTreeSet<String> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    let found = if names.is_empty() {
        "the folder is empty".to_owned()
    } else {
        let shown: Vec<&str> = names.iter().map(String::as_str).take(8).collect();
        let more = if names.len() > shown.len() { ", ..." } else { "" };
        let v1 = if names.contains("cpu") || names.contains("memory") { " (cgroup v1)" } else { "" };
        format!("found {}{more}{v1}", shown.join(", "))
    };
    bail!(Advice::new(
        format!(
            "no cgroup v2 hierarchy at {}: no cgroup.controllers there nor in its folder unified; {found}",
            cgroupfs.display()
        ),
        "boot with systemd.unified_cgroup_hierarchy=1, or mount it (mount -t cgroup2 none DIR) and name it with \
         --path.cgroupfs",
    ))
}

/// Whether `root` is a cgroup below the root of the kernel's hierarchy: a folder of it, or what a cgroup namespace shows.
/// Cgroups beside it cannot be found there.
#[must_use]
pub fn is_partial(root: &Path) -> bool {
    // The kernel shows this file in every cgroup but the hierarchy's root.
    root.join("cgroup.events").exists()
}

/// All cgroups at and below `root`, parents before children. Folders that vanish meanwhile, and those that cannot be
/// opened because of their name or their permissions, are left out with what is below them.
///
/// # Errors
/// When the root is not there, or the walk had to end early (out of file descriptors or memory): what is missing then
/// is not gone.
pub fn walk(root: &Path) -> anyhow::Result<Vec<Folder>> {
    let metadata = fs::metadata(root).with_context(|| format!("reading {}", root.display()))?;
    let mut folders = vec![Folder { id: metadata.ino(), parent: None, path: PathBuf::new() }];
    let mut next = 0;
    while let Some(folder) = folders.get(next) {
        let below = folder.path.clone();
        let path = root.join(&below);
        list(&path, |id, name| folders.push(Folder { id, parent: Some(next), path: below.join(name) }))
            .with_context(|| format!("listing {}", path.display()))?;
        next += 1;
    }
    Ok(folders)
}

/// Calls `found` for every folder in `path`.
///
/// # Errors
/// When the listing had to end early (out of file descriptors or memory): what is missing then is not gone.
pub fn list(path: &Path, mut found: impl FnMut(CgroupId, &Path)) -> io::Result<()> {
    let leaf = match fs::metadata(path) {
        // Kernfs, like most file systems, counts one link for each sub-folder; spares listing some 50 files in a leaf.
        Ok(metadata) => metadata.nlink() == 2,
        Err(error) => return tolerate(error),
    };
    if leaf {
        return Ok(());
    }
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => return tolerate(error),
    };
    for entry in entries {
        match entry {
            Ok(entry) if entry.file_type().is_ok_and(|kind| kind.is_dir()) => {
                found(entry.ino(), Path::new(&entry.file_name()));
            }
            Ok(_) => {}
            Err(error) => return tolerate(error),
        }
    }
    Ok(())
}

/// `Ok` for errors that are about this folder alone; the others would make living cgroups look gone.
fn tolerate(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EIO) => Err(error),
        _ => Ok(()),
    }
}
