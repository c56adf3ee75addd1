//! Adds attributions up into totals that never fall: per zone, per workload, and what workloads whose series have ended
//! had used, so that active energy is accounted for exactly, for ever.

pub mod gpu_holders;
pub mod gpu_power;
pub mod idle;
pub mod retention;
mod retire;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;

use self::gpu_power::GpuPowers;
use self::retention::Retention;
use crate::attribution::usage::{CpuShare, CpuUsage, order};
use crate::attribution::{Attribution, Division, ZoneAttribution};
use crate::snapshot::{Energies, EnergyKey, WorkloadEnergy, WorkloadRow, WorkloadState, ZoneTotals};
use crate::units::Microjoules;
use crate::workload::Workload;
use crate::workload::names::Names;
use crate::zone::{Zone, ZoneKind};

/// Totals since the agent started.
///
/// After each [`Self::apply`], per [`EnergyKey`]: the zones' active energy is the rows' plus the retired plus the
/// unattributed, and each zone's active and idle energy is what was measured.
#[derive(Debug)]
pub struct Ledger {
    retention: Retention,
    /// Ordered by zone. A zone that is no longer read stays, without power.
    zones: Vec<ZoneEntry>,
    /// The keys of all attributed zones so far, in order.
    keys: Vec<KeyEntry>,
    /// Ordered by workload.
    rows: Vec<LedgerEntry>,
}

#[derive(Debug)]
struct ZoneEntry {
    totals: ZoneTotals,
    /// It was part of the last interval.
    read: bool,
}

#[derive(Debug)]
struct KeyEntry {
    key: EnergyKey,
    retired: Microjoules,
    /// The last interval's energy is complete, so that power may be derived.
    powered: bool,
}

#[derive(Debug)]
struct LedgerEntry {
    row: WorkloadRow,
    /// When it was last seen to work or vanish, if it is terminated.
    ended: Option<Duration>,
}

impl Ledger {
    /// `retention` is of the rows of workloads that vanished.
    #[must_use]
    pub const fn new(retention: Retention) -> Self {
        Self { retention, zones: Vec::new(), keys: Vec::new(), rows: Vec::new() }
    }

    /// Adds one interval. `alive` are the workloads whose cgroup exists (the kernel always does), `names` what containers
    /// are called, `now` a clock that does not go backwards.
    pub fn apply(&mut self, attribution: &Attribution, alive: &BTreeSet<Arc<Workload>>, names: &Names, now: Duration) {
        let usage = &attribution.usage;
        self.charge_zones(attribution);
        let charges = self.charges(attribution, usage);
        let worked = self.worked(usage, &charges);
        self.admit(usage, &worked, alive, now.saturating_sub(attribution.elapsed));
        self.charge_rows(attribution.elapsed, usage, &charges, &worked, alive, now);
        self.retire(names, now);
    }

