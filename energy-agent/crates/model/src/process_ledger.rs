//! Adds the charges of processes up into rows that never fall; what has no row, or no longer has one, is one row of its
//! own, so that the rows and the unattributed energy are the active energy, for ever.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::attribution::process::{Charge, Part};
use crate::ledger::gpu_power::GpuPowers;
use crate::ledger::retention::Retention;
use crate::process::Identity;
use crate::process::Process;
use crate::snapshot::{Energies, EnergyKey, ProcessKind, ProcessRow, WorkloadEnergy, WorkloadState};
use crate::table;
use crate::units::Microjoules;
use crate::workload::Workload;

/// Most ended processes to keep rows of; a fork storm makes thousands a second.
pub const TERMINATED_MAX: usize = 500;
/// How long an ended process is remembered whose row has gone: work of it may still be read.
const REMEMBER: Duration = Duration::from_secs(300);

/// Nanoseconds of a clock tick as the kernel shows it (`USER_HZ` is 100).
const TICK_NS: u64 = 10_000_000;

/// What bounds the number of rows.
#[derive(Clone, Copy, Debug)]
pub struct RowLimits {
    /// Rows of living processes.
    pub living: usize,
    /// Rows of ended ones.
    pub ended: Retention,
}

/// What a process ran during the interval, and where last.
#[derive(Clone, Debug)]
pub struct Ran {
    pub process: Process,
    pub workload: Arc<Workload>,
    pub runtime_ns: u64,
}

/// Totals since the agent started.
#[derive(Debug)]
pub struct ProcessLedger {
    limits: RowLimits,
    /// In the order in which they came; parallel to every row's energies.
    keys: Vec<EnergyKey>,
    rows: BTreeMap<Process, ProcessEntry>,
    /// How many of the rows are living.
    living: usize,
    kernel: ProcessTotals,
    other: ProcessTotals,
    /// Ended processes whose rows have gone, and when: they get no second row.
    gone: HashMap<Process, Duration>,
}

#[derive(Clone, Debug, Default)]
struct ProcessTotals {
    energy: Vec<Microjoules>,
    /// Of the last interval.
    charges: Vec<Microjoules>,
    runtime_ns: u64,
}

#[derive(Debug)]
struct ProcessEntry {
    identity: Identity,
    workload: Arc<Workload>,
    /// The beginning of the interval in which it got its row.
    created: Duration,
    ended: Option<Duration>,
    totals: ProcessTotals,
}

impl ProcessLedger {
    #[must_use]
    pub fn new(limits: RowLimits) -> Self {
        Self {
            limits,
            keys: Vec::new(),
            rows: BTreeMap::new(),
            living: 0,
            kernel: ProcessTotals::default(),
            other: ProcessTotals::default(),
            gone: HashMap::new(),
        }
    }

    /// Whether a process that worked is to be given a row by [`Self::admit`]. Not one whose id is another's by now.
    #[must_use]
    pub fn wants(&self, process: Process, ended: bool) -> bool {
        let last = Process { start_ns: u64::MAX, ..process };
        self.rows.range(process..=last).next().is_none()
            && !self.gone.contains_key(&process)
            && (ended || self.living < self.limits.living || self.predecessors(process).next().is_some())
    }

    /// Gives a process a row; `created` is when the interval began. One that had its id before has ended: that row's total is
    /// no longer this id's.
    pub fn admit(
        &mut self,
        process: Process,
        identity: Identity,
        workload: Arc<Workload>,
        created: Duration,
        now: Duration,
    ) {
        let before: Vec<Process> = self.predecessors(process).collect();
        for before in before {
            self.end(before, now);
            self.retire(before, now);
        }
        let zero = vec![Microjoules::ZERO; self.keys.len()];
        let totals = ProcessTotals { energy: zero.clone(), charges: zero, runtime_ns: 0 };
        if self.rows.insert(process, ProcessEntry { identity, workload, created, ended: None, totals }).is_none() {
            self.living += 1;
        }
    }

    fn predecessors(&self, process: Process) -> impl Iterator<Item = Process> {
        let first = Process { start_ns: 0, ..process };
        self.rows.range(first..process).map(|(process, _)| *process)
    }

    /// What a process with a row is called so far.
    #[must_use]
    pub fn identity(&self, process: Process) -> Option<&Identity> {
        self.rows.get(&process).map(|row| &row.identity)
    }

    /// The process with a row that has this id and began in this clock tick, a hundredth of a second.
    #[must_use]
    pub fn started_in(&self, pid: u32, ticks: u64) -> Option<Process> {
        let pid = u64::from(pid);
        let start_ns = ticks.saturating_mul(TICK_NS);
        let last = Process { pid, start_ns: start_ns.saturating_add(TICK_NS - 1) };
        self.rows.range(Process { pid, start_ns }..=last).next_back().map(|(process, _)| *process)
    }

    /// A process with a row is called something else.
    pub fn rename(&mut self, process: Process, identity: Identity) {
        if let Some(row) = self.rows.get_mut(&process) {
            row.identity = identity;
        }
    }

