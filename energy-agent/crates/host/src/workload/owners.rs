//! To whom each cgroup's work belongs: cgroup ids become workloads, kept up to date by events and, where these are
//! missing, by walking the hierarchy.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::sample::{CgroupEvent, CgroupId, KERNEL_THREADS};
use energy_model::table;
use energy_model::workload::Workload;
use energy_model::workload::cgroup::{KATA_OVERHEAD, Reading, UNKNOWN_UNIT};
use energy_model::workload::names::Pods;
use energy_model::workload::places::{Places, names};
use energy_model::workload::sandbox::Sandboxes;
use energy_model::workload::units::{Claim, Held, OTHER_UNIT, Units, holder};
use tracing::{info, warn};

use super::tree::{is_partial, walk};

/// How long a removed cgroup's id stays known, for work that is read after its removal.
const KEEP_REMOVED: Duration = Duration::from_secs(180);
/// Most removed ids to keep; the oldest go first.
const MAX_REMOVED: usize = 8192;
/// Time between two walks that repair what events missed.
const WALK_EVERY: Duration = Duration::from_secs(300);
/// Most unknown ids to remember.
const MAX_UNKNOWN: usize = 4096;

/// Most cgroups to look at again when other paths or told pods change what theirs means; a node in a container has about as
/// many as pods and containers.
const MAX_DOUBTFUL: usize = 16_384;

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

/// How many cgroups of a workload are in the table, and how many of these exist.
#[derive(Debug, Default)]
struct Count {
    known: usize,
    live: usize,
    /// It takes room below this unit while it lives.
    holder: Option<Arc<str>>,
    /// As its path alone has it.
    own: Option<Workload>,
}

/// A pod's own cgroup, the one that its containers' are in.
#[derive(Debug)]
struct PodCgroup {
    id: CgroupId,
    path: Arc<str>,
}

/// What paths of events begin with before the hierarchy's root.
#[derive(Debug, PartialEq, Eq)]
enum AboveRoot {
    Nothing,
    Unknown,
    Path(String),
}

