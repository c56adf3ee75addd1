//! The usage meter of choice: loads the eBPF object, hands it what this kernel looks like, and turns its maps into what
//! each cgroup did since the last reading. Each program loads alone; one that is refused costs its feature.

mod cycles;
mod maps;
mod tally;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use aya::maps::{Map, MapData, RingBuf};
use aya::programs::{BtfTracePoint, ProgramError, RawTracePoint};
use aya::{Btf, EbpfError, EbpfLoader, Endianness};
use aya_log::EbpfLogger;
use energy_ebpf::{CgroupCreated, CgroupRemoved, Key, PATH_LEN, Slot, Usage};
use tracing::{info, warn};

use self::cycles::Cycles;
use self::maps::{Slots, UsageMap};
use self::tally::Tally;
use super::btf;
use super::cpu::Topology;
use super::{CgroupEvent, CgroupId, MeterState, Work, monotonic_ns};
use crate::config::CyclesEvent;

/// Built by `cargo xtask ebpf` from `energy-ebpf/src`.
static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/../energy-ebpf/energy-ebpf.bpf.o"));

/// Struct fields whose offsets the programs need: global, struct, field.
const SWITCH_FIELDS: [(&str, &str, &str); 8] = [
    ("TASK_PID", "task_struct", "pid"),
    ("TASK_FLAGS", "task_struct", "flags"),
    ("TASK_EXEC", "task_struct", "se.sum_exec_runtime"),
    ("TASK_PREV_EXEC", "task_struct", "se.prev_sum_exec_runtime"),
    ("TASK_CGROUPS", "task_struct", "cgroups"),
    ("CSS_SET_DFL_CGRP", "css_set", "dfl_cgrp"),
    ("CGROUP_KN", "cgroup", "kn"),
    ("KN_ID", "kernfs_node", "id"),
];
const EVENT_FIELDS: [(&str, &str, &str); 2] =
    [("CGROUP_ROOT", "cgroup", "root"), ("ROOT_HIERARCHY_ID", "cgroup_root", "hierarchy_id")];

/// The kernel accounts idle time in steps of 10 ms, at both ends of an interval, and a busy CPU has short pauses.
const IDLE_NOISE_NS: u64 = 30_000_000;

/// What decides how the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    pub sysfs: &'a Path,
    pub cycles: CyclesEvent,
    /// Model number of an Intel family 6 CPU.
    pub intel_model: Option<u32>,
    /// Entries of the usage map.
    pub map_entries: u32,
}

/// What the kernel side counted since the previous reading.
#[derive(Debug, Default)]
pub struct Reading {
    pub work: Vec<Work>,
    /// Run time that found the map full, by domain; nanoseconds.
    pub dropped_ns: Vec<u64>,
    /// Whether every online CPU of the domain delivered cycles, by domain.
    pub cycles: Vec<bool>,
    pub events: Vec<CgroupEvent>,
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
}

/// A slot's counts at the previous reading.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    dropped_ns: u64,
    cycles_missed: u64,
}

pub struct Ebpf {
    /// Keeps the programs attached.
    loaded: aya::Ebpf,
    /// `tp_btf`, which knows who is running now, or `raw_tracepoint`, which does not.
    program: &'static str,
    usage: UsageMap,
    slots: Slots,
    events: Option<RingBuf<MapData>>,
    logger: Option<EbpfLogger<&'static dyn log::Log>>,
    cycles: Option<Cycles>,
    tally: Tally,
    /// By CPU number.
    seen: Vec<Seen>,
    /// When the previous reading was taken; CLOCK_MONOTONIC.
    last_ns: u64,
    states: Vec<MeterState>,
    drops: Drops,
    bpf_stats: PathBuf,
}

