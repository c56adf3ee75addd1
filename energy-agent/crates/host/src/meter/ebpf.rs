//! The usage meter of choice: loads the eBPF object, hands it what this kernel looks like, and turns its maps into what
//! each cgroup did since the last reading. Each program loads alone; one that is refused costs its feature.
//!
//! # How time is counted
//!
//! Each CPU has one slot: which cgroup runs, since when, and the time that is not yet in the shared map. A switch between two
//! tasks of one cgroup costs a few loads and additions. The slot also keeps the previous cgroup: if that one runs again within
//! 0.1 ms, the slot swaps the two. Two tasks that alternate every few microseconds therefore update the shared map at most once
//! per 0.1 ms. The clock is read when idle ends and when the cgroup changes, in between at most once per 0.1 ms of run time.
//!
//! Closed time is the growth of the task's `se.sum_exec_runtime`, which the scheduler has brought up to date when the tracepoint
//! fires, and which cpu.stat adds up as well. A clock read at the tracepoint would charge the way there (5 microseconds in some
//! virtual machines) to the task that leaves, and would include stolen time. The clock serves for time in flight only.
//!
//! The program sees the next task at the switch, so a task that never switches again is known from its first moment, and the
//! reader adds the time in flight. Rust emits no relocations for kernel structs: the offsets are looked up in the running kernel's
//! BTF at start (`btf.rs`) and become constants when the loader freezes them, so the verifier checks each load. Where a field is
//! missing or typed programs are refused, the raw tracepoint charges the task that leaves; it cannot know who is running now.
//!
//! The slots are mapped into memory, so no idle CPU is interrupted by a reading. The map is read first, by one system call, then the
//! slots; what moved in between is looked up again. Totals are computed anew each time and never fall, so a torn reading moves
//! time between two ticks and loses none.
//!
//! A security module may keep BPF programs off some tasks. The slot remembers which thread came, so the next switch notices
//! (`energy_agent_missed_switches_total`), and the time in between is divided by what the scheduler remembers of the task that
//! leaves. `/proc/stat` says whether a CPU went idle unseen.
//!
//! A task that moves itself into a cgroup has its slot opened again at once. A running task that is moved by another process is
//! found at its next switch, which the agent causes at the next tick by a short visit to the busy CPUs. When the programs are
//! attached, the agent visits each online CPU once, so that a task that never switches has its slot opened. Kernel threads are
//! charged to the number 0 in place of a cgroup id. The idle task is never charged.
//!
//! Cycles weigh work where every CPU of a package delivers them for the whole interval; else run time does. There is one unit per
//! zone and interval.
//!
//! aya-log is used on one rare path, the first lost cgroup event.

mod attach;
mod cycles;
mod events;
mod load;
mod loader;
mod maps;
mod process_level;
mod processes;
mod running_total;
mod tally;
mod visit;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use aya::maps::{MapData, RingBuf};
use aya_log::EbpfLogger;
use energy_ebpf::{Key, Slot, Usage};
use energy_model::meter_state::{MeterState, Program, WeightUnit};
use energy_model::process::Process;
use energy_model::sample::ProcessSample;
use energy_model::sample::{CgroupEvent, CgroupId, Work};
use tracing::warn;

use self::cycles::Cycles;
pub use self::load::{btf_path, object_sha256, reason};
use self::maps::Slots;
use self::process_level::ProcessPrograms;
use self::processes::ProcessMap;
use self::tally::CgroupTally;
use self::visit::Visits;
use super::cpu::Topology;
use crate::clock::monotonic_ns;
use crate::config::CyclesEvent;

/// The kernel accounts idle time in steps of 10 ms, at both ends of an interval, and a busy CPU has short pauses.
const IDLE_NOISE_NS: u64 = 30_000_000;

/// What decides how the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct EbpfOptions<'a> {
    pub sysfs: &'a Path,
    pub cycles: CyclesEvent,
    /// Model number of an Intel family 6 CPU.
    pub intel_model: Option<u32>,
    /// Entries of the usage map.
    pub map_entries: u32,
    /// Entries of the map of processes; 0: processes cannot be accounted.
    pub process_entries: u32,
}

/// What the kernel side counted since the previous reading.
#[derive(Debug, Default)]
pub struct UsageReading {
    pub work: Vec<Work>,
    /// Run time that found the map full, by domain; nanoseconds.
    pub dropped_ns: Vec<u64>,
    /// Whether every online CPU of the domain delivered cycles, by domain.
    pub cycles: Vec<bool>,
    pub events: Vec<CgroupEvent>,
    pub processes: ProcessSample,
}

