//! Loads the eBPF object: hands it what this kernel looks like, attaches each program alone, and says what is missing
//! when the kernel refuses one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use aya::maps::{MapData, RingBuf};
use aya::programs::RawTracePoint;
use aya::{Btf, EbpfError};
use aya_log::EbpfLogger;
use energy_model::advice::Advice;
use energy_model::meter_state::{MeterName, MeterState, Program, Reason};
use tracing::{info, warn};

use super::attach::{attach_btf, map_fd, owned_fd, short, tracepoints};
use super::cycles::Cycles;
use super::loader::loader;
use super::maps::{self, Slots};
use super::process_level::ProcessPrograms;
use super::tally::CgroupTally;
use super::visit::Visits;
use super::{Drops, Ebpf, EbpfOptions, SlotSeen, set_domains};
use crate::clock::monotonic_ns;
use crate::memory;
use crate::meter::btf;
use crate::meter::cpu::{self, Topology};
use crate::meter::denial::{self, Need};

/// Built by `cargo xtask ebpf` from `energy-ebpf/src`.
static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../energy-ebpf/energy-ebpf.bpf.o"));

/// SHA-256 of that object, in hexadecimal digits: as the list has it that `cargo xtask ebpf` writes and a test compares with it.
#[must_use]
pub fn object_sha256() -> &'static str {
    const LIST: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../energy-ebpf/energy-ebpf.bpf.sum"));
    LIST.lines().find_map(|line| line.strip_suffix(" energy-ebpf/energy-ebpf.bpf.o")).unwrap_or("unknown")
}