/// The workload of every cgroup. Equal workloads are one `Arc`.
#[derive(Debug)]
pub struct Owners {
    root: PathBuf,
    cgroups: HashMap<CgroupId, Cgroup>,
    workloads: HashMap<Arc<Workload>, Count>,
    /// The workloads whose `live` is not 0.
    alive: BTreeSet<Arc<Workload>>,
    /// Which of the units have rows.
    units: Units,
    held: Held,
    /// The rows of living containers outside pods, by what their paths alone have.
    containers: HashMap<Workload, Arc<Workload>>,
    /// Something was charged by now.
    in_use: bool,
    /// The cgroups that are pods' own, by what they are named by.
    pods: HashMap<Arc<str>, PodCgroup>,
    firsts: Sandboxes,
    places: Places,
    told: Arc<Pods>,
    /// Paths whose meaning depends on others.
    doubtful: HashMap<CgroupId, Arc<str>>,
    /// Of these the ones that belong to the pod of a sandbox, by its id: how many.
    hypervisors: HashMap<Box<str>, usize>,
    /// Some of these may belong to another workload now.
    is_stale: bool,
    /// Where the hierarchy's root is a cgroup below the kernel's: its path there, once an event has shown it. Events have
    /// the kernel's paths.
    above_root: AboveRoot,
    /// Removals not yet taken by the caller.
    newly_removed: Vec<CgroupId>,
    /// Oldest first; an entry is void if the cgroup's `removed` differs.
    removed: VecDeque<(Instant, CgroupId)>,
    /// Ids without a path, and when they were last charged. Each causes one walk.
    unknown: HashMap<CgroupId, Instant>,
    kernel: Arc<Workload>,
    unknown_unit: Arc<Workload>,
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
        let mut owners = Self {
            root: v2_root.to_owned(),
            cgroups: HashMap::new(),
            workloads: HashMap::new(),
            alive: BTreeSet::new(),
            units: Units::default(),
            held: Held::default(),
            containers: HashMap::new(),
            in_use: false,
            pods: HashMap::new(),
            firsts: Sandboxes::default(),
            places: Places::default(),
            told: Arc::default(),
            doubtful: HashMap::new(),
            hypervisors: HashMap::new(),
            is_stale: false,
            above_root: if is_partial(v2_root) { AboveRoot::Unknown } else { AboveRoot::Nothing },
            newly_removed: Vec::new(),
            removed: VecDeque::new(),
            unknown: HashMap::new(),
            kernel: Arc::new(Workload::Kernel),
            unknown_unit: Arc::new(Workload::Unit { unit: Arc::from(UNKNOWN_UNIT) }),
            now,
            lost: None,
            walked: now,
            walk_failed: false,
            walks: 0,
            unknown_cgroups: 0,
            #[cfg(test)]
            placings: 0,
        };
        // These have no cgroup and never end.
        let other = Arc::new(Workload::Unit { unit: Arc::from(OTHER_UNIT) });
        for workload in [&owners.kernel, &owners.unknown_unit, &other] {
            owners.workloads.insert(Arc::clone(workload), Count { known: 1, live: 1, ..Count::default() });
        }
        // They are alive once something is charged to them: a meter that cannot tell the kernel's threads apart must not
        // show work of theirs as a measured zero.
        owners
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
                    let path = self.below_root(*id, path);
                    self.insert(*id, path, false);
                }
                CgroupEvent::CreatedDeep { id, above } => {
                    let above = self.strip(above).to_owned();
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

    /// The pods that are told from now on: which of two pods that a path names it belongs to may depend on that.
    pub fn tell(&mut self, pods: &Arc<Pods>) {
        if Arc::ptr_eq(pods, &self.told) {
            return;
        }
        self.told = Arc::clone(pods);
        self.places.tell(pods);
        self.is_stale |= !self.doubtful.is_empty();
        self.place_again();
    }

    /// The units that have rows from now on. What the others used before stays where it was charged, and a container keeps
    /// its unit.
    pub fn choose(&mut self, units: &Units) {
        if *units == self.units {
            return;
        }
        self.units = units.clone();
        let folders = match walk(&self.root) {
            Ok(folders) => folders,
            Err(error) => return warn!(error = format!("{error:#}"), "cgroups cannot be listed, their units stay"),
        };
        let mut moved = Vec::new();
        for folder in folders {
            let Some(cgroup) = self.cgroups.get(&folder.id) else { continue };
            let path = folder.cgroup_path();
            let claim = self.claim(&Reading::of(&path), &path);
            if claim.row != *cgroup.workload {
                moved.push((folder.id, Arc::from(path), claim));
            }
        }
        self.give(moved);
    }

    /// The workload in whose row the work of `workload`, whose cgroup is at `path`, is shown.
    #[must_use]
    pub fn row(&self, workload: Workload, path: &str) -> Workload {
        self.admit(&self.claim_of(workload, &Reading::of(path), path)).0
    }

    /// What the cgroup at `path` asks for.
    fn claim(&self, reading: &Reading, path: &str) -> Claim {
        self.claim_of(self.belongs(reading), reading, path)
    }

    fn claim_of(&self, workload: Workload, reading: &Reading, path: &str) -> Claim {
        let uid = workload.pod_uid().filter(|uid| !self.places.is_nodes(uid));
        let pod = uid.and_then(|uid| reading.pods.iter().find(|pod| *pod.uid == **uid));
        self.units.claim(workload, path, pod)
    }

    /// The workload, or its holder where that has no room for it; and what holds that.
    fn admit(&self, claim: &Claim) -> (Workload, Option<Arc<str>>) {
        // A container has one unit while it lives, whichever units were chosen since.
        let kept = self.containers.get(&claim.own).filter(|_| self.in_use);
        let mut workload = kept.map_or_else(|| claim.row.clone(), |kept| Workload::clone(kept));
        let mut within = claim.holder.clone();
        while !self.alive.contains(&workload)
            && let Some(full) = within.take_if(|within| self.held.is_full(within))
        {
            within = holder(&full).map(Arc::from);
            workload = self.units.overflow(full);
        }
        (workload, within)
    }

    /// The workload that work of this cgroup is charged to: the unit `unknown` when nobody knows the id.
    ///
    /// The first sight of an unknown id walks the hierarchy, at most once a tick.
    pub fn owner(&mut self, id: CgroupId) -> Arc<Workload> {
        self.in_use = true;
        if id == KERNEL_THREADS {
            self.alive.insert(Arc::clone(&self.kernel));
            return Arc::clone(&self.kernel);
        }
        if let Some(cgroup) = self.cgroups.get_mut(&id) {
            cgroup.charged = self.now;
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

    /// The workload of the cgroup at this path below the hierarchy's root; `None` where nobody knows it.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<&Arc<Workload>> {
        let folder = self.root.join(self.strip(path).trim_start_matches('/'));
        let id = fs::metadata(folder).ok()?.ino();
        self.cgroups.get(&id).map(|cgroup| &cgroup.workload)
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
                let workload = Arc::clone(&cgroup.workload);
                self.workloads.entry(Arc::clone(&workload)).or_default().live += 1;
                self.begin(&workload);
            }
            return;
        }
        let reading = Reading::of(path);
        let is_doubtful = reading.is_doubtful();
        let mentions = !is_doubtful || self.doubtful.len() < MAX_DOUBTFUL;
        if mentions && self.places.mention(id, &reading) {
            // Who had its name has it no more once all are placed, which is before anything is charged.
            self.is_stale = true;
            self.drop_misplaced(&reading);
        }
        let claim = self.claim(&reading, path);
        let workload = self.enter(claim, true);
        if !is_cut {
            self.note_pod(id, path, &workload);
        }
        if is_doubtful && mentions {
            if let Some(sandbox) = reading.hypervisor_of() {
                *self.hypervisors.entry(sandbox.into()).or_default() += 1;
            }
            self.doubtful.insert(id, Arc::from(path));
        }
        self.cgroups
            .insert(id, Cgroup { workload, mentions, is_cut, created: self.now, charged: self.now, removed: None });
    }

    /// What a path belongs to by now.
    fn belongs(&self, reading: &Reading) -> Workload {
        let sandbox = reading.hypervisor_of().and_then(|sandbox| {
            // In cgroups that only root makes: elsewhere anybody makes one of this name.
            let is_it = |it: &&Arc<Workload>| match &***it {
                Workload::PodContainer { uid, id, .. } => **id == *sandbox && self.places.is_roots(uid),
                _ => false,
            };
            let mut found = self.workloads.keys().filter(is_it);
            // Of two nobody knows which.
            found.next().filter(|_| found.next().is_none())
        });
        sandbox.map_or_else(|| Workload::from(self.places.place(reading)), |sandbox| Workload::clone(sandbox))
    }

    /// Counts a cgroup of the workload that has room for it.
    fn enter(&mut self, claim: Claim, live: bool) -> Arc<Workload> {
        let (workload, within) = self.admit(&claim);
        let is_row = workload == claim.row;
        let workload = match self.workloads.get_key_value(&workload) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(workload),
        };
        let count = self.workloads.entry(Arc::clone(&workload)).or_default();
        count.known += 1;
        if count.known == 1
            && let Workload::PodContainer { id, .. } = &*workload
        {
            self.is_stale |= self.hypervisors.contains_key(&**id);
        }
        count.live += usize::from(live);
        if !self.alive.contains(&workload) {
            count.holder = within;
            count.own = (is_row && workload.container_id().is_some()).then_some(claim.own);
        }
        if count.live > 0 {
            self.begin(&workload);
        }
        workload
    }

    /// A cgroup of the workload exists.
    fn begin(&mut self, workload: &Arc<Workload>) {
        if !self.alive.insert(Arc::clone(workload)) {
            return;
        }
        let Some(count) = self.workloads.get(workload) else { return };
        if let Some(holder) = &count.holder {
            self.held.came(holder);
        }
        if let Some(own) = &count.own {
            self.containers.insert(own.clone(), Arc::clone(workload));
        }
    }

    /// A cgroup of the workload has ended.
    fn end(&mut self, workload: &Workload) {
        let Some(count) = self.workloads.get_mut(workload) else { return };
        count.live -= 1;
        if count.live > 0 || !self.alive.remove(workload) {
            return;
        }
        if let Some(holder) = &count.holder {
            self.held.went(holder);
        }
        if let Some(own) = &count.own
            && self.containers.get(own).is_some_and(|row| **row == *workload)
        {
            self.containers.remove(own);
        }
    }

    /// The workload takes no room any more.
    fn set_free(&mut self, workload: &Workload) {
        if let Some(holder) = self.workloads.get_mut(workload).and_then(|count| count.holder.take())
            && self.alive.contains(workload)
        {
            self.held.went(&holder);
        }
    }

    /// A cgroup of the workload is forgotten.
    fn leave(&mut self, workload: &Workload) {
        let Some(count) = self.workloads.get_mut(workload) else { return };
        count.known -= 1;
        if count.known == 0 {
            self.workloads.remove(workload);
            if let Workload::PodOverhead { uid } = workload {
                self.firsts.forget(uid);
            }
        }
    }

    /// Keeps what is known of pods up with a cgroup that exists.
    fn note_pod(&mut self, id: CgroupId, path: &str, workload: &Workload) {
        if path.starts_with(KATA_OVERHEAD) {
            return;
        }
        if let Workload::PodOverhead { uid } = workload {
            let path = path.trim_start_matches('/');
            // What lies deeper is a pod's cgroup too, though not its own.
            if self.pods.get(uid).is_none_or(|known| path.len() <= known.path.len()) {
                self.pods.insert(Arc::clone(uid), PodCgroup { id, path: Arc::from(path) });
            }
        }
        self.firsts.see(id, workload);
    }

    /// What was taken for the own cgroup of a pod is not if the pod's place is on this path and not there.
    fn drop_misplaced(&mut self, reading: &Reading) {
        for pod in &reading.pods {
            let is_here = |known: &PodCgroup| {
                let known = Reading::of(&known.path);
                known.pods.iter().any(|known| known.uid == pod.uid && known.spot == pod.spot)
            };
            if self.places.is_place(&pod.uid, &pod.spot) && self.pods.get(&*pod.uid).is_some_and(|it| !is_here(it)) {
                self.pods.remove(&*pod.uid);
            }
        }
    }

    /// The cgroup is the pod's own no more.
    fn drop_pod(&mut self, id: CgroupId, workload: &Workload) {
        if let Workload::PodOverhead { uid } = workload
            && self.pods.get(uid).is_some_and(|pod| pod.id == id)
        {
            self.pods.remove(uid);
        }
    }

    /// Gives cgroups to the workloads that they belong to by now. What they used before stays where it was charged.
    fn place_again(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        #[cfg(test)]
        {
            self.placings += 1;
        }
        let (mut moved, mut free) = (Vec::new(), Vec::new());
        for (&id, path) in &self.doubtful {
            let Some(cgroup) = self.cgroups.get(&id) else { continue };
            let claim = self.claim(&Reading::of(path), path);
            if claim.row != *cgroup.workload {
                moved.push((id, Arc::clone(path), claim));
            } else if claim.holder.is_none() {
                // Such as a pod that is told now.
                free.push(Arc::clone(&cgroup.workload));
            }
        }
        for workload in free {
            self.set_free(&workload);
        }
        self.give(moved);
    }

    /// Gives the cgroups at these paths to these workloads.
    fn give(&mut self, moved: Vec<(CgroupId, Arc<str>, Claim)>) {
        let mut pods = HashSet::new();
        for (id, path, claim) in moved {
            let Some(Cgroup { workload: before, removed, is_cut, .. }) = self.cgroups.get(&id) else { continue };
            let (before, live, is_cut) = (Arc::clone(before), removed.is_none(), *is_cut);
            // One after the other, as there may not be room for all.
            let (workload, _) = self.admit(&claim);
            // Under another unit a container's series would begin anew, while those under this one have yet to end.
            let is_same = before.container_id().is_some() && before.container_id() == workload.container_id();
            if workload == *before || (is_same && self.in_use) {
                continue;
            }
            if live {
                self.end(&before);
            }
            self.drop_pod(id, &before);
            self.leave(&before);
            let workload = self.enter(claim, live);
            if live && !is_cut {
                self.note_pod(id, &path, &workload);
            }
            pods.extend(before.pod_uid().cloned());
            if let Some(cgroup) = self.cgroups.get_mut(&id) {
                cgroup.workload = workload;
            }
        }
        // What was first in a pod may not be in it.
        self.firsts.retain(|uid| !pods.contains(uid));
        for (id, cgroup) in &self.cgroups {
            if cgroup.workload.pod_uid().is_some_and(|uid| pods.contains(uid)) {
                self.firsts.see(*id, &cgroup.workload);
            }
        }
    }

    /// The path of an event below the hierarchy's root.
    fn below_root<'a>(&mut self, id: CgroupId, path: &'a str) -> &'a str {
        if self.above_root == AboveRoot::Unknown {
            let starts = path.match_indices('/').map(|(at, _)| at);
            let is_it = |at: &usize| {
                let folder = self.root.join(path[*at..].trim_start_matches('/'));
                fs::metadata(folder).is_ok_and(|folder| folder.ino() == id)
            };
            if let Some(at) = starts.filter(|at| path.len() > at + 1).find(is_it) {
                self.above_root = AboveRoot::Path(path[..at].to_owned());
            }
        }
        self.strip(path)
    }

    /// A path of the kernel's below the hierarchy's root; as it is where it lies elsewhere.
    fn strip<'a>(&self, path: &'a str) -> &'a str {
        let AboveRoot::Path(above) = &self.above_root else { return path };
        path.strip_prefix(above.as_str()).filter(|below| below.starts_with('/')).unwrap_or(path)
    }

    fn remove(&mut self, id: CgroupId) {
        let Some(cgroup) = self.cgroups.get_mut(&id).filter(|cgroup| cgroup.removed.is_none()) else { return };
        cgroup.removed = Some(self.now);
        let workload = Arc::clone(&cgroup.workload);
        self.end(&workload);
        self.drop_pod(id, &workload);
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
        table::fit(&mut self.workloads);
        table::fit(&mut self.pods);
        table::fit(&mut self.unknown);
        table::fit(&mut self.doubtful);
        table::fit(&mut self.containers);
    }

    /// Knows nothing of the cgroup any more.
    fn drop_cgroup(&mut self, id: CgroupId) {
        let Some(Cgroup { workload, mentions, .. }) = self.cgroups.remove(&id) else { return };
        if let Some(path) = self.doubtful.remove(&id) {
            let reading = Reading::of(&path);
            self.places.release(names(&reading).map(|(name, _)| name));
            if let Some(sandbox) = reading.hypervisor_of()
                && let Some(count) = self.hypervisors.get_mut(sandbox)
            {
                *count -= 1;
                if *count == 0 {
                    self.hypervisors.remove(sandbox);
                }
            }
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
            // The kernel tells of a new cgroup shortly before its folder shows.
            .filter(|(_, cgroup)| cgroup.removed.is_none() && cgroup.created < now && cgroup.is_gone_unseen(lost, now))
            .map(|(id, _)| *id)
            .collect();
        for folder in folders {
            let was_there = gone.remove(&folder.id);
            let cut = self.cgroups.get(&folder.id).filter(|cgroup| cgroup.is_cut && cgroup.removed.is_none());
            if let Some(workload) = cut.map(|cgroup| Arc::clone(&cgroup.workload)) {
                // Its whole path is known from now on.
                self.end(&workload);
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
        let known: HashSet<&Arc<str>> = self.workloads.keys().filter_map(|workload| workload.pod_uid()).collect();
        self.firsts.retain(|uid| known.contains(uid));
        self.place_again();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
