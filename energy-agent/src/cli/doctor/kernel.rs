//! The rows about who ran: eBPF and what it needs, the cgroup files that stand in for it, and the cgroup hierarchy.

use std::fs;

use energy_host::config::EbpfMode;
use energy_host::meter::btf::Types;
use energy_host::meter::cgroupfs::CgroupFiles;
use energy_host::meter::ebpf::btf_path;
use energy_model::advice::Advice;
use energy_model::meter_state::{MeterName, MeterState, Program, Reason, UsageMeter};

use super::{CheckRow, CheckStatus, Machine, plural};

pub fn rows(machine: &Machine<'_>) -> Vec<CheckRow> {
    let Machine { config, .. } = machine;
    let mut rows = vec![btf(machine)];
    if config.host.ebpf == EbpfMode::Off {
        let off = |name| CheckRow::new(name, CheckStatus::Off, "switched off by --ebpf=off", "");
        rows.extend([off("sched_switch"), off("cgroup_events"), off("cycles")]);
    } else {
        rows.extend([sched_switch(machine), cgroup_events(machine), cycles(machine)]);
    }
    rows.extend([cgroup_files(machine), hierarchy(machine)]);
    rows
}

fn btf(machine: &Machine<'_>) -> CheckRow {
    let path = btf_path(&machine.config.host.sysfs);
    let remedy = "use a kernel built with CONFIG_DEBUG_INFO_BTF=y (Linux 5.10 or later; every current distribution)";
    match fs::read(&path) {
        Ok(image) => match Types::parse(&image) {
            Ok(_) => CheckRow::ok("btf", path.display().to_string()),
            Err(error) => CheckRow::new("btf", CheckStatus::Missing, format!("{}: {error:#}", path.display()), remedy),
        },
        Err(error) => CheckRow::new("btf", CheckStatus::Missing, format!("{}: {error}", path.display()), remedy),
    }
}

fn sched_switch(machine: &Machine<'_>) -> CheckRow {
    let name = "sched_switch";
    let demanded =
        if machine.config.host.ebpf == EbpfMode::On { "; with --ebpf=on the agent ends with this error" } else { "" };
    match (machine.state(MeterName::Ebpf), &machine.reading) {
        (Some(MeterState { reason: Reason::Ok, .. }), Err(error)) => {
            CheckRow::new(name, CheckStatus::Missing, format!("loaded, but unreadable: {error}"), "use --ebpf=off")
        }
        (Some(MeterState { reason: Reason::Ok, detail: program, .. }), Ok(cgroups)) => {
            let detail = format!(
                "{program}: loaded, attached and read once, {} charged; needs no tracefs",
                plural(*cgroups, "cgroup")
            );
            if machine.usage.0 == UsageMeter::Ebpf(Program::TpBtf) {
                return CheckRow::ok(name, detail);
            }
            let remedy = "counts no cycles, and time only when tasks leave the CPU; tp_btf needs a kernel with BTF for task_struct and cgroup";
            CheckRow::new(name, CheckStatus::Fallback, detail, remedy)
        }
        (Some(state), _) => refused(state, demanded),
        (None, _) => CheckRow::new(name, CheckStatus::Missing, "not tried", ""),
    }
}

fn refused(state: &MeterState, demanded: &str) -> CheckRow {
    let Advice { what, remedy } = &state.detail;
    let unknown = "use Linux 5.10 or later with BTF; on such a kernel, report this message";
    let remedy = if remedy.is_empty() { unknown } else { remedy };
    CheckRow::new("sched_switch", CheckStatus::Missing, format!("{what}{demanded}"), remedy)
}

