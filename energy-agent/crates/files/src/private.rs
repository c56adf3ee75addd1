//! Folders and files that only the agent's own user can open: no other user can plant, read, lock or replace what is in
//! them. What is found otherwise is repaired, or refused with a sentence.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

const FOLDER: u32 = 0o700;
const FILE: u32 = 0o600;
/// Rights of everybody but the owner, and those of them that change something.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// Makes the folder, or makes sure of it: its owner is the agent's user, and no other user can change anything in it. A
/// folder with nothing but files whose names begin with one of `own` becomes private altogether.
///
/// # Errors
/// When it cannot be made, or belongs to another user, or is shared with other users and programs.
pub fn folder(path: &Path, own: &[&str]) -> Result<()> {
    let name = path.display();
    DirBuilder::new().recursive(true).mode(FOLDER).create(path).with_context(|| format!("creating {name}"))?;
    let metadata = fs::metadata(path).with_context(|| format!("looking at {name}"))?;
    check_owner(path, &metadata)?;
    if metadata.mode() & OTHERS == 0 || !is_mine(&metadata) {
        return Ok(());
    }
    let is_own = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| own.iter().any(|own| entry.file_name().to_string_lossy().starts_with(own)))
    };
    if fs::read_dir(path).with_context(|| format!("listing {name}"))?.all(is_own) {
        return match fs::set_permissions(path, Permissions::from_mode(FOLDER)) {
            // Nobody changes anything there.
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => Ok(()),
            changed => changed.with_context(|| format!("removing the rights of other users on {name}")),
        };
    }
    // Perhaps the system's own folder, whose rights must stay.
    ensure!(
        metadata.mode() & OTHERS_WRITE == 0,
        "{name} is used by other programs too, and other users may write in it; choose a folder only for the agent"
    );
    Ok(())
}

/// Makes sure that a folder, where there is one, is not another user's.
///
/// # Errors
/// When it is, or cannot be looked at.
pub fn check_folder(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(metadata) => check_owner(path, &metadata),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("looking at {}", path.display())),
    }
}

/// The whole file, up to `most` bytes; `None` where there is none.
///
/// # Errors
/// When it cannot be read, is no regular file, or is another user's or may be written by other users.
pub fn read(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    let Some(file) = open(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).with_context(|| format!("reading {}", path.display()))?;
    Ok(Some(bytes))
}

/// Opens a file to read it and does not create it; `None` where it does not exist.
///
/// # Errors
/// As [`read`].
pub fn open(path: &Path) -> Result<Option<File>> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(|| format!("opening {}", path.display()))?,
    };
    check_file(path, &file)?;
    Ok(Some(file))
}

/// Puts a file in place of what is there, in one step, by way of `next`, never through a link. A reader sees the old
/// content or the new one. `durable`: it outlives the machine's death.
///
/// # Errors
/// When it cannot be written; then the old one stays.
pub fn replace(path: &Path, next: &Path, content: &[u8], durable: bool) -> Result<()> {
    write_new(next, content, durable).with_context(|| format!("writing {}", next.display()))?;
    fs::rename(next, path).with_context(|| format!("replacing {}", path.display()))?;
    if durable {
        let folder = path.parent().context("a file is in a folder")?;
        File::open(folder).and_then(|it| it.sync_all()).with_context(|| format!("syncing {}", folder.display()))?;
    }
    Ok(())
}

/// Writes a file in place of what is there, never through a link.
///
/// # Errors
/// When that fails; what was there is gone.
pub fn write_new(path: &Path, content: &[u8], durable: bool) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE).open(path)?;
    let written = file.write_all(content).and_then(|()| if durable { file.sync_all() } else { Ok(()) });
    if written.is_err() {
        // A full disk has no room for half a file.
        let _ = fs::remove_file(path);
    }
    written
}

/// Opens a file to lock it, and makes it where it is not there. It may be on a disk that is full or read-only.
///
/// # Errors
/// When it cannot be made or opened, is no regular file, or another user's.
pub fn open_to_lock(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(FILE).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let opened = match options.open(path) {
        // To be locked, a file need not be written.
        Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => options.write(false).create(false).open(path),
        opened => opened,
    };
    let file = opened.with_context(|| format!("opening {}", path.display()))?;
    let metadata = check_file(path, &file)?;
    if metadata.mode() & OTHERS != 0 && is_mine(&metadata) {
        let _ = file.set_permissions(Permissions::from_mode(FILE));
    }
    Ok(file)
}

fn check_file(path: &Path, file: &File) -> Result<Metadata> {
    let metadata = file.metadata().with_context(|| format!("looking at {}", path.display()))?;
    ensure!(metadata.is_file(), "{} is not a regular file", path.display());
    check_owner(path, &metadata)?;
    ensure!(metadata.mode() & OTHERS_WRITE == 0, "{} may be written by other users", path.display());
    Ok(metadata)
}

fn check_owner(path: &Path, metadata: &Metadata) -> Result<()> {
    let (owner, me) = (metadata.uid(), rustix::process::geteuid());
    // An agent that is not root may use what root has prepared for it.
    if owner != me.as_raw() && (me.is_root() || owner != 0) {
        bail!(
            "{} belongs to user {owner}, who could change it at any time; it must belong to user {}",
            path.display(),
            me.as_raw()
        );
    }
    Ok(())
}

fn is_mine(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw()
}
