//! The record of a boot: a copy of the journal in the folder of the node's lock, where no disk fills up and other agents
//! of the node find it, with a line before it that says which state folders it stands for.
//!
//! A knob enters the journal first and the record second, then it is written; once it is restored, it leaves the record
//! first. So every knob that is limited is in the record, and what a journal on a full disk names beyond that is over. And
//! every knob of the record is in its journal, unless the journal was damaged or deleted.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fs, iter};

use anyhow::Result;
use energy_files::private;
use energy_model::capping::journal_entry::seal;
use serde::{Deserialize, Serialize};

use super::{JournalContent, MAX_BYTES, text};
use crate::capping::lock::FILES;

const FILE: &str = "capping-record.jsonl";

/// The first line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    boot: String,
    /// State folders whose journals are in it, by device and inode: a path means nothing in another container.
    pub folders: Vec<(u64, u64)>,
    /// Lines of a journal that could not be used and of which nothing is known; until `energy-agent restore` has said so.
    pub lost: usize,
}

/// What is in the file.
#[derive(Debug, Default)]
pub struct RecordRead {
    /// `None`: there is no record of this boot, or its first line is damaged.
    pub head: Option<Head>,
    pub content: JournalContent,
}

/// Where it is.
#[derive(Debug)]
pub struct Record {
    folder: PathBuf,
    pub head: Head,
}

impl Record {
    #[must_use]
    pub fn path(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// The record of this boot.
    ///
    /// # Errors
    /// When it is there and cannot be used.
    pub fn read(folder: &Path, boot: &str) -> Result<RecordRead> {
        private::check_folder(folder)?;
        let bytes = private::read(&Self::path(folder), MAX_BYTES)?.unwrap_or_default();
        let mut content = JournalContent::parse(&bytes, boot);
        let mut heads = content.kept.iter().filter_map(|line| serde_json::from_str::<Head>(line).ok());
        let head = heads.find(|head| head.boot == boot);
        content.kept.retain(|line| serde_json::from_str::<Head>(line).is_err());
        Ok(RecordRead { head, content })
    }

    /// That of an agent whose journal is in `state`, and of those whose folders `before` stands for.
    #[must_use]
    pub fn new(folder: &Path, boot: &str, state: &Path, before: Option<Head>) -> Self {
        let mut head = before.unwrap_or_default();
        boot.clone_into(&mut head.boot);
        if let Some(state) = identity(state).filter(|state| !head.folders.contains(state)) {
            head.folders.push(state);
        }
        Self { folder: folder.to_owned(), head }
    }

    /// Writes all of it anew.
    ///
    /// # Errors
    /// When that fails; then the old one stays.
    pub fn save(&self, lines: impl Iterator<Item = String>) -> Result<()> {
        private::folder(&self.folder, &FILES)?;
        let head = seal(&serde_json::to_string(&self.head).expect("texts and numbers are always JSON"));
        let path = Self::path(&self.folder);
        private::replace(&path, &path.with_extension("next"), text(iter::once(head).chain(lines)).as_bytes(), false)
    }
}

impl Head {
    /// Whether the journal of this state folder has been taken into the record.
    #[must_use]
    pub fn covers(&self, state: &Path) -> bool {
        identity(state).is_some_and(|state| self.folders.contains(&state))
    }
}

/// The same in every mount namespace, for as long as the folder exists.
fn identity(folder: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(folder).ok()?;
    Some((metadata.dev(), metadata.ino()))
}
