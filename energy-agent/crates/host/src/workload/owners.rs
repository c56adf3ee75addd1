//! To whom each cgroup's work belongs: cgroup ids become workloads, kept up to date by events and, where these are
//! missing, by walking the hierarchy.

mod doubtful;
mod event_paths;
mod placing;
mod pod_cgroups;
mod roster;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::sample::{CgroupEvent, CgroupId, KERNEL_THREADS};
use energy_model::table;
use energy_model::workload::Workload;
use energy_model::workload::cgroup::PathReading;
use energy_model::workload::names::Pods;
use energy_model::workload::places::{Places, names};
use energy_model::workload::sandbox::Sandboxes;
use tracing::{info, warn};

use self::doubtful::Doubtful;
use self::event_paths::AboveRoot;
use self::pod_cgroups::PodCgroups;
use self::roster::Roster;
use super::tree::walk;

/// How long a removed cgroup's id stays known, for work that is read after its removal.
const KEEP_REMOVED: Duration = Duration::from_secs(180);
/// Most removed ids to keep; the oldest go first.
const MAX_REMOVED: usize = 8192;
/// Time between two walks that repair what events missed.
const WALK_EVERY: Duration = Duration::from_secs(300);
/// Most unknown ids to remember.
const MAX_UNKNOWN: usize = 4096;

/// A cgroup that exists or existed a short time ago.
#[derive(Debug)]
struct Cgroup {
    workload: Arc<Workload>,
    /// Its names are among the places.
    mentions: bool,
    /// What is known of its path is the beginning.
    is_cut: bool,
    created: Instant,
    /// When its work was charged last, or else when it was made.
    charged: Instant,
    removed: Option<Instant>,
}

impl Cgroup {
    /// Whether it is gone if a walk does not find it. A walk may not reach what lies deeper than a path can be: that ends by
    /// its event, or, when events were `lost` since its last work, as an unknown cgroup does.
    fn is_gone_unseen(&self, lost: Option<Instant>, now: Instant) -> bool {
        let is_over = |lost| self.charged <= lost && now.saturating_duration_since(self.charged) >= WALK_EVERY;
        !self.is_cut || lost.is_some_and(is_over)
    }
}

/// The workload of every cgroup. Equal workloads are one `Arc`.
#[derive(Debug)]
pub struct Owners {
    root: PathBuf,
    cgroups: HashMap<CgroupId, Cgroup>,
    roster: Roster,
    pods: PodCgroups,
    firsts: Sandboxes,
    places: Places,
    told: Arc<Pods>,
    doubtful: Doubtful,
    /// Some of these may belong to another workload now.
    is_stale: bool,
    above_root: AboveRoot,
    /// Removals not yet taken by the caller.
    newly_removed: Vec<CgroupId>,
    /// Oldest first; an entry is void if the cgroup's `removed` differs.
    removed: VecDeque<(Instant, CgroupId)>,
    /// Ids without a path, and when they were last charged. Each causes one walk.
    unknown: HashMap<CgroupId, Instant>,
    now: Instant,
    /// When events were lost last.
    lost: Option<Instant>,
    walked: Instant,
    walk_failed: bool,
    walks: u64,
    unknown_cgroups: u64,
    /// How often all doubtful paths were looked at.
    #[cfg(test)]
    placings: usize,
}

impl Owners {
    /// Learns all cgroups at and below `v2_root`.
    ///
    /// # Errors
    /// When the folder cannot be walked.
    pub fn open(v2_root: &Path, now: Instant) -> anyhow::Result<Self> {
        let mut owners = Self::empty(v2_root, now);
        owners.walk()?;
        Ok(owners)
    }

    fn empty(v2_root: &Path, now: Instant) -> Self {
        Self {
            root: v2_root.to_owned(),
            cgroups: HashMap::new(),
            roster: Roster::new(),
            pods: PodCgroups::default(),
            firsts: Sandboxes::default(),
            places: Places::default(),
            told: Arc::default(),
            doubtful: Doubtful::default(),
            is_stale: false,
            above_root: AboveRoot::of(v2_root),
            newly_removed: Vec::new(),
            removed: VecDeque::new(),
            unknown: HashMap::new(),
            now,
            lost: None,
            walked: now,
            walk_failed: false,
            walks: 0,
            unknown_cgroups: 0,
            #[cfg(test)]
            placings: 0,
        }
    }

