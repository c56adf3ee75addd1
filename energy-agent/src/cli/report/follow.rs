//! A run from a running agent: its page is read once a second until the user, the time or the workload ends it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use energy_export::parse::ParsedSample;
use energy_report::energy::Window;
use energy_report::gather::{self, Ask, agent_metrics, node_metrics, subject_metrics};
use energy_report::run::{MeasuredBy, Run, SubjectKind};
use energy_report::samples::Samples;

use super::new_id;
use super::search::{ReportTarget, several};
use crate::cli::agent_page::{self, AgentPage};
use crate::cli::run_problem::RunProblem;
use crate::config::ReportArgs;
use crate::signals;

const EVERY: Duration = Duration::from_secs(1);
const DEFAULT: &str = "127.0.0.1:9102";

/// Follows the agent.
///
/// # Errors
/// When nothing answers, or the agent never had the subject on its page.
pub(super) fn follow(args: &ReportArgs, wanted: &ReportTarget) -> Result<Run, RunProblem> {
    let address = args.agent.as_deref().unwrap_or(DEFAULT);
    let page = AgentPage::new(address, &args.login).map_err(|error| RunProblem::Usage(format!("{error:#}")))?;
    let ended = signals::end()?;
    let begin = Instant::now();
    let mut pages = FollowedPages::new(wanted);
    pages.add(&page.fetch()?);
    if pages.is_of_nothing() {
        eprintln!("{} is not on the page of {} yet; waiting for it, Ctrl-C ends", wanted.text(), page.url);
    } else if args.length.is_none() {
        eprintln!("following {} on {}; Ctrl-C ends and prints the report", wanted.text(), page.url);
    }
    loop {
        let left = args.length.map_or(EVERY, |length| length.saturating_sub(begin.elapsed()));
        let signal = ended.recv_timeout(left.min(EVERY));
        // An agent that restarts does not answer for a moment; what is missing in the end is said then.
        if let Ok(samples) = page.fetch() {
            pages.add(&samples);
        }
        let over = args.length.is_some_and(|length| begin.elapsed() >= length);
        if signal != Err(RecvTimeoutError::Timeout) || over || pages.has_ended() {
            break;
        }
    }
    pages.run(&page.url)
}

/// The pages so far, as far as they concern the subject.
struct FollowedPages<'a> {
    wanted: &'a ReportTarget,
    names: BTreeSet<&'static str>,
    of_node: BTreeSet<&'static str>,
    samples: Samples,
    /// Uid of each pod that is meant, with name and node.
    pods: BTreeMap<String, (String, String)>,
    first: f64,
    last: f64,
    has_subject: bool,
    has_ended: bool,
}

impl<'a> FollowedPages<'a> {
    fn new(wanted: &'a ReportTarget) -> Self {
        Self {
            wanted,
            names: subject_metrics(wanted.kind).into_iter().collect(),
            of_node: node_metrics().into_iter().chain(agent_metrics()).collect(),
            samples: Samples::default(),
            pods: BTreeMap::new(),
            first: f64::INFINITY,
            last: 0.0,
            has_subject: false,
            has_ended: false,
        }
    }

    const fn is_of_nothing(&self) -> bool {
        !self.has_subject
    }

    /// The one pod that was asked for has come to its end.
    fn has_ended(&self) -> bool {
        self.wanted.kind == SubjectKind::Pod && self.has_ended
    }

    fn add(&mut self, page: &[ParsedSample]) {
        let at = agent_page::time(page);
        (self.first, self.last) = (self.first.min(at), self.last.max(at));
        for sample in page.iter().filter(|sample| self.names.contains(sample.name.as_str())) {
            let (uid, name) = (sample.label("pod_id"), sample.label("pod_name"));
            if !uid.is_empty() && self.wanted.is_pod(sample.label("pod_namespace"), name, uid) {
                self.pods.insert(uid.to_owned(), (name.to_owned(), sample.label("node_name").to_owned()));
            }
        }
        let node =
            page.iter().find(|sample| sample.name == "kepler_build_info").map(|sample| sample.label("node_name"));
        let (mut running, mut terminated) = (0, 0);
        for sample in page {
            let is_subject = self.names.contains(sample.name.as_str())
                && match self.wanted.kind {
                    SubjectKind::Node => node == Some(self.wanted.name.as_str()),
                    SubjectKind::Unit => sample.label("unit") == self.wanted.name,
                    _ => self.pods.contains_key(sample.label("pod_id")),
                };
            if !is_subject && !self.of_node.contains(sample.name.as_str()) {
                continue;
            }
            if is_subject {
                self.has_subject = true;
                if sample.label("state") == "terminated" { terminated += 1 } else { running += 1 }
            }
            self.samples.add(agent_page::series(sample, at));
        }
        self.has_ended = terminated > 0 && running == 0;
    }

    fn run(self, url: &str) -> Result<Run, RunProblem> {
        let Self { wanted, pods, samples, first, last, has_subject, .. } = self;
        if !has_subject {
            return Err(RunProblem::NotMeasured(format!(
                "{url} had no {} on its page; an agent knows the workloads of its own node only, and names only with a source of \
                 pods (energy-agent doctor)",
                wanted.text()
            )));
        }
        if wanted.kind == SubjectKind::Pod && pods.len() > 1 {
            return Err(RunProblem::Usage(several(wanted, &pods)));
        }
        let ask = Ask {
            id: new_id(),
            subject: wanted.subject(),
            by: MeasuredBy::Agent,
            window: Window { from: first, to: last },
            pods: pods.into_keys().collect(),
            ran: None,
        };
        gather::run(&samples, &ask).ok_or_else(|| {
            RunProblem::NotMeasured(format!("{url} had one page of {} only; follow it for longer", wanted.text()))
        })
    }
}
