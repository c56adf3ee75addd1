//! The journal of this process: taken once it is free, tried again where it cannot be written, and repaired. It decides
//! whether anything may be written to a device.

use std::time::Duration;

use energy_model::capping::journal_entry::JournalEntry;
use energy_model::capping::knob::Knob;
use tracing::{info, warn};

use super::super::journal::known::{KnownKnobs, Loss};
use super::super::journal::{Intent, Journal, Refused};
use crate::boot::boot_id;
use crate::config::{Folders, HostConfig};

/// A journal that is not available is tried again this often: an agent that is being replaced may still hold it.
const TRY_EVERY: Duration = Duration::from_secs(10);

/// The journal, or why there is none.
#[derive(Debug)]
pub struct JournalKeeper {
    folders: Folders,
    boot_id: String,
    /// `None`: nothing may be written.
    journal: Option<Journal>,
    trouble: Option<ActuatorTrouble>,
    loss: Loss,
    /// How often somebody else had removed or changed the journal or its record.
    repairs: u64,
    next_try: Duration,
}

/// Why nothing new is limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActuatorTrouble {
    pub kind: TroubleKind,
    /// With the remedy.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    /// Another agent of the node caps.
    OtherAgent,
    /// Other agents of the node could not see that this one caps.
    RunDirectory,
    /// Nothing can be noted; what is noted can be restored.
    Journal,
}

impl TroubleKind {
    /// The value of the label `reason`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OtherAgent => "other_agent",
            Self::RunDirectory => "run_directory",
            Self::Journal => "journal",
        }
    }
}

impl JournalKeeper {
    /// Without a journal so far.
    #[must_use]
    pub fn new(config: &HostConfig) -> Self {
        Self {
            folders: config.folders(),
            boot_id: boot_id(&config.procfs),
            journal: None,
            trouble: None,
            loss: Loss::default(),
            repairs: 0,
            next_try: Duration::ZERO,
        }
    }

    /// What the journal says, which may be another process's; it is never opened.
    #[must_use]
    pub fn peek(config: &HostConfig) -> (Self, Vec<JournalEntry>) {
        let keeper = Self::new(config);
        let KnownKnobs { entries, loss, .. } = Journal::peek(&keeper.folders, &keeper.boot_id);
        (Self { loss, next_try: Duration::MAX, ..keeper }, entries.into_values().collect())
    }

    /// Takes the journal. Returns what an earlier run left in it.
    pub fn open(&mut self) -> Vec<JournalEntry> {
        match Journal::open(&self.folders, &self.boot_id) {
            Ok(journal) => {
                let entries: Vec<JournalEntry> = journal.entries().values().cloned().collect();
                if !entries.is_empty() {
                    info!(knobs = entries.len(), "limits of an earlier run are adopted from the journal");
                }
                self.loss = journal.loss().clone();
                self.journal = Some(journal);
                self.see();
                entries
            }
            Err(refused) => {
                self.refused(refused);
                Vec::new()
            }
        }
    }

    /// Takes the journal once it is free, tries again where writing failed, and repairs what others have done to it. Returns
    /// what an earlier run left in it, where it was taken now.
    pub(crate) fn look_after(&mut self, now: Duration) -> Vec<JournalEntry> {
        let due = now >= self.next_try;
        if due && self.next_try != Duration::MAX {
            self.next_try = now + TRY_EVERY;
        }
        let Some(journal) = &mut self.journal else {
            return if due { self.open() } else { Vec::new() };
        };
        match journal.look_after() {
            Err(refused) => {
                self.refused(refused);
                return Vec::new();
            }
            Ok(Some(changed)) => {
                self.repairs += 1;
                warn!(
                    files = changed,
                    "another program has removed or changed the capping journal; it is written again"
                );
            }
            Ok(None) if due && journal.problem().is_some() => journal.retry(),
            Ok(None) => {}
        }
        self.see();
        Vec::new()
    }

    fn refused(&mut self, refused: Refused) {
        self.journal = None;
        let (kind, detail) = match refused {
            Refused::Held(by) => (TroubleKind::OtherAgent, by),
            Refused::Unusable(why) => (TroubleKind::RunDirectory, why),
        };
        self.set_trouble(Some(ActuatorTrouble { kind, detail }));
    }

    /// Says when the journal begins or ceases to be writable.
    fn see(&mut self) {
        let Some(journal) = &self.journal else { return };
        let trouble =
            journal.problem().map(|problem| ActuatorTrouble { kind: TroubleKind::Journal, detail: problem.to_owned() });
        self.set_trouble(trouble);
    }

    fn set_trouble(&mut self, trouble: Option<ActuatorTrouble>) {
        match &trouble {
            Some(_) if trouble == self.trouble => {}
            Some(ActuatorTrouble { kind: TroubleKind::OtherAgent, detail }) => {
                warn!(detail, "nothing is capped: another agent caps on this node");
            }
            Some(ActuatorTrouble { detail, .. }) => {
                warn!(error = detail, "no new limits are set: their original values could not be saved");
            }
            None if self.trouble.is_some() => info!("the capping journal can be written"),
            None => {}
        }
        self.trouble = trouble;
    }

    /// Notes what is about to be written. Returns whether it is on disk; else nothing may be written.
    pub fn intend(&mut self, intents: &[Intent<'_>]) -> bool {
        let Some(journal) = &mut self.journal else { return false };
        let noted = journal.intend(intents).is_ok();
        self.see();
        noted
    }

    /// Notes what the device made of what was written.
    pub fn shown(&mut self, knob: &Knob, shown: u64) {
        if let Some(journal) = &mut self.journal {
            let _ = journal.shown(knob, shown);
            self.see();
        }
    }

    /// Takes knobs out that are as they were.
    pub fn forget(&mut self, knobs: &[Knob]) {
        if let Some(journal) = &mut self.journal {
            let _ = journal.forget(knobs);
            self.see();
        }
    }

    /// Whether new limits can be noted.
    #[must_use]
    pub(crate) fn is_writable(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.problem().is_none())
    }

    /// Whether this process may write to devices, be it only to restore them.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.journal.is_some()
    }

    /// Why nothing new can be limited.
    #[must_use]
    pub const fn trouble(&self) -> Option<&ActuatorTrouble> {
        self.trouble.as_ref()
    }

    /// What the journal of an earlier run should have said, and did not.
    #[must_use]
    pub const fn loss(&self) -> &Loss {
        &self.loss
    }

    /// People know what is lost.
    pub fn loss_is_told(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.loss_is_told();
        }
    }

    /// How often somebody else had removed or changed the journal since the start.
    #[must_use]
    pub(crate) const fn repairs(&self) -> u64 {
        self.repairs
    }
}
