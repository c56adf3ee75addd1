//! Brings the hardware to the limits that are wanted, and what is not limited back to what it was: journal first, then
//! the writes, then what shows.

mod thermal;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use energy_model::capping::knob::{Found, Knob, KnobError, Limit, Limits, Value};
use energy_model::capping::managed_knob::change::{Change, ChangeKind};
use energy_model::capping::managed_knob::{Action, Track};
use energy_model::capping::observation::{ClockLook, KnobNow, KnobState};
use energy_model::capping::status::CapStatus;
use tracing::{info, warn};

use super::files::FileKnobs;
use super::journal::known::{Known, Loss};
use super::journal::{Folders, Intent, Journal, Refused};
use crate::config::HostConfig;
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
    folders: Folders,
    boot_id: String,
    /// `None`: nothing may be written.
    journal: Option<Journal>,
    trouble: Option<ActuatorTrouble>,
    loss: Loss,
    /// How often somebody else had removed or changed the journal or its record.
    journal_repairs: u64,
    tracks: BTreeMap<Knob, Track>,
    changes: Vec<Change>,
    /// How many of them are in the log.
    said: usize,
    now: Duration,
    next_list: Duration,
    next_journal: Duration,
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
    /// Takes the journal and what it says is written; writes nothing to any device. Where another agent caps, nothing will
    /// be; where the journal cannot be written, things are only restored. The log says why.
    #[must_use]
    pub fn open(config: &HostConfig) -> Self {
        let mut actuator = Self::without_journal(config);
        actuator.open_journal();
        actuator
    }

    /// Knows what the journal says, which may be another process's, and can write nothing.
    #[must_use]
    pub fn peek(config: &HostConfig) -> Self {
        let mut actuator = Self::without_journal(config);
        let Known { entries, loss, .. } = Journal::peek(&actuator.folders, &actuator.boot_id);
        for (knob, entry) in entries {
            actuator.tracks.insert(knob, Track::adopt(&entry));
        }
        actuator.loss = loss;
        // It is not to be opened later on.
        actuator.next_journal = Duration::MAX;
        actuator
    }

    fn without_journal(config: &HostConfig) -> Self {
        let boot_id = fs::read_to_string(config.procfs.join("sys/kernel/random/boot_id")).unwrap_or_default();
        Self {
            sysfs: config.sysfs.clone(),
            folders: config.folders(),
            boot_id: boot_id.trim().to_owned(),
            journal: None,
            trouble: None,
            loss: Loss::default(),
            journal_repairs: 0,
            tracks: BTreeMap::new(),
            changes: Vec::new(),
            said: 0,
            now: Duration::ZERO,
            next_list: Duration::ZERO,
            next_journal: Duration::ZERO,
        }
    }

    fn open_journal(&mut self) {
        match Journal::open(&self.folders, &self.boot_id) {
            Ok(journal) => {
                if !journal.entries().is_empty() {
                    info!(knobs = journal.entries().len(), "limits of an earlier run are taken over from the journal");
                }
                for (knob, entry) in journal.entries() {
                    self.tracks.insert(knob.clone(), Track::adopt(entry));
                }
                self.loss = journal.loss().clone();
                self.journal = Some(journal);
                self.see_journal();
            }
            Err(refused) => self.refused(refused),
        }
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
    fn see_journal(&mut self) {
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
                warn!(error = detail, "nothing new is capped: what a limit was before could not be kept");
            }
            None if self.trouble.is_some() => info!("the capping journal can be written"),
            None => {}
        }
        self.trouble = trouble;
    }

    /// Takes the journal once it is free, tries again where writing failed, and repairs what others have done to it.
    fn look_after_journal(&mut self, now: Duration) {
        let due = now >= self.next_journal;
        if due && self.next_journal != Duration::MAX {
            self.next_journal = now + JOURNAL_EVERY;
        }
        let Some(journal) = &mut self.journal else {
            if due {
                self.open_journal();
            }
            return;
        };
        match journal.look_after() {
            Err(refused) => return self.refused(refused),
            Ok(Some(changed)) => {
                self.journal_repairs += 1;
                warn!(files = changed, "somebody else has removed or changed the capping journal; it is written anew");
            }
            Ok(None) if due && journal.problem().is_some() => journal.retry(),
            Ok(None) => {}
        }
        self.see_journal();
    }

    /// Looks at the knobs: those in use at each call, the others now and then. Before [`Self::knobs`] and
    /// [`Self::apply`] of a tick; `now` does not go backwards.
    pub fn look(&mut self, now: Duration, seen: Seen, files: &mut FileKnobs, gpus: &mut GpuMeter) {
        self.now = now;
        self.look_after_journal(now);
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
        let noted = journal.intend(&intents).is_ok();
        self.see_journal();
        noted
    }

    /// Returns whether the knob leaves the journal.
    fn write(&mut self, knob: &Knob, value: &Value, files: &mut FileKnobs, gpus: &mut GpuMeter) -> bool {
        let Some(track) = self.tracks.get_mut(knob) else { return false };
        if is_quota(knob)
            && let Ok(now) = files.read(knob)
            && track.found.as_ref().is_none_or(|found| found.raw != now.raw)
        {
            // The pod was resized since the look. The next tick decides, so that no write covers what the kubelet wrote.
            track.found = Some(now);
            return track.held.is_none();
        }
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
            && let Some(journal) = &mut self.journal
        {
            let _ = journal.shown(knob, shown);
            self.see_journal();
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
        if let Some(journal) = &mut self.journal {
            let _ = journal.forget(knobs);
            self.see_journal();
        }
    }

    fn say(&mut self) {
        self.changes.iter().skip(self.said).for_each(log);
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
        let is_closed = self.journal.as_ref().is_none_or(|journal| journal.problem().is_some());
        let now = |track: &Track| {
            let mut now = track.now(self.now)?;
            // What is limited stays so: a disk that fills up lifts no limit.
            if is_closed && track.held.is_none() && now.state == KnobState::Ok {
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
    pub fn policy_changed(&mut self, policy: &energy_model::capping::policy::PolicyName) {
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

    /// Why nothing new can be limited.
    #[must_use]
    pub const fn trouble(&self) -> Option<&ActuatorTrouble> {
        self.trouble.as_ref()
    }

    /// Whether this process may write to devices, be it only to restore them.
    #[must_use]
    pub const fn may_restore(&self) -> bool {
        self.journal.is_some()
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
    pub const fn journal_repairs(&self) -> u64 {
        self.journal_repairs
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

/// The line of a change in the log.
pub fn log(change: &Change) {
    let Change { knob, policy, kind, detail } = change;
    let policy = policy.as_ref().map(ToString::to_string).unwrap_or_default();
    match kind {
        ChangeKind::Foreign => {
            warn!(%knob, policy, "somebody else writes it: {detail}");
        }
        ChangeKind::Locked => {
            warn!(%knob, policy, "its clocks are left alone while this shows: {detail}");
        }
        ChangeKind::Resized => {
            info!(%knob, policy, "the pod was resized, its new limit is what is given back: {detail}")
        }
        ChangeKind::Reverted => info!(%knob, policy, "set again: {detail}"),
        ChangeKind::Restored => info!(%knob, policy, "given back: {detail}"),
        ChangeKind::RestoreFailed => {
            warn!(%knob, policy, error = detail, "cannot be given back, it stays in the journal and is tried again");
        }
        ChangeKind::Refused(state) => {
            warn!(%knob, policy, reason = state.as_str(), error = detail, "cannot be limited, it is tried again later");
        }
        ChangeKind::Recovered => info!(%knob, policy, "can be limited again: {detail}"),
    }
}
