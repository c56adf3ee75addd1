//! Brings the hardware to the limits that are wanted, and what is not limited back to what it was: journal first, then
//! the writes, then what shows.

pub mod change;
mod fault;
mod floor;
mod thermal;
pub mod track;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use tracing::{info, warn};

use self::change::Change;
use self::track::{Action, Track};
use super::files::FileKnobs;
use super::journal::{Intent, Journal};
use super::knob::{Found, Knob, KnobError, Limit, Limits, Value};
use super::observation::{ClockLook, KnobNow, KnobState};
use super::status::CapStatus;
use crate::config::Config;
use crate::meter::gpu::{GpuMeter, Written};

/// Knobs that nobody uses are looked at this often.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// A journal that cannot be had is tried again this often: an agent that is being replaced may still hold it.
const JOURNAL_EVERY: Duration = Duration::from_secs(10);
/// Between two tries while the agent ends.
const CLOSING_STEP: Duration = Duration::from_millis(100);

/// All knobs of the node, and what was done to them.
#[derive(Debug)]
pub struct Actuator {
    sysfs: PathBuf,
    directory: PathBuf,
    boot_id: String,
    /// `None`: nothing may be written.
    journal: Option<Journal>,
    journal_error: Option<String>,
    tracks: BTreeMap<Knob, Track>,
    changes: Vec<Change>,
    /// How many of them are in the log.
    said: usize,
    now: Duration,
    next_list: Duration,
    next_journal: Duration,
}

/// What the tick knows of knobs beside their files and drivers.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Of living pods, as [`FileKnobs::pod_quota`] has them; those that were read since the last call.
    pub quotas: BTreeMap<Knob, Found>,
    /// Quotas that nobody reads any more: the pod has ended, or no policy selects it.
    pub ended: Vec<Knob>,
    /// SM clocks by UUID: whether a lock is obeyed shows nowhere else.
    pub clocks_mhz: BTreeMap<Arc<str>, u32>,
    /// New readings of them by UUID: whether somebody else has locked them shows nowhere else.
    pub looks: BTreeMap<Arc<str>, ClockLook>,
}

impl Actuator {
    /// Takes the journal and what it says is written; writes nothing to any device. Where there is no journal to be had,
    /// nothing will be, and the log says why.
    #[must_use]
    pub fn open(config: &Config) -> Self {
        let mut actuator = Self::without_journal(config);
        actuator.open_journal();
        actuator
    }

    /// Knows what the journal says, which may be another process's, and can write nothing.
    ///
    /// # Errors
    /// When the journal is there and cannot be read.
    pub fn peek(config: &Config) -> Result<Self> {
        let mut actuator = Self::without_journal(config);
        for (knob, entry) in Journal::peek(&actuator.directory, &actuator.boot_id)? {
            actuator.tracks.insert(knob, Track::adopt(&entry));
        }
        // It is not to be opened later on.
        actuator.next_journal = Duration::MAX;
        Ok(actuator)
    }

    fn without_journal(config: &Config) -> Self {
        let boot_id = fs::read_to_string(config.procfs.join("sys/kernel/random/boot_id")).unwrap_or_default();
        Self {
            sysfs: config.sysfs.clone(),
            directory: config.state_directory.clone(),
            boot_id: boot_id.trim().to_owned(),
            journal: None,
            journal_error: None,
            tracks: BTreeMap::new(),
            changes: Vec::new(),
            said: 0,
            now: Duration::ZERO,
            next_list: Duration::ZERO,
            next_journal: Duration::ZERO,
        }
    }

    fn open_journal(&mut self) {
        match Journal::open(&self.directory, &self.boot_id) {
            Ok(journal) => {
                if !journal.entries().is_empty() {
                    info!(knobs = journal.entries().len(), "limits of an earlier run are taken over from the journal");
                }
                for (knob, entry) in journal.entries() {
                    self.tracks.insert(knob.clone(), Track::adopt(entry));
                }
                self.journal = Some(journal);
                self.journal_works();
            }
            Err(error) => self.journal_fails(&error),
        }
    }

