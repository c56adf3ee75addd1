//! Ends the rows of workloads that vanished long enough ago: their totals move to the pod or unit that lives on, else
//! to the retired energy of the node, in the same tick.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::retention::Retention;
use super::{Ledger, LedgerEntry, cover, key_index};
use crate::snapshot::{WorkloadRow, WorkloadState};
use crate::workload::names::Names;
use crate::workload::{POD_OVERHEAD, Workload};

/// What a workload is summed under: the series that outlives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Successor<'a> {
    Pod(&'a str),
    Unit(&'a str),
}

impl<'a> Successor<'a> {
    fn of(workload: &'a Workload) -> Self {
        match workload {
            Workload::Kernel => Self::Unit("kernel"),
            Workload::Unit { unit } | Workload::Container { unit, .. } => Self::Unit(unit),
            Workload::PodOverhead { uid } | Workload::PodContainer { uid, .. } | Workload::PodEnded { uid, .. } => {
                Self::Pod(uid)
            }
        }
    }
}

/// Most ended rows to keep of what is outside pods: who may make cgroups there can make them without end.
const ENDED_UNITS: usize = 500;

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    /// Its pod or unit has other rows: its total goes there, so that theirs does not fall.
    Folds,
    /// It was the last: its total goes to the node's retired energy.
    Retires,
}

impl Ledger {
    pub(super) fn retire(&mut self, names: &Names, now: Duration) {
        let due = self.due(now);
        if !due.contains(&true) {
            return;
        }
        let mut fates = self.fates(&due).into_iter();
        let (mut stay, mut fold) = (Vec::with_capacity(self.rows.len()), Vec::new());
        for entry in std::mem::take(&mut self.rows) {
            match fates.next().expect("each row has a fate") {
                Fate::Stays => stay.push(entry),
                Fate::Folds => fold.push(entry.row),
                Fate::Retires => {
                    for energy in entry.row.energy {
                        let index = key_index(&self.keys, energy.key);
                        self.keys[index].retired += energy.total;
                    }
                }
            }
        }
        self.rows = stay;
        for row in fold {
            self.fold(row, names, now);
        }
    }

    /// Which rows have been kept long enough.
    fn due(&self, now: Duration) -> Vec<bool> {
        let is_folded = |entry: &LedgerEntry| matches!(*entry.row.workload, Workload::PodEnded { .. });
        let ended = self.rows.iter().enumerate().filter(|(_, entry)| !is_folded(entry));
        let ended = ended.filter_map(|(index, entry)| Some((entry.ended?, index)));
        let is_pods = |(_, index): &(Duration, usize)| self.rows[*index].row.workload.pod_uid().is_some();
        let (mut all, mut units): (Vec<_>, Vec<_>) = ended.partition(is_pods);
        let few = Retention { max: self.retention.max.min(ENDED_UNITS), ..self.retention };
        let mut due = vec![false; self.rows.len()];
        few.take_due(&mut units, now).for_each(|index| due[index] = true);
        all.append(&mut units);
        self.retention.take_due(&mut all, now).for_each(|index| due[index] = true);
        due
    }

    fn fates(&self, due: &[bool]) -> Vec<Fate> {
        let ended = |entry: &LedgerEntry| matches!(*entry.row.workload, Workload::PodEnded { .. });
        let rows = || self.rows.iter().zip(due);
        let living: HashSet<Successor<'_>> = rows()
            .filter(|(entry, due)| !**due && !ended(entry))
            .map(|(entry, _)| Successor::of(&entry.row.workload))
            .collect();
        rows()
            .map(|(entry, &due)| match &*entry.row.workload {
                workload if !living.contains(&Successor::of(workload)) => Fate::Retires,
                Workload::PodOverhead { .. } | Workload::PodContainer { .. } | Workload::Container { .. } if due => {
                    Fate::Folds
                }
                // A unit's own row is where the rows of its containers go.
                _ => Fate::Stays,
            })
            .collect()
    }

    fn fold(&mut self, ended: WorkloadRow, names: &Names, now: Duration) {
        let heir = match &*ended.workload {
            Workload::PodContainer { uid, id, .. } => {
                Workload::PodEnded { uid: Arc::clone(uid), name: names.container(uid, id).cloned() }
            }
            Workload::PodOverhead { uid } => {
                Workload::PodEnded { uid: Arc::clone(uid), name: Some(Arc::from(POD_OVERHEAD)) }
            }
            Workload::PodEnded { uid, name } => Workload::PodEnded { uid: Arc::clone(uid), name: name.clone() },
            Workload::Container { unit, .. } | Workload::Unit { unit } => Workload::Unit { unit: Arc::clone(unit) },
            Workload::Kernel => Workload::Kernel,
        };
        let index = self.rows.binary_search_by(|entry| (*entry.row.workload).cmp(&heir)).unwrap_or_else(|index| {
            let mut entry = LedgerEntry::new(Arc::new(heir), ended.created);
            (entry.row.state, entry.ended) = (WorkloadState::Terminated, Some(now));
            self.rows.insert(index, entry);
            index
        });
        let row = &mut self.rows[index].row;
        row.created = row.created.min(ended.created);
        cover(&mut row.energy, &self.keys);
        for energy in ended.energy {
            row.energy[key_index(&self.keys, energy.key)].total += energy.total;
        }
        row.runtime_ns = row.runtime_ns.saturating_add(ended.runtime_ns);
        row.cycles = row.cycles.saturating_add(ended.cycles);
        row.switches = row.switches.saturating_add(ended.switches);
    }
}
