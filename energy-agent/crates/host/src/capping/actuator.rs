//! Brings the hardware to the limits that are wanted, and restores what is not limited: journal first, then the writes, then
//! what shows.

mod changes;
mod journal_keeper;
mod thermal;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use energy_model::capping::journal_entry::JournalEntry;
use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Found, Knob, KnobError, KnobValue, Limit, Limits};
use energy_model::capping::managed_knob::change::KnobChange;
use energy_model::capping::managed_knob::{Action, ManagedKnob};
use energy_model::capping::observation::{ClockLook, KnobNow};
use energy_model::capping::policy::PolicyName;
use energy_model::capping::status::CapStatus;

use self::changes::Changes;
use self::journal_keeper::JournalKeeper;
pub use self::journal_keeper::{ActuatorTrouble, TroubleKind};
use super::files::FileKnobs;
use super::journal::Intent;
use super::journal::known::Loss;
use crate::config::HostConfig;
use crate::meter::gpu::{GpuMeter, Written};

/// Knobs that nobody uses are looked at this often.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// Between two tries while the agent ends.
const CLOSING_STEP: Duration = Duration::from_millis(100);

/// All knobs of the node, and what was done to them.
#[derive(Debug)]
pub struct Actuator {
    sysfs: PathBuf,
    journal: JournalKeeper,
    knobs: BTreeMap<Knob, ManagedKnob>,
    /// Quotas whose pods are read now and then. One is dropped when that ends and nothing is to be restored.
    followed: BTreeSet<Knob>,
    changes: Changes,
    now: Duration,
    next_list: Duration,
}

