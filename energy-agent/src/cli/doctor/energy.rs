//! The rows about what the CPUs drew: every source with what it offers, and which one is used.

use energy_host::config::CpuMeter;
use energy_host::meter::cpu::CpuModel;
use energy_host::meter::deadline::PATIENCE;
use energy_host::meter::hwmon::Hwmon;
use energy_host::meter::perf::PerfPower;
use energy_host::meter::powercap::{self, PowercapZone};
use energy_host::meter::rapl::Rapl;
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::zone::{Source, Zone, ZoneKind};

use super::{CheckRow, CheckStatus, Machine, plural};

pub fn rows(machine: &Machine<'_>) -> Vec<CheckRow> {
    let sysfs = &machine.config.host.sysfs;
    let mirrored_dies = CpuModel::read(&machine.config.host.procfs).mirrors_dies();
    let perf = || PerfPower::open(sysfs, mirrored_dies).map_or_else(|state| state, |perf| perf.state());
    let hwmon = || Hwmon::open(sysfs, PATIENCE).map_or_else(|state| state, |hwmon| hwmon.state());
    let mut rapl = measured(machine, MeterName::Rapl, || {
        Rapl::open(sysfs, mirrored_dies).map_or_else(|state| state, |rapl| rapl.state())
    });
    if rapl.status == CheckStatus::Ok {
        rapl.detail = zones(machine, mirrored_dies);
    }
    let mut rows = vec![rapl, measured(machine, MeterName::Perf, perf), measured(machine, MeterName::Hwmon, hwmon)];
    rows.extend(machine.state(MeterName::Board).map(|state| match state.is_up() {
        true => CheckRow::ok("board", format!("exported in addition to the CPU's energy: {}", state.detail)),
        false => CheckRow::missing("board", state.detail.clone()),
    }));
    rows.push(estimate(machine));
    rows
}

/// A source that measures. One that was not tried because a better one works is tried now by `probe`.
fn measured(machine: &Machine<'_>, meter: MeterName, probe: impl Fn() -> MeterState) -> CheckRow {
    let name = meter.as_str();
    let Some(state) = machine.state(meter) else { return CheckRow::new(name, CheckStatus::Missing, "not tried", "") };
    match state.reason {
        Reason::Ok => CheckRow::ok(name, format!("used: {}", state.detail)),
        Reason::Off => CheckRow::new(name, CheckStatus::Off, "switched off by --meter.cpu=none", ""),
        Reason::Unused if machine.config.host.meter_cpu != CpuMeter::Auto => {
            CheckRow::new(name, CheckStatus::Off, "--meter.cpu names another meter", "")
        }
        Reason::Unused => {
            let state = probe();
            if state.is_up() {
                return CheckRow::ok(name, format!("works, not used: a better meter does too ({})", state.detail));
            }
            down(&state)
        }
        _ => down(state),
    }
}

fn down(state: &MeterState) -> CheckRow {
    let name = state.meter.as_str();
    if state.meter != MeterName::Hwmon || matches!(state.reason, Reason::Permission | Reason::Hanging) {
        return CheckRow::missing(name, state.detail.clone());
    }
    let remedy = "load the driver of the machine's power sensor, such as acpi_power_meter; many machines have none";
    CheckRow::new(
        name,
        CheckStatus::Missing,
        state.detail.to_string(),
        if state.reason == Reason::Absent { remedy } else { "" },
    )
}

/// Which zones are measured, by which folder, and which are there but unreadable.
fn zones(machine: &Machine<'_>, mirrored_dies: bool) -> String {
    let Ok(rapl) = Rapl::open(&machine.config.host.sysfs, mirrored_dies) else { return "used".to_owned() };
    let scan = powercap::scan(&machine.config.host.sysfs);
    let named: Vec<String> = rapl.zones().map(|zone| format!("{} ({})", label(zone), folder(&zone.path))).collect();
    let class = machine.config.host.sysfs.join("class/powercap");
    let mut text =
        format!("used: {} in {}: {}", plural(named.len(), "readable zone"), class.display(), named.join(", "));
    let unread = scan.entries.iter().filter_map(|PowercapZone { dir, name, .. }| {
        let error = powercap::read_number(&dir.join("energy_uj")).err()?;
        Some(format!("{name}: {}", error.root_cause()))
    });
    let unread: Vec<String> = unread.chain(scan.problems.iter().map(|(_, error)| format!("{error:#}"))).collect();
    if !unread.is_empty() {
        text.push_str("; left out: ");
        text.push_str(&unread.join(", "));
    }
    text
}

fn label(zone: &Zone) -> String {
    let Zone { kind, socket, die, source, path: _ } = zone;
    let mut text = kind.as_str().to_owned();
    for (word, number) in [("", socket), ("die ", die)] {
        if let Some(number) = number {
            text.push_str(&format!(" {word}{number}"));
        }
    }
    if *kind != ZoneKind::Package && socket.is_some() {
        text = text.replacen(' ', " of package ", 1);
    }
    if *source == Source::RaplMmio { format!("{text} by MMIO") } else { text }
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn estimate(machine: &Machine<'_>) -> CheckRow {
    let name = MeterName::Estimate.as_str();
    if let Some(error) = &machine.coefficients {
        let remedy = "correct the file given by --meter.estimate-coefficients, or remove the flag; the agent does not start with it";
        return CheckRow::new(name, CheckStatus::Missing, error, remedy);
    }
    match (machine.state(MeterName::Estimate), machine.config.host.meter_cpu) {
        (Some(MeterState { reason: Reason::Ok, detail, .. }), CpuMeter::Auto) => {
            let remedy = "make rapl, perf or hwmon work, or turn estimates off with --meter.cpu=none";
            CheckRow::new(name, CheckStatus::Fallback, format!("used (a model, not a measurement): {detail}"), remedy)
        }
        (Some(MeterState { reason: Reason::Ok, detail, .. }), _) => {
            CheckRow::ok(name, format!("used because of --meter.cpu (a model, not a measurement): {detail}"))
        }
        (_, CpuMeter::Auto) => CheckRow::ok(name, "not used: energy is measured"),
        (_, CpuMeter::None) => CheckRow::new(name, CheckStatus::Off, "switched off by --meter.cpu=none", ""),
        _ => CheckRow::new(name, CheckStatus::Off, "--meter.cpu names another meter", ""),
    }
}
