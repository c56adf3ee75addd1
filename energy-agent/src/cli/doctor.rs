//! `energy-agent doctor`: opens every source and feature that the exporter would use here, reads it once, and says for
//! each whether it works, what stands in for it, or what it lacks and how to get it. Rows are grouped by what they are for.

mod capping;
mod cluster;
mod energy;
mod host;
mod kernel;
mod table;
mod web;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use energy_export::level::Level;
use energy_host::advice::advice_of;
use energy_host::config::{CpuMeter, EbpfMode, GpuMode};
use energy_host::meter::cpu::CpuModel;
use energy_host::meter::estimate::Estimate;
use energy_host::meter::gpu;
use energy_host::meter::sampler::Sampler;
use energy_host::workload::tree;
use energy_model::advice::Advice;
use energy_model::meter_state::{MeterName, MeterState, Program, Reason, UsageMeter, WeightUnit};
use energy_model::workload::Workload;
use energy_model::workload::cgroup::classify;
use energy_model::workload::units::Units;
use serde::Serialize;

use crate::config::{Config, DoctorArgs, ReportFormat};

/// Prints the report; exit code 0 if energy can be attributed to workloads here, else 1.
///
/// # Errors
/// When the report cannot be written.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let report = Report::of(&args.run)?;
    let mut out = io::stdout().lock();
    let written = match args.format {
        ReportFormat::Text => table::write(&mut out, &report),
        ReportFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &report).map_err(Into::into).and_then(|()| writeln!(out))
        }
    };
    match written {
        // Whoever read the lines has enough: `energy-agent doctor | head`.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ if report.attribution => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::FAILURE),
    }
}

/// What this machine offers; as JSON with the names of the fields.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Usage can be counted and named, and there is CPU energy to divide by it.
    pub attribution: bool,
    /// One line for people: whether, from what energy, by what usage, among whom.
    pub summary: String,
    pub checks: Vec<CheckRow>,
}

/// One source or feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckRow {
    pub group: CheckGroup,
    /// As in `energy_agent_meter_up{meter}` where it is a meter; never changes.
    pub name: &'static str,
    pub status: CheckStatus,
    /// What was found, or what is wrong.
    pub detail: String,
    /// What to do about it; empty where nothing is to be done.
    pub remedy: String,
}

/// What a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckGroup {
    /// Who used how much of the CPUs' energy. The verdict is about this group alone.
    Metering,
    Gpu,
    Capping,
    /// Names of pods and containers.
    Kubernetes,
    /// The port and the folders.
    Agent,
}

energy_model::as_str!(CheckGroup {
    Metering => "Metering",
    Gpu => "GPUs",
    Capping => "Capping",
    Kubernetes => "Kubernetes",
    Agent => "The agent itself",
});

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// Works.
    Ok,
    /// Works with less than it could, or stands in for something better.
    Fallback,
    /// Not there, or not usable.
    Missing,
    /// Not wanted: switched off by a flag, or there is nothing on this machine that it is for.
    Off,
}

energy_model::as_str!(CheckStatus { Ok => "ok", Fallback => "fallback", Missing => "missing", Off => "off" });

impl CheckRow {
    fn new(name: &'static str, status: CheckStatus, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { group: CheckGroup::Metering, name, status, detail: detail.into(), remedy: remedy.into() }
    }

    /// The same where nobody asks for what it is about: what does not work is off.
    fn unless_off(self, is_off: bool) -> Self {
        match self.status {
            CheckStatus::Fallback | CheckStatus::Missing if is_off => {
                Self { status: CheckStatus::Off, remedy: String::new(), ..self }
            }
            _ => self,
        }
    }

    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, CheckStatus::Ok, detail, "")
    }

    fn missing(name: &'static str, advice: impl Into<Advice>) -> Self {
        let Advice { what, remedy } = advice.into();
        Self::new(name, CheckStatus::Missing, what, remedy)
    }
}

/// The workloads that the cgroups of this node stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FoundWorkloads {
    cgroups: usize,
    units: usize,
    pods: usize,
    containers: usize,
}

impl FoundWorkloads {
    fn count(folders: &[tree::Folder]) -> Self {
        let row = |path: &str| Units::default().row(classify(path).into(), path);
        let workloads: BTreeSet<Workload> = folders.iter().map(|folder| row(&folder.cgroup_path())).collect();
        let pods: BTreeSet<&str> = workloads.iter().filter_map(|it| it.pod_uid().map(|uid| &**uid)).collect();
        let units = workloads.iter().filter(|it| matches!(it, Workload::Unit { .. })).count();
        let containers =
            workloads.iter().filter(|it| matches!(it, Workload::Container { .. } | Workload::PodContainer { .. }));
        Self { cgroups: folders.len(), units, pods: pods.len(), containers: containers.count() }
    }

    fn describe(self) -> String {
        let (units, pods) = (plural(self.units, "system unit"), plural(self.pods, "pod"));
        format!("{units}, {pods}, {} found", plural(self.containers, "container"))
    }
}

/// What the probes share.
struct Machine<'a> {
    config: &'a Config,
    states: Vec<MeterState>,
    v2_root: Option<PathBuf>,
    /// What the cgroup hierarchy holds, or why it cannot be walked.
    found: Result<FoundWorkloads, Advice>,
    /// Cgroups charged by the one reading, or why there was none.
    reading: Result<usize, String>,
    usage: (UsageMeter, WeightUnit),
    /// What is wrong with `--meter.estimate-coefficients`.
    coefficients: Option<String>,
}

impl Machine<'_> {
    fn state(&self, meter: MeterName) -> Option<&MeterState> {
        self.states.iter().find(|state| state.meter == meter)
    }

    fn is_up(&self, meter: MeterName) -> bool {
        self.state(meter).is_some_and(MeterState::is_up)
    }
}