fn cgroup_events(machine: &Machine<'_>) -> CheckRow {
    let meter = MeterName::CgroupEvents;
    let name = meter.as_str();
    let loss = "a cgroup that comes and goes between two ticks is charged to its parent";
    match machine.state(meter) {
        Some(state) if state.is_up() => {
            CheckRow::ok(name, "cgroup_mkdir and cgroup_rmdir: short-lived containers have a name")
        }
        Some(state) => CheckRow::new(name, CheckStatus::Fallback, format!("{}: {loss}", state.detail), ""),
        None => CheckRow::new(
            name,
            CheckStatus::Fallback,
            format!("the cgroup tree is walked at every tick: {loss}"),
            "see sched_switch",
        ),
    }
}

fn cycles(machine: &Machine<'_>) -> CheckRow {
    let meter = MeterName::Cycles;
    let name = meter.as_str();
    let instead = "work is weighed by CPU time";
    match machine.state(meter) {
        Some(MeterState { reason: Reason::Ok, detail, .. }) => CheckRow::ok(
            name,
            format!("{} on every online CPU: work is weighed by them", detail.to_string().replace('_', " ")),
        ),
        Some(MeterState { reason: Reason::Off, detail, .. }) => {
            CheckRow::new(name, CheckStatus::Off, format!("{detail}: {instead}"), "")
        }
        Some(MeterState { reason: Reason::Absent, detail, .. }) => {
            let remedy = "none needed; a virtual PMU would also distinguish fast clocks from slow ones";
            CheckRow::new(name, CheckStatus::Fallback, detail.to_string(), remedy)
        }
        Some(MeterState { reason: Reason::Permission, detail, .. }) => {
            CheckRow { status: CheckStatus::Fallback, ..CheckRow::missing(name, detail.clone()) }
        }
        Some(MeterState { detail, .. }) => CheckRow::new(name, CheckStatus::Fallback, detail.to_string(), ""),
        None => CheckRow::new(
            name,
            CheckStatus::Fallback,
            format!("counted by sched_switch only: {instead}"),
            "see sched_switch",
        ),
    }
}

fn cgroup_files(machine: &Machine<'_>) -> CheckRow {
    let meter = MeterName::Cgroupfs;
    let name = meter.as_str();
    let off = machine.config.host.ebpf == EbpfMode::Off;
    match (machine.state(meter), &machine.v2_root) {
        (Some(MeterState { reason: Reason::Ok, .. }), _) if off => {
            CheckRow::ok(name, "cpu.stat of every cgroup is read, because of --ebpf=off")
        }
        (Some(MeterState { reason: Reason::Ok, .. }), _) => {
            let detail = "cpu.stat of every cgroup is read instead of eBPF: exact totals, but no cycles, no context switches, and not per package";
            CheckRow::new(name, CheckStatus::Fallback, detail, "see sched_switch")
        }
        (Some(MeterState { reason: Reason::Unused, .. }), Some(root)) => match CgroupFiles::open(root) {
            Ok(_) => CheckRow::ok(name, "cpu.stat is readable, not used: eBPF works"),
            Err(error) => CheckRow::new(name, CheckStatus::Missing, format!("{error:#}"), "none needed: eBPF works"),
        },
        _ => CheckRow::new(name, CheckStatus::Missing, "no cpu.stat without cgroup v2", "see cgroup"),
    }
}

fn hierarchy(machine: &Machine<'_>) -> CheckRow {
    let name = "cgroup";
    match (&machine.found, &machine.v2_root) {
        (Ok(found), Some(root)) => {
            let detail = format!("v2 at {}, {} walked", root.display(), plural(found.cgroups, "cgroup"));
            if *root == machine.config.host.cgroupfs {
                return CheckRow::ok(name, detail);
            }
            let detail = format!("hybrid: {detail}; containers that a runtime keeps only in cgroup v1 are not visible");
            CheckRow::new(name, CheckStatus::Fallback, detail, "boot with systemd.unified_cgroup_hierarchy=1")
        }
        (Err(error), _) => CheckRow::missing(name, error.clone()),
        (Ok(_), None) => CheckRow::new(name, CheckStatus::Missing, "cgroup v2 disappeared", "run doctor again"),
    }
}
