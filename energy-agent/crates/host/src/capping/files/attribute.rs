//! One attribute file of sysfs or of a cgroup: read whole, written at once, and what its errors mean for a knob.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use energy_model::capping::knob::KnobError;
use energy_model::capping::knob::KnobState;

use crate::errand;

/// Its text without the line feed.
///
/// # Errors
/// When it cannot be read; names the file and the remedy.
pub fn read(path: &Path) -> Result<String, KnobError> {
    // One call gives all of an attribute: no more than a page, and here a line.
    let mut content = [0; 4096];
    match File::open(path).and_then(|mut file| file.read(&mut content)) {
        Ok(length) => Ok(String::from_utf8_lossy(&content[..length]).trim().to_owned()),
        Err(error) => Err(failure("reading", path, &error)),
    }
}

/// The decimal number it holds.
///
/// # Errors
/// When it cannot be read or holds something else; names the file.
pub fn read_number(path: &Path) -> Result<u64, KnobError> {
    number(&read(path)?, path)
}

/// The decimal number that `path` held.
///
/// # Errors
/// When the text is something else; names the file.
pub fn number(text: &str, path: &Path) -> Result<u64, KnobError> {
    text.parse().map_err(|_| KnobError {
        state: KnobState::Error,
        detail: format!("reading {}: expected a decimal number, found {text:?}", path.display()),
    })
}

/// The number, where it is there, readable and not zero: powercap shows a bound that it does not know as 0 or as an
/// error (FC-015, FC-086).
pub fn known(path: &Path) -> Option<u64> {
    read_number(path).ok().filter(|&number| number > 0)
}

/// Writes `text` and a line feed in one call, as the kernel wants it.
///
/// # Errors
/// When the file is not there, may not be written, or the kernel refuses the text; names file, text and remedy.
pub fn write(path: &Path, text: &str) -> Result<(), KnobError> {
    // The kernel pays no heed to truncation; a plain file that stands for one needs it.
    let file = OpenOptions::new().write(true).truncate(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()));
    written.map_err(|error| failure(&format!("writing {text} to"), path, &error))
}

/// Whether it may be written: opens it for writing and leaves it as it is.
///
/// # Errors
/// When it may not, or is not there; names the file and the remedy.
pub fn writable(path: &Path) -> Result<(), KnobError> {
    match OpenOptions::new().write(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(failure("opening for writing", path, &error)),
    }
}

/// Does `work` on files of a driver, which may hang: see [`errand`]. `path` stands for all of them; what hangs there
/// keeps the rest of the same device waiting, so that writes stay in order.
///
/// # Errors
/// As `work`; also when it does not come back in time.
pub(crate) fn by_errand<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, KnobError> + Send + 'static,
) -> Result<T, KnobError> {
    errand::run(path, work).unwrap_or_else(|error| Err(failure("waiting for", path, &error)))
}

/// Inode of a folder: sysfs and cgroupfs give a folder that is made anew another one. 0 where there is none.
pub(crate) fn inode(folder: &Path) -> u64 {
    fs::metadata(folder).map_or(0, |metadata| metadata.ino())
}

fn failure(doing: &str, path: &Path, error: &io::Error) -> KnobError {
    let (state, remedy) = match error.raw_os_error() {
        // It may have been read or written, or may yet be.
        None if error.kind() == io::ErrorKind::TimedOut => (KnobState::Unreachable, ""),
        Some(libc::EROFS) => (
            KnobState::NoPermission,
            "; in a container, mount the host's /sys (and /sys/fs/cgroup) read-write and name them with --path.sysfs \
             and --path.cgroupfs",
        ),
        Some(libc::EACCES | libc::EPERM) => (
            KnobState::NoPermission,
            "; run as root (in a container, privileged); for a power limit, see also the BIOS: \
             the kernel gives this error if the firmware has locked it",
        ),
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::ENOTDIR) => (KnobState::Unreachable, ""),
        // A cpufreq policy whose CPUs are all offline.
        Some(libc::EBUSY) => (KnobState::Unreachable, ""),
        Some(libc::EINVAL | libc::ERANGE) => (KnobState::Rejected, ""),
        Some(libc::ENODATA | libc::EOPNOTSUPP | libc::ENOSYS) => (KnobState::Unsupported, ""),
        _ => (KnobState::Error, ""),
    };
    KnobError { state, detail: format!("{doing} {}: {error}{remedy}", path.display()) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn what_an_error_means_goes_by_its_number() {
        let path = PathBuf::from("/sys/x");
        for (errno, state) in [
            (libc::EROFS, KnobState::NoPermission),
            (libc::EACCES, KnobState::NoPermission),
            (libc::ENOENT, KnobState::Unreachable),
            (libc::EBUSY, KnobState::Unreachable),
            (libc::EINVAL, KnobState::Rejected),
            (libc::ENODATA, KnobState::Unsupported),
            (libc::EIO, KnobState::Error),
        ] {
            let error = failure("writing 5 to", &path, &io::Error::from_raw_os_error(errno));
            assert_eq!(error.state, state, "{error:?}");
            assert!(error.detail.starts_with("writing 5 to /sys/x: "), "{error:?}");
            assert_eq!(error.detail.contains("; "), state == KnobState::NoPermission, "{error:?}");
        }
    }

    #[test]
    fn a_shorter_text_leaves_nothing_of_a_longer_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scaling_max_freq");
        fs::write(&file, "2956800\n").unwrap();
        write(&file, "800000").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "800000\n");
    }

    #[test]
    fn a_file_that_is_not_there_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cpu.max");
        assert_eq!(write(&file, "max").unwrap_err().state, KnobState::Unreachable);
        assert!(!file.exists());
    }

    #[test]
    fn zero_nothing_and_nonsense_are_no_known_number() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("constraint_0_max_power_uw");
        assert_eq!(known(&file), None);
        for (content, number) in [("0\n", None), ("no\n", None), ("145000000\n", Some(145_000_000))] {
            fs::write(&file, content).unwrap();
            assert_eq!(known(&file), number, "{content}");
        }
    }
}
