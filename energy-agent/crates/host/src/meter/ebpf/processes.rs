//! The map of processes: totals that are computed afresh at each reading become differences that never fall, and entries
//! of processes that ended are given up once they have come to rest.

use std::collections::HashMap;

use anyhow::Result;
use aya::maps::{MapData, RingBuf};
use energy_ebpf::{Comm, Process, ProcessKey, ProcessUsage, Slot};
use energy_model::sample::{ProcessEvent, ProcessSample, ProcessWork};
use energy_model::table;
use tracing::warn;

use super::running_total::RunningTotal;
use super::{events, maps};

/// Readings that the entries of an ended process must stand still before they are given up.
const QUIET_READINGS: u64 = 3;
/// Readings without work after which any entry is given up when the map is nearly full; it comes back with new work.
const IDLE_READINGS: u64 = 30;

/// What the kernel side keeps about processes, and what has been charged of it so far.
pub struct ProcessMap {
    map: maps::HashMap<ProcessKey, ProcessUsage>,
    /// `None` where the kernel refused each of the programs.
    pub events: Option<RingBuf<MapData>>,
    /// None of the programs was refused.
    pub all_events: bool,
    tally: ProcessTally,
    /// `None` before the first reading: what happened until then is not known.
    event_drops: Option<u64>,
    removal_failed: bool,
}

impl ProcessMap {
    pub fn new(map: maps::HashMap<ProcessKey, ProcessUsage>) -> Self {
        Self {
            map,
            events: None,
            all_events: false,
            tally: ProcessTally::default(),
            event_drops: None,
            removal_failed: false,
        }
    }

    /// Begins a reading: what the map holds. The slots are read after this.
    pub fn read(&mut self) -> Result<()> {
        self.tally.reading += 1;
        for (key, usage) in self.map.read()? {
            self.tally.set(key, usage);
        }
        Ok(())
    }

    /// Asks again about a slot that may have moved into the map since.
    pub(crate) fn look_up(&mut self, slot: &Slot) -> Result<()> {
        let key = key(slot);
        if key.pid != 0
            && let Some(usage) = self.map.lookup(&key)?
        {
            self.tally.set(key, usage);
        }
        Ok(())
    }

    /// Adds what a slot holds, and how long the task that runs there has been running.
    pub fn add(&mut self, slot: &Slot, in_flight_ns: u64) {
        let runtime_ns = slot.process_ns + in_flight_ns;
        if slot.process.pid != 0 && runtime_ns != 0 {
            self.tally.add(key(slot), runtime_ns, slot.comm);
        }
    }

    /// Ends the reading.
    pub fn close(&mut self, slots: &[Slot]) -> ProcessSample {
        let mut sample = ProcessSample { work: self.tally.close(), ..ProcessSample::default() };
        // After the map, so that what is known of a process is at least as new as its work.
        while let Some(record) = self.events.as_mut().and_then(RingBuf::next) {
            sample.events.extend(events::parse_process(&record));
        }
        let event_drops = slots.iter().map(|slot| slot.process_event_drops).sum();
        sample.events_complete = self.all_events && self.event_drops == Some(event_drops);
        self.event_drops = Some(event_drops);
        for (process, event) in &sample.events {
            if *event == ProcessEvent::Exited {
                self.tally.ended(*process);
            }
        }
        let crowded = self.tally.entries.len() > self.map.capacity() / 4 * 3;
        for key in self.tally.give_up(crowded, |process| slots.iter().any(|slot| slot.process == process)) {
            if let Err(error) = self.map.remove(&key)
                && !std::mem::replace(&mut self.removal_failed, true)
            {
                warn!(pid = key.pid, %error, "entries of ended processes stay in the map PROCESSES");
            }
        }
        sample
    }

    /// A process ended without an event.
    pub fn ended(&mut self, process: Process) {
        self.tally.ended(process);
    }
}

fn key(slot: &Slot) -> ProcessKey {
    ProcessKey {
        start_ns: slot.process.start_ns,
        cgroup: slot.cgroup,
        // The kernel side takes both from 32-bit fields.
        pid: u32::try_from(slot.process.pid).unwrap_or_default(),
        domain: u32::try_from(slot.domain).unwrap_or_default(),
    }
}

/// The arithmetic of it (pure).
#[derive(Debug, Default)]
struct ProcessTally {
    /// Number of the reading in progress.
    reading: u64,
    entries: HashMap<ProcessKey, ProcessCount>,
    /// Processes that ended, and the last reading in which that was not sure to be all.
    gone: HashMap<Process, u64>,
}

#[derive(Debug)]
struct ProcessCount {
    comm: Comm,
    runtime_ns: RunningTotal<u64>,
    /// The last reading with work.
    worked: u64,
}

impl ProcessTally {
    fn entry(&mut self, key: ProcessKey, comm: Comm) -> &mut ProcessCount {
        let new = || ProcessCount { comm, runtime_ns: RunningTotal::default(), worked: self.reading };
        self.entries.entry(key).or_insert_with(new)
    }

    fn set(&mut self, key: ProcessKey, usage: ProcessUsage) {
        self.entry(key, usage.comm).runtime_ns.set(usage.runtime_ns);
    }

    fn add(&mut self, key: ProcessKey, runtime_ns: u64, comm: Comm) {
        self.entry(key, comm).runtime_ns.add(runtime_ns);
    }

