//! The learned idle power in the state directory, read at the start and written once a minute and at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use energy_files::config_file::{self, FileError};
use energy_files::private;
use energy_model::attribution::idle::IdleModel;
use tracing::{info, warn};

/// Time between two writes of what was learned.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// A state file larger than this is not ours.
const MAX_STATE_BYTES: usize = 4 << 20;

/// The learned idle power in the state directory. A file that can't be read or written costs only the memory of it.
pub struct StateFile {
    path: PathBuf,
    saved: Instant,
    failed: bool,
}

impl StateFile {
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { path: directory.join("idle.json"), saved: Instant::now(), failed: false }
    }

    /// What was learned before; a model that knows nothing where there is no such file, or none that can be used.
    #[must_use]
    pub fn load(&self, boot_id: &str) -> IdleModel {
        let text = match config_file::text(&self.path, MAX_STATE_BYTES) {
            Err(FileError::NotFound) => return IdleModel::new(boot_id),
            text => text.map_err(anyhow::Error::new),
        };
        match text.and_then(|text| IdleModel::load(&text, boot_id)) {
            Ok(model) => {
                info!(file = %self.path.display(), "learned idle power loaded");
                model
            }
            Err(error) => {
                warn!(file = %self.path.display(), error = format!("{error:#}"), "learned idle power not usable, learning again");
                IdleModel::new(boot_id)
            }
        }
    }

    /// Saves when the last time was a minute ago.
    pub fn save_now_and_then(&mut self, model: &IdleModel, now: Instant) {
        if now.duration_since(self.saved) >= SAVE_EVERY {
            self.saved = now;
            self.save(model);
        }
    }

    /// Logs when that begins to fail.
    pub fn save(&mut self, model: &IdleModel) {
        let saved = self.write(model);
        if let (Err(error), false) = (&saved, self.failed) {
            warn!(
                error = format!("{error:#}"),
                "learned idle power cannot be saved; set --state.directory to a writable folder"
            );
        }
        self.failed = saved.is_err();
    }

    /// Replaces the file in one step, so that a crash leaves the old one or the new one.
    fn write(&self, model: &IdleModel) -> Result<()> {
        let directory = self.path.parent().context("state directory")?;
        fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
        let next = self.path.with_extension("json.next");
        private::replace(&self.path, &next, model.to_json().as_bytes(), false)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_was_saved_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateFile::new(&directory.path().join("new"));
        state.save(&IdleModel::new("boot"));
        state.save(&IdleModel::new("boot"));
        assert!(!state.failed);
        assert_eq!(state.load("boot").to_json(), IdleModel::new("boot").to_json());
    }

    #[test]
    fn a_link_left_in_the_state_directory_is_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, directory.path().join("idle.json.next")).unwrap();
        let mut state = StateFile::new(directory.path());
        state.save(&IdleModel::new("boot"));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(!state.failed && directory.path().join("idle.json").is_file());
    }
}
