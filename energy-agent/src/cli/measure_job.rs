//! `energy-agent measure --job FILE`: runs a Job or Pod in a cluster, and reports what it used.

mod build;
mod direct;
mod progress;
mod scraped;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use energy_cluster::job::{Course, Deadlines, JobDocument, RunEnd, SubmitError, Submitted};
use energy_cluster::kubernetes::{ClusterError, Credentials};
use energy_files::config_file;
use energy_model::printable::printable_lines;
use energy_report::run::{Run, Work};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::direct::Direct;
use self::progress::Progress;
use super::report::prometheus::Prometheus;
use super::report::{new_id, output};
use super::run_problem::RunProblem;
use crate::config::{AgentsBy, JobArgs, Login, MeasureArgs, RunOutput};

/// The workload failed.
const FAILED: u8 = 1;
/// What a shell adds to the number of a signal.
const BY_SIGNAL: u8 = 128;

/// What the command line asks for.
struct JobOrder<'a> {
    file: &'a Path,
    job: &'a JobArgs,
    login: &'a Login,
    output: RunOutput,
    runs: u32,
    labels: &'a [(String, String)],
    /// Done by each run.
    work: Option<Work>,
}

/// Runs it as often as it is asked for, and shows what came of it.
pub(crate) fn run(file: &Path, arguments: &MeasureArgs) -> ExitCode {
    let MeasureArgs { runs: number, labels, work, work_unit, job, output, login, .. } = arguments;
    let work = work.map(|amount| Work { amount, unit: work_unit.clone() });
    let order = JobOrder { file, job, login, output: output.clone(), runs: *number, labels, work };
    runs(&order).unwrap_or_else(|problem| problem.end())
}

fn runs(order: &JobOrder<'_>) -> Result<ExitCode, RunProblem> {
    output::check(&order.output, order.runs > 1)?;
    let mut meters = JobMeters::open(order.file, order.job, order.login)?;
    let document = meters.document().clone();
    let (mut runs, mut ended) = (Vec::new(), Ok(0));
    for number in 1..=order.runs {
        if order.runs > 1 {
            eprintln!("run {number} of {}", order.runs);
        }
        let done = meters.once(&document, number < order.runs);
        let goes_on = matches!(&done, Ok(done) if done.is_good());
        ended = done.map(|done| {
            let code = done.code();
            runs.extend(done.run.map(|run| *run));
            code
        });
        if !goes_on {
            break;
        }
    }
    drop(meters);
    // What was measured before a problem is not lost.
    for run in &mut runs {
        run.labels.extend(order.labels.iter().cloned());
        run.work = order.work.clone();
    }
    let written = output::write(&mut runs, order.runs > 1, &order.output);
    let code = ended?;
    match written {
        // That it failed says more than that a file is missing.
        Err(problem) if code != 0 => drop(problem.end()),
        written => written?,
    }
    Ok(ExitCode::from(code))
}

/// A cluster in which a Job or Pod is measured, one run at a time.
pub(super) struct JobMeters {
    plan: Plan,
    signals: EndSignals,
    runtime: Option<Runtime>,
}

impl JobMeters {
    /// Reads the file, and looks whether the figures can be had, before anything is created. From now on a signal ends a run.
    ///
    /// # Errors
    /// When the file holds no Job or Pod, or there is no cluster or source of figures.
    pub fn open(file: &Path, args: &JobArgs, login: &Login) -> Result<Self, RunProblem> {
        let plan = Plan::new(file, args, login)?;
        let runtime = Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
        let signals = runtime.block_on(async { EndSignals::listen() })?;
        Ok(Self { plan, signals, runtime: Some(runtime) })
    }

    /// What the file says.
    pub const fn document(&self) -> &JobDocument {
        &self.plan.document
    }

    /// Runs the document once, to its end and its deletion; `more` runs follow, which may need its name.
    ///
    /// # Errors
    /// When it could not be created, followed or measured. Whatever was created is deleted then too.
    pub fn once(&mut self, document: &JobDocument, more: bool) -> Result<JobDone, RunProblem> {
        let runtime = self.runtime.as_ref().context("the runtime has ended")?;
        runtime.block_on(self.plan.run(document, more, &mut self.signals))
    }
}