    /// Begins a tick: takes in the events since the last one. `complete` says that no event was lost since then; if
    /// not (events dropped, or no source of events at all) the hierarchy is walked now, as it is where an event does not
    /// hold a whole path.
    ///
    /// Events should be read after the work they explain, so that no cgroup is charged before it is known.
    pub fn apply(&mut self, now: Instant, events: &[CgroupEvent], complete: bool) {
        self.now = now;
        if !complete {
            self.lost = Some(now);
        }
        let mut deep = Vec::new();
        for event in events {
            match event {
                CgroupEvent::Created { id, path } => {
                    let path = self.above_root.below(&self.root, *id, path);
                    self.insert(*id, path, false);
                }
                CgroupEvent::CreatedDeep { id, above } => {
                    let above = self.above_root.strip(above).to_owned();
                    self.insert(*id, &above, true);
                    deep.push(*id);
                }
                CgroupEvent::Removed { id } => self.remove(*id),
            }
        }
        let is_cut = |id: &CgroupId| self.cgroups.get(id).is_some_and(|it| it.is_cut && it.removed.is_none());
        if !complete || deep.iter().any(is_cut) || now.saturating_duration_since(self.walked) >= WALK_EVERY {
            self.try_walk();
        }
        self.forget();
        self.place_again();
    }

    /// The pods that are reported from now on. They may decide which of two pods in a path it belongs to.
    pub fn tell(&mut self, pods: &Arc<Pods>) {
        if Arc::ptr_eq(pods, &self.told) {
            return;
        }
        self.told = Arc::clone(pods);
        self.places.tell(pods);
        self.is_stale |= !self.doubtful.is_empty();
        self.place_again();
    }

    /// The workload that work of this cgroup is charged to: the unit `unknown` when nobody knows the id.
    ///
    /// The first sight of an unknown id walks the hierarchy, at most once a tick.
    pub fn owner(&mut self, id: CgroupId) -> Arc<Workload> {
        self.roster.charge();
        if id == KERNEL_THREADS {
            return self.roster.kernel();
        }
        if let Some(cgroup) = self.cgroups.get_mut(&id) {
            cgroup.charged = self.now;
            if cgroup.removed.is_some() {
                // Tasks on their way out; a caller that has forgotten the cgroup must do so again.
                self.newly_removed.push(id);
            }
            return Arc::clone(&cgroup.workload);
        }
        if let Some(charged) = self.unknown.get_mut(&id) {
            *charged = self.now;
            return self.roster.unknown_unit();
        }
        if self.walked < self.now && self.unknown.len() < MAX_UNKNOWN {
            self.try_walk();
            if let Some(cgroup) = self.cgroups.get(&id) {
                return Arc::clone(&cgroup.workload);
            }
        }
        self.unknown_cgroups += 1;
        if self.unknown.len() < MAX_UNKNOWN {
            self.unknown.insert(id, self.now);
        }
        self.roster.unknown_unit()
    }