    /// The workloads that have a row.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.rows.iter().map(|entry| &entry.row.workload)
    }

    #[must_use]
    pub fn has_row(&self, workload: &Arc<Workload>) -> bool {
        self.rows.binary_search_by(|entry| order(&entry.row.workload, workload)).is_ok()
    }

    /// All rows, ascending by workload.
    pub fn rows(&self) -> impl Iterator<Item = &WorkloadRow> + Clone {
        self.rows.iter().map(|entry| &entry.row)
    }

    /// The totals of all zones, as a snapshot shows them.
    #[must_use]
    pub fn zone_totals(&self, gpus: &GpuPowers<'_>) -> Vec<ZoneTotals> {
        let mut zones: Vec<_> = self.zones.iter().map(|entry| entry.totals.clone()).collect();
        zones.iter_mut().for_each(|totals| gpus.of_zone(totals));
        zones
    }

    /// The totals of all workloads, as a snapshot shows them.
    #[must_use]
    pub fn row_totals(&self, gpus: &GpuPowers<'_>) -> Vec<WorkloadRow> {
        let mut rows: Vec<_> = self.rows().cloned().collect();
        rows.iter_mut().for_each(|row| gpus.of_row(row));
        rows
    }

    /// Active energy of workloads whose rows have ended.
    #[must_use]
    pub fn retired(&self) -> Vec<(EnergyKey, Microjoules)> {
        self.keys.iter().map(|entry| (entry.key, entry.retired)).collect()
    }

    /// Whether the last interval's energy of this key is complete, so that power may be derived.
    #[must_use]
    pub fn powered(&self, key: EnergyKey) -> bool {
        self.keys.iter().any(|entry| entry.key == key && entry.powered)
    }

    fn charge_zones(&mut self, attribution: &Attribution) {
        // A key's power is a sum over sockets: one with a gap makes it too low. So does a zone that is missing, in the
        // first such interval; if it stays away, the sum is over the others.
        let gaps = attribution.zones.iter().filter(|zone| zone.gap);
        let mut incomplete: Vec<EnergyKey> = gaps.map(|zone| key(&zone.zone)).collect();
        for ZoneEntry { totals, read } in &mut self.zones {
            let reads = attribution.zones.iter().any(|zone| zone.zone == totals.zone);
            if *read && !reads {
                incomplete.push(key(&totals.zone));
            }
            *read = reads;
            totals.power = None;
            if let Some(parts) = &mut totals.parts {
                (parts.active_power, parts.idle_power) = (None, None);
            }
        }
        for entry in &mut self.keys {
            entry.powered = false;
        }
        for zone in &attribution.zones {
            self.charge_zone(zone);
        }
        for entry in &mut self.keys {
            entry.powered &= !incomplete.contains(&entry.key);
        }
    }

    fn charge_zone(&mut self, attribution: &ZoneAttribution) {
        let ZoneAttribution { zone, measured, gap, elapsed, division } = attribution;
        // The power of GPUs outlasts the tick (GpuPowers).
        let powered = !elapsed.is_zero() && zone.kind != ZoneKind::Gpu;
        let power = |energy: Microjoules| (powered && !gap).then(|| energy.over(*elapsed));
        let index = self.zones.binary_search_by(|entry| entry.totals.zone.cmp(zone)).unwrap_or_else(|index| {
            let zone = Arc::clone(zone);
            let totals = ZoneTotals { zone, measured: Microjoules::ZERO, power: None, parts: None };
            self.zones.insert(index, ZoneEntry { totals, read: true });
            index
        });
        let totals = &mut self.zones[index].totals;
        totals.measured += *measured;
        totals.power = power(*measured);
        if let Some(Division { active, idle, unattributed, method: _, shares: _, processes: _ }) = division {
            let parts = totals.parts.get_or_insert_default();
            parts.active += *active;
            parts.idle += *idle;
            parts.unattributed += *unattributed;
            (parts.active_power, parts.idle_power) = (power(*active), power(*idle));
            let key = key(zone);
            let index = self.keys.binary_search_by_key(&key, |entry| entry.key).unwrap_or_else(|index| {
                self.keys.insert(index, KeyEntry { key, retired: Microjoules::ZERO, powered: false });
                index
            });
            self.keys[index].powered = powered;
        }
    }

    /// Adds rows for workloads that are new in the interval that `began` then, alive or not.
    fn admit(&mut self, usage: &CpuUsage, worked: &[bool], alive: &BTreeSet<Arc<Workload>>, began: Duration) {
        let working = usage.workloads().zip(worked).filter(|(_, worked)| **worked);
        let working = working.map(|(shares, _)| &shares[0].workload);
        let mut new = self.missing(working);
        // A pod's own cgroup hardly ever runs anything; without work it would be one empty series a pod.
        let alive = alive.iter().filter(|workload| !matches!(***workload, Workload::PodOverhead { .. }));
        new.extend(self.missing(alive));
        if new.is_empty() {
            return;
        }
        new.sort();
        new.dedup();
        // Few among many: their places are looked up, and the rows between them are not compared.
        let below = |entry: &LedgerEntry, new: &Arc<Workload>| order(&entry.row.workload, new).is_lt();
        let places: Vec<usize> = new.iter().map(|new| self.rows.partition_point(|entry| below(entry, new))).collect();
        let room = Vec::with_capacity(self.rows.len() + new.len());
        let mut earlier = std::mem::replace(&mut self.rows, room).into_iter();
        let mut taken = 0;
        for (new, place) in new.into_iter().zip(places) {
            self.rows.extend(earlier.by_ref().take(place - taken));
            taken = place;
            self.rows.push(LedgerEntry::new(new, began));
        }
        self.rows.extend(earlier);
    }

    /// Those of the ascending `workloads` that have no row.
    fn missing<'a>(&self, workloads: impl Iterator<Item = &'a Arc<Workload>>) -> Vec<Arc<Workload>> {
        let mut rows = self.rows.iter().map(|entry| (&entry.row.workload, ())).peekable();
        workloads.filter(|workload| seek(&mut rows, workload).is_none()).cloned().collect()
    }

    fn charge_rows(
        &mut self,
        elapsed: Duration,
        usage: &CpuUsage,
        charges: &[Microjoules],
        worked: &[bool],
        alive: &BTreeSet<Arc<Workload>>,
        now: Duration,
    ) {
        let mut usage =
            usage.workloads().enumerate().map(|(index, shares)| (&shares[0].workload, (index, shares))).peekable();
        let mut alive = alive.iter().map(|workload| (workload, ())).peekable();
        for LedgerEntry { row, ended } in &mut self.rows {
            let running = seek(&mut alive, &row.workload).is_some() || *row.workload == Workload::Kernel;
            let work = seek(&mut usage, &row.workload).filter(|(index, _)| worked[*index]);
            if running {
                (row.state, *ended) = (WorkloadState::Running, None);
            } else if ended.is_none() || work.is_some() {
                (row.state, *ended) = (WorkloadState::Terminated, Some(now));
            }
            for share in work.iter().flat_map(|(_, shares)| *shares) {
                row.runtime_ns = row.runtime_ns.saturating_add(share.runtime_ns);
                row.cycles = row.cycles.saturating_add(share.cycles);
                row.switches = row.switches.saturating_add(share.switches);
            }
            if running || work.is_some() {
                cover(&mut row.energy, &self.keys);
            }
            for energy in &mut row.energy {
                let index = key_index(&self.keys, energy.key);
                let charge =
                    work.map_or(Microjoules::ZERO, |(workload, _)| charges[workload * self.keys.len() + index]);
                energy.total += charge;
                energy.power = (running && self.keys[index].powered).then(|| charge.over(elapsed));
            }
        }
    }

    /// Energy of the interval by position in the usage and key.
    fn charges(&self, attribution: &Attribution, usage: &CpuUsage) -> Vec<Microjoules> {
        let mut charges = vec![Microjoules::ZERO; usage.len() * self.keys.len()];
        for zone in &attribution.zones {
            let Some(division) = &zone.division else { continue };
            let index = key_index(&self.keys, key(&zone.zone));
            for &(workload, part) in &division.shares {
                charges[workload * self.keys.len() + index] += part;
            }
        }
        charges
    }

    /// Which workloads of the usage ran or were charged (what used a GPU need not have run), by position.
    fn worked(&self, usage: &CpuUsage, charges: &[Microjoules]) -> Vec<bool> {
        let keys = self.keys.len();
        let charged = |index: usize| charges[index * keys..(index + 1) * keys].iter().any(|energy| energy.0 > 0);
        usage.workloads().enumerate().map(|(index, shares)| ran(shares) || charged(index)).collect()
    }
}