impl Drop for JobMeters {
    /// A question to Prometheus may be open; nobody waits for its answer.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What is to be run, and how.
struct Plan {
    file: PathBuf,
    document: JobDocument,
    namespace: Option<String>,
    credentials: Credentials,
    source: FigureSource,
    limits: Deadlines,
    keep: bool,
}

/// Where the figures come from.
enum FigureSource {
    Prometheus(Arc<Prometheus>),
    /// The namespace of the agents.
    Agents(String),
}

/// What came of one run.
#[derive(Default)]
pub(super) struct JobDone {
    completed: bool,
    /// There are no figures of what never ran.
    pub run: Option<Box<Run>>,
    /// The number of the signal that asked for the end.
    stopped: Option<u8>,
}

impl JobDone {
    /// The workload completed, and nobody asked for the end.
    pub const fn is_good(&self) -> bool {
        self.completed && self.stopped.is_none()
    }

    /// The exit code of a command that ends with this run.
    pub const fn code(&self) -> u8 {
        match (self.stopped, self.completed) {
            (Some(number), _) => BY_SIGNAL.saturating_add(number),
            (None, true) => 0,
            (None, false) => FAILED,
        }
    }
}

impl Plan {
    /// Reads the file, and looks whether the figures can be had, before anything is created.
    ///
    /// # Errors
    /// When the file holds no Job or Pod, or there is no cluster or source of figures.
    fn new(file: &Path, args: &JobArgs, login: &Login) -> Result<Self, RunProblem> {
        let usage = |text: String| RunProblem::Usage(format!("{}: {text}", file.display()));
        let text = config_file::text(file, config_file::MAX_BYTES).map_err(|error| usage(error.to_string()))?;
        let document = JobDocument::read(&text, file).map_err(usage)?;
        if let (Some(wanted), Some(written)) = (args.namespace.as_deref(), document.namespace())
            && wanted != written
        {
            let text = format!("its namespace is {written} and --namespace is {wanted}; leave one of them out");
            return Err(usage(text));
        }
        let credentials = Credentials::find(args.kubeconfig.as_deref()).ok_or_else(|| {
            let text = "no cluster: there is neither a kubeconfig nor a service account; name a file with --kubeconfig";
            RunProblem::NotMeasured(text.to_owned())
        })?;
        let credentials = match &args.context {
            Some(context) => credentials.in_context(context).map_err(not_measured)?,
            None => credentials,
        };
        let source = match (&args.prometheus, args.agents) {
            (Some(url), _) => {
                let prometheus = Prometheus::new(url, login)?;
                scraped::check(&prometheus)?;
                FigureSource::Prometheus(Arc::new(prometheus))
            }
            (None, Some(AgentsBy::Direct)) => FigureSource::Agents(args.agents_namespace.clone()),
            (None, None) => {
                let text = "the figures have to come from somewhere: name a Prometheus server with --prometheus URL, or read \
                            the agents with --agents=direct";
                return Err(RunProblem::Usage(text.to_owned()));
            }
        };
        Ok(Self {
            file: file.to_owned(),
            document,
            namespace: args.namespace.clone(),
            credentials,
            source,
            limits: Deadlines { whole: args.timeout, start: args.start_timeout },
            keep: args.keep,
        })
    }

    /// Runs it once, to its end and its deletion; `more` runs follow, which may need its name.
    ///
    /// # Errors
    /// When it could not be created, followed or measured. Whatever was created is deleted then too.
    async fn run(&self, document: &JobDocument, more: bool, signals: &mut EndSignals) -> Result<JobDone, RunProblem> {
        let mut direct = match &self.source {
            FigureSource::Agents(namespace) => {
                Some(Direct::new(&self.credentials, namespace).await.map_err(not_measured)?)
            }
            FigureSource::Prometheus(_) => None,
        };
        let id = new_id();
        // A signal waits until it is known what was created.
        let credentials = self.credentials.clone();
        let submitted = Submitted::create(credentials, document, self.namespace.as_deref(), &id).await;
        let submitted = submitted.map_err(|error| match error {
            SubmitError::Refused(text) => RunProblem::Usage(format!("{}: {text}", self.file.display())),
            SubmitError::Cluster(error) => not_measured(error),
        })?;
        if let Some(direct) = &mut direct {
            direct.begin(submitted.created);
        }
        let mut progress = Progress::new(&submitted);
        let measured = tokio::select! {
            measured = self.measure(document, &submitted, &id, &mut progress, &mut direct) => measured,
            number = signals.any() => Ok(JobDone { stopped: Some(number), ..JobDone::default() }),
        };
        progress.end();
        if let Ok(JobDone { stopped: Some(_), .. }) = measured {
            eprintln!("stopped by a signal");
        }
        let goes_on = more && matches!(&measured, Ok(done) if done.is_good());
        let stopped = self.delete(&submitted, goes_on, signals).await;
        measured.map(|done| JobDone { stopped: done.stopped.or(stopped), ..done })
    }