    fn journal_fails(&mut self, error: &anyhow::Error) {
        let error = format!("{error:#}");
        if self.journal_error.as_ref() != Some(&error) {
            warn!(error, "nothing is capped: what a limit was before could not be kept");
        }
        self.journal_error = Some(error);
    }

    fn journal_works(&mut self) {
        if self.journal_error.take().is_some() {
            info!("the capping journal can be written");
        }
    }

    /// Looks at the knobs: those in use at each call, the others now and then. Before [`Self::knobs`] and
    /// [`Self::apply`] of a tick; `now` does not go backwards.
    pub fn look(&mut self, now: Duration, seen: Seen, files: &mut FileKnobs, gpus: &mut GpuMeter) {
        self.now = now;
        if self.journal.is_none() && now >= self.next_journal {
            self.next_journal = now + JOURNAL_EVERY;
            self.open_journal();
        }
        self.take_written(gpus);
        let mut found = gpus.knobs();
        if now >= self.next_list {
            self.next_list = now + LIST_EVERY;
            found.extend(files.list());
            for track in self.tracks.values_mut().filter(|track| !is_quota(&track.knob)) {
                track.found = None;
            }
        }
        found.extend(seen.quotas);
        for knob in &seen.ended {
            if let Some(track) = self.tracks.get_mut(knob) {
                track.followed = false;
            }
        }
        let mut gone = Vec::new();
        for track in self.tracks.values_mut() {
            let unused = !track.is_in_use() && (track.followed || !is_quota(&track.knob));
            if unused || is_gpu(&track.knob) || found.contains_key(&track.knob) {
                continue;
            }
            if !track.is_in_use() {
                gone.push(track.knob.clone());
                continue;
            }
            match files.read(&track.knob) {
                Ok(now) => track.found = Some(now),
                // A cgroup never comes back; a file of the hardware may.
                Err(error) if error.state == KnobState::Unreachable && is_quota(&track.knob) => {
                    gone.push(track.knob.clone());
                }
                Err(error) => track.unreadable(&error),
            }
        }
        self.forget(&gone);
        for knob in &gone {
            files.forget(knob);
            self.tracks.remove(knob);
        }
        for (knob, now) in found {
            let track = self.tracks.entry(knob).or_insert_with_key(|knob| Track::new(knob.clone()));
            track.followed = is_quota(&track.knob);
            track.found = Some(now);
        }
        for track in self.tracks.values_mut() {
            match &track.knob {
                Knob::GpuClock(uuid) => {
                    track.clock_mhz = seen.clocks_mhz.get(uuid).copied();
                    track.look = seen.looks.get(uuid).copied();
                }
                Knob::CpuFrequency(policy) => {
                    let lower = track.found.as_ref().and_then(|found| found.value).filter(|&now| track.is_above(now));
                    track.lowered = lower.is_some_and(|khz| thermal::holds_down(&self.sysfs, *policy, khz));
                }
                Knob::GpuPower(_) | Knob::CpuQuota(_) | Knob::RaplLimit(_) => {}
            }
        }
    }

