//! Which workloads exist: how many cgroups each has, how many of these live, and what of them takes room below a unit.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use energy_model::table;
use energy_model::workload::Workload;
use energy_model::workload::cgroup::UNKNOWN_UNIT;
use energy_model::workload::units::{Claim, HeldWorkloads, OTHER_UNIT, Units, holder};

/// How many cgroups of a workload are in the table, and how many of these exist.
#[derive(Debug, Default)]
struct WorkloadCount {
    known: usize,
    live: usize,
    /// It takes room below this unit while it lives.
    holder: Option<Arc<str>>,
    /// As its path alone has it.
    own: Option<Workload>,
}

/// The workloads of all cgroups. Equal workloads are one `Arc`.
#[derive(Debug)]
pub struct Roster {
    workloads: HashMap<Arc<Workload>, WorkloadCount>,
    /// The workloads whose `live` is not 0.
    alive: BTreeSet<Arc<Workload>>,
    /// Which of the units have rows.
    pub units: Units,
    pub(super) held: HeldWorkloads,
    /// The rows of living containers outside pods, by what their paths alone have.
    containers: HashMap<Workload, Arc<Workload>>,
    /// Something was charged by now.
    in_use: bool,
    kernel: Arc<Workload>,
    unknown_unit: Arc<Workload>,
}

impl Roster {
    pub fn new() -> Self {
        let unit = |unit| Arc::new(Workload::Unit { unit: Arc::from(unit) });
        let (kernel, unknown_unit) = (Arc::new(Workload::Kernel), unit(UNKNOWN_UNIT));
        // These have no cgroup and never end.
        let endless = [Arc::clone(&kernel), Arc::clone(&unknown_unit), unit(OTHER_UNIT)];
        let count = || WorkloadCount { known: 1, live: 1, ..WorkloadCount::default() };
        Self {
            workloads: endless.into_iter().map(|workload| (workload, count())).collect(),
            // They are alive once something is charged to them: a meter that does not distinguish the kernel's threads must
            // not show work of theirs as a measured zero.
            alive: BTreeSet::new(),
            units: Units::default(),
            held: HeldWorkloads::default(),
            containers: HashMap::new(),
            in_use: false,
            kernel,
            unknown_unit,
        }
    }

    /// All workloads that exist.
    pub const fn alive(&self) -> &BTreeSet<Arc<Workload>> {
        &self.alive
    }

    /// All workloads of which a cgroup is in the table.
    pub fn known(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.keys()
    }

    /// Something is charged now.
    pub fn charge(&mut self) {
        self.in_use = true;
    }

    /// The kernel, which is alive from now on.
    pub fn kernel(&mut self) -> Arc<Workload> {
        self.alive.insert(Arc::clone(&self.kernel));
        Arc::clone(&self.kernel)
    }

    /// The unit that work of unknown cgroups is charged to, which is alive from now on.
    pub(crate) fn unknown_unit(&mut self) -> Arc<Workload> {
        self.alive.insert(Arc::clone(&self.unknown_unit));
        Arc::clone(&self.unknown_unit)
    }

    /// The workload, or its holder where that has no room for it; and what holds that.
    pub fn admit(&self, claim: &Claim) -> (Workload, Option<Arc<str>>) {
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

    /// Whether a cgroup of `before` that now claims something else keeps its workload: under another unit a container's
    /// series would begin anew, while those under this one have yet to end.
    pub fn keeps(&self, before: &Workload, claim: &Claim) -> bool {
        let (workload, _) = self.admit(claim);
        let is_same = before.container_id().is_some() && before.container_id() == workload.container_id();
        workload == *before || (is_same && self.in_use)
    }

    /// Counts a cgroup of the workload that has room for it. Returns whether it is the workload's first, too.
    pub fn enter(&mut self, claim: Claim, live: bool) -> (Arc<Workload>, bool) {
        let (workload, within) = self.admit(&claim);
        let is_row = workload == claim.row;
        let workload = match self.workloads.get_key_value(&workload) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(workload),
        };
        let count = self.workloads.entry(Arc::clone(&workload)).or_default();
        count.known += 1;
        let is_first = count.known == 1;
        count.live += usize::from(live);
        if !self.alive.contains(&workload) {
            count.holder = within;
            count.own = (is_row && workload.container_id().is_some()).then_some(claim.own);
        }
        if count.live > 0 {
            self.begin(&workload);
        }
        (workload, is_first)
    }

    /// A cgroup of the workload that was removed exists after all.
    pub(crate) fn revive(&mut self, workload: &Arc<Workload>) {
        self.workloads.entry(Arc::clone(workload)).or_default().live += 1;
        self.begin(workload);
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
    pub fn end(&mut self, workload: &Workload) {
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
    pub(crate) fn set_free(&mut self, workload: &Workload) {
        if let Some(holder) = self.workloads.get_mut(workload).and_then(|count| count.holder.take())
            && self.alive.contains(workload)
        {
            self.held.went(&holder);
        }
    }

    /// A cgroup of the workload is forgotten. Returns whether it was the last.
    pub fn leave(&mut self, workload: &Workload) -> bool {
        let Some(count) = self.workloads.get_mut(workload) else { return false };
        count.known -= 1;
        let is_last = count.known == 0;
        if is_last {
            self.workloads.remove(workload);
        }
        is_last
    }

    /// Gives memory back that fewer workloads do not need.
    pub fn fit(&mut self) {
        table::fit(&mut self.workloads);
        table::fit(&mut self.containers);
    }
}