    /// Follows it to its end, and gathers the figures.
    async fn measure(
        &self,
        document: &JobDocument,
        submitted: &Submitted,
        id: &str,
        progress: &mut Progress,
        direct: &mut Option<Direct>,
    ) -> Result<JobDone, RunProblem> {
        let placed = RefCell::new(BTreeMap::new());
        let followed = submitted.follow(self.limits, |sight| {
            let pods = sight.course.pods().into_iter().filter(|pod| !pod.node.is_empty());
            placed.replace(pods.map(|pod| (pod.uid, pod.node)).collect());
            progress.show(sight);
        });
        let (end, course) = match direct {
            None => followed.await,
            Some(direct) => tokio::select! {
                followed = followed => followed,
                never = direct.follow(&placed) => match never {},
            },
        }
        .map_err(not_measured)?;
        progress.ended(&end);
        let completed = end == RunEnd::Complete;
        if course.pods().iter().all(|pod| pod.started.is_none()) {
            return Ok(JobDone { completed, ..JobDone::default() });
        }
        let mut run = self.figures(document, submitted, id, &course, progress, direct).await?;
        build::complete(&mut run, submitted, &course, &end);
        Ok(JobDone { completed, run: Some(Box::new(run)), stopped: None })
    }

    async fn figures(
        &self,
        document: &JobDocument,
        submitted: &Submitted,
        id: &str,
        course: &Course,
        progress: &mut Progress,
        direct: &mut Option<Direct>,
    ) -> Result<Run, RunProblem> {
        let ask = build::ask(id, document, submitted, course, direct.is_some());
        match (&self.source, direct) {
            (FigureSource::Prometheus(prometheus), _) => scraped::run(prometheus, ask, course, progress).await,
            (FigureSource::Agents(_), Some(direct)) => direct.run(ask, course, progress).await,
            (FigureSource::Agents(_), None) => unreachable!("agents are found before"),
        }
    }

    /// Deletes it, and waits until it is gone if the next run may have its name. The number of a signal that came meanwhile.
    async fn delete(&self, submitted: &Submitted, goes_on: bool, signals: &mut EndSignals) -> Option<u8> {
        if self.keep {
            eprintln!("it is kept; to delete it: {}", submitted.how_to_delete());
            return None;
        }
        let deleted = tokio::select! {
            deleted = submitted.delete() => deleted.map_err(|error| error.to_string()),
            number = signals.any() => {
                eprintln!("warning: another signal; delete it yourself: {}", submitted.how_to_delete());
                return Some(number);
            }
        };
        if let Err(why) = &deleted {
            let text = format!("warning: {why}; delete it yourself: {}", submitted.how_to_delete());
            eprintln!("{}", printable_lines(&text));
        } else if goes_on {
            return tokio::select! {
                gone = submitted.wait_until_gone() => {
                    if let Err(error) = gone {
                        eprintln!("warning: {}", printable_lines(&error.to_string()));
                    }
                    None
                }
                number = signals.any() => Some(number),
            };
        }
        None
    }
}

fn not_measured(error: ClusterError) -> RunProblem {
    RunProblem::NotMeasured(error.to_string())
}

/// The signals that ask for the end.
struct EndSignals([(u8, Signal); 3]);

impl EndSignals {
    fn listen() -> anyhow::Result<Self> {
        let on = |kind: SignalKind, number: u8| anyhow::Ok((number, signal(kind).context("waiting for signals")?));
        let (interrupt, terminate) = (on(SignalKind::interrupt(), 2)?, on(SignalKind::terminate(), 15)?);
        Ok(Self([interrupt, terminate, on(SignalKind::hangup(), 1)?]))
    }

    /// The number of the next one.
    async fn any(&mut self) -> u8 {
        let [(a, interrupt), (b, terminate), (c, hangup)] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => *a,
            _ = terminate.recv() => *b,
            _ = hangup.recv() => *c,
        }
    }
}
