//! `energy-agent restore`: what the journal says was lowered becomes what it was, and a table says of each knob how it
//! went.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use energy_host::capping::actuator::{Actuator, SeenKnobs};
use energy_host::capping::files::FileKnobs;
use energy_host::capping::journal::known::Loss;
use energy_host::config::GpuMode;
use energy_host::meter::gpu::{GpuMeter, GpuOptions};
use energy_host::static_build::IS_STATIC;
use energy_model::capping::knob::{Found, Knob};
use energy_model::capping::managed_knob::change::KnobChangeKind;
use energy_model::capping::managed_knob::{Action, ManagedKnob};
use energy_model::capping::quantity::Quantity;
use energy_model::printable::steers;

use crate::config::{Config, RestoreArgs};

/// How long GPUs may take to show up.
const GPUS_APPEAR: Duration = Duration::from_secs(5);
/// How long everything may take to be given back; systemd waits for 90 s in all.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(20);

const HEADER: [&str; 4] = ["KNOB", "FOUND", "ORIGINAL", "RESULT"];

/// Restores what is in the journal, and prints how it went; exit code 0 if everything is as it was and the journal was
/// whole.
///
/// # Errors
/// When an agent caps, or could do so unseen, or nothing can be printed.
pub fn run(arguments: &RestoreArgs) -> Result<ExitCode> {
    let config = &arguments.run;
    let folder = config.host.state_directory.display();
    if !config.host.folders().have_files() {
        return print(&format!("Nothing to restore: {folder} has no capping journal.\n"), true);
    }
    let mut actuator = if arguments.dry_run { Actuator::peek(&config.host) } else { Actuator::open(&config.host) };
    if let (false, false, Some(trouble)) = (arguments.dry_run, actuator.may_restore(), actuator.trouble()) {
        bail!("nothing is restored: {}", trouble.detail);
    }
    if actuator.held().next().is_none() && actuator.loss().is_none() {
        return print(&format!("Nothing to restore: the capping journal in {folder} is empty.\n"), true);
    }
    let mut files = FileKnobs::open(&config.host.sysfs, &config.host.cgroupfs);
    let mut gpus = GpuMeter::open(gpu_options(config, &actuator));
    let now = appear(&mut actuator, &mut files, &mut gpus);
    let mut rows: Vec<RestoreLine> = actuator.held().map(|managed| RestoreLine::planned(managed, now)).collect();
    let all = if arguments.dry_run {
        true
    } else {
        let all = actuator.close(now, Instant::now() + PATIENCE, &mut files, &mut gpus);
        let changes = actuator.take_changes();
        for row in &mut rows {
            let held = actuator.held().find(|managed| managed.knob == row.knob);
            let change = changes.iter().rfind(|change| change.knob == row.knob);
            row.result = match (held, change.map(|change| (change.kind, &change.detail))) {
                (Some(managed), _) => format!("FAILED: {}", why(managed)),
                (None, Some((KnobChangeKind::Restored, _))) => "restored".to_owned(),
                (None, Some((KnobChangeKind::Foreign | KnobChangeKind::Resized, detail))) => {
                    format!("left: another program has set it, {detail}")
                }
                (None, _) => "already at the original value".to_owned(),
            };
        }
        all
    };
    let mut text = if rows.is_empty() { String::new() } else { format!("{}\n", table(&rows)) };
    let known = actuator.loss().is_none();
    text.push_str(match (arguments.dry_run, all, known) {
        (true, ..) => "Nothing was written (--dry-run).\n",
        (false, true, true) => "Everything is restored.\n",
        (false, true, false) => "Everything that is known is restored.\n",
        (false, false, _) => {
            "Something could NOT be restored. It stays in the journal: run this again once the device answers.\n"
        }
    });
    if let Some(trouble) = actuator.trouble() {
        text.push_str(&format!("The journal could not be brought up to date: {}\n", trouble.detail));
    }
    if !known {
        text.push_str(&lost(&actuator, &mut files, &mut gpus));
    }
    let printed = print(&text, all && known)?;
    actuator.loss_is_told();
    Ok(printed)
}