    /// What each entry did since the previous reading.
    fn close(&mut self) -> Vec<ProcessWork> {
        let mut work = Vec::new();
        for (key, entry) in &mut self.entries {
            let runtime_ns = entry.runtime_ns.close();
            if runtime_ns > 0 {
                entry.worked = self.reading;
                let (cgroup, domain, comm) = (key.cgroup, Some(key.domain), entry.comm);
                work.push(ProcessWork { process: process(key), cgroup, domain, runtime_ns, comm });
            }
        }
        work
    }

    fn ended(&mut self, process: Process) {
        self.gone.entry(process).or_insert(self.reading);
    }

    /// Entries to be removed from the kernel's map; they are forgotten here. `held` says whether some slot still belongs to
    /// the process: what it holds would come back as a new entry.
    fn give_up(&mut self, crowded: bool, held: impl Fn(Process) -> bool) -> Vec<ProcessKey> {
        let reading = self.reading;
        let mut waiting = HashMap::with_capacity(self.gone.len());
        let mut given_up = Vec::new();
        self.entries.retain(|key, entry| {
            let process = process(key);
            let rested = match self.gone.get(&process) {
                Some(told) => reading - entry.worked.max(*told) >= QUIET_READINGS,
                None => crowded && reading - entry.worked >= IDLE_READINGS,
            };
            let give_up = rested && !held(process);
            if give_up {
                given_up.push(*key);
            } else if let Some(told) = self.gone.get(&process) {
                waiting.insert(process, *told);
            }
            !give_up
        });
        // An end is remembered as long as there are entries, and for as long as there may be some to come.
        self.gone.retain(|process, told| waiting.contains_key(process) || reading - *told < QUIET_READINGS);
        table::fit(&mut self.entries);
        table::fit(&mut self.gone);
        given_up
    }
}

fn process(key: &ProcessKey) -> Process {
    Process { pid: u64::from(key.pid), start_ns: key.start_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELL: ProcessKey = ProcessKey { start_ns: 77, cgroup: 5, pid: 4242, domain: 0 };

    /// One reading in which the map holds so much for the shell, and slots so much besides.
    fn read(tally: &mut ProcessTally, map_ns: u64, slots_ns: u64) -> u64 {
        tally.reading += 1;
        tally.set(SHELL, ProcessUsage { runtime_ns: map_ns, comm: [1, 0] });
        if slots_ns > 0 {
            tally.add(SHELL, slots_ns, [2, 0]);
        }
        tally.close().iter().map(|work| work.runtime_ns).sum()
    }

    #[test]
    fn what_moves_from_a_slot_to_the_map_is_charged_once_and_never_taken_back() {
        let mut tally = ProcessTally::default();
        assert_eq!(read(&mut tally, 100, 7), 107);
        assert_eq!(read(&mut tally, 100, 9), 2);
        // The slot was emptied after the map was read: 109 are charged, 100 are seen.
        assert_eq!(read(&mut tally, 100, 0), 0);
        assert_eq!(read(&mut tally, 112, 0), 3);
    }

    #[test]
    fn an_ended_process_is_given_up_once_it_rests_and_no_slot_holds_it() {
        let mut tally = ProcessTally::default();
        read(&mut tally, 100, 0);
        tally.ended(process(&SHELL));
        for _ in 0..5 {
            read(&mut tally, 100, 0);
            assert_eq!(tally.give_up(false, |_| true), []);
        }
        assert_eq!(read(&mut tally, 104, 0), 4, "it works on its way out");
        assert_eq!(tally.give_up(false, |_| false), []);
        let mut readings = 0;
        while tally.give_up(false, |_| false).is_empty() && readings < 10 {
            read(&mut tally, 104, 0);
            readings += 1;
        }
        assert_eq!(readings, 3);
        assert!(tally.entries.is_empty());
        read(&mut tally, 0, 0);
        tally.entries.clear();
        tally.give_up(false, |_| false);
        assert!(tally.gone.is_empty(), "it is forgotten");
    }

    #[test]
    fn a_nearly_full_map_gives_up_who_has_not_worked_for_long_and_starts_him_anew() {
        let mut tally = ProcessTally::default();
        read(&mut tally, 100, 0);
        for _ in 0..30 {
            assert_eq!(tally.give_up(true, |_| false), []);
            read(&mut tally, 100, 0);
        }
        assert_eq!(tally.give_up(false, |_| false), [], "there is room");
        assert_eq!(tally.give_up(true, |_| false), [SHELL]);
        assert_eq!(read(&mut tally, 6, 0), 6);
    }

    #[test]
    fn a_pid_that_is_used_again_is_another_process() {
        // FC-038: pid 4242 ran 900 s and ended; another process with that pid starts and runs 0.5 s, then 2 s.
        let mut tally = ProcessTally::default();
        assert_eq!(read(&mut tally, 900_000_000_000, 0), 900_000_000_000);
        let next = ProcessKey { start_ns: 78, cgroup: 6, ..SHELL };
        for (total_ns, done_ns) in [(500_000_000, 500_000_000), (2_500_000_000, 2_000_000_000)] {
            tally.reading += 1;
            tally.set(SHELL, ProcessUsage { runtime_ns: 900_000_000_000, comm: [1, 0] });
            tally.set(next, ProcessUsage { runtime_ns: total_ns, comm: [2, 0] });
            let work = tally.close();
            let seen: Vec<_> = work.iter().map(|work| (work.cgroup, work.process.start_ns, work.runtime_ns)).collect();
            assert_eq!(seen, [(6, 78, done_ns)]);
        }
    }
}