/// What the tick knows of knobs beside their files and drivers.
#[derive(Clone, Debug, Default)]
pub struct SeenKnobs {
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
        let mut actuator = Self::new(config, JournalKeeper::new(config));
        let entries = actuator.journal.open();
        actuator.adopt(entries);
        actuator
    }

    /// Knows what the journal says, which may be another process's, and can write nothing.
    #[must_use]
    pub fn peek(config: &HostConfig) -> Self {
        let (journal, entries) = JournalKeeper::peek(config);
        let mut actuator = Self::new(config, journal);
        actuator.adopt(entries);
        actuator
    }

    fn new(config: &HostConfig, journal: JournalKeeper) -> Self {
        Self {
            sysfs: config.sysfs.clone(),
            journal,
            knobs: BTreeMap::new(),
            followed: BTreeSet::new(),
            changes: Changes::default(),
            now: Duration::ZERO,
            next_list: Duration::ZERO,
        }
    }

    fn adopt(&mut self, entries: Vec<JournalEntry>) {
        let knobs = entries.iter().map(|entry| (entry.knob.clone(), ManagedKnob::adopt(entry)));
        self.knobs.extend(knobs);
    }

    /// Looks at the knobs: those in use at each call, the others now and then. Before [`Self::knobs`] and
    /// [`Self::apply`] of a tick; `now` does not go backwards.
    pub fn look(&mut self, now: Duration, seen: SeenKnobs, files: &mut FileKnobs, gpus: &mut GpuMeter) {
        self.now = now;
        let entries = self.journal.look_after(now);
        self.adopt(entries);
        self.take_written(gpus);
        let mut found = gpus.knobs();
        if now >= self.next_list {
            self.next_list = now + LIST_EVERY;
            found.extend(files.list());
            for managed in self.knobs.values_mut().filter(|managed| !is_quota(&managed.knob)) {
                managed.observed.found = None;
            }
        }
        found.extend(seen.quotas);
        for knob in &seen.ended {
            self.followed.remove(knob);
        }
        let mut gone = Vec::new();
        for managed in self.knobs.values_mut() {
            let is_kept = !is_quota(&managed.knob) || self.followed.contains(&managed.knob);
            let unused = !managed.is_in_use();
            if (unused && is_kept) || managed.knob.is_gpu() || found.contains_key(&managed.knob) {
                continue;
            }
            if unused {
                gone.push(managed.knob.clone());
                continue;
            }
            match files.read(&managed.knob) {
                Ok(now) => managed.observed.found = Some(now),
                // A cgroup never comes back; a file of the hardware may.
                Err(error) if error.state == KnobState::Unreachable && is_quota(&managed.knob) => {
                    gone.push(managed.knob.clone());
                }
                Err(error) => managed.unreadable(&error),
            }
        }
        self.journal.forget(&gone);
        for knob in &gone {
            files.forget(knob);
            self.knobs.remove(knob);
            self.followed.remove(knob);
        }
        for (knob, now) in found {
            if is_quota(&knob) {
                self.followed.insert(knob.clone());
            }
            let managed = self.knobs.entry(knob).or_insert_with_key(|knob| ManagedKnob::new(knob.clone()));
            managed.observed.found = Some(now);
        }
        self.look_at_clocks(&seen.clocks_mhz, &seen.looks);
    }

    /// What runs at which clock, and whether the kernel itself holds it down.
    fn look_at_clocks(&mut self, clocks_mhz: &BTreeMap<Arc<str>, u32>, looks: &BTreeMap<Arc<str>, ClockLook>) {
        for managed in self.knobs.values_mut() {
            match &managed.knob {
                Knob::GpuClock(uuid) => {
                    managed.observed.clock_mhz = clocks_mhz.get(uuid).copied();
                    managed.observed.look = looks.get(uuid).copied();
                }
                Knob::CpuFrequency(policy) => {
                    let shown = managed.observed.found.as_ref().and_then(|found| found.value);
                    let lower = shown.filter(|&now| managed.is_above(now));
                    managed.observed.lowered = lower.is_some_and(|khz| thermal::holds_down(&self.sysfs, *policy, khz));
                }
                Knob::GpuPower(_) | Knob::CpuQuota(_) | Knob::RaplLimit(_) => {}
            }
        }
    }

    /// Brings the devices to `limits`: a knob that is in the journal and not in it is restored. At each tick, also with
    /// nothing to limit. A limit of a knob that does not exist is passed over.
    pub fn apply(&mut self, now: Duration, limits: &Limits, files: &mut FileKnobs, gpus: &mut GpuMeter) {
        self.now = now;
        self.take_written(gpus);
        let (mut restores, mut sets, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for (knob, managed) in &mut self.knobs {
            // A quota may have been looked at some seconds ago: what it was before the first write is what it is now.
            if is_quota(knob) && managed.held().is_none() && limits.contains_key(knob) {
                match files.read(knob) {
                    Ok(now) => managed.observed.found = Some(now),
                    Err(error) => managed.unreadable(&error),
                }
            }
            match managed.decide(now, limits.get(knob), &mut self.changes.all) {
                Action::Nothing => {}
                Action::Forget => gone.push(knob.clone()),
                Action::Restore => {
                    let raw = managed.held().map(|held| held.original_raw.clone()).unwrap_or_default();
                    restores.push((knob.clone(), raw));
                }
                Action::Set(value) => sets.push((knob.clone(), value)),
            }
        }
        self.journal.forget(&gone);
        gone.clear();
        for (knob, raw) in restores {
            if self.write(&knob, KnobValue::Restore(raw), files, gpus) {
                gone.push(knob);
            }
        }
        if self.intend(&sets, limits) {
            for (knob, value) in sets {
                if self.write(&knob, KnobValue::Set(value), files, gpus) {
                    gone.push(knob);
                }
            }
        }
        self.journal.forget(&gone);
        self.changes.log();
    }

    /// Notes in the journal what is about to be written. Without that, nothing is.
    fn intend(&mut self, sets: &[(Knob, u64)], limits: &Limits) -> bool {
        let found: Vec<Option<Found>> =
            sets.iter().map(|(knob, _)| self.knobs.get(knob).and_then(ManagedKnob::before)).collect();
        let intents: Vec<Intent<'_>> = sets
            .iter()
            .zip(&found)
            .filter_map(|((knob, value), found)| {
                Some(Intent { knob, found: found.as_ref()?, value: *value, policy: &limits.get(knob)?.policy })
            })
            .collect();
        self.journal.intend(&intents)
    }

    /// Writes a knob: a GPU's by its thread, which answers later, all others by a file. Returns whether the knob leaves the
    /// journal.
    fn write(&mut self, knob: &Knob, value: KnobValue, files: &mut FileKnobs, gpus: &mut GpuMeter) -> bool {
        let Some(managed) = self.knobs.get_mut(knob) else { return false };
        if is_quota(knob)
            && let Ok(now) = files.read(knob)
            && managed.observed.found.as_ref().is_none_or(|found| found.raw != now.raw)
        {
            // The pod was resized since the look. The next tick decides, so that no write covers what the kubelet wrote.
            managed.observed.found = Some(now);
            return managed.held().is_none();
        }
        managed.begin(self.now, &value);
        if knob.is_gpu() {
            if !gpus.write(knob, value) {
                managed.unsent();
            }
            return false;
        }
        let result = files.write(knob, &value);
        self.done(knob, &value, result)
    }

    fn done(&mut self, knob: &Knob, value: &KnobValue, result: Result<Found, KnobError>) -> bool {
        let Some(managed) = self.knobs.get_mut(knob) else { return false };
        let gone = managed.done(self.now, value, result, &mut self.changes.all);
        let shown = managed.observed.found.as_ref().and_then(|found| found.value);
        if let (KnobValue::Set(_), false, Some(shown), Some(held)) = (value, gone, shown, managed.held())
            && held.is_ours(shown)
        {
            self.journal.shown(knob, shown);
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
        self.journal.forget(&gone);
    }

    /// Restores everything, waiting for GPUs up to `until`. Returns whether all is as it was; what is not stays in the
    /// journal.
    pub fn close(&mut self, now: Duration, until: Instant, files: &mut FileKnobs, gpus: &mut GpuMeter) -> bool {
        let began = Instant::now();
        self.knobs.values_mut().for_each(ManagedKnob::stop_doubting);
        loop {
            let moment = now + began.elapsed();
            self.look(moment, SeenKnobs::default(), files, gpus);
            self.apply(moment, &Limits::new(), files, gpus);
            let left: Vec<&ManagedKnob> = self.held().collect();
            if left.is_empty() || Instant::now() >= until || left.iter().all(|managed| managed.is_hopeless()) {
                return left.is_empty();
            }
            let step = until.min(Instant::now() + CLOSING_STEP);
            if left.iter().any(|managed| managed.knob.is_gpu()) {
                // A GPU takes writes once it is read.
                let asked = Instant::now();
                let late = gpus.ask(asked);
                drop(gpus.take(asked, late));
            }
            if left.iter().any(|managed| managed.is_pending()) {
                gpus.settle(step);
            } else {
                thread::sleep(step.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Whether it is, was or would be written, so that what it shows has to be known at each tick.
    #[must_use]
    pub fn is_in_use(&self, knob: &Knob) -> bool {
        self.knobs.get(knob).is_some_and(ManagedKnob::is_in_use)
    }

    /// The knobs that are in the journal.
    pub fn held(&self) -> impl Iterator<Item = &ManagedKnob> {
        self.knobs.values().filter(|managed| managed.held().is_some())
    }

    /// Every knob there is, for the controller.
    #[must_use]
    pub fn knobs(&self) -> BTreeMap<Knob, KnobNow> {
        let is_writable = self.journal.is_writable();
        let now = |managed: &ManagedKnob| {
            let mut now = managed.now(self.now)?;
            // What is limited stays so: a disk that fills up lifts no limit.
            if !is_writable && managed.held().is_none() && now.state == KnobState::Ok {
                now.state = KnobState::NoPermission;
            }
            Some(now)
        };
        self.knobs.iter().filter_map(|(knob, managed)| Some((knob.clone(), now(managed)?))).collect()
    }

    /// Every knob that is or was written, or should be, and those of `more` that exist; ascending.
    #[must_use]
    pub fn caps(&self, more: &BTreeSet<Knob>) -> Vec<CapStatus> {
        let shown = |managed: &&ManagedKnob| managed.is_shown() || more.contains(&managed.knob);
        self.knobs.values().filter(shown).map(|managed| managed.cap(self.now)).collect()
    }

    /// What the journal says is written, as it was at the start of this run or since: for the time until policies are
    /// known.
    #[must_use]
    pub fn adopted(&self) -> Limits {
        let limit = |managed: &ManagedKnob| {
            let held = managed.held()?;
            Some((managed.knob.clone(), Limit { value: held.written, policy: held.policy.clone() }))
        };
        self.knobs.values().filter_map(limit).collect()
    }

    /// Lets a policy that was changed write what it was kept from: after a foreign write, or a failure.
    pub fn policy_changed(&mut self, policy: &PolicyName) {
        for managed in self.knobs.values_mut() {
            managed.policy_changed(policy);
        }
    }

    /// What happened since the last call; the log has it already.
    pub fn take_changes(&mut self) -> Vec<KnobChange> {
        self.changes.take()
    }

    /// Why nothing new can be limited.
    #[must_use]
    pub const fn trouble(&self) -> Option<&ActuatorTrouble> {
        self.journal.trouble()
    }

    /// Whether this process may write to devices, be it only to restore them.
    #[must_use]
    pub const fn may_restore(&self) -> bool {
        self.journal.is_open()
    }

    /// What the journal of an earlier run should have said, and did not.
    #[must_use]
    pub const fn loss(&self) -> &Loss {
        self.journal.loss()
    }

    /// People know what is lost.
    pub fn loss_is_told(&mut self) {
        self.journal.loss_is_told();
    }

    /// How often somebody else had removed or changed the journal since the start.
    #[must_use]
    pub const fn journal_repairs(&self) -> u64 {
        self.journal.repairs()
    }

    /// Knobs that could not be restored so far.
    #[must_use]
    pub fn restore_pending(&self) -> u64 {
        self.knobs.values().map(|managed| u64::from(managed.is_restore_pending())).sum()
    }

    /// Tries to restore a knob that failed, since the start.
    #[must_use]
    pub fn restore_failures(&self) -> u64 {
        self.knobs.values().map(ManagedKnob::restore_failures).sum()
    }
}

const fn is_quota(knob: &Knob) -> bool {
    matches!(knob, Knob::CpuQuota(_))
}