    /// The workload of the cgroup at this path below the hierarchy's root; `None` where nobody knows it.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<&Arc<Workload>> {
        let folder = self.root.join(self.above_root.strip(path).trim_start_matches('/'));
        let id = fs::metadata(folder).ok()?.ino();
        self.cgroups.get(&id).map(|cgroup| &cgroup.workload)
    }

    /// Whether any cgroup of the workload exists. The kernel and the unit `unknown` do once they were charged.
    #[must_use]
    pub fn is_alive(&self, workload: &Workload) -> bool {
        self.alive().contains(workload)
    }

    /// The `Arc` that an existing workload is known by.
    #[must_use]
    pub fn living(&self, workload: &Workload) -> Option<Arc<Workload>> {
        self.alive().get(workload).cloned()
    }

    /// All workloads that exist.
    #[must_use]
    pub const fn alive(&self) -> &BTreeSet<Arc<Workload>> {
        self.roster.alive()
    }

    /// The pod's own cgroup below the hierarchy's root, without a leading `/`; by what the cgroup is named by.
    #[must_use]
    pub fn pod_cgroup(&self, uid: &str) -> Option<&Arc<str>> {
        self.pods.path(uid)
    }

    /// All pods' own cgroups.
    pub fn pod_cgroups(&self) -> impl Iterator<Item = &Arc<str>> {
        self.pods.paths()
    }

    /// Which container of each pod was made first.
    #[must_use]
    pub const fn firsts(&self) -> &Sandboxes {
        &self.firsts
    }

    /// Ids of the cgroups found removed since the last call, by event or by walk, of removed ones that were charged once
    /// more, and of unknown ones that did nothing for long.
    pub fn take_removed(&mut self) -> Vec<CgroupId> {
        std::mem::take(&mut self.newly_removed)
    }

    /// Cgroup ids that were charged and had no path.
    #[must_use]
    pub fn unknown_cgroups(&self) -> u64 {
        self.unknown_cgroups
    }

    /// Walks of the whole hierarchy so far.
    #[must_use]
    pub fn walks(&self) -> u64 {
        self.walks
    }

    /// A cgroup exists, at this path or, if that is cut, somewhere below.
    fn insert(&mut self, id: CgroupId, path: &str, is_cut: bool) {
        self.unknown.remove(&id);
        if let Some(cgroup) = self.cgroups.get_mut(&id) {
            if cgroup.removed.take().is_some() {
                self.roster.revive(&cgroup.workload);
            }
            return;
        }
        let reading = PathReading::of(path);
        let is_doubtful = reading.is_doubtful();
        let mentions = !is_doubtful || self.doubtful.has_room();
        if mentions && self.places.mention(id, &reading) {
            // Who had its name has it no more once all are placed, which is before anything is charged.
            self.is_stale = true;
            self.pods.drop_misplaced(&reading, &self.places);
        }
        let claim = self.claim(&reading, path);
        let workload = self.enter(claim, true);
        if !is_cut {
            self.note_pod(id, path, &workload);
        }
        if is_doubtful && mentions {
            self.doubtful.insert(id, path, &reading);
        }
        self.cgroups
            .insert(id, Cgroup { workload, mentions, is_cut, created: self.now, charged: self.now, removed: None });
    }

    fn remove(&mut self, id: CgroupId) {
        let Some(cgroup) = self.cgroups.get_mut(&id).filter(|cgroup| cgroup.removed.is_none()) else { return };
        cgroup.removed = Some(self.now);
        let workload = Arc::clone(&cgroup.workload);
        self.roster.end(&workload);
        self.pods.forget(id, &workload);
        self.newly_removed.push(id);
        self.removed.push_back((self.now, id));
    }

    /// Drops the ids that were removed long ago, or too many.
    fn forget(&mut self) {
        while let Some(&(at, id)) = self.removed.front() {
            if self.removed.len() <= MAX_REMOVED && self.now.saturating_duration_since(at) < KEEP_REMOVED {
                break;
            }
            self.removed.pop_front();
            if self.cgroups.get(&id).is_none_or(|cgroup| cgroup.removed != Some(at)) {
                continue;
            }
            self.drop_cgroup(id);
        }
        table::fit(&mut self.cgroups);
        table::fit(&mut self.unknown);
        self.roster.fit();
        self.pods.fit();
        self.doubtful.fit();
    }

    /// Knows nothing of the cgroup any more.
    fn drop_cgroup(&mut self, id: CgroupId) {
        let Some(Cgroup { workload, mentions, .. }) = self.cgroups.remove(&id) else { return };
        if let Some(reading) = self.doubtful.remove(id) {
            self.places.release(names(&reading).map(|(name, _)| name));
        } else if mentions {
            let name = workload.pod_uid().or_else(|| workload.container_id());
            self.places.release(name.map(|name| &**name).into_iter());
        }
        self.leave(&workload);
    }

    /// Walks, and logs when that begins or ceases to fail.
    fn try_walk(&mut self) {
        let result = self.walk();
        match (&result, self.walk_failed) {
            (Err(error), false) => warn!(error = format!("{error:#}"), "cgroups cannot be listed"),
            (Ok(()), true) => info!("cgroups can be listed again"),
            _ => {}
        }
        self.walk_failed = result.is_err();
    }

    /// Brings the table in line with the folders that exist.
    fn walk(&mut self) -> anyhow::Result<()> {
        self.walked = self.now;
        self.walks += 1;
        let (now, lost) = (self.now, self.lost);
        let (unknown, newly_removed) = (&mut self.unknown, &mut self.newly_removed);
        unknown.retain(|id, charged| {
            let kept = now.saturating_duration_since(*charged) < WALK_EVERY;
            if !kept {
                newly_removed.push(*id);
            }
            kept
        });
        let folders = walk(&self.root)?;
        let mut gone: HashSet<CgroupId> = self
            .cgroups
            .iter()
            // The kernel reports a new cgroup shortly before its folder shows.
            .filter(|(_, cgroup)| cgroup.removed.is_none() && cgroup.created < now && cgroup.is_gone_unseen(lost, now))
            .map(|(id, _)| *id)
            .collect();
        for folder in folders {
            let was_there = gone.remove(&folder.id);
            let cut = self.cgroups.get(&folder.id).filter(|cgroup| cgroup.is_cut && cgroup.removed.is_none());
            if let Some(workload) = cut.map(|cgroup| Arc::clone(&cgroup.workload)) {
                // Its whole path is known from now on.
                self.roster.end(&workload);
                self.drop_cgroup(folder.id);
            } else if was_there {
                continue;
            }
            self.insert(folder.id, &folder.cgroup_path(), false);
        }
        for id in gone {
            self.remove(id);
        }
        // Of pods without a cgroup of their own, as some runtimes' paths have it.
        let known: HashSet<&Arc<str>> = self.roster.known().filter_map(|workload| workload.pod_uid()).collect();
        self.firsts.retain(|uid| known.contains(uid));
        self.place_again();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