    /// A process ended.
    pub fn end(&mut self, process: Process, now: Duration) {
        if let Some(row) = self.rows.get_mut(&process)
            && row.ended.is_none()
        {
            row.ended = Some(now);
            self.living -= 1;
        }
    }

    /// Up to `count` living processes behind `after`, in order.
    #[must_use]
    pub fn living_after(&self, after: Process, count: usize) -> Vec<Process> {
        let behind = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        let living = self.rows.range(behind).filter(|(_, row)| row.ended.is_none());
        living.take(count).map(|(process, _)| *process).collect()
    }

    /// Adds one interval; `kernel_ns` is the run time of kernel threads.
    pub fn apply(&mut self, charges: &[Charge], ran: &[Ran], kernel_ns: u64, now: Duration) {
        for charge in charges {
            if !self.keys.contains(&charge.key) {
                self.keys.push(charge.key);
            }
        }
        let keys = self.keys.len();
        let rows = self.rows.values_mut().map(|row| &mut row.totals);
        for totals in rows.chain([&mut self.kernel, &mut self.other]) {
            totals.energy.resize(keys, Microjoules::ZERO);
            totals.charges.clear();
            totals.charges.resize(keys, Microjoules::ZERO);
        }
        self.kernel.runtime_ns += kernel_ns;
        for Ran { process, workload, runtime_ns } in ran {
            match self.rows.get_mut(process) {
                Some(row) => {
                    row.totals.runtime_ns += runtime_ns;
                    if !Arc::ptr_eq(&row.workload, workload) {
                        row.workload = Arc::clone(workload);
                    }
                    // Its last moments, after its end was reported.
                    row.ended = row.ended.map(|_| now);
                }
                None => self.other.runtime_ns += runtime_ns,
            }
        }
        for Charge { key, part, energy } in charges {
            let index = self.keys.iter().position(|known| known == key).expect("added above");
            let totals = match part {
                Part::Process(process) => self.rows.get_mut(process).map_or(&mut self.other, |row| &mut row.totals),
                Part::Kernel => &mut self.kernel,
                Part::Rest => &mut self.other,
            };
            totals.energy[index] += *energy;
            totals.charges[index] += *energy;
        }
        self.retire_due(now);
    }

    /// Ends rows that have been kept long enough.
    fn retire_due(&mut self, now: Duration) {
        self.gone.retain(|_, since| now.saturating_sub(*since) < REMEMBER);
        table::fit(&mut self.gone);
        let mut ended: Vec<(Duration, Process)> =
            self.rows.iter().filter_map(|(process, row)| Some((row.ended?, *process))).collect();
        for process in self.limits.ended.take_due(&mut ended, now) {
            self.retire(process, now);
        }
    }

    fn retire(&mut self, process: Process, now: Duration) {
        let Some(row) = self.rows.remove(&process) else { return };
        self.gone.insert(process, now);
        for (total, energy) in self.other.energy.iter_mut().zip(row.totals.energy) {
            *total += energy;
        }
        self.other.runtime_ns += row.totals.runtime_ns;
    }

    /// All rows. `powered` says for which keys the last interval's energy is complete; `gpus` has the power of GPUs.
    #[must_use]
    pub fn rows(
        &self,
        elapsed: Duration,
        powered: impl Fn(EnergyKey) -> bool,
        gpus: &GpuPowers<'_>,
    ) -> Vec<ProcessRow> {
        let powered: Vec<bool> = self.keys.iter().map(|key| powered(*key)).collect();
        let energy = |totals: &ProcessTotals, living: bool| -> Energies {
            let of = |(index, key): (usize, &EnergyKey)| WorkloadEnergy {
                key: *key,
                total: totals.energy[index],
                power: (living && powered[index]).then(|| totals.charges[index].over(elapsed)),
            };
            self.keys.iter().enumerate().map(of).collect()
        };
        let sum = |kind, comm: &str, totals: &ProcessTotals| ProcessRow {
            pid: None,
            kind,
            comm: comm.into(),
            exe: "".into(),
            created: Duration::ZERO,
            state: WorkloadState::Running,
            energy: energy(totals, true),
            runtime_ns: totals.runtime_ns,
        };
        let sums = [sum(ProcessKind::Kernel, "kernel", &self.kernel), sum(ProcessKind::Other, "other", &self.other)];
        let rows = self.rows.iter().map(|(process, row)| ProcessRow {
            pid: u32::try_from(process.pid).ok(),
            kind: match &*row.workload {
                Workload::Container { id, .. } | Workload::PodContainer { id, .. } => {
                    ProcessKind::Container(Arc::clone(id))
                }
                Workload::Kernel | Workload::Unit { .. } | Workload::PodOverhead { .. } | Workload::PodEnded { .. } => {
                    ProcessKind::Regular
                }
            },
            comm: Arc::clone(&row.identity.comm),
            exe: Arc::clone(&row.identity.exe),
            created: row.created,
            state: if row.ended.is_some() { WorkloadState::Terminated } else { WorkloadState::Running },
            energy: energy(&row.totals, row.ended.is_none()),
            runtime_ns: row.totals.runtime_ns,
        });
        let mut rows: Vec<_> = sums.into_iter().chain(rows).collect();
        gpus.of_processes(&mut rows);
        rows
    }
}
