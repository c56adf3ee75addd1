//! Process accounting begins and ends while the meter runs. The program that comes is attached before the one that goes
//! is detached: at a switch that both see, the second finds the slot as the first left it, with nothing in it to charge
//! again but the microseconds since then, so no run time is lost and next to none counts twice.
//!
//! The switch that both programs see counts as a missed one; these are left out of `energy_agent_missed_switches_total`. While the
//! level is off, the ledger of processes charges everything to `other`, which therefore has all earlier active energy on the first
//! page with processes. A process that had a series goes on from its total. What a process ran between the last reading and the end
//! of the level stays with its workload alone. The map and its buffer have their full size from the start: kernel memory that nothing
//! touches while the level is off.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use aya::Btf;
use aya::maps::{MapData, RingBuf};
use aya::programs::BtfTracePoint;
use energy_model::meter_state::{MeterName, MeterState, Program, Reason};
use energy_model::units::nanos;
use tracing::warn;

use super::attach::{attach_btf, owned_fd, tracepoints};
use super::processes::ProcessMap;
use super::{Ebpf, maps};
use crate::memory;
use crate::meter::btf;
use crate::meter::cpu::Topology;

/// With and without processes.
const SWITCH: [&str; 2] = ["sched_switch_processes", "sched_switch"];
const MOVE: [&str; 2] = ["cgroup_attach_task_processes", "cgroup_attach_task"];
const EVENTS: [&str; 3] = ["sched_process_exit", "sched_process_exec", "task_rename"];

/// What is needed to load the programs later, and what is left of those that went.
pub struct ProcessPrograms {
    pub btf: PathBuf,
    /// Entries of the map of processes.
    pub entries: u32,
    /// A program of [`MOVE`] is attached.
    pub moves: bool,
    /// Whether the fields were found that the programs read.
    pub switch: Result<()>,
    pub exits: Result<()>,
    pub execs: Result<()>,
    /// Kept while processes are not accounted.
    pub events: Option<RingBuf<MapData>>,
    /// Time spent in programs that were unloaded.
    pub unloaded_ns: u64,
    /// Switches that the second of two attached programs took for missed ones.
    pub missed_twice: u64,
}

impl Ebpf {
    /// Begins to account for processes, each from zero. Returns how complete their events are.
    ///
    /// # Errors
    /// When a field of the kernel's is missing or the program is refused; all is as before then.
    pub fn start_processes(&mut self, topology: &Topology) -> Result<MeterState> {
        let programs = &self.process_programs;
        ensure!(programs.entries != 0 && self.program == Program::TpBtf, "without the typed program of the scheduler");
        found(&programs.switch)?;
        let btf = self.parse_btf()?;
        let (entries, fd) = (self.process_programs.entries, owned_fd(&self.loaded, "PROCESSES")?);
        // SAFETY: key and value of the contract, without padding, whole numbers throughout.
        let mut map = unsafe { maps::HashMap::new("PROCESSES", fd, entries)? };
        // What is left of the last time was charged then.
        let left: Vec<_> = map.read()?.map(|(key, _)| key).collect();
        for key in left {
            map.remove(&key).context("emptying the map PROCESSES")?;
        }
        self.slots.clear_processes();
        self.exchange(&btf, SWITCH)?;
        if self.process_programs.moves
            && let Err(error) = self.exchange(&btf, MOVE)
        {
            warn!(reason = format!("{error:#}"), "a process that moves to another cgroup is charged there late");
        }
        let mut processes = ProcessMap::new(map);
        let state = self.attach_events(&btf, &mut processes);
        self.processes = Some(processes);
        self.freed(btf);
        // Whose process has been running since before is known at the next switch.
        self.visits.begin(topology.online().to_vec());
        Ok(state)
    }

