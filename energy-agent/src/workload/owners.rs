//! To whom each cgroup's work belongs: cgroup ids become workloads, kept up to date by events and, where these are
//! missing, by walking the hierarchy.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::Workload;
use super::cgroup::{UNKNOWN_UNIT, classify};
use super::first::Firsts;
use super::tree::walk;
use crate::memory;
use crate::meter::{CgroupEvent, CgroupId, KERNEL_THREADS};

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
    created: Instant,
    removed: Option<Instant>,
}

/// How many cgroups of a workload are in the table, and how many of these exist.
#[derive(Debug, Default)]
struct Count {
    known: usize,
    live: usize,
}

/// A pod's own cgroup, the one that its containers' are in.
#[derive(Debug)]
struct PodCgroup {
    id: CgroupId,
    path: Arc<str>,
}

/// The workload of every cgroup. Equal workloads are one `Arc`.
#[derive(Debug)]
pub struct Owners {
    root: PathBuf,
    cgroups: HashMap<CgroupId, Cgroup>,
    workloads: HashMap<Arc<Workload>, Count>,
    /// The workloads whose `live` is not 0.
    alive: BTreeSet<Arc<Workload>>,
    /// The cgroups that are pods' own, by what they are named by.
    pods: HashMap<Arc<str>, PodCgroup>,
    firsts: Firsts,
    /// Removals not yet taken by the caller.
    newly_removed: Vec<CgroupId>,
    /// Oldest first; an entry is void if the cgroup's `removed` differs.
    removed: VecDeque<(Instant, CgroupId)>,
    /// Ids without a path, and when they were last charged. Each causes one walk.
    unknown: HashMap<CgroupId, Instant>,
    kernel: Arc<Workload>,
    unknown_unit: Arc<Workload>,
    now: Instant,
    walked: Instant,
    walk_failed: bool,
    walks: u64,
    unknown_cgroups: u64,
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
        let mut owners = Self {
            root: v2_root.to_owned(),
            cgroups: HashMap::new(),
            workloads: HashMap::new(),
            alive: BTreeSet::new(),
            pods: HashMap::new(),
            firsts: Firsts::default(),
            newly_removed: Vec::new(),
            removed: VecDeque::new(),
            unknown: HashMap::new(),
            kernel: Arc::new(Workload::Kernel),
            unknown_unit: Arc::new(Workload::Unit { unit: Arc::from(UNKNOWN_UNIT) }),
            now,
            walked: now,
            walk_failed: false,
            walks: 0,
            unknown_cgroups: 0,
        };
        // These two have no cgroup and never end.
        for workload in [&owners.kernel, &owners.unknown_unit] {
            owners.workloads.insert(Arc::clone(workload), Count { known: 1, live: 1 });
        }
        // They are alive once something is charged to them: a meter that cannot tell the kernel's threads apart must not
        // show work of theirs as a measured zero.
        owners
    }

    /// Begins a tick: takes in the events since the last one. `complete` says that no event was lost since then; if
    /// not (events dropped, or no source of events at all) the hierarchy is walked now.
    ///
    /// Events should be read after the work they explain, so that no cgroup is charged before it is known.
    pub fn apply(&mut self, now: Instant, events: &[CgroupEvent], complete: bool) {
        self.now = now;
        for event in events {
            match event {
                CgroupEvent::Created { id, path } => self.insert(*id, path),
                CgroupEvent::Removed { id } => self.remove(*id),
            }
        }
        if !complete || now.saturating_duration_since(self.walked) >= WALK_EVERY {
            self.try_walk();
        }
        self.forget();
    }

    /// The workload that work of this cgroup is charged to: the unit `unknown` when nobody knows the id.
    ///
    /// The first sight of an unknown id walks the hierarchy, at most once a tick.
    pub fn owner(&mut self, id: CgroupId) -> Arc<Workload> {
        if id == KERNEL_THREADS {
            self.alive.insert(Arc::clone(&self.kernel));
            return Arc::clone(&self.kernel);
        }
        if let Some(cgroup) = self.cgroups.get(&id) {
            if cgroup.removed.is_some() {
                // Tasks on their way out; whoever has forgotten the cgroup must do so again.
                self.newly_removed.push(id);
            }
            return Arc::clone(&cgroup.workload);
        }
        if let Some(charged) = self.unknown.get_mut(&id) {
            *charged = self.now;
            return Arc::clone(&self.unknown_unit);
        }
        if self.walked < self.now && self.unknown.len() < MAX_UNKNOWN {
            self.try_walk();
            if let Some(cgroup) = self.cgroups.get(&id) {
                return Arc::clone(&cgroup.workload);
            }
        }
        self.unknown_cgroups += 1;
        self.alive.insert(Arc::clone(&self.unknown_unit));
        if self.unknown.len() < MAX_UNKNOWN {
            self.unknown.insert(id, self.now);
        }
        Arc::clone(&self.unknown_unit)
    }

    /// Whether any cgroup of the workload exists. The kernel and the unit `unknown` do once they were charged.
    #[must_use]
    pub fn is_alive(&self, workload: &Workload) -> bool {
        self.alive.contains(workload)
    }

    /// The `Arc` that an existing workload is known by.
    #[must_use]
    pub fn living(&self, workload: &Workload) -> Option<Arc<Workload>> {
        self.alive.get(workload).cloned()
    }

    /// All workloads that exist.
    #[must_use]
    pub const fn alive(&self) -> &BTreeSet<Arc<Workload>> {
        &self.alive
    }

    /// The pod's own cgroup below the hierarchy's root, without a leading `/`; by what the cgroup is named by.
    #[must_use]
    pub fn pod_cgroup(&self, uid: &str) -> Option<&Arc<str>> {
        self.pods.get(uid).map(|pod| &pod.path)
    }

    /// All pods' own cgroups.
    pub fn pod_cgroups(&self) -> impl Iterator<Item = &Arc<str>> {
        self.pods.values().map(|pod| &pod.path)
    }

    /// Which container of each pod was made first.
    #[must_use]
    pub const fn firsts(&self) -> &Firsts {
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

    fn insert(&mut self, id: CgroupId, path: &str) {
        self.unknown.remove(&id);
        if let Some(cgroup) = self.cgroups.get_mut(&id) {
            if cgroup.removed.take().is_some() {
                self.workloads.entry(Arc::clone(&cgroup.workload)).or_default().live += 1;
                self.alive.insert(Arc::clone(&cgroup.workload));
            }
            return;
        }
        let workload = Workload::from(classify(path));
        let workload = match self.workloads.get_key_value(&workload) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(workload),
        };
        let count = self.workloads.entry(Arc::clone(&workload)).or_default();
        count.known += 1;
        count.live += 1;
        if count.live == 1 {
            self.alive.insert(Arc::clone(&workload));
        }
        if let Workload::PodOverhead { uid } = &*workload {
            let path = path.trim_start_matches('/');
            // What lies deeper is a pod's cgroup too, though not its own.
            if self.pods.get(uid).is_none_or(|known| path.len() <= known.path.len()) {
                self.pods.insert(Arc::clone(uid), PodCgroup { id, path: Arc::from(path) });
            }
        }
        self.firsts.see(id, &workload);
        self.cgroups.insert(id, Cgroup { workload, created: self.now, removed: None });
    }

    fn remove(&mut self, id: CgroupId) {
        let Some(cgroup) = self.cgroups.get_mut(&id).filter(|cgroup| cgroup.removed.is_none()) else { return };
        cgroup.removed = Some(self.now);
        if let Some(count) = self.workloads.get_mut(&cgroup.workload) {
            count.live -= 1;
            if count.live == 0 {
                self.alive.remove(&cgroup.workload);
            }
        }
        if let Workload::PodOverhead { uid } = &*cgroup.workload
            && self.pods.get(uid).is_some_and(|pod| pod.id == id)
        {
            self.pods.remove(uid);
        }
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
            let Some(Cgroup { workload, .. }) = self.cgroups.remove(&id) else { continue };
            if let Some(count) = self.workloads.get_mut(&workload) {
                count.known -= 1;
                if count.known == 0 {
                    self.workloads.remove(&workload);
                    if let Workload::PodOverhead { uid } = &*workload {
                        self.firsts.forget(uid);
                    }
                }
            }
        }
        memory::fit(&mut self.cgroups);
        memory::fit(&mut self.workloads);
        memory::fit(&mut self.pods);
        memory::fit(&mut self.unknown);
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
        let now = self.now;
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
            // The kernel tells of a new cgroup shortly before its folder shows.
            .filter(|(_, cgroup)| cgroup.removed.is_none() && cgroup.created < now)
            .map(|(id, _)| *id)
            .collect();
        for folder in folders {
            if !gone.remove(&folder.id) {
                self.insert(folder.id, &folder.cgroup_path());
            }
        }
        for id in gone {
            self.remove(id);
        }
        // Of pods without a cgroup of their own, as some runtimes' paths have it.
        let known: HashSet<&Arc<str>> = self.workloads.keys().filter_map(|workload| workload.pod_uid()).collect();
        self.firsts.retain(|uid| known.contains(uid));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