impl Ebpf {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// When the kernel has no BTF, or refuses the object or both forms of the scheduler program; the message names what
    /// is missing and the remedy.
    pub fn load(options: Options<'_>, topology: &Topology, procfs: &Path) -> Result<Self> {
        let btf_path = btf_path(options.sysfs);
        let image = fs::read(&btf_path).with_context(|| {
            format!(
                "{}: the kernel shows no BTF; it needs CONFIG_DEBUG_INFO_BTF=y (Linux 5.10 or later)",
                btf_path.display()
            )
        })?;
        let types = btf::Types::parse(&image).with_context(|| btf_path.display().to_string())?;
        let offsets = |fields: &[(&'static str, &str, &str)]| -> Result<Vec<(&'static str, u64)>> {
            fields.iter().map(|(global, name, field)| Ok((*global, types.offset_of(name, field)?))).collect()
        };
        let switch_offsets = offsets(&SWITCH_FIELDS);
        let event_offsets = offsets(&EVENT_FIELDS);
        drop(types);
        drop(image);
        raise_memlock();

        let mut states = Vec::new();
        let mut cycles = match Cycles::open(options.cycles, topology, options.intel_model) {
            Ok(cycles) => Some(cycles),
            Err((reason, detail)) => {
                states.push(MeterState { meter: "cycles", up: false, reason, detail });
                None
            }
        };
        let cycles_mode = cycles.as_ref().map_or(energy_ebpf::cycles::NONE, Cycles::mode);
        let cpus = aya::util::nr_cpus().map_err(|(file, error)| anyhow!("{file}: {error}"))?;
        let known: Vec<(&str, u64)> =
            switch_offsets.iter().chain(&event_offsets).flatten().copied().chain([("CYCLES", cycles_mode)]).collect();

        let btf = Btf::parse_file(&btf_path, Endianness::default()).with_context(|| btf_path.display().to_string())?;
        let mut loader = EbpfLoader::new();
        loader
            .btf(Some(&btf))
            .map_max_entries("USAGE", options.map_entries)
            .map_max_entries("SLOTS", u32::try_from(cpus).context("number of CPUs")?);
        for (global, value) in &known {
            loader.override_global(global, value, true);
        }
        let mut loaded = loader.load(OBJECT).map_err(|error| refused_object(error, options.sysfs))?;

        let mut slots = Slots::map(map_fd(&loaded, "SLOTS")?, cpus)?;
        set_domains(&mut slots, topology);
        let usage = UsageMap::new(owned_fd(&loaded, "USAGE")?, options.map_entries)?;
        if let Some(counters) = &mut cycles
            && let Err(error) = counters.install(owned_fd(&loaded, "CYCLE_COUNTERS")?)
        {
            warn!(%error, "cycle counters could not be handed to the kernel side");
            cycles = None;
        }
        // The logger takes its map out before the programs load, and is only a courtesy.
        let logger = EbpfLogger::init(&mut loaded).ok();

        let program = attach_switch(&mut loaded, &btf, switch_offsets.as_ref().err())
            .map_err(|error| explain_refusal(error, options.sysfs))?;
        if program != "tp_btf" && cycles.take().is_some() {
            states.push(state("cycles", "unused", "the raw_tracepoint program does not count cycles"));
        }
        if let Some(counters) = &cycles {
            states.push(MeterState { meter: "cycles", up: true, reason: "ok", detail: counters.name.to_owned() });
        }
        let attached = event_offsets.and_then(|_| attach_events(&mut loaded, &btf));
        let events = match attached {
            Ok(events) => {
                states.push(MeterState { meter: "cgroup_events", up: true, reason: "ok", detail: String::new() });
                Some(events)
            }
            Err(error) => {
                states.push(state("cgroup_events", "error", &format!("{error:#}; the cgroup tree is walked instead")));
                None
            }
        };
        states.insert(0, MeterState { meter: "ebpf", up: true, reason: "ok", detail: program.to_owned() });
        drop(btf);
        visit_cpus(topology.online().to_vec());
        // SAFETY: gives free heap back to the kernel; the parsed BTF was tens of megabytes.
        unsafe { libc::malloc_trim(0) };

        info!(program, map_entries = options.map_entries, cycles = cycles.as_ref().map(|c| c.name), "eBPF loaded");
        Ok(Self {
            loaded,
            program,
            usage,
            seen: vec![Seen::default(); slots.count()],
            last_ns: monotonic_ns(),
            slots,
            events,
            logger,
            cycles,
            tally: Tally::default(),
            states,
            drops: Drops::default(),
            bpf_stats: procfs.join("sys/kernel/bpf_stats_enabled"),
        })
    }

    /// What was done since the previous reading. `idle_ns` is how long each CPU was idle meanwhile by the kernel's own
    /// account, by CPU number; empty where that is not known.
    ///
    /// # Errors
    /// When the kernel's map can't be read; nothing is lost, the next reading has it all.
    pub fn read(&mut self, topology: &Topology, idle_ns: &[u64]) -> Result<Reading> {
        let mut reading = Reading {
            dropped_ns: vec![0; topology.domains.len()],
            cycles: vec![self.cycles.is_some(); topology.domains.len()],
            ..Reading::default()
        };
        let before = self.slots.read_all();
        for (key, usage) in self.usage.read()? {
            self.tally.set(key, usage);
        }
        let mut now_ns = 0;
        let slots = self.tally.settle(
            before,
            || {
                now_ns = monotonic_ns();
                self.slots.read_all()
            },
            |key| self.usage.lookup(key),
        )?;
        self.drops = Drops::default();
        for (cpu, slot) in slots.iter().enumerate() {
            self.drops.map += slot.drops;
            self.drops.events += slot.event_drops;
            self.drops.switches += slot.missed_switches;
            let idle_ns = idle_ns.get(cpu).copied();
            let (usage, whole) = self.held(u32::try_from(cpu).context("CPU number")?, slot, now_ns, idle_ns, topology);
            self.tally.add(Key { cgroup: slot.cgroup, domain: slot.domain }, usage);
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
            *seen = Seen { dropped_ns: slot.dropped_ns, cycles_missed: slot.cycles_missed };
        }
        self.last_ns = now_ns;
        reading.work = self.tally.close();
        // After the map, so that every cgroup in it has been announced.
        reading.events = self.drain_events();
        self.tally.follow(&reading.events);
        for key in self.tally.give_up(|cgroup| slots.iter().any(|slot| slot.cgroup == cgroup)) {
            if let Err(error) = self.usage.remove(&key) {
                warn!(cgroup = key.cgroup, %error, "entry of a removed cgroup stays in the usage map");
            }
        }
        if let Some(logger) = &mut self.logger {
            logger.flush();
        }
        Ok(reading)
    }

    /// What a CPU's slot holds, time in flight included, and whether its cycles are whole.
    fn held(&self, cpu: u32, slot: &Slot, now_ns: u64, idle_ns: Option<u64>, topology: &Topology) -> (Usage, bool) {
        let mut usage =
            Usage { runtime_ns: slot.acc_ns + slot.stretch_ns, cycles: slot.acc_cycles, switches: slot.switches };
        let mut whole = true;
        let running = slot.start_ns != 0
            && self.program == "tp_btf"
            && idle_ns.is_none_or(|idle_ns| {
                // A CPU that has been idle since the stretch began is not running it: the switch to idle was missed.
                idle_ns <= slot.start_ns.saturating_sub(self.last_ns) + IDLE_NOISE_NS
            });
        if running {
            usage.runtime_ns = slot.acc_ns + slot.stretch_ns.max(now_ns.saturating_sub(slot.start_ns));
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

    /// A cgroup is gone and no event told: its entries in the kernel's map are given up once they have come to rest.
    pub fn forget(&mut self, cgroup: CgroupId) {
        self.tally.removed(cgroup);
    }

    /// Follows CPU hotplug, after the topology was refreshed; `came` are the CPUs that were not online before.
    pub fn follow(&mut self, topology: &Topology, came: Vec<u32>) {
        set_domains(&mut self.slots, topology);
        if let Some(cycles) = &mut self.cycles {
            cycles.follow(topology);
            if let Some(missing) = &cycles.missing {
                warn!(missing, "cycle counter missing, work of its package is weighed by CPU time");
            }
        }
        visit_cpus(came);
    }

    pub fn program(&self) -> &'static str {
        self.program
    }

    /// The unit that work is weighed by when every CPU delivers it: the cycle event's name, or `runtime`.
    pub fn weight(&self) -> &'static str {
        self.cycles.as_ref().map_or("runtime", |cycles| cycles.name)
    }

    pub fn has_events(&self) -> bool {
        self.events.is_some()
    }

    pub fn states(&self) -> &[MeterState] {
        &self.states
    }

    /// Entries the usage map can hold.
    pub fn capacity(&self) -> usize {
        self.usage.capacity()
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
        Some(times.map(|info| crate::units::nanos(info.run_time())).sum())
    }

    fn drain_events(&mut self) -> Vec<CgroupEvent> {
        let mut events = Vec::new();
        while let Some(record) = self.events.as_mut().and_then(RingBuf::next) {
            events.extend(parse_event(&record));
        }
        events
    }
}

/// One record of the ring buffer. A path that was cut is left out, so that the tree is walked for it.
fn parse_event(record: &[u8]) -> Option<CgroupEvent> {
    let id = u64::from_ne_bytes(record.get(..8)?.try_into().ok()?);
    if record.len() < size_of::<CgroupCreated>() {
        return (record.len() >= size_of::<CgroupRemoved>()).then_some(CgroupEvent::Removed { id });
    }
    let len = i64::from_ne_bytes(record.get(8..16)?.try_into().ok()?);
    let len = usize::try_from(len).ok().filter(|len| (2..PATH_LEN).contains(len))?;
    let path = record.get(16..16 + len - 1)?;
    Some(CgroupEvent::Created { id, path: String::from_utf8_lossy(path).into_owned() })
}

/// The BTF below the sysfs root, or the running kernel's where that root holds no kernel folder: unlike hardware, the
/// kernel can't be any other than the one that runs.
pub fn btf_path(sysfs: &Path) -> PathBuf {
    let root = if sysfs.join("kernel").is_dir() { sysfs } else { Path::new("/sys") };
    root.join("kernel/btf/vmlinux")
}

fn attach_switch(loaded: &mut aya::Ebpf, btf: &Btf, offsets: Option<&anyhow::Error>) -> Result<&'static str> {
    let first = match offsets {
        Some(missing) => Err(anyhow!("{missing:#}")),
        None => attach_btf(loaded, "sched_switch", btf),
    };
    let Err(first) = first else { return Ok("tp_btf") };
    warn!(reason = format!("{first:#}"), "tp_btf program refused, trying raw_tracepoint");
    let program: &mut RawTracePoint =
        loaded.program_mut("sched_switch_raw").context("object without sched_switch_raw")?.try_into()?;
    program.load().map_err(short)?;
    program.attach("sched_switch").map_err(short)?;
    Ok("raw_tracepoint")
}