/// What the kernel side could not record since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Updates that found the usage map full.
    pub map: u64,
    /// cgroup events that found the ring buffer full.
    pub events: u64,
    /// Switches at which the kernel did not run the program.
    pub switches: u64,
    /// Updates that found the map of processes full.
    pub processes: u64,
    /// Process events that found their ring buffer full.
    pub process_events: u64,
}

/// A slot's counts at the previous reading.
#[derive(Clone, Copy, Debug, Default)]
struct SlotSeen {
    dropped_ns: u64,
    cycles_missed: u64,
}

/// The loaded programs and what they have counted. They are detached when it is dropped.
pub struct Ebpf {
    /// Keeps the programs attached.
    loaded: aya::Ebpf,
    program: Program,
    usage: maps::HashMap<Key, Usage>,
    /// `None` while processes are not accounted.
    processes: Option<ProcessMap>,
    process_programs: ProcessPrograms,
    slots: Slots,
    events: Option<RingBuf<MapData>>,
    logger: Option<EbpfLogger<&'static dyn log::Log>>,
    cycles: Option<Cycles>,
    tally: CgroupTally,
    /// By CPU number.
    seen: Vec<SlotSeen>,
    /// When the previous reading was taken; CLOCK_MONOTONIC.
    last_ns: u64,
    /// Moves of running tasks seen so far.
    moves: u64,
    visits: Visits,
    states: Vec<MeterState>,
    drops: Drops,
    bpf_stats: PathBuf,
}

impl Ebpf {
    /// From now on idle time is counted for the first reading.
    pub fn begin(&mut self) {
        self.last_ns = monotonic_ns();
    }

    /// What was done since the previous reading. `idle_ns` is how long each CPU was idle meanwhile by the kernel's own
    /// account, by CPU number; empty where that is not known.
    ///
    /// # Errors
    /// When the kernel's map can't be read; nothing is lost, the next reading has it all.
    pub fn read(&mut self, topology: &Topology, idle_ns: &[u64]) -> Result<UsageReading> {
        let mut reading = UsageReading {
            dropped_ns: vec![0; topology.domains.len()],
            cycles: vec![self.cycles.is_some(); topology.domains.len()],
            ..UsageReading::default()
        };
        let before = self.slots.read_all();
        for (key, usage) in self.usage.read()? {
            self.tally.set(key, usage);
        }
        if let Some(processes) = &mut self.processes {
            processes.read()?;
        }
        let mut now_ns = 0;
        let slots = self.tally.settle(
            before,
            || {
                now_ns = monotonic_ns();
                self.slots.read_all()
            },
            |key| self.usage.lookup(key),
            |slot| self.processes.as_mut().map_or(Ok(()), |processes| processes.look_up(slot)),
        )?;
        self.drops = Drops::default();
        let mut moves = 0;
        for (cpu, slot) in slots.iter().enumerate() {
            self.drops.map += slot.drops;
            self.drops.events += slot.event_drops;
            self.drops.switches += slot.missed_switches;
            self.drops.processes += slot.process_drops;
            self.drops.process_events += slot.process_event_drops;
            moves += slot.moves;
            let idle_ns = idle_ns.get(cpu).copied();
            let (usage, whole) = self.held(u32::try_from(cpu).context("CPU number")?, slot, now_ns, idle_ns, topology);
            self.tally.add(Key { cgroup: slot.cgroup, domain: slot.domain }, usage);
            self.tally.add(Key { cgroup: slot.parked_cgroup, domain: slot.domain }, slot.parked);
            if let Some(processes) = &mut self.processes {
                processes.add(slot, usage.runtime_ns - slot.closed.runtime_ns - slot.stretch_ns);
            }
            let seen = &mut self.seen[cpu];
            let domain = usize::try_from(slot.domain).context("domain number")?;
            if let Some(total) = reading.dropped_ns.get_mut(domain) {
                *total += slot.dropped_ns.saturating_sub(seen.dropped_ns);
            }
            if (!whole || slot.cycles_missed != seen.cycles_missed)
                && let Some(complete) = reading.cycles.get_mut(domain)
            {
                *complete = false;
            }
            *seen = SlotSeen { dropped_ns: slot.dropped_ns, cycles_missed: slot.cycles_missed };
        }
        self.last_ns = now_ns;
        self.drops.switches = self.drops.switches.saturating_sub(self.process_programs.missed_twice);
        if moves != self.moves {
            // A running task was moved to another cgroup from another CPU; its slot learns of it when it switches.
            let busy = slots.iter().zip(0..).filter(|(slot, _)| slot.start_ns != 0).map(|(_, cpu)| cpu);
            if self.visits.begin(busy.collect()) {
                self.moves = moves;
            }
        }
        reading.work = self.tally.close();
        // After the map, so that every cgroup in it has been announced.
        reading.events = self.drain_events();
        self.tally.follow(&reading.events);
        for key in
            self.tally.give_up(|cgroup| slots.iter().any(|slot| [slot.cgroup, slot.parked_cgroup].contains(&cgroup)))
        {
            if let Err(error) = self.usage.remove(&key) {
                warn!(cgroup = key.cgroup, %error, "the entry of a removed cgroup stays in the usage map");
            }
        }
        if let Some(processes) = &mut self.processes {
            reading.processes = processes.close(&slots);
        }
        if let Some(logger) = &mut self.logger {
            logger.flush();
        }
        Ok(reading)
    }