/// A global of the programs, and the struct and field whose offset it is.
type KernelField = (&'static str, &'static str, &'static str);

/// For `sched_switch`, besides [`CGROUP_FIELDS`].
const SWITCH_FIELDS: [KernelField; 6] = [
    ("TASK_PID", "task_struct", "pid"),
    ("TASK_FLAGS", "task_struct", "flags"),
    ("TASK_EXEC", "task_struct", "se.sum_exec_runtime"),
    ("TASK_PREV_EXEC", "task_struct", "se.prev_sum_exec_runtime"),
    ("TASK_CGROUPS", "task_struct", "cgroups"),
    ("CSS_SET_DFL_CGRP", "css_set", "dfl_cgrp"),
];
/// For all programs that are typed.
const CGROUP_FIELDS: [KernelField; 2] = [("CGROUP_KN", "cgroup", "kn"), ("KN_ID", "kernfs_node", "id")];
/// For the cgroup events, besides [`CGROUP_FIELDS`].
const EVENT_FIELDS: [KernelField; 2] =
    [("CGROUP_ROOT", "cgroup", "root"), ("ROOT_HIERARCHY_ID", "cgroup_root", "hierarchy_id")];
/// For `cgroup_attach_task`, besides all others.
const MOVE_FIELDS: [KernelField; 1] = [("TASK_ON_CPU", "task_struct", "on_cpu")];

/// For `sched_switch_processes`, besides those for `sched_switch`.
const PROCESS_FIELDS: [KernelField; 4] = [
    ("TASK_TGID", "task_struct", "tgid"),
    ("TASK_LEADER", "task_struct", "group_leader"),
    ("TASK_START", "task_struct", "start_boottime"),
    ("TASK_COMM", "task_struct", "comm"),
];
/// For `sched_process_exit`, besides [`PROCESS_FIELDS`].
const EXIT_FIELDS: [KernelField; 2] =
    [("TASK_SIGNAL", "task_struct", "signal"), ("SIGNAL_LIVE", "signal_struct", "live")];
/// For `sched_process_exec`, besides [`PROCESS_FIELDS`].
const EXEC_FIELDS: [KernelField; 1] = [("BINPRM_INTERP", "linux_binprm", "interp")];
/// Bytes of the ring buffer of process events: a few thousand processes that start and end between two ticks.
const PROCESS_EVENT_BYTES: u32 = 1 << 20;

/// The offsets that were found, and for each kind of program why it has to do without.
struct Offsets {
    known: Vec<(&'static str, u64)>,
    switch: Result<()>,
    events: Result<()>,
    moves: Result<()>,
    processes: Result<()>,
    exits: Result<()>,
    execs: Result<()>,
}

impl Offsets {
    fn look_up(types: &btf::Types<'_>) -> Self {
        let mut known = Vec::new();
        let mut find = |fields: &[KernelField]| -> Result<()> {
            for (global, name, field) in fields {
                known.push((*global, types.offset_of(name, field)?));
            }
            Ok(())
        };
        let mut all = |own: &[KernelField]| find(&CGROUP_FIELDS).and_then(|()| find(own));
        let (switch, events) = (all(&SWITCH_FIELDS), all(&EVENT_FIELDS));
        let moves = if switch.is_err() || events.is_err() {
            Err(anyhow!("without the typed programs"))
        } else {
            find(&MOVE_FIELDS)
        };
        let processes = find(&PROCESS_FIELDS);
        let (exits, execs) = (find(&EXIT_FIELDS), find(&EXEC_FIELDS));
        Self { known, switch, events, moves, processes, exits, execs }
    }
}

impl Ebpf {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// When the kernel has no BTF, or refuses the object or both forms of the scheduler program; the message names what
    /// is missing and the remedy.
    pub fn load(options: EbpfOptions<'_>, topology: &Topology, procfs: &Path) -> Result<Self> {
        let btf_path = btf_path(options.sysfs);
        let image = fs::read(&btf_path).with_context(|| {
            Advice::new(
                format!("{}: the kernel shows no BTF", btf_path.display()),
                "it needs CONFIG_DEBUG_INFO_BTF=y (Linux 5.10 or later)",
            )
        })?;
        let types = btf::Types::parse(&image).with_context(|| btf_path.display().to_string())?;
        let offsets = Offsets::look_up(&types);
        let btf = tracepoints(&types).with_context(|| btf_path.display().to_string())?;
        drop(image);
        raise_memlock();

        let mut states = Vec::new();
        let mut cycles = match Cycles::open(options.cycles, topology, options.intel_model) {
            Ok(cycles) => Some(cycles),
            Err((reason, detail)) => {
                states.push(MeterState::down(MeterName::Cycles, reason, detail));
                None
            }
        };
        let cycles_mode = cycles.as_ref().map_or(energy_ebpf::cycles::NONE, Cycles::mode);
        // Of the kernel that runs, as with the BTF.
        let cpus = cpu::slots(Path::new("/sys"))?;
        let mut loader = loader();
        loader
            .map_max_entries("USAGE", options.map_entries)
            .map_max_entries("CYCLE_COUNTERS", cpus)
            .map_max_entries("SLOTS", cpus);
        if options.process_entries != 0 {
            loader
                .map_max_entries("PROCESSES", options.process_entries)
                .map_max_entries("PROCESS_EVENTS", PROCESS_EVENT_BYTES);
        }
        for (global, value) in &offsets.known {
            loader.override_global(global, value, true);
        }
        loader.override_global("CYCLES", &cycles_mode, true);
        let mut loaded = loader.load(OBJECT).map_err(|error| refused_object(error, options.sysfs))?;

        let mut slots = Slots::map(map_fd(&loaded, "SLOTS")?, usize::try_from(cpus)?)?;
        set_domains(&mut slots, topology);
        // SAFETY: key and value of the contract, without padding, whole numbers throughout.
        let usage = unsafe { maps::HashMap::new("USAGE", owned_fd(&loaded, "USAGE")?, options.map_entries)? };
        if let Some(counters) = &mut cycles
            && let Err(error) = counters.install(owned_fd(&loaded, "CYCLE_COUNTERS")?)
        {
            warn!(%error, "cycle counters could not be passed to the kernel side");
            let detail = format!("passing the counters to the kernel: {error}; work is weighed by CPU time");
            states.push(MeterState::down(MeterName::Cycles, Reason::Error, detail));
            cycles = None;
        }
        // The logger takes its map out before the programs load, and is only a courtesy.
        let logger = EbpfLogger::init(&mut loaded).ok();

        let program =
            attach_switch(&mut loaded, &btf, offsets.switch).map_err(|error| explain_refusal(error, options.sysfs))?;
        if program != Program::TpBtf && cycles.take().is_some() {
            let detail = "the raw_tracepoint program does not count cycles";
            states.push(MeterState::down(MeterName::Cycles, Reason::Unused, detail));
        }
        if let Some(counters) = &cycles {
            states.push(MeterState::up(MeterName::Cycles, counters.unit.as_str()));
        }
        let attached = offsets.events.and_then(|()| attach_events(&mut loaded, &btf));
        let moves = if program == Program::TpBtf { offsets.moves } else { Err(anyhow!("without the typed program")) };
        let moves = moves.and_then(|()| attach_btf(&mut loaded, "cgroup_attach_task", "cgroup_attach_task", &btf));
        if let Err(error) = &moves {
            info!(
                reason = format!("{error:#}"),
                "a task that moves to another cgroup is charged there only from its next switch on"
            );
        }
        let events = match attached {
            Ok(events) => {
                states.push(MeterState::up(MeterName::CgroupEvents, ""));
                Some(events)
            }
            Err(error) => {
                let detail = format!("{error:#}; the agent walks the cgroup tree instead");
                states.push(MeterState::down(MeterName::CgroupEvents, Reason::Error, detail));
                None
            }
        };
        states.insert(0, MeterState::up(MeterName::Ebpf, program.as_str()));
        drop(btf);
        let mut visits = Visits::default();
        visits.make(topology.online().to_vec());
        // The kernel's BTF was some megabytes.
        memory::give_back();

        info!(
            program = program.as_str(),
            map_entries = options.map_entries,
            cycles = cycles.as_ref().map(|cycles| cycles.unit.as_str()),
            "eBPF loaded"
        );
        Ok(Self {
            loaded,
            program,
            usage,
            processes: None,
            process_programs: ProcessPrograms {
                btf: btf_path,
                entries: options.process_entries,
                moves: moves.is_ok(),
                switch: offsets.processes,
                exits: offsets.exits,
                execs: offsets.execs,
                events: None,
                unloaded_ns: 0,
                missed_twice: 0,
            },
            seen: vec![SlotSeen::default(); slots.count()],
            last_ns: monotonic_ns(),
            moves: 0,
            visits,
            slots,
            events,
            logger,
            cycles,
            tally: CgroupTally::default(),
            states,
            drops: Drops::default(),
            bpf_stats: procfs.join("sys/kernel/bpf_stats_enabled"),
        })
    }
}

/// The BTF below the sysfs root, or the running kernel's where that root holds no kernel folder: unlike hardware, the
/// kernel can't be any other than the one that runs.
pub fn btf_path(sysfs: &Path) -> PathBuf {
    let root = if sysfs.join("kernel").is_dir() { sysfs } else { Path::new("/sys") };
    root.join("kernel/btf/vmlinux")
}

/// Attaches the best scheduler program that the kernel takes.
fn attach_switch(loaded: &mut aya::Ebpf, btf: &Btf, offsets: Result<()>) -> Result<Program> {
    let attached = offsets.and_then(|()| attach_btf(loaded, "sched_switch", "sched_switch", btf));
    let Err(first) = attached else { return Ok(Program::TpBtf) };
    warn!(reason = format!("{first:#}"), "tp_btf program refused, trying raw_tracepoint");
    let program: &mut RawTracePoint =
        loaded.program_mut("sched_switch_raw").context("object without sched_switch_raw")?.try_into()?;
    program.load().map_err(short)?;
    program.attach("sched_switch").map_err(short)?;
    Ok(Program::RawTracepoint)
}

fn attach_events(loaded: &mut aya::Ebpf, btf: &Btf) -> Result<RingBuf<MapData>> {
    for name in ["cgroup_mkdir", "cgroup_rmdir"] {
        attach_btf(loaded, name, name, btf)?;
    }
    let map = loaded.take_map("EVENTS").context("object without the map EVENTS")?;
    Ok(RingBuf::try_from(map)?)
}

fn refused_object(error: EbpfError, sysfs: &Path) -> anyhow::Error {
    explain_refusal(anyhow::Error::new(error).context("loading the eBPF object"), sysfs)
}

/// The reason of an error of [`Ebpf::load`].
#[must_use]
pub fn reason(error: &anyhow::Error) -> Reason {
    let errno = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<std::io::Error>()?.raw_os_error();
    match error.chain().find_map(errno) {
        Some(libc::EPERM | libc::EACCES) => Reason::Permission,
        Some(libc::ENOENT) => Reason::Absent,
        _ => Reason::Error,
    }
}

/// Adds the remedy to a refusal: a missing capability, a locked-down kernel, or somebody else who says no.
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
        let what = "the kernel is locked down (confidentiality)";
        return error.context(Advice::new(what, "boot it with lockdown=integrity or none"));
    }
    let remedy = "run as root or with CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8)";
    error.context(denial::advise(None, Need::Bpf, sysfs, remedy))
}

/// Before Linux 5.11 map memory counts against RLIMIT_MEMLOCK, which is 64 KiB in most distributions.
fn raise_memlock() {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the struct lives through the call. Not being allowed to is no error here: the load will show it.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysfs_root_without_a_kernel_folder_uses_the_running_kernels_btf() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(btf_path(root.path()), Path::new("/sys/kernel/btf/vmlinux"));
        fs::create_dir_all(root.path().join("kernel/btf")).unwrap();
        assert_eq!(btf_path(root.path()), root.path().join("kernel/btf/vmlinux"));
    }

    #[test]
    fn a_refusal_names_its_cause_and_only_a_denial_has_one() {
        let root = tempfile::tempdir().unwrap();
        let explained = |errno| {
            let error = anyhow::Error::new(std::io::Error::from_raw_os_error(errno));
            format!("{:#}", explain_refusal(error, root.path()))
        };
        // The tests run as root, so a capability is not what is missing.
        for errno in [libc::EPERM, libc::EACCES] {
            let text = explained(errno);
            assert!(text.starts_with("denied ") && text.contains("CapEff"), "{text}");
        }
        assert!(explained(libc::EINVAL).starts_with("Invalid argument"));
    }
}
