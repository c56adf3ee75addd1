//! `energy-agent report`: what a pod, job, namespace, unit or node cost, from Prometheus, a running agent or a run file.

mod follow;
pub(crate) mod output;
pub(crate) mod prometheus;
mod search;
pub(crate) mod source;

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use energy_files::config_file;
use energy_report::energy::Window;
use energy_report::run::{Run, SubjectKind, Unreadable, Work};

use super::run_problem::RunProblem;
use crate::config::{Moment, ReportArgs};
use prometheus::Prometheus;
use search::ReportTarget;

/// A run file has at most a thousand points for each of its curves.
const FILE_BYTES: usize = 64 * 1024 * 1024;
const HOUR_S: f64 = 3600.0;

/// Exit code 0: done. 2: wrong usage. 3: not measured.
#[must_use]
pub fn run(args: &ReportArgs) -> ExitCode {
    match report(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => problem.end(),
    }
}

fn report(args: &ReportArgs) -> Result<(), RunProblem> {
    output::check(&args.output, false)?;
    let mut runs = match ReportTarget::of(&args.what, args.name.as_deref(), args.uid.clone())? {
        None => {
            let file = Path::new(&args.what);
            if args.prometheus.is_some() || args.agent.is_some() || args.length.is_some() {
                let text =
                    "a run file needs neither --prometheus nor --agent; for a pod write: report pod NAMESPACE/NAME";
                return Err(RunProblem::Usage(text.to_owned()));
            }
            read(file)?
        }
        Some(wanted) => match &args.prometheus {
            Some(url) => {
                let prometheus = Prometheus::new(url, &args.login)?;
                let window = window(args, wanted.kind)?;
                let found = search::find(&prometheus, &wanted, window)?;
                let mut run = source::run(&prometheus, &found.ask)?;
                run.warnings.extend(found.warnings);
                if let Some(query) = &args.work_query {
                    let amount = prometheus.number(query, run.end)?;
                    run.work = Some(Work { amount, unit: args.work_unit.clone() });
                }
                vec![run]
            }
            None => vec![follow::follow(args, &wanted)?],
        },
    };
    if let Some(amount) = args.work {
        runs.iter_mut().for_each(|run| run.work = Some(Work { amount, unit: args.work_unit.clone() }));
    }
    let is_list = runs.len() > 1;
    output::write(&mut runs, is_list, &args.output)
}

/// The time to look at.
fn window(args: &ReportArgs, kind: SubjectKind) -> Result<Window, RunProblem> {
    let now = unix_now();
    let hours = if matches!(kind, SubjectKind::Pod | SubjectKind::Job) { 24.0 } else { 1.0 };
    let to = args.to.map_or(now, |to| to.unix(now));
    let from = args.from.map_or(to - hours * HOUR_S, |from: Moment| from.unix(now));
    if from >= to {
        let text = format!(
            "--from is {:.0} s after --to: the time to look at has to be longer than 0 s, as in --from 2h",
            from - to
        );
        let text = if (from - to).abs() < 1.0 { text.replace("is 0 s after", "is the same time as") } else { text };
        return Err(RunProblem::Usage(text));
    }
    if from > now {
        return Err(RunProblem::Usage("--from is in the future".to_owned()));
    }
    Ok(Window { from, to: to.min(now) })
}

/// Reads a run file, of one run or a list of them.
///
/// # Errors
/// When it cannot be read or is none.
fn read(file: &Path) -> Result<Vec<Run>, RunProblem> {
    let bytes = config_file::bytes(file, FILE_BYTES).map_err(|error| {
        let kinds = "the kinds are pod, job, namespace, unit and node";
        RunProblem::Usage(format!("{} is no kind of report ({kinds}), and as a run file: {error}", file.display()))
    })?;
    Run::parse_all(&bytes).map_err(|error: Unreadable| RunProblem::Usage(format!("{}: {error}", file.display())))
}

/// Unix time.
pub(crate) fn unix_now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A name for a run that nobody else has.
pub(crate) fn new_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_or_else(
        // Without /proc the time has to do.
        |_| format!("{:.6}", unix_now()),
        |uuid| uuid.trim().to_owned(),
    )
}
