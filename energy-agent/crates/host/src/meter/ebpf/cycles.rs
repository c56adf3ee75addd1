//! The cycle counters: one per online CPU, in the map that the programs read, opened again as CPUs come and go.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use energy_ebpf::{Slot, cycles};
use energy_model::advice::Advice;
use energy_model::meter_state::{Reason, WeightUnit};

use super::maps;
use crate::config::CyclesEvent;
use crate::meter::cpu::Topology;
use crate::meter::denial::{self, Need};
use crate::meter::perf_event::{CounterReading, PerfCounter, PerfEvent};

/// `CPU_CLK_UNHALTED.DISTRIBUTED` (event 0xec, umask 0x02, `PERF_TYPE_RAW`): unhalted cycles shared out between the two
/// threads of a core, so that two busy siblings do not count as two cores.
const DISTRIBUTED: PerfEvent = PerfEvent { kind: 4, config: 0x02ec };

/// Intel parts (family 6) that have [`DISTRIBUTED`]: Ice Lake, Tiger Lake and Rocket Lake, and the servers from Ice Lake
/// to Granite Rapids. Hybrid parts are left out, their small cores lack it.
/// Source: `tools/perf/pmu-events/arch/x86`, <https://github.com/torvalds/linux/tree/v6.12/tools/perf/pmu-events>.
const DISTRIBUTED_MODELS: [u32; 11] = [0x6a, 0x6c, 0x7d, 0x7e, 0x8c, 0x8d, 0x8f, 0xa7, 0xcf, 0xad, 0xae];

/// The event that cycles are counted by, and the counters.
pub struct Cycles {
    pub event: PerfEvent,
    pub unit: WeightUnit,
    counters: BTreeMap<u32, PerfCounter>,
    /// The kernel's map, once the object is loaded.
    array: Option<OwnedFd>,
    /// CPUs that have no counter although they are online, said once.
    pub missing: Option<String>,
}

/// Why there are no cycles, with the kernel's error where it gave one.
pub type NoCycles = (Reason, Advice);

impl Cycles {
    /// Opens the counters that `choice` asks for on every online CPU.
    ///
    /// # Errors
    /// A reason and an explanation with the remedy, when any CPU refuses: a mix of units is no use.
    pub fn open(choice: CyclesEvent, topology: &Topology, intel_model: Option<u32>) -> Result<Self, NoCycles> {
        let candidates: &[(PerfEvent, WeightUnit)] = match choice {
            CyclesEvent::None => return Err((Reason::Off, "switched off by --ebpf.cycles-event=none".into())),
            CyclesEvent::CpuClock => &[(PerfEvent::CPU_CLOCK, WeightUnit::CpuClock)],
            CyclesEvent::Cycles => &[(PerfEvent::CPU_CYCLES, WeightUnit::Cycles)],
            CyclesEvent::Auto if intel_model.is_some_and(|model| DISTRIBUTED_MODELS.contains(&model)) => {
                &[(DISTRIBUTED, WeightUnit::DistributedCycles), (PerfEvent::CPU_CYCLES, WeightUnit::Cycles)]
            }
            CyclesEvent::Auto => &[(PerfEvent::CPU_CYCLES, WeightUnit::Cycles)],
        };
        let mut refusal = (Reason::Absent, Advice::from("no online CPU"));
        for (event, unit) in candidates {
            let opened: Result<BTreeMap<_, _>, _> = topology
                .online()
                .iter()
                .map(|cpu| {
                    PerfCounter::open(*event, *cpu).map(|counter| (*cpu, counter)).map_err(|error| (*cpu, error))
                })
                .collect();
            match opened {
                Ok(counters) if !counters.is_empty() => {
                    return Ok(Self { event: *event, unit: *unit, counters, array: None, missing: None });
                }
                Ok(_) => {}
                Err((cpu, error)) => refusal = explain(unit.as_str(), cpu, &error),
            }
        }
        Err(refusal)
    }