    /// Ends it; a switch costs no more than if processes had never been accounted.
    ///
    /// # Errors
    /// When the kernel refuses the other program; all is as before then.
    pub(crate) fn stop_processes(&mut self) -> Result<()> {
        if self.processes.is_none() {
            return Ok(());
        }
        let btf = self.parse_btf()?;
        self.exchange(&btf, [SWITCH[1], SWITCH[0]])?;
        if self.process_programs.moves {
            self.exchange(&btf, [MOVE[1], MOVE[0]])?;
        }
        for name in EVENTS {
            self.unload(name);
        }
        self.process_programs.events = self.processes.take().and_then(|processes| processes.events);
        self.freed(btf);
        Ok(())
    }

    fn parse_btf(&self) -> Result<Btf> {
        let path = &self.process_programs.btf;
        let parse = || tracepoints(&btf::Types::parse(&fs::read(path)?)?);
        parse().with_context(|| path.display().to_string())
    }

    #[expect(clippy::unused_self, reason = "belongs to parse_btf")]
    fn freed(&self, btf: Btf) {
        drop(btf);
        // It was some megabytes.
        memory::give_back();
    }

    /// Attaches the first program, then detaches the second.
    fn exchange(&mut self, btf: &Btf, [come, go]: [&'static str; 2]) -> Result<()> {
        let tracepoint = if SWITCH.contains(&come) { SWITCH[1] } else { MOVE[1] };
        let before = self.missed_switches();
        if let Err(error) = attach_btf(&mut self.loaded, come, tracepoint, btf) {
            self.unload(come);
            return Err(error);
        }
        self.unload(go);
        self.process_programs.missed_twice += self.missed_switches().saturating_sub(before);
        Ok(())
    }

    fn missed_switches(&self) -> u64 {
        self.slots.read_all().iter().map(|slot| slot.missed_switches).sum()
    }

    /// Detaches and forgets a program; one that was not loaded is none.
    fn unload(&mut self, name: &str) {
        let run_ns = |program: &BtfTracePoint| program.info().map_or(0, |info| nanos(info.run_time()));
        let program = self.loaded.program_mut(name).and_then(|program| <&mut BtfTracePoint>::try_from(program).ok());
        if let Some(program) = program.filter(|program| program.fd().is_ok()) {
            self.process_programs.unloaded_ns += run_ns(program);
            if let Err(error) = program.unload() {
                warn!(name, %error, "cannot be detached");
            }
        }
    }

    /// Attaches each of the programs alone; what is missing is found out from /proc.
    fn attach_events(&mut self, btf: &Btf, processes: &mut ProcessMap) -> MeterState {
        let programs = &self.process_programs;
        let mut refusals = Vec::new();
        for (name, offsets) in EVENTS.into_iter().zip([&programs.exits, &programs.execs, &Ok(())]) {
            if let Err(error) = found(offsets).and_then(|()| attach_btf(&mut self.loaded, name, name, btf)) {
                refusals.push(format!("{error:#}"));
            }
        }
        if refusals.len() < EVENTS.len() {
            let kept = self.process_programs.events.take().map(Ok);
            let mut map = || self.loaded.take_map("PROCESS_EVENTS").context("object without the map PROCESS_EVENTS");
            match kept.unwrap_or_else(|| map().and_then(|map| Ok(RingBuf::try_from(map)?))) {
                Ok(events) => processes.events = Some(events),
                Err(error) => refusals.push(format!("{error:#}")),
            }
        }
        if refusals.is_empty() {
            processes.all_events = true;
            return MeterState::up(MeterName::ProcessEvents, "");
        }
        let detail = format!("{}; names and ends of processes are looked up in /proc instead", refusals.join("; "));
        warn!(reason = detail, "process events are not complete");
        MeterState::down(MeterName::ProcessEvents, Reason::Error, detail)
    }
}

/// The outcome of an earlier look-up again.
fn found(fields: &Result<()>) -> Result<()> {
    fields.as_ref().map_or_else(|error| Err(anyhow::anyhow!("{error:#}")), |()| Ok(()))
}