    /// Brings the devices to `limits`: a knob that is in the journal and not in it is given back. At each tick, also with
    /// nothing to limit. A limit of a knob that does not exist is passed over.
    pub fn apply(&mut self, now: Duration, limits: &Limits, files: &mut FileKnobs, gpus: &mut GpuMeter) {
        self.now = now;
        self.take_written(gpus);
        let mut actions = Vec::new();
        for (knob, track) in &mut self.tracks {
            // A quota may have been looked at some seconds ago: what it was before the first write is what it is now.
            if is_quota(knob) && track.held.is_none() && limits.contains_key(knob) {
                match files.read(knob) {
                    Ok(now) => track.found = Some(now),
                    Err(error) => track.unreadable(&error),
                }
            }
            let action = track.decide(now, limits.get(knob), &mut self.changes);
            if action != Action::Nothing {
                actions.push((knob.clone(), action));
            }
        }
        let of = |wanted: fn(&Action) -> bool| -> Vec<Knob> {
            actions.iter().filter(|(_, action)| wanted(action)).map(|(knob, _)| knob.clone()).collect()
        };
        self.forget(&of(|action| *action == Action::Forget));
        let restored: Vec<Knob> = of(|action| *action == Action::Restore);
        let mut gone = Vec::new();
        for knob in restored {
            let raw = self.tracks.get(&knob).and_then(|track| Some(track.held.as_ref()?.original_raw.clone()));
            let raw = raw.unwrap_or_default();
            if self.write(&knob, &Value::Restore(raw), files, gpus) {
                gone.push(knob);
            }
        }
        let sets: Vec<(Knob, u64)> = actions
            .into_iter()
            .filter_map(|(knob, action)| if let Action::Set(value) = action { Some((knob, value)) } else { None })
            .collect();
        if self.intend(&sets, limits) {
            for (knob, value) in sets {
                if self.write(&knob, &Value::Set(value), files, gpus) {
                    gone.push(knob);
                }
            }
        }
        self.forget(&gone);
        self.say();
    }

    /// Notes in the journal what is about to be written. Without that, nothing is.
    fn intend(&mut self, sets: &[(Knob, u64)], limits: &Limits) -> bool {
        let Some(journal) = &mut self.journal else { return false };
        let found: Vec<Option<Found>> =
            sets.iter().map(|(knob, _)| self.tracks.get(knob).and_then(Track::before)).collect();
        let intents: Vec<Intent<'_>> = sets
            .iter()
            .zip(&found)
            .filter_map(|((knob, value), found)| {
                Some(Intent { knob, found: found.as_ref()?, value: *value, policy: &limits.get(knob)?.policy })
            })
            .collect();
        match journal.intend(&intents) {
            Ok(()) if intents.is_empty() => true,
            Ok(()) => {
                self.journal_works();
                true
            }
            Err(error) => {
                self.journal_fails(&error);
                false
            }
        }
    }

    /// Returns whether the knob leaves the journal.
    fn write(&mut self, knob: &Knob, value: &Value, files: &mut FileKnobs, gpus: &mut GpuMeter) -> bool {
        let Some(track) = self.tracks.get_mut(knob) else { return false };
        track.begin(self.now, value);
        if is_gpu(knob) {
            if !gpus.write(knob, value.clone()) {
                track.unsent();
            }
            return false;
        }
        self.done(knob, value, files.write(knob, value))
    }

    fn done(&mut self, knob: &Knob, value: &Value, result: Result<Found, KnobError>) -> bool {
        let Some(track) = self.tracks.get_mut(knob) else { return false };
        let gone = track.done(self.now, value, result, &mut self.changes);
        let shown = track.found.as_ref().and_then(|found| found.value);
        if let (Value::Set(_), false, Some(shown), Some(held)) = (value, gone, shown, &track.held)
            && held.is_ours(shown)
            && let Some(Err(error)) = self.journal.as_mut().map(|journal| journal.shown(knob, shown))
        {
            self.journal_fails(&error);
        }
        gone
    }

    fn take_written(&mut self, gpus: &mut GpuMeter) {
        let mut gone = Vec::new();
        for Written { knob, value, result } in gpus.take_written() {
            if self.done(&knob, &value, result) {
                gone.push(knob);
            }
        }
        self.forget(&gone);
    }

    fn forget(&mut self, knobs: &[Knob]) {
        if let Some(Err(error)) = self.journal.as_mut().map(|journal| journal.forget(knobs)) {
            self.journal_fails(&error);
        }
    }

    fn say(&mut self) {
        self.changes.iter().skip(self.said).for_each(Change::log);
        self.said = self.changes.len();
    }

