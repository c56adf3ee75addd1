//! A configuration file into its bytes: regular files only, opened without waiting, and no more bytes than a limit. What
//! goes wrong is a kind; no error repeats what is in a file.

use std::error;
use std::fmt;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

/// Most bytes of a configuration file; the API server takes no larger ConfigMap either.
pub const MAX_BYTES: usize = 1 << 20;
/// A file system that does not answer for this long is in trouble.
pub const HANGS: Duration = Duration::from_secs(5);

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileError {
    NotFound,
    Denied,
    /// What it is in place of a regular file.
    NotRegular(&'static str),
    /// Larger than this many bytes.
    TooLarge(usize),
    /// The first byte that is not UTF-8.
    NotText(usize),
    /// The file system has not answered in time.
    Hangs,
    /// Something else, as the system says it.
    System(String),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => write!(f, "{}", io::Error::from_raw_os_error(libc::ENOENT)),
            Self::Denied => write!(f, "{}", io::Error::from_raw_os_error(libc::EACCES)),
            Self::NotRegular(kind) => write!(f, "{kind}, not a regular file"),
            Self::TooLarge(limit) if limit % (1 << 20) == 0 => write!(f, "larger than {} MiB", limit >> 20),
            Self::TooLarge(limit) => write!(f, "larger than {limit} bytes"),
            Self::NotText(byte) => write!(f, "not text: byte {byte} is not UTF-8; save it as UTF-8"),
            Self::Hangs => f.write_str(&hangs()),
            Self::System(text) => f.write_str(text),
        }
    }
}

impl error::Error for FileError {}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::System(error.to_string()),
        }
    }
}

/// What is said of a file system that does not answer.
fn hangs() -> String {
    format!("the file system has not answered for {} s", HANGS.as_secs())
}

/// The bytes of the regular file at `path`, or where a link there leads.
///
/// # Errors
/// When it is not there, is not a regular file, has more than `limit` bytes, or cannot be read.
pub fn bytes(path: &Path, limit: usize) -> Result<Vec<u8>, FileError> {
    // A device is not even opened: some act on that.
    regular(fs::metadata(path)?.file_type())?;
    // It may be another file by now. None of these flags matters to a regular file, unless another program has a lease on it.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let metadata = file.metadata()?;
    regular(metadata.file_type())?;
    let most = u64::try_from(limit).unwrap_or(u64::MAX);
    if metadata.len() > most {
        return Err(FileError::TooLarge(limit));
    }
    read(file, limit, most)
}

fn read(file: File, limit: usize, most: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > limit { Err(FileError::TooLarge(limit)) } else { Ok(bytes) }
}

/// The same as text.
///
/// # Errors
/// As [`bytes`], and when it is not UTF-8.
pub fn text(path: &Path, limit: usize) -> Result<String, FileError> {
    String::from_utf8(bytes(path, limit)?).map_err(|error| FileError::NotText(error.utf8_error().valid_up_to()))
}

fn regular(kind: FileType) -> Result<(), FileError> {
    match what(kind) {
        None => Ok(()),
        Some(kind) => Err(FileError::NotRegular(kind)),
    }
}

/// What a file is that is not a regular one.
fn what(kind: FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() => None,
        kind if kind.is_dir() => Some("a folder"),
        kind if kind.is_fifo() => Some("a pipe"),
        kind if kind.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn only_a_regular_file_is_read_and_no_more_than_its_limit() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "12345678").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _socket = UnixListener::bind(at("socket")).unwrap();
        // A TiB of nothing.
        File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        for name in ["file", "link"] {
            assert_eq!(bytes(&at(name), 8), Ok(b"12345678".to_vec()));
            assert_eq!(bytes(&at(name), 7), Err(FileError::TooLarge(7)));
        }
        for (name, fault) in [
            ("pipe", FileError::NotRegular("a pipe")),
            ("socket", FileError::NotRegular("a socket")),
            ("", FileError::NotRegular("a folder")),
            ("/dev/zero", FileError::NotRegular("a device")),
            ("none", FileError::NotFound),
            ("file/none", FileError::System("Not a directory (os error 20)".to_owned())),
            ("loop", FileError::System("Too many levels of symbolic links (os error 40)".to_owned())),
            ("sparse", FileError::TooLarge(1 << 20)),
        ] {
            assert_eq!(bytes(&at(name), 1 << 20), Err(fault), "{name}");
        }
        // One of the kernel's, whose size is not known beforehand.
        assert!(!text(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
        fs::write(at("file"), [b'a', 0xff]).unwrap();
        assert_eq!(text(&at("file"), 8), Err(FileError::NotText(1)));
    }
}