/// What the journal lacks, and the way out.
fn lost(actuator: &Actuator, files: &mut FileKnobs, gpus: &mut GpuMeter) -> String {
    let Loss { causes, recovered, lines } = actuator.loss();
    let mut text = format!("The capping journal was damaged: {}.\n", causes.join("; "));
    for knob in recovered {
        text.push_str(&format!("  {knob} was only in the record of this boot.\n"));
    }
    if *lines == 0 {
        text.push_str(
            "The record of this boot is complete, so nothing is lost. Find out which program changed the journal.\n",
        );
        return text.replace(is_unprintable, "?");
    }
    text.push_str("The original values of some limits are lost. These limits are lower than their device allows:\n");
    let mut found = gpus.knobs();
    found.extend(files.list());
    let held: BTreeSet<&Knob> = actuator.held().map(|managed| &managed.knob).collect();
    let lowered = |found: &Found| found.value.is_some_and(|value| value < found.max);
    let before = text.len();
    for (knob, found) in found.iter().filter(|(knob, found)| lowered(found) && !held.contains(knob)) {
        let value = found.value.unwrap_or_default();
        text.push_str(&format!("  {knob}: {} of {}\n", Quantity::of(knob, value), Quantity::of(knob, found.max)));
    }
    if text.len() == before {
        text.push_str("  (none of the clocks and power limits)\n");
    }
    text.push_str(
        "Set by hand those that you did not set yourself, or restart the machine. Clocks of GPUs: `nvidia-smi --reset-gpu-clocks`. CPU quotas of pods: delete the pod, or look at its cpu.max.\n",
    );
    text.replace(is_unprintable, "?")
}

fn is_unprintable(letter: char) -> bool {
    letter.is_control() && letter != '\n'
}

fn print(text: &str, all: bool) -> Result<ExitCode> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever read the lines has enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ if all => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::FAILURE),
    }
}

/// The driver is loaded only for knobs of GPUs.
fn gpu_options(config: &Config, actuator: &Actuator) -> Option<GpuOptions> {
    let wanted = config.host.gpu == GpuMode::Auto && actuator.held().any(|managed| managed.knob.is_gpu());
    let (library, procfs, interval) =
        (config.host.nvml_library.clone(), config.host.procfs.clone(), config.host.interval);
    let stated = config.host.gpu_clock_before.clone().unwrap_or_default();
    wanted.then_some(GpuOptions { library, procfs, interval, stated })
}

/// Looks until every GPU in the journal is there, or time is over; returns the actuator's time.
fn appear(actuator: &mut Actuator, files: &mut FileKnobs, gpus: &mut GpuMeter) -> Duration {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        let late = gpus.ask(asked);
        drop(gpus.take(asked, late));
        let now = began.elapsed();
        actuator.look(now, SeenKnobs::default(), files, gpus);
        let missing = actuator.held().any(|managed| managed.knob.is_gpu() && managed.observed.found.is_none());
        if !missing || now >= GPUS_APPEAR {
            return now;
        }
        thread::sleep(STEP);
    }
}

fn why(managed: &ManagedKnob) -> String {
    match (managed.restore_error(), &managed.observed.found) {
        (Some(error), _) => error.detail.clone(),
        (None, None) if IS_STATIC && managed.knob.is_gpu() => {
            "the static build cannot reach GPUs; run `energy-agent restore` of the package or the image".to_owned()
        }
        (None, None) => "the device does not exist; for a GPU, check nvidia-smi and --nvml.library".to_owned(),
        (None, Some(found)) => format!("no answer from the device in time ({})", found.state.as_str()),
    }
}

/// A line of the table.
struct RestoreLine {
    knob: Knob,
    found: String,
    original: String,
    result: String,
}

impl RestoreLine {
    fn planned(managed: &ManagedKnob, now: Duration) -> Self {
        let text = |value: Option<u64>| {
            value.map_or_else(|| "open".to_owned(), |value| Quantity::of(&managed.knob, value).to_string())
        };
        let original = managed.held().and_then(|held| held.original);
        let found = match (&managed.knob, &managed.observed.found) {
            (_, None) => "not there".to_owned(),
            (Knob::GpuClock(_), Some(_)) => "not readable".to_owned(),
            (_, Some(found)) if found.raw.is_empty() => found.state.as_str().replace('_', " "),
            (_, Some(found)) => text(found.value),
        };
        let result = match managed.clone().decide(now, None, &mut Vec::new()) {
            Action::Restore => "would be restored",
            Action::Forget if managed.observed.found.as_ref().is_some_and(|found| found.value == original) => {
                "already at the original value"
            }
            Action::Forget => "would be left: another program has set it",
            Action::Nothing | Action::Set(_) => "could NOT be restored now",
        };
        Self { knob: managed.knob.clone(), found, original: text(original), result: result.to_owned() }
    }
}

fn table(rows: &[RestoreLine]) -> String {
    let cells: Vec<[String; 4]> = rows
        .iter()
        .map(|RestoreLine { knob, found, original, result }| {
            [knob.to_string(), found.clone(), original.clone(), result.clone()]
        })
        .collect();
    let header = HEADER.map(str::to_owned);
    let lines: Vec<&[String; 4]> = [&header].into_iter().chain(&cells).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut text = String::new();
    for [knob, found, original, result] in lines {
        let line = format!("{knob:<0$}  {found:<1$}  {original:<2$}  {result}", widths[0], widths[1], widths[2]);
        // A cgroup may have any name; nothing of it steers a terminal.
        text.push_str(&line.replace(steers, "?"));
        text.push('\n');
    }
    text
}
