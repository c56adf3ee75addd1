//! What is or may be written to the hardware, on disk before it is: after any end of the agent, the next start and
//! `energy-agent restore` know what everything was before.
//!
//! The journal is one small file with a line for each knob, which is replaced as a whole (write, rename): so there is no
//! half-written line, a full disk leaves the file as it was, and nothing has to be compacted. Before the first write of a
//! knob, file and folder are synced. Later values are not: they outlive the agent's death in the page cache, and the
//! machine's death takes what was written to the hardware along with it.
//!
//! To restore, the journal need only be read. Where it cannot be written nothing new is limited, and what is restored then
//! leaves the [`record`] of the boot, which has a copy of every line.

pub mod known;
pub mod record;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use energy_files::private;
use energy_model::capping::journal_entry::{JournalEntry, boot_of, is_whole};
use energy_model::capping::knob::{Found, Knob};
use energy_model::capping::policy::PolicyName;
use tracing::{info, warn};

use self::known::{KnownKnobs, Loss};
use self::record::Record;
use super::lock::{NodeLock, NotLocked};
use crate::config::Folders;

const FILE: &str = "capping-journal.jsonl";
/// The names of the agent's files in the state folder begin so; the last is the learned idle power.
const FILES: [&str; 2] = ["capping-journal.", "idle.json"];
/// A journal larger than this is not ours; a node with a thousand knobs has 300 kB.
const MAX_BYTES: u64 = 16 << 20;

/// The journal, held by this process alone.
#[derive(Debug)]
pub struct Journal {
    folders: Folders,
    path: PathBuf,
    boot: String,
    entries: BTreeMap<Knob, JournalEntry>,
    /// Whole lines that only a newer version understands.
    kept: Vec<String>,
    record: Record,
    /// What was missing when it was opened.
    loss: Loss,
    /// To be copied before anything is written.
    damaged: Option<Vec<u8>>,
    /// Both files as they were left.
    left: [Option<Stamp>; 2],
    /// Why nothing new may be limited.
    problem: Option<String>,
    /// `None`: no agent of this node can have one.
    lock: Option<NodeLock>,
}

/// Why there is no journal.
#[derive(Debug)]
pub enum Refused {
    /// Another agent caps.
    Held(String),
    /// Nothing can be limited here.
    Unusable(String),
}

/// A write that is about to happen.
#[derive(Clone, Debug)]
pub struct Intent<'a> {
    pub knob: &'a Knob,
    /// As it is now.
    pub found: &'a Found,
    pub value: u64,
    pub policy: &'a PolicyName,
}

/// What is in a file.
#[derive(Debug, Default)]
pub struct JournalContent {
    entries: BTreeMap<Knob, JournalEntry>,
    kept: Vec<String>,
    /// Lines that are torn or changed.
    damaged: usize,
    /// Lines of another boot.
    past: usize,
}

/// A file as it was left: another one is somebody else's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    /// Seconds and nanoseconds of the last change.
    changed: (i64, i64),
}

impl Folders {
    /// Whether an agent has left anything in them, as far as they can be read.
    #[must_use]
    pub fn have_files(&self) -> bool {
        let is_absent =
            |path: &PathBuf| path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        ![self.state.join(FILE), Record::path(&self.run)].iter().all(is_absent)
    }
}

impl Journal {
    /// Takes the lock of the node and what an earlier run left. What was written before the boot `boot_id` is discarded:
    /// hardware and cgroups have forgotten it too. A journal that cannot be written has a [`Self::problem`].
    ///
    /// # Errors
    /// When another agent of the node has the lock, or cannot be seen: then nothing may be written anywhere.
    pub fn open(folders: &Folders, boot_id: &str) -> Result<Self, Refused> {
        if boot_id.is_empty() {
            let unknown = "sys/kernel/random/boot_id cannot be read; set --path.procfs to the host's /proc";
            return Err(Refused::Unusable(unknown.to_owned()));
        }
        let lock = take_lock(folders)?;
        let KnownKnobs { entries, kept, past, loss, head, damaged } = KnownKnobs::read(folders, boot_id);
        if past > 0 {
            info!(entries = past, "the capping journal is from an earlier boot; its limits ended with that boot");
        }
        // The folder must be there to be known by.
        let _ = private::folder(&folders.state, &FILES);
        let mut record = Record::new(&folders.run, boot_id, &folders.state, head);
        record.head.lost = loss.lines;
        let mut journal = Self {
            folders: folders.clone(),
            path: folders.state.join(FILE),
            boot: boot_id.to_owned(),
            entries,
            kept,
            record,
            loss,
            damaged,
            left: [None; 2],
            problem: None,
            lock,
        };
        journal.tell_loss();
        // Whether it can be written shows here, and not when something has to be.
        journal.retry();
        Ok(journal)
    }