fn attach_btf(loaded: &mut aya::Ebpf, name: &str, btf: &Btf) -> Result<()> {
    let program = loaded.program_mut(name).with_context(|| format!("object without {name}"))?;
    let program: &mut BtfTracePoint = program.try_into()?;
    program.load(name, btf).map_err(short).with_context(|| format!("loading {name}"))?;
    program.attach().map_err(short).with_context(|| format!("attaching {name}"))?;
    Ok(())
}

fn attach_events(loaded: &mut aya::Ebpf, btf: &Btf) -> Result<RingBuf<MapData>> {
    attach_btf(loaded, "cgroup_mkdir", btf)?;
    attach_btf(loaded, "cgroup_rmdir", btf)?;
    let map = loaded.take_map("EVENTS").context("object without the map EVENTS")?;
    Ok(RingBuf::try_from(map)?)
}

/// The kernel's error and the end of the verifier's log, which otherwise runs to thousands of lines.
fn short(error: ProgramError) -> anyhow::Error {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
            let end = lines[lines.len().saturating_sub(3)..].join(" | ");
            if end.is_empty() { io_error.into() } else { anyhow::Error::new(io_error).context(end) }
        }
        other => other.into(),
    }
}

fn refused_object(error: EbpfError, sysfs: &Path) -> anyhow::Error {
    explain_refusal(anyhow::Error::new(error).context("loading the eBPF object"), sysfs)
}

