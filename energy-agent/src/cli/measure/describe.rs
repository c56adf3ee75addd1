//! A measured run as a run file has it, with what a reader has to know about its figures.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use energy_model::meter_state::{MeterName, MeterState};
use energy_model::snapshot::Snapshot;
use energy_report::run::{API_VERSION, MeasuredBy, Node, Outcome, Part, Run, Subject, SubjectKind, Warning, Work};
use ring::digest::{SHA256, digest};

use super::agent_session::{AgentRun, seconds};
use super::events::{CommandEnd, code};
use super::session::MeasuredRun;
use super::table::ShownRun;
use crate::config::MeasureArgs;

/// A GPU's counter steps about ten times a second; this many steps make a figure.
const GPU_SHORT: Duration = Duration::from_secs(2);
/// RAPL's counters step about a thousand times a second.
const SHORT: Duration = Duration::from_millis(20);

/// The run with its warnings.
pub fn shown(arguments: &MeasureArgs, measured: MeasuredRun) -> ShownRun {
    let MeasuredRun { figures, start, elapsed, end, last } = measured;
    let mut warnings = about_meters(&figures.energy, &last);
    warnings.extend(about_run(!figures.gpus.is_empty(), elapsed, &end));
    let run = Run {
        api_version: API_VERSION.to_owned(),
        id: id(),
        subject: subject(arguments),
        work: arguments.work.map(|amount| Work { amount, unit: arguments.work_unit.clone() }),
        labels: arguments.labels.iter().cloned().collect(),
        nodes: vec![Node {
            name: last.node.to_string(),
            cpu: last.cpu_info.first().map(|cpu| cpu.model_name.clone()).filter(|model| !model.is_empty()),
            kernel: kernel(),
            agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            gpu_driver: None,
            gpus: figures.gpus,
        }],
        measured: energy_report::run::Measured {
            by: MeasuredBy::Own,
            interval_seconds: figures.interval.as_secs_f64(),
            coverage: 1.0,
            attribution: figures.attribution,
        },
        start: seconds(start),
        end: seconds(start + elapsed),
        waited: None,
        energy: figures.energy,
        cpu_seconds: Some(figures.cpu_seconds),
        node_energy: figures.node_energy,
        gpus: figures.gpu_use,
        limits: Vec::new(),
        series: figures.series,
        pods: Vec::new(),
        outcome: Some(outcome(&end)),
        warnings,
        prices: None,
    };
    ShownRun { run, idle: Some(figures.idle) }
}

/// A run whose figures a running agent has counted.
pub fn shown_by_agent(arguments: &MeasureArgs, measured: AgentRun) -> ShownRun {
    let AgentRun { mut run, elapsed, end, interval } = measured;
    let held = run.energy.iter().any(|energy| energy.part == Part::Gpu);
    let mut warnings = std::mem::take(&mut run.warnings);
    warnings.extend(about_run(held, elapsed, &end));
    if elapsed < interval * 2 {
        // The power of a reading is that of the whole time between two.
        run.energy.iter_mut().for_each(|energy| energy.peak_watts = None);
        warnings.push(warning(
            "short_for_agent",
            "the run is shorter than two readings of the agent: the energy of one reading is divided by CPU time; let it work longer",
        ));
    }
    let nodes = run.nodes.into_iter().map(|node| Node { kernel: kernel(), ..node }).collect();
    let run = Run {
        id: id(),
        subject: subject(arguments),
        work: arguments.work.map(|amount| Work { amount, unit: arguments.work_unit.clone() }),
        labels: arguments.labels.iter().cloned().collect(),
        nodes,
        outcome: Some(outcome(&end)),
        warnings,
        ..run
    };
    ShownRun { run, idle: None }
}

fn outcome(end: &CommandEnd) -> Outcome {
    let status = end.status;
    Outcome { succeeded: status.success(), exit_code: Some(i32::from(code(status))), reason: String::new() }
}

fn kernel() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned())
}

/// What a reader has to know of the run, whoever measured it.
fn about_run(used_gpu: bool, elapsed: Duration, end: &CommandEnd) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if used_gpu && elapsed < GPU_SHORT {
        warnings.push(warning(
            "short_for_gpu_counter",
            "the run is shorter than 20 steps of a GPU's energy counter (0.1 s each); let it work longer, or repeat it with -r",
        ));
    }
    if elapsed < SHORT {
        warnings.push(warning(
            "short_run",
            "the run is shorter than 20 steps of an energy counter (1 ms each); let it work longer, or repeat it with -r",
        ));
    }
    if end.killed > 0 {
        let killed = end.killed;
        let message = format!(
            "{killed} {} that the command left behind; --wait=children waits for them",
            if killed == 1 { "process was killed" } else { "processes were killed" }
        );
        warnings.push(warning("left_over_killed", &message));
    }
    warnings
}

/// What the meters cannot do here.
fn about_meters(energy: &[energy_report::run::Energy], last: &Snapshot) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let down = |name: MeterName| last.meters.iter().find(|state| state.meter == name && !state.is_up());
    let why = |state: Option<&MeterState>| state.map_or(String::new(), |state| format!(": {}", state.detail));
    if !energy.iter().any(|energy| energy.part == Part::Package) {
        warnings.push(warning("no_cpu_energy", "the energy of the CPUs is not known; `energy-agent doctor` says why"));
    } else if energy.iter().all(|energy| energy.estimated || energy.part != Part::Package) {
        let message = format!(
            "the energy of the CPUs is an estimate from their load, so it shows differences of CPU time and none of power{}",
            why(down(MeterName::Rapl))
        );
        warnings.push(warning("estimated", &message));
    }
    if let Some(ebpf) = down(MeterName::Ebpf) {
        let message = format!("CPU time comes from cgroup files, so it is weighed without cycles{}", why(Some(ebpf)));
        warnings.push(warning("no_ebpf", &message));
    }
    warnings
}

fn warning(code: &str, message: &str) -> Warning {
    Warning { code: code.to_owned(), message: message.to_owned() }
}

fn subject(arguments: &MeasureArgs) -> Subject {
    let words: Vec<String> = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let name = words
        .first()
        .map(|word| Path::new(word).file_name().map_or(word.clone(), |name| name.to_string_lossy().into_owned()));
    let sum = digest(&SHA256, words.join("\0").as_bytes());
    let digest = sum.as_ref().iter().fold(String::from("sha256:"), |text, byte| format!("{text}{byte:02x}"));
    Subject {
        kind: SubjectKind::Command,
        namespace: None,
        name: name.unwrap_or_default(),
        class: None,
        command_line: if arguments.record_command { words } else { Vec::new() },
        digest: Some(digest),
    }
}

/// The command as a person would type it, more or less.
pub fn command_line(command: &[OsString]) -> String {
    command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A random name, from the kernel.
fn id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default().trim().to_owned()
}
