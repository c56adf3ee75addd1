//! What is or may be written to the hardware, on disk before it is: after any end of the agent, the next start and
//! `energy-agent restore` know what everything was before.
//!
//! The journal is one small file with a line for each knob, which is replaced as a whole (write, rename): so there is no
//! half-written line, a full disk leaves the file as it was, and nothing has to be compacted. Before the first write of a
//! knob, file and folder are synced. Later values are not: they outlive the agent's death in the page cache, and the
//! machine's death takes what was written to the hardware along with it.

pub mod entry;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use tracing::{info, warn};

use self::entry::{Entry, boot_of, is_whole};
use super::knob::{Found, Knob};
use super::policy::PolicyName;

const FILE: &str = "capping-journal.jsonl";
const LOCK: &str = "capping-journal.lock";
/// A journal larger than this is not ours; a node with a thousand knobs has 300 kB.
const MAX_BYTES: u64 = 16 << 20;

/// The journal, held by this process alone.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    boot: String,
    entries: BTreeMap<Knob, Entry>,
    /// Whole lines that only a newer version understands.
    kept: Vec<String>,
    /// Locked as long as it is open.
    _lock: File,
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
struct Content {
    entries: BTreeMap<Knob, Entry>,
    kept: Vec<String>,
    /// Lines that are torn or changed.
    damaged: usize,
    /// Lines of another boot.
    past: usize,
}

impl Journal {
    /// Takes the journal of `directory`, which is made if it is not there. What was written before the boot `boot_id`
    /// is discarded: hardware and cgroups have forgotten it too.
    ///
    /// # Errors
    /// When another process has it, or the folder cannot be written: then nothing may be written anywhere.
    pub fn open(directory: &Path, boot_id: &str) -> Result<Self> {
        ensure!(!boot_id.is_empty(), "sys/kernel/random/boot_id cannot be read; set --path.procfs to the host's /proc");
        let remedy = "set --state.directory to a writable folder (in a container, a hostPath volume)";
        fs::create_dir_all(directory).with_context(|| format!("creating {}; {remedy}", directory.display()))?;
        let lock = lock(&directory.join(LOCK))?;
        let path = directory.join(FILE);
        let bytes = read(&path)?;
        let content = Content::parse(&bytes, boot_id);
        if content.damaged > 0 {
            let copy = path.with_extension("damaged");
            write_new(&copy, &bytes, false).with_context(|| format!("writing {}; {remedy}", copy.display()))?;
            warn!(
                lines = content.damaged,
                copy = %copy.display(),
                "lines of the capping journal are damaged and left out; compare the copy with the hardware's limits"
            );
        }
        if content.past > 0 {
            info!(entries = content.past, "the capping journal is of an earlier boot, which nothing has outlived");
        }
        let Content { entries, kept, damaged: _, past: _ } = content;
        let journal = Self { path, boot: boot_id.to_owned(), entries, kept, _lock: lock };
        // Whether it can be written shows here, and not when something has to be.
        journal.save(&journal.entries, false).context(remedy)?;
        Ok(journal)
    }

    /// The entries of a journal that may be another process's; empty where there is none.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn peek(directory: &Path, boot_id: &str) -> Result<BTreeMap<Knob, Entry>> {
        Ok(Content::parse(&read(&directory.join(FILE))?, boot_id).entries)
    }

    /// Whether the folder has a journal.
    #[must_use]
    pub fn exists(directory: &Path) -> bool {
        directory.join(FILE).exists()
    }

    #[must_use]
    pub const fn entries(&self) -> &BTreeMap<Knob, Entry> {
        &self.entries
    }

    /// Notes what is about to be written, all at once; durable when it returns, for knobs that were not in it.
    ///
    /// # Errors
    /// When the file cannot be written. Then nothing of it may be done.
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
                entries.insert((*knob).clone(), Entry::new(knob, found, *value, policy, &self.boot, time));
            }
        }
        self.save(&entries, first)?;
        self.entries = entries;
        Ok(())
    }

    /// Notes what a device made of the last written value, so that it is known for the agent's own.
    ///
    /// # Errors
    /// When the file cannot be written; it is noted in memory.
    pub fn shown(&mut self, knob: &Knob, value: u64) -> Result<()> {
        match self.entries.get_mut(knob) {
            Some(entry) if !entry.ours.contains(&value) => entry.ours.push(value),
            _ => return Ok(()),
        }
        self.save(&self.entries, false)
    }

    /// Takes knobs out that are as they were, or are somebody else's.
    ///
    /// # Errors
    /// When the file cannot be written; they are out in memory. At the next start they are found to be as they were.
    pub fn forget(&mut self, knobs: &[Knob]) -> Result<()> {
        let before = self.entries.len();
        self.entries.retain(|knob, _| !knobs.contains(knob));
        if self.entries.len() == before { Ok(()) } else { self.save(&self.entries, false) }
    }

    fn save(&self, entries: &BTreeMap<Knob, Entry>, durable: bool) -> Result<()> {
        let mut text = String::new();
        for line in entries.values().map(Entry::to_line).chain(self.kept.iter().cloned()) {
            text.push_str(&line);
            text.push('\n');
        }
        let next = self.path.with_extension("next");
        write_new(&next, text.as_bytes(), durable).with_context(|| format!("writing {}", next.display()))?;
        fs::rename(&next, &self.path).with_context(|| format!("replacing {}", self.path.display()))?;
        if durable {
            let folder = self.path.parent().context("state directory")?;
            File::open(folder)
                .and_then(|folder| folder.sync_all())
                .with_context(|| format!("syncing {}", folder.display()))?;
        }
        Ok(())
    }
}

impl Content {
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
            match Entry::from_line(line) {
                // Were there two, the first would know what was before.
                Ok(entry) => drop(content.entries.entry(entry.knob.clone()).or_insert(entry)),
                Err(_) => content.kept.push(line.to_owned()),
            }
        }
        content
    }
}

/// Locks the file and writes this process's id into it.
fn lock(path: &Path) -> Result<File> {
    let remedy = "set --state.directory to a writable folder (in a container, a hostPath volume)";
    // Never through a link that somebody else put there: the agent may write everywhere.
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .with_context(|| format!("opening {}; {remedy}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let pid = match holder.trim() {
                "" => "another process".to_owned(),
                pid => format!("process {pid}"),
            };
            bail!("{pid} caps by {}; end that energy-agent first, which restores everything", path.display());
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("locking {}", path.display())),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(file)
}

/// Nothing where there is no file.
fn read(path: &Path) -> Result<Vec<u8>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("opening {}", path.display())),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).with_context(|| format!("reading {}", path.display()))?;
    Ok(bytes)
}

/// A new file in place of whatever is there, never through a link.
fn write_new(path: &Path, content: &[u8], durable: bool) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    if durable { file.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests;