/// The reason word for an error of [`Ebpf::load`].
#[must_use]
pub fn reason(error: &anyhow::Error) -> &'static str {
    let errno = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<std::io::Error>()?.raw_os_error();
    match error.chain().find_map(errno) {
        Some(libc::EPERM | libc::EACCES) => "permission",
        Some(libc::ENOENT) => "absent",
        _ => "error",
    }
}

/// Adds the remedy to a refusal: a missing capability, or a locked-down kernel.
fn explain_refusal(error: anyhow::Error, sysfs: &Path) -> anyhow::Error {
    let denied = error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| matches!(io.raw_os_error(), Some(libc::EPERM | libc::EACCES)))
    });
    if !denied {
        return error;
    }
    let lockdown = fs::read_to_string(sysfs.join("kernel/security/lockdown")).unwrap_or_default();
    if lockdown.contains("[confidentiality]") {
        return error.context("the kernel is locked down (confidentiality); boot it with lockdown=integrity or none");
    }
    error.context("not permitted; run as root or with CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8)")
}

fn state(meter: &'static str, reason: &'static str, detail: &str) -> MeterState {
    MeterState { meter, up: false, reason, detail: detail.to_owned() }
}

fn map_fd<'a>(loaded: &'a aya::Ebpf, name: &str) -> Result<BorrowedFd<'a>> {
    match loaded.map(name) {
        Some(Map::Array(data) | Map::HashMap(data) | Map::PerfEventArray(data)) => Ok(data.fd().as_fd()),
        _ => Err(anyhow!("object without the map {name}")),
    }
}