    fn tell_loss(&self) {
        let Loss { causes, recovered, lines } = &self.loss;
        if self.loss.is_none() {
            return;
        }
        let what = causes.join("; ");
        if *lines == 0 {
            warn!(
                what,
                knobs = recovered.len(),
                "the capping journal was damaged; the record of this boot has its lines"
            );
        } else {
            warn!(
                what,
                "lines of the capping journal are lost, and with them the original values of some limits; `energy-agent restore` \
                 lists limits that look lowered"
            );
        }
    }

    /// What an earlier run left, which may be held by another process; makes and writes nothing.
    #[must_use]
    pub fn peek(folders: &Folders, boot_id: &str) -> KnownKnobs {
        KnownKnobs::read(folders, boot_id)
    }

    #[must_use]
    pub const fn entries(&self) -> &BTreeMap<Knob, JournalEntry> {
        &self.entries
    }

    /// What was missing when it was opened.
    #[must_use]
    pub const fn loss(&self) -> &Loss {
        &self.loss
    }

    /// Why nothing new may be limited; what is limited can be restored all the same.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// People know what is lost.
    pub fn loss_is_told(&mut self) {
        if std::mem::take(&mut self.record.head.lost) > 0 {
            self.retry();
        }
    }

    /// Notes what is about to be written, all at once; durable when it returns, for knobs that were not in it.
    ///
    /// # Errors
    /// When it cannot be noted. Then nothing of it may be done.
    pub fn intend(&mut self, intents: &[Intent<'_>]) -> Result<()> {
        if intents.is_empty() {
            return Ok(());
        }
        let mut entries = self.entries.clone();
        let mut first = false;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        for Intent { knob, found, value, policy } in intents {
            if let Some(entry) = entries.get_mut(knob) {
                entry.intend(*value, found.value, policy);
            } else {
                first = true;
                entries.insert((*knob).clone(), JournalEntry::new(knob, found, *value, policy, &self.boot, time));
            }
        }
        let before = std::mem::replace(&mut self.entries, entries);
        let noted = self.lock().and_then(|()| self.save_journal(first)).and_then(|()| self.save_record());
        if noted.is_err() {
            self.entries = before;
        }
        self.judge(noted)
    }

    /// Notes what a device made of the last written value, so that it is known for the agent's own.
    ///
    /// # Errors
    /// When it cannot be noted but in memory.
    pub fn shown(&mut self, knob: &Knob, value: u64) -> Result<()> {
        match self.entries.get_mut(knob) {
            Some(entry) if !entry.ours.contains(&value) => entry.ours.push(value),
            _ => return Ok(()),
        }
        self.save()
    }

    /// Takes knobs out that are as they were, or are somebody else's.
    ///
    /// # Errors
    /// When they cannot be taken out of both files; they are out in memory, and tried again by [`Self::retry`].
    pub fn forget(&mut self, knobs: &[Knob]) -> Result<()> {
        let before = self.entries.len();
        self.entries.retain(|knob, _| !knobs.contains(knob));
        if self.entries.len() == before { Ok(()) } else { self.save() }
    }

    /// Writes both files anew; [`Self::problem`] says how it went.
    pub fn retry(&mut self) {
        let _ = self.save();
    }

    /// Looks whether somebody else has removed or changed what was written, and writes it anew; what it was.
    ///
    /// # Errors
    /// When another process has taken the place of a lock that was removed.
    pub(crate) fn look_after(&mut self) -> Result<Option<String>, Refused> {
        if self.lock.as_ref().is_some_and(|lock| !lock.is_in_place()) {
            self.lock = take_lock(&self.folders)?;
        }
        let paths = [self.path.clone(), Record::path(&self.folders.run)];
        // One that could not be written is tried now and then, not at each tick.
        let changed = paths.into_iter().zip(self.left).filter(|(path, left)| left.is_some() && stamp(path) != *left);
        let changed: Vec<String> = changed.map(|(path, _)| path.display().to_string()).collect();
        if changed.is_empty() {
            return Ok(None);
        }
        self.retry();
        Ok(Some(changed.join(", ")))
    }

    /// The record first: see there.
    fn save(&mut self) -> Result<()> {
        let lock = self.lock();
        let record = self.save_record();
        let journal = self.save_journal(false);
        self.judge(lock.and(record).and(journal))
    }

    fn judge(&mut self, outcome: Result<()>) -> Result<()> {
        self.problem = outcome.as_ref().err().map(|error| format!("{error:#}"));
        outcome
    }

    /// A lock that was held by another process may be free by now.
    fn lock(&mut self) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(NodeLock::take(&self.folders.run, &self.folders.state).map_err(|why| match why {
                NotLocked::Held(why) | NotLocked::Unshared(why) => anyhow::Error::new(why),
                NotLocked::Unusable(error) => error,
            })?);
        }
        Ok(())
    }

    fn save_journal(&mut self, durable: bool) -> Result<()> {
        let remedy =
            "set --state.directory to a writable folder that only root can open (in a container, a hostPath volume)";
        let saved = self.write_journal(durable).context(remedy);
        self.left[0] = saved.is_ok().then(|| stamp(&self.path)).flatten();
        saved
    }

    fn write_journal(&mut self, durable: bool) -> Result<()> {
        private::folder(&self.folders.state, &FILES)?;
        if let Some(damaged) = &self.damaged {
            let copy = self.path.with_extension("damaged");
            private::write_new(&copy, damaged, false).with_context(|| format!("writing {}", copy.display()))?;
            warn!(copy = %copy.display(), "the damaged capping journal is kept");
            self.damaged = None;
        }
        private::replace(&self.path, &self.path.with_extension("next"), text(self.lines()).as_bytes(), durable)
    }

    fn save_record(&mut self) -> Result<()> {
        let saved = self.record.save(self.lines()).context("saving the record of the limits (--run.directory)");
        self.left[1] = saved.is_ok().then(|| stamp(&Record::path(&self.folders.run))).flatten();
        saved
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        self.entries.values().map(JournalEntry::to_line).chain(self.kept.iter().cloned())
    }
}