    /// What a CPU's slot holds, time in flight included, and whether its cycles are whole.
    fn held(&self, cpu: u32, slot: &Slot, now_ns: u64, idle_ns: Option<u64>, topology: &Topology) -> (Usage, bool) {
        let mut usage = slot.closed;
        usage.runtime_ns += slot.stretch_ns;
        let mut whole = true;
        let running = slot.start_ns != 0
            && self.program == Program::TpBtf
            && idle_ns.is_none_or(|idle_ns| {
                // A CPU that has been idle since the stretch began is not running it: the switch to idle was missed.
                idle_ns <= slot.start_ns.saturating_sub(self.last_ns) + IDLE_NOISE_NS
            });
        if running {
            usage.runtime_ns = slot.closed.runtime_ns + slot.stretch_ns.max(now_ns.saturating_sub(slot.start_ns));
        }
        if let Some(cycles) = &self.cycles
            && topology.online().contains(&cpu)
        {
            whole = cycles.covers(cpu);
            if running {
                match cycles.in_flight(cpu, slot) {
                    Some(in_flight) => usage.cycles += in_flight,
                    None => whole = false,
                }
            }
        }
        (usage, whole)
    }

    /// A cgroup is gone without an event: its entries in the kernel's map are given up once they have come to rest.
    pub fn forget(&mut self, cgroup: CgroupId) {
        self.tally.removed(cgroup);
    }

    /// A process is gone without an event: as for [`Self::forget`].
    pub fn forget_process(&mut self, process: Process) {
        if let Some(processes) = &mut self.processes {
            processes.ended(process);
        }
    }

    /// Whether processes are accounted.
    pub fn has_processes(&self) -> bool {
        self.processes.is_some()
    }

    /// Follows CPU hotplug, after the topology was refreshed; `came` are the CPUs that were not online before.
    pub fn follow(&mut self, topology: &Topology, came: Vec<u32>) {
        set_domains(&mut self.slots, topology);
        if let Some(cycles) = &mut self.cycles {
            cycles.follow(topology);
            if let Some(missing) = &cycles.missing {
                warn!(missing, "cycle counter missing, the work of its package is weighed by CPU time");
            }
        }
        self.visits.make(came);
    }

    pub fn program(&self) -> Program {
        self.program
    }

    /// The unit that work is weighed by when every CPU delivers it.
    pub fn weight(&self) -> WeightUnit {
        self.cycles.as_ref().map_or(WeightUnit::Runtime, |cycles| cycles.unit)
    }

    /// Whether cgroups that come and go are reported.
    pub(crate) fn has_events(&self) -> bool {
        self.events.is_some()
    }

    pub fn states(&self) -> &[MeterState] {
        &self.states
    }

    pub fn drops(&self) -> Drops {
        self.drops
    }

    /// Time spent in the programs, nanoseconds; `None` while `kernel.bpf_stats_enabled` is 0.
    pub fn run_ns(&self) -> Option<u64> {
        let enabled = fs::read(&self.bpf_stats).ok()?;
        if enabled.first() != Some(&b'1') {
            return None;
        }
        let times = self.loaded.programs().filter_map(|(_, program)| program.info().ok());
        let loaded_ns: u64 = times.map(|info| energy_model::units::nanos(info.run_time())).sum();
        Some(loaded_ns + self.process_programs.unloaded_ns)
    }

    fn drain_events(&mut self) -> Vec<CgroupEvent> {
        let mut events = Vec::new();
        while let Some(record) = self.events.as_mut().and_then(RingBuf::next) {
            events.extend(events::parse(&record));
        }
        events
    }
}

fn set_domains(slots: &mut Slots, topology: &Topology) {
    for cpu in 0..slots.count() {
        if let Some(domain) = u32::try_from(cpu).ok().and_then(|cpu| topology.domain_of(cpu)) {
            slots.set_domain(cpu, domain);
        }
    }
}