impl LedgerEntry {
    fn new(workload: Arc<Workload>, created: Duration) -> Self {
        let (state, energy) = (WorkloadState::Running, Energies::new());
        let row = WorkloadRow { workload, created, state, energy, runtime_ns: 0, cycles: 0, switches: 0 };
        Self { row, ended: None }
    }
}

const fn key(zone: &Zone) -> EnergyKey {
    EnergyKey { zone: zone.kind, source: zone.source }
}

fn key_index(keys: &[KeyEntry], key: EnergyKey) -> usize {
    keys.binary_search_by_key(&key, |entry| entry.key).expect("a key is never removed")
}

fn ran(shares: &[CpuShare]) -> bool {
    shares.iter().any(|share| share.runtime_ns > 0 || share.cycles > 0 || share.switches > 0)
}

/// Adds the missing keys, with no energy yet.
fn cover(energy: &mut Energies, keys: &[KeyEntry]) {
    if energy.len() == keys.len() {
        return;
    }
    for (index, entry) in keys.iter().enumerate() {
        if energy.get(index).is_none_or(|energy| energy.key != entry.key) {
            energy.insert(index, WorkloadEnergy { key: entry.key, total: Microjoules::ZERO, power: None });
        }
    }
}

/// Moves the ascending `items` past everything below `workload`, and takes the one that equals it.
fn seek<'a, T>(
    items: &mut Peekable<impl Iterator<Item = (&'a Arc<Workload>, T)>>,
    workload: &Arc<Workload>,
) -> Option<T> {
    loop {
        let (item, _) = items.peek()?;
        match order(item, workload) {
            Ordering::Less => drop(items.next()),
            Ordering::Equal => return items.next().map(|(_, value)| value),
            Ordering::Greater => return None,
        }
    }
}
