//! What is known of an earlier run: the journal and the record of the boot, put together, and what is missing of them.

use std::collections::BTreeMap;

use anyhow::Error;
use energy_files::private;
use energy_model::capping::journal_entry::JournalEntry;
use energy_model::capping::knob::Knob;

use super::record::{Head, Record, RecordRead};
use super::{FILE, JournalContent, MAX_BYTES};
use crate::config::Folders;

/// Both files, put together.
#[derive(Debug, Default)]
pub struct KnownKnobs {
    pub entries: BTreeMap<Knob, JournalEntry>,
    /// Whole lines that only a newer version understands.
    pub kept: Vec<String>,
    /// Lines of another boot.
    pub past: usize,
    pub loss: Loss,
    pub(super) head: Option<Head>,
    /// The journal as it was found, where nothing else says what its damaged lines said.
    pub(super) damaged: Option<Vec<u8>>,
}

/// What a journal should say and does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// What is wrong with it, for people; empty: nothing.
    pub causes: Vec<String>,
    /// Knobs that only the record of the boot still names.
    pub recovered: Vec<Knob>,
    /// Lines of which nothing is known.
    pub lines: usize,
}

impl Loss {
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl KnownKnobs {
    /// Reads both; never fails. What cannot be read is lost.
    #[must_use]
    pub fn read(folders: &Folders, boot: &str) -> Self {
        let path = folders.state.join(FILE);
        let mut causes = Vec::new();
        let read = private::check_folder(&folders.state).and_then(|()| private::read(&path, MAX_BYTES));
        let (is_there, is_refused) = (matches!(read, Ok(Some(_))), read.is_err());
        let bytes = read.unwrap_or_else(|error| {
            causes.push(unused(&error));
            None
        });
        let bytes = bytes.unwrap_or_default();
        let journal = JournalContent::parse(&bytes, boot);
        let record = Record::read(&folders.run, boot).unwrap_or_else(|error| {
            causes.push(unused(&error));
            RecordRead::default()
        });
        let covered = record.head.as_ref().is_some_and(|head| head.covers(&folders.state));
        let recovered = if covered { missing(&record.content, &journal) } else { Vec::new() };
        let [shown, record_path] = [&path, &Record::path(&folders.run)].map(|path| path.display().to_string());
        if journal.damaged > 0 {
            causes.push(format!("{} of {shown} are damaged", lines(journal.damaged)));
        }
        if record.content.damaged > 0 {
            causes.push(format!("{} of {record_path} are damaged", lines(record.content.damaged)));
        }
        if !recovered.is_empty() && causes.is_empty() {
            let what = if is_there { "lacks lines" } else { "does not exist any more" };
            causes.push(format!("{shown} {what}"));
        }
        let record_is_whole = covered && record.content.damaged == 0;
        // All that is limited is in either of them.
        let unknown = if record_is_whole || (is_there && journal.damaged == 0) {
            0
        } else {
            journal.damaged + record.content.damaged + usize::from(is_refused)
        };
        let before = record.head.as_ref().map_or(0, |head| head.lost);
        if before > 0 {
            causes.push(format!("{} of the journal were damaged when an energy-agent started", lines(before)));
        }
        let loss = Loss { causes, recovered, lines: unknown + before };
        let damaged = (unknown > 0 && journal.damaged > 0).then_some(bytes);
        let past = journal.past;
        let (mut kept, from_record) = (journal.kept, record.content.kept);
        kept.extend(from_record.into_iter().filter(|line| !kept.contains(line)).collect::<Vec<_>>());
        let entries =
            if record_is_whole { record.content.entries } else { earliest(record.content.entries, journal.entries) };
        Self { entries, kept, past, loss, head: record.head, damaged }
    }
}

/// Knobs that the record names and the journal does not.
fn missing(record: &JournalContent, journal: &JournalContent) -> Vec<Knob> {
    record.entries.keys().filter(|knob| !journal.entries.contains_key(*knob)).cloned().collect()
}

/// Both together; of a knob that two agents have limited, what was before the first of them.
fn earliest(
    mut entries: BTreeMap<Knob, JournalEntry>,
    more: BTreeMap<Knob, JournalEntry>,
) -> BTreeMap<Knob, JournalEntry> {
    for (knob, mut entry) in more {
        match entries.get_mut(&knob) {
            Some(known) => {
                if entry.time < known.time {
                    std::mem::swap(known, &mut entry);
                }
                let more = entry.ours.into_iter().filter(|own| !known.ours.contains(own)).collect::<Vec<_>>();
                known.ours.extend(more);
            }
            None => drop(entries.insert(knob, entry)),
        }
    }
    entries
}

fn unused(error: &Error) -> String {
    format!("{error:#}, so it is not used")
}

fn lines(count: usize) -> String {
    if count == 1 { "1 line".to_owned() } else { format!("{count} lines") }
}