    /// Gives everything back, waiting for GPUs up to `until`. Returns whether all is as it was; what is not stays in the
    /// journal.
    pub fn close(&mut self, now: Duration, until: Instant, files: &mut FileKnobs, gpus: &mut GpuMeter) -> bool {
        let began = Instant::now();
        self.tracks.values_mut().for_each(Track::stop_doubting);
        loop {
            let moment = now + began.elapsed();
            self.look(moment, Seen::default(), files, gpus);
            self.apply(moment, &Limits::new(), files, gpus);
            let left: Vec<&Track> = self.held().collect();
            if left.is_empty() || Instant::now() >= until || left.iter().all(|track| track.is_hopeless()) {
                return left.is_empty();
            }
            let step = until.min(Instant::now() + CLOSING_STEP);
            if left.iter().any(|track| is_gpu(&track.knob)) {
                // A GPU takes writes once it is read.
                let asked = Instant::now();
                let late = gpus.ask(asked);
                drop(gpus.take(asked, late));
            }
            if left.iter().any(|track| track.is_pending()) {
                gpus.settle(step);
            } else {
                thread::sleep(step.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Whether it is, was or would be written, so that what it shows has to be known at each tick.
    #[must_use]
    pub fn is_in_use(&self, knob: &Knob) -> bool {
        self.tracks.get(knob).is_some_and(Track::is_in_use)
    }

    /// The knobs that are in the journal.
    pub fn held(&self) -> impl Iterator<Item = &Track> {
        self.tracks.values().filter(|track| track.held.is_some())
    }

    /// Every knob there is, for the controller.
    #[must_use]
    pub fn knobs(&self) -> BTreeMap<Knob, KnobNow> {
        let now = |track: &Track| {
            let mut now = track.now(self.now)?;
            if self.journal.is_none() && now.state == KnobState::Ok {
                now.state = KnobState::NoPermission;
            }
            Some(now)
        };
        self.tracks.iter().filter_map(|(knob, track)| Some((knob.clone(), now(track)?))).collect()
    }

    /// Every knob that is or was written, or should be, and those of `more` that exist; ascending.
    #[must_use]
    pub fn caps(&self, more: &BTreeSet<Knob>) -> Vec<CapStatus> {
        let shown = |track: &&Track| track.is_told() || more.contains(&track.knob);
        self.tracks.values().filter(shown).map(|track| track.cap(self.now)).collect()
    }

    /// What the journal says is written, as it was at the start of this run or since: for the time until policies are
    /// known.
    #[must_use]
    pub fn adopted(&self) -> Limits {
        let limit = |track: &Track| {
            let held = track.held.as_ref()?;
            Some((track.knob.clone(), Limit { value: held.written, policy: held.policy.clone() }))
        };
        self.tracks.values().filter_map(limit).collect()
    }

    /// Lets a policy that was changed write what it was kept from: after a foreign write, or a failure.
    pub fn policy_changed(&mut self, policy: &super::policy::PolicyName) {
        for track in self.tracks.values_mut() {
            track.policy_changed(policy);
        }
    }

    /// What happened since the last call; the log has it already.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.say();
        self.said = 0;
        std::mem::take(&mut self.changes)
    }

    /// Why nothing can be written, with the remedy.
    #[must_use]
    pub fn journal_error(&self) -> Option<&str> {
        self.journal_error.as_deref()
    }

    /// Knobs that could not be given back so far.
    #[must_use]
    pub fn restore_pending(&self) -> u64 {
        self.tracks.values().map(|track| u64::from(track.is_restore_pending())).sum()
    }

    /// Tries to give a knob back that failed, since the start.
    #[must_use]
    pub fn restore_failures(&self) -> u64 {
        self.tracks.values().map(|track| track.restore_failures).sum()
    }
}

const fn is_gpu(knob: &Knob) -> bool {
    matches!(knob, Knob::GpuClock(_) | Knob::GpuPower(_))
}

const fn is_quota(knob: &Knob) -> bool {
    matches!(knob, Knob::CpuQuota(_))
}
