//! Whether a file can be written, asked before something is measured that is to be in it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Leaves what is there as it is, and nothing where nothing was.
///
/// # Errors
/// When the file cannot be opened to be written.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() || found.is_dir() => File::options().append(true).open(path).map(drop),
        // To open a pipe would wait for whoever reads it.
        Ok(_) => Ok(()),
        // A link to a file that is not there yet.
        Err(_) if path.is_symlink() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            File::create_new(path)?;
            fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    #[test]
    fn a_file_that_can_be_written_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("old"), "text").unwrap();
        assert!(check(&at("old")).is_ok() && check(&at("new")).is_ok() && check(Path::new("/dev/null")).is_ok());
        assert_eq!((fs::read_to_string(at("old")).unwrap().as_str(), at("new").exists()), ("text", false));
        for wrong in [at("none/new"), at("old/new"), folder.path().to_owned()] {
            assert!(check(&wrong).is_err(), "{}", wrong.display());
        }
    }
}