fn owned_fd(loaded: &aya::Ebpf, name: &str) -> Result<OwnedFd> {
    map_fd(loaded, name)?.try_clone_to_owned().with_context(|| format!("descriptor of the map {name}"))
}

fn set_domains(slots: &mut Slots, topology: &Topology) {
    for cpu in 0..slots.count() {
        if let Some(domain) = u32::try_from(cpu).ok().and_then(|cpu| topology.domain_of(cpu)) {
            slots.set_domain(cpu, domain);
        }
    }
}

/// Before Linux 5.11 map memory counts against RLIMIT_MEMLOCK, which is 64 KiB in most distributions.
fn raise_memlock() {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the struct lives through the call. Not being allowed to is no error here: the load will tell.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) };
}

/// How long to wait for the visits. A CPU that a real-time task never leaves may not let anybody in.
const VISIT_WAIT: Duration = Duration::from_millis(200);

/// Runs for a moment on each CPU, so that a task which was there before the programs and never switches gets its slot
/// opened. CPUs that this process may not use are left out.
fn visit_cpus(cpus: Vec<u32>) {
    let (visiting, visited) = mpsc::channel::<()>();
    thread::spawn(move || {
        for cpu in cpus {
            visit(cpu);
        }
        drop(visiting);
    });
    if visited.recv_timeout(VISIT_WAIT) == Err(RecvTimeoutError::Timeout) {
        info!("some CPU lets nobody in; a task that never leaves it may be counted late");
    }
}

fn visit(cpu: u32) {
    let Some(cpu) = usize::try_from(cpu).ok().filter(|cpu| *cpu < 8 * size_of::<libc::cpu_set_t>()) else { return };
    // SAFETY: a plain bit set on the stack that holds the bit.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
    thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(id: u64, len: i64, path: &[u8]) -> Vec<u8> {
        let mut record = [id.to_ne_bytes(), len.to_ne_bytes()].concat();
        record.extend(path);
        record.resize(size_of::<CgroupCreated>(), 0);
        record
    }

    #[test]
    fn events_are_told_apart_by_size_and_cut_paths_are_left_to_the_walk() {
        let made = CgroupEvent::Created { id: 5, path: "/a/b".to_owned() };
        assert_eq!(parse_event(&created(5, 5, b"/a/b\0")), Some(made));
        assert_eq!(parse_event(&6_u64.to_ne_bytes()), Some(CgroupEvent::Removed { id: 6 }));
        assert_eq!(parse_event(&created(5, 512, &[b'x'; 512])), None);
        assert_eq!(parse_event(&created(5, -14, b"")), None);
        assert_eq!(parse_event(b"short"), None);
    }

    #[test]
    fn a_sysfs_root_without_a_kernel_folder_uses_the_running_kernels_btf() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(btf_path(root.path()), Path::new("/sys/kernel/btf/vmlinux"));
        fs::create_dir_all(root.path().join("kernel/btf")).unwrap();
        assert_eq!(btf_path(root.path()), root.path().join("kernel/btf/vmlinux"));
    }

    #[test]
    fn a_refusal_names_the_missing_capability() {
        let root = tempfile::tempdir().unwrap();
        let error = anyhow::Error::new(std::io::Error::from_raw_os_error(libc::EPERM));
        assert!(format!("{:#}", explain_refusal(error, root.path())).contains("CAP_BPF"));
    }
}