    /// Value of the kernel side's global `CYCLES`.
    pub fn mode(&self) -> u64 {
        if self.event == PerfEvent::CPU_CLOCK { cycles::RUNNING } else { cycles::HALTING }
    }

    /// Hands the counters to the kernel side.
    pub fn install(&mut self, array: OwnedFd) -> io::Result<()> {
        for (cpu, counter) in &self.counters {
            maps::set_counter(array.as_fd(), *cpu, counter.as_fd())?;
        }
        self.array = Some(array);
        Ok(())
    }

    /// Follows hotplug: closes the counters of CPUs that went and opens those of CPUs that came.
    pub fn follow(&mut self, topology: &Topology) {
        let Some(array) = &self.array else { return };
        self.counters.retain(|cpu, _| topology.online().contains(cpu));
        self.missing = None;
        for cpu in topology.online() {
            if self.counters.contains_key(cpu) {
                continue;
            }
            let installed = PerfCounter::open(self.event, *cpu)
                .and_then(|counter| maps::set_counter(array.as_fd(), *cpu, counter.as_fd()).map(|()| counter));
            match installed {
                Ok(counter) => {
                    self.counters.insert(*cpu, counter);
                }
                Err(error) => self.missing = Some(format!("CPU {cpu}: {error}")),
            }
        }
    }

    pub fn covers(&self, cpu: u32) -> bool {
        self.counters.contains_key(&cpu)
    }

    /// Cycles of a busy CPU since its slot last read the counter; `None` when that is not known.
    pub(crate) fn in_flight(&self, cpu: u32, slot: &Slot) -> Option<u64> {
        since(slot, self.counters.get(&cpu)?.read().ok()?)
    }
}

/// What was counted since the slot last read the counter, if it counted all the time.
fn since(slot: &Slot, reading: CounterReading) -> Option<u64> {
    let whole = reading.enabled_ns.checked_sub(reading.running_ns) == Some(slot.uncounted_ns);
    (whole && slot.start_cycles != 0).then(|| reading.count.saturating_sub(slot.start_cycles))
}

fn explain(name: &str, cpu: u32, error: &io::Error) -> NoCycles {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => (
            Reason::Permission,
            denial::advise(
                Some(format!("{name} on CPU {cpu}: {error}")),
                Need::Perf,
                Path::new("/sys"),
                "run as root or with CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), or set kernel.perf_event_paranoid to 0",
            ),
        ),
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => (
            Reason::Absent,
            format!(
                "{name} on CPU {cpu}: no hardware counter ({error}), as in most virtual machines; work is weighed by CPU time"
            )
            .into(),
        ),
        _ => (Reason::Error, format!("{name} on CPU {cpu}: {error}; work is weighed by CPU time").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_others_took_for_a_while_counts_again() {
        let reading = CounterReading { count: 1_000, enabled_ns: 500, running_ns: 400 };
        let before = Slot { start_cycles: 300, ..Slot::default() };
        assert_eq!(since(&before, reading), None, "it stood still since the slot read it");
        let after = Slot { uncounted_ns: 100, ..before };
        assert_eq!(since(&after, reading), Some(700));
        assert_eq!(since(&Slot { start_cycles: 0, ..after }, reading), None, "not read yet");
    }

    #[test]
    fn the_remedy_matches_the_errno() {
        let explained = |errno| explain("cycles", 0, &io::Error::from_raw_os_error(errno));
        assert_eq!(explained(libc::ENOENT).0, Reason::Absent);
        let (reason, text) = explained(libc::EACCES);
        assert_eq!(reason, Reason::Permission);
        // The tests have the capability, so another one says no: no lack of rights is claimed.
        assert!(text.to_string().contains("denied by ") && text.to_string().contains("CAP_PERFMON (CapEff "), "{text}");
        assert_eq!(explained(libc::EINVAL).0, Reason::Error);
    }
}
