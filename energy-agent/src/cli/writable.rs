//! Files of results: whether they can be written is asked before something is measured that is to be in them.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use super::run_problem::RunProblem;

/// Leaves what is there as it is, and nothing where nothing was.
///
/// # Errors
/// When the file cannot be opened to be written.
pub(crate) fn check(path: &Path) -> Result<(), RunProblem> {
    opened(path).map_err(|error| not_written(path, &error))
}

/// # Errors
/// When the file cannot be written.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), RunProblem> {
    fs::write(path, text).map_err(|error| not_written(path, &error))
}

fn not_written(path: &Path, error: &io::Error) -> RunProblem {
    RunProblem::NotMeasured(format!("writing {}: {error}", path.display()))
}

fn opened(path: &Path) -> io::Result<()> {
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