impl Report {
    /// Opens everything as [`crate::run`] would, but goes on where that ends with an error.
    ///
    /// # Errors
    /// Only when the meters cannot be opened for a reason that no row stands for.
    pub fn of(config: &Config) -> Result<Self> {
        let model = CpuModel::read(&config.host.procfs);
        let coefficients = Estimate::open(&model, config.host.estimate_coefficients.as_deref()).err();
        let mut lenient = config.clone();
        // They are probed by themselves.
        lenient.host.gpu = GpuMode::Off;
        if config.host.ebpf == EbpfMode::On {
            lenient.host.ebpf = EbpfMode::Auto;
        }
        if coefficients.is_some() {
            lenient.host.estimate_coefficients = None;
        }
        let mut sampler = Sampler::open(&lenient.host)?;
        sampler.account_processes(config.levels.contains(&Level::Process));
        let sample = sampler.read();
        let reading = match sampler.usage_error() {
            Some(error) => Err(error.to_owned()),
            None => Ok(sample.work.len()),
        };
        let machine = Machine {
            config,
            states: sampler.states(),
            found: match tree::v2_root(&config.host.cgroupfs).and_then(|root| tree::walk(&root)) {
                Ok(folders) => Ok(FoundWorkloads::count(&folders)),
                Err(error) => Err(advice_of(&error)),
            },
            v2_root: sampler.v2_root.clone(),
            reading,
            usage: sampler.usage_info(),
            coefficients: coefficients.map(|error| format!("{error:#}")),
        };
        // Nothing of it stays in the kernel.
        drop(sampler);

        let groups = [
            (CheckGroup::Metering, [kernel::rows(&machine), energy::rows(&machine)].concat()),
            (CheckGroup::Gpu, [gpu_rows(config), vec![host::pid_namespace(&config.host.procfs)]].concat()),
            (CheckGroup::Capping, capping::rows(config)),
            (CheckGroup::Kubernetes, vec![cluster::kubernetes(&machine)]),
            (CheckGroup::Agent, [vec![host::state_directory(config)], web::rows(config)].concat()),
        ];
        let in_group =
            |(group, rows): (CheckGroup, Vec<CheckRow>)| rows.into_iter().map(move |row| CheckRow { group, ..row });
        let checks = groups.into_iter().flat_map(in_group).collect();

        let (energy, has_energy) = energy_verdict(&machine);
        let (usage, has_usage) = usage_verdict(&machine);
        let attribution = has_energy && has_usage;
        let found = machine.found.map_or_else(|_| "no cgroup found".to_owned(), FoundWorkloads::describe);
        let verdict = if attribution { "Energy can be attributed" } else { "Energy CANNOT be attributed" };
        let summary = format!("{verdict}. CPU energy: {energy}; usage: {usage}; {found}");
        Ok(Self { attribution, summary, checks })
    }
}

fn gpu_rows(config: &Config) -> Vec<CheckRow> {
    if config.host.gpu == GpuMode::Off {
        return vec![CheckRow::new("nvml", CheckStatus::Off, "switched off by --gpu=off", "")];
    }
    let has_driver = config.host.procfs.join("driver/nvidia/version").exists();
    let row = |state: MeterState| {
        let name = state.meter.as_str();
        match state.reason {
            Reason::Ok => CheckRow::ok(name, state.detail.to_string()),
            Reason::Absent if state.meter == MeterName::Nvml && !has_driver => {
                CheckRow::new(name, CheckStatus::Off, "no NVIDIA driver is loaded: no GPU is read", "")
            }
            _ => CheckRow::missing(name, state.detail),
        }
    };
    gpu::probe(&config.host.nvml_library, &config.host.procfs).into_iter().map(row).collect()
}

fn energy_verdict(machine: &Machine<'_>) -> (String, bool) {
    if machine.coefficients.is_some() {
        return ("none (--meter.estimate-coefficients is unusable)".to_owned(), false);
    }
    if machine.config.host.meter_cpu == CpuMeter::None {
        return ("off (--meter.cpu=none)".to_owned(), false);
    }
    let meters = [MeterName::Rapl, MeterName::Perf, MeterName::Hwmon, MeterName::Estimate];
    match meters.into_iter().find(|meter| machine.is_up(*meter)) {
        Some(MeterName::Estimate) => ("estimate (not measured)".to_owned(), true),
        Some(meter) => (format!("{} (measured)", meter.as_str()), true),
        None => ("none (the meter named by --meter.cpu does not work)".to_owned(), false),
    }
}

fn usage_verdict(machine: &Machine<'_>) -> (String, bool) {
    let (meter, weight) = machine.usage;
    let (usage, works) = match meter {
        UsageMeter::Ebpf(program) => {
            let weight = match weight {
                WeightUnit::Runtime => "CPU time".to_owned(),
                cycles => cycles.as_str().replace('_', " "),
            };
            let form = match program {
                Program::TpBtf => String::new(),
                Program::RawTracepoint => format!(" ({})", program.as_str()),
            };
            (format!("eBPF{form}, weighed by {weight}"), true)
        }
        UsageMeter::Files => ("cgroup files (cpu.stat)".to_owned(), true),
        UsageMeter::None => ("none".to_owned(), false),
    };
    let is_ebpf = matches!(meter, UsageMeter::Ebpf(_));
    match &machine.reading {
        _ if machine.config.host.ebpf == EbpfMode::On && !is_ebpf => ("none (--ebpf=on, refused)".to_owned(), false),
        Err(_) => (format!("{usage}, unreadable"), false),
        Ok(_) if works && machine.found.is_err() => (format!("{usage}, without names"), false),
        Ok(_) => (usage, works),
    }
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
