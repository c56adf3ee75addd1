//! A folder that may be a mounted ConfigMap. The kubelet keeps each version in a folder of its own that the link `..data`
//! leads to, and changes the link in one step; the files beside it are links through that one, and could change half way.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config_file::FileError;

/// Times to start over when files go away while they are read: the kubelet has put a new version in place.
const TRIES: usize = 3;

/// A file or folder, and why it could not be read.
pub type Unread = (PathBuf, FileError);

/// Reads one version of `folder` as a whole by `version`, which is given the folder to read: the version's, or `folder`
/// itself where there are no versions.
///
/// # Errors
/// As `version`, or when the link cannot be followed.
pub fn read<T>(folder: &Path, version: impl Fn(&Path) -> Result<T, Unread>) -> Result<T, Unread> {
    let mut tries = 1;
    loop {
        match current(folder).and_then(|current| version(&current)) {
            Err((_, FileError::NotFound)) if tries < TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

/// Names the file or folder in an error.
pub fn at<E: Into<FileError>>(path: &Path) -> impl Fn(E) -> Unread {
    let path = path.to_owned();
    move |error| (path.clone(), error.into())
}

fn current(folder: &Path) -> Result<PathBuf, Unread> {
    let data = folder.join("..data");
    match fs::canonicalize(&data) {
        Ok(version) => Ok(version),
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&data).is_err() => {
            Ok(folder.to_owned())
        }
        Err(error) => Err((data, error.into())),
    }
}
