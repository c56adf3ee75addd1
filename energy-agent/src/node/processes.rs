//! The process level's part of the tick: who the processes are, what they are charged with, and which have ended.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use energy_host::workload::process::{Exe, ProcessLook, ProcessNames};
use energy_model::attribution::Attribution;
use energy_model::attribution::process::{ProcessShare, divide, position};
use energy_model::attribution::usage::CpuUsage;
use energy_model::cpu::Domain;
use energy_model::process::Identity;
use energy_model::process::Process;
use energy_model::process_ledger::{ProcessLedger, Ran, RowLimits};
use energy_model::sample::{CgroupId, KERNEL_THREADS, Sample};
use energy_model::sample::{ProcessEvent, ProcessSample, ProcessWork};
use energy_model::workload::Workload;

use super::gpus::Gpus;

/// Processes looked up in /proc a tick after events were lost.
const SWEEP_STEP: usize = 200;

/// State of the process level.
pub struct ProcessLevel {
    names: ProcessNames,
    pub ledger: ProcessLedger,
    /// How far the sweep under way has come; `None` where nothing was lost.
    swept: Option<Process>,
}

impl ProcessLevel {
    #[must_use]
    pub fn new(procfs: &Path, limits: RowLimits) -> Self {
        Self { names: ProcessNames::new(procfs), ledger: ProcessLedger::new(limits), swept: None }
    }

    /// Living processes whose binary is not known so far.
    #[must_use]
    pub fn exe_errors(&self) -> u64 {
        self.names.exe_errors
    }

    /// Charges one interval. Returns processes that have ended without an event.
    pub fn tick(
        &mut self,
        sample: &Sample,
        domains: &[Domain],
        attribution: &Attribution,
        gpus: &Gpus,
        owner: impl FnMut(CgroupId) -> Arc<Workload>,
        now: Duration,
    ) -> Vec<Process> {
        let ProcessSample { work, events, events_complete } = &sample.processes;
        let began = now.saturating_sub(attribution.elapsed);
        self.names.follow(events);
        let (shares, ran) = share(work, &attribution.usage, owner);
        let charged: HashMap<Process, &ProcessWork> = work.iter().map(|work| (work.process, work)).collect();
        for Ran { process, workload, .. } in &ran {
            let exited = self.names.has_exited(*process);
            if self.ledger.wants(*process, exited) {
                let comm = charged.get(process).map(|work| work.comm).unwrap_or_default();
                let identity = self.names.identify(*process, comm, None);
                self.ledger.admit(*process, identity, Arc::clone(workload), began, now);
            }
        }
        for (process, event) in events {
            if *event == ProcessEvent::Exited {
                self.ledger.end(*process, now);
            } else if let Some(before) = self.ledger.identity(*process) {
                let identity = self.names.identify(*process, [0; 2], Some(before));
                self.ledger.rename(*process, identity);
            }
        }
        let ended = self.sweep(*events_complete, now);
        let kernel = sample.work.iter().filter(|work| work.cgroup == KERNEL_THREADS);
        let kernel_ns = kernel.map(|work| work.runtime_ns).sum();
        let of_pid = |pid| self.ledger.started_in(pid, gpus.start_of(pid)?);
        let charges = divide(attribution, domains, shares, of_pid);
        self.ledger.apply(&charges, &ran, kernel_ns, now);
        ended
    }

    /// After lost events, a step through the living: who is gone has ended, who is called otherwise is renamed.
    fn sweep(&mut self, events_complete: bool, now: Duration) -> Vec<Process> {
        if !events_complete && self.swept.is_none() {
            self.swept = Some(Process::default());
        }
        let Some(after) = self.swept else { return Vec::new() };
        let step = self.ledger.living_after(after, SWEEP_STEP);
        self.swept = step.last().copied();
        let mut ended = Vec::new();
        for process in step {
            match self.names.look(process) {
                ProcessLook::Gone => {
                    self.ledger.end(process, now);
                    ended.push(process);
                }
                ProcessLook::Alive { comm, exe: Exe::Link(exe) } => {
                    let changed = |known: &Identity| *known.comm != *comm || *known.exe != *exe;
                    if self.ledger.identity(process).is_some_and(changed) {
                        self.ledger.rename(process, Identity { comm: comm.into(), exe: exe.into() });
                    }
                }
                ProcessLook::Alive { .. } | ProcessLook::Unknown => {}
            }
        }
        ended
    }
}

/// The work by workload, for the division, and by process.
fn share(
    work: &[ProcessWork],
    usage: &CpuUsage,
    mut owner: impl FnMut(CgroupId) -> Arc<Workload>,
) -> (Vec<ProcessShare>, Vec<Ran>) {
    let workloads: Vec<_> = usage.workloads().map(|shares| &shares[0].workload).collect();
    let mut owners: HashMap<CgroupId, (Arc<Workload>, Option<usize>)> = HashMap::new();
    let mut shares = Vec::with_capacity(work.len());
    let mut ran: HashMap<Process, Ran> = HashMap::with_capacity(work.len());
    for &ProcessWork { process, cgroup, domain, runtime_ns, .. } in work {
        let (workload, position) = owners.entry(cgroup).or_insert_with(|| {
            let workload = owner(cgroup);
            let position = position(&workloads, &workload);
            (workload, position)
        });
        if let Some(workload) = *position {
            shares.push(ProcessShare { workload, process, domain, runtime_ns });
        }
        // Of several workloads it ran for (a runtime's helper that became a container), the one where it ran longest.
        let new = || Ran { process, workload: Arc::clone(workload), runtime_ns: 0 };
        let ran = ran.entry(process).or_insert_with(new);
        if runtime_ns > ran.runtime_ns {
            ran.workload = Arc::clone(workload);
        }
        ran.runtime_ns += runtime_ns;
    }
    let mut ran: Vec<Ran> = ran.into_values().collect();
    // Of two with the same id the older first.
    ran.sort_unstable_by_key(|ran| ran.process);
    (shares, ran)
}