/// `None`: the lock cannot be used by any agent of the node, so that none caps meanwhile.
fn take_lock(folders: &Folders) -> Result<Option<NodeLock>, Refused> {
    match NodeLock::take(&folders.run, &folders.state) {
        Ok(lock) => Ok(Some(lock)),
        Err(NotLocked::Held(by)) => Err(Refused::Held(by.to_string())),
        Err(NotLocked::Unshared(why)) => Err(Refused::Unusable(why.to_string())),
        Err(NotLocked::Unusable(_)) => Ok(None),
    }
}

/// A line feed after each.
fn text(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| line + "\n").collect()
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let (device, inode, length) = (metadata.dev(), metadata.ino(), metadata.len());
    Some(Stamp { device, inode, length, changed: (metadata.mtime(), metadata.mtime_nsec()) })
}

impl JournalContent {
    fn parse(bytes: &[u8], boot_id: &str) -> Self {
        let mut content = Self::default();
        for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            let Some(line) = str::from_utf8(line).ok().filter(|line| is_whole(line)) else {
                content.damaged += 1;
                continue;
            };
            if boot_of(line).is_some_and(|boot| boot != boot_id) {
                content.past += 1;
                continue;
            }
            match JournalEntry::from_line(line) {
                // Were there two, the first would know what was before.
                Ok(entry) => drop(content.entries.entry(entry.knob.clone()).or_insert(entry)),
                Err(_) => content.kept.push(line.to_owned()),
            }
        }
        content
    }
}

#[cfg(test)]
mod tests;
