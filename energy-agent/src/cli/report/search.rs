//! What a report is of: the words of the command line, and the pods that they mean.

use std::collections::BTreeMap;

use energy_report::energy::Window;
use energy_report::gather::Ask;
use energy_report::run::{MeasuredBy, Subject, SubjectKind, Warning};

use super::prometheus::{Prometheus, any_of, quoted};
use super::{new_id, unix_now};
use crate::cli::run_problem::RunProblem;

/// Metrics that every pod has which used CPU time.
const POD_METRICS: [&str; 2] = ["kepler_pod_cpu_joules_total", "energy_agent_pod_cpu_seconds_total"];
/// Names that an error lists at most.
const LISTED: usize = 5;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportTarget {
    pub kind: SubjectKind,
    /// Empty for units and nodes.
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
}

impl ReportTarget {
    /// `None`: the words name a run file.
    pub(super) fn of(what: &str, name: Option<&str>, uid: Option<String>) -> Result<Option<Self>, RunProblem> {
        let kind = match what {
            "pod" | "pods" | "po" => SubjectKind::Pod,
            "job" | "jobs" => SubjectKind::Job,
            "namespace" | "ns" => SubjectKind::Namespace,
            "unit" => SubjectKind::Unit,
            "node" => SubjectKind::Node,
            file => {
                return match name {
                    None => Ok(None),
                    Some(_) => {
                        let text = format!("{file:?} is no kind; the kinds are pod, job, namespace, unit and node");
                        Err(RunProblem::Usage(text))
                    }
                };
            }
        };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(RunProblem::Usage(format!("which {what}? Write: report {what} {}", example(kind))));
        };
        let (namespace, name) = match kind {
            SubjectKind::Pod | SubjectKind::Job => {
                let parts = name.split_once('/').filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains('/'));
                let Some((namespace, name)) = parts else {
                    return Err(RunProblem::Usage(format!(
                        "{name:?}: expected NAMESPACE/NAME, as in report {what} ml/train"
                    )));
                };
                (namespace.to_owned(), name.to_owned())
            }
            SubjectKind::Namespace => (name.to_owned(), name.to_owned()),
            _ => (String::new(), name.to_owned()),
        };
        Ok(Some(Self { kind, namespace, name, uid }))
    }

    pub(super) fn subject(&self) -> Subject {
        let namespaced = matches!(self.kind, SubjectKind::Pod | SubjectKind::Job);
        Subject {
            kind: self.kind,
            namespace: namespaced.then(|| self.namespace.clone()),
            name: self.name.clone(),
            ..Subject::default()
        }
    }

    /// As a sentence names it.
    pub(super) fn text(&self) -> String {
        match self.kind {
            SubjectKind::Pod => format!("pod {}/{}", self.namespace, self.name),
            SubjectKind::Job => format!("pod of job {}/{}", self.namespace, self.name),
            SubjectKind::Namespace => format!("pod in namespace {}", self.name),
            SubjectKind::Unit => format!("unit {}", self.name),
            _ => format!("node {}", self.name),
        }
    }

    /// A pod of this name and namespace is, or belongs to, what was asked for.
    pub(super) fn is_pod(&self, namespace: &str, name: &str, uid: &str) -> bool {
        if self.uid.as_deref().is_some_and(|wanted| wanted != uid) || namespace != self.namespace {
            return false;
        }
        match self.kind {
            SubjectKind::Pod => name == self.name,
            SubjectKind::Job => is_of_job(name, &self.name),
            _ => true,
        }
    }
}

const fn example(kind: SubjectKind) -> &'static str {
    match kind {
        SubjectKind::Namespace => "ml",
        SubjectKind::Unit => "postgresql.service",
        SubjectKind::Node => "worker-1",
        _ => "ml/train",
    }
}

/// A Job names its pods `NAME-` and five characters; an indexed one puts the index before them.
fn is_of_job(pod: &str, job: &str) -> bool {
    let Some(rest) = pod.strip_prefix(job).and_then(|rest| rest.strip_prefix('-')) else { return false };
    let is_suffix =
        |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    match rest.rsplit_once('-') {
        None => is_suffix(rest),
        Some((index, suffix)) => {
            is_suffix(suffix) && !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit())
        }
    }
}

/// What to ask for, and what a reader has to know of how it was found.
#[derive(Debug)]
pub(super) struct FoundSubject {
    pub ask: Ask,
    pub warnings: Vec<Warning>,
}

/// Finds the subject in Prometheus.
pub(super) fn find(prometheus: &Prometheus, wanted: &ReportTarget, window: Window) -> Result<FoundSubject, RunProblem> {
    let mut ask = Ask {
        id: new_id(),
        subject: wanted.subject(),
        by: MeasuredBy::Prometheus,
        window,
        pods: Vec::new(),
        ran: None,
    };
    let mut warnings = Vec::new();
    if matches!(wanted.kind, SubjectKind::Unit | SubjectKind::Node) {
        let (metric, label) = match wanted.kind {
            SubjectKind::Unit => ("energy_agent_system_cpu_seconds_total", "unit"),
            _ => ("kepler_build_info", "node_name"),
        };
        let query = format!("last_over_time({metric}{{{label}={}}}{})", quoted(&wanted.name), range(window));
        if prometheus.query(&query, window.to)?.is_empty() {
            let known = format!("group by ({label}) (last_over_time({metric}{}))", range(window));
            return Err(missing(prometheus, wanted, window, &known, label)?);
        }
        return Ok(FoundSubject { ask, warnings });
    }
    let names = any_of(POD_METRICS);
    let namespace = quoted(&wanted.namespace);
    let by = "group by (pod_id, pod_name, pod_namespace, node_name)";
    let narrowed = match wanted.kind {
        SubjectKind::Pod => format!(",pod_name={}", quoted(&wanted.name)),
        SubjectKind::Job => format!(",pod_name=~{}", quoted(&format!("{}-.*", regex::escape(&wanted.name)))),
        _ => String::new(),
    };
    let query =
        format!("{by} (last_over_time({{__name__=~{names},pod_namespace={namespace}{narrowed}}}{}))", range(window));
    let mut pods: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (mut labels, _) in prometheus.query(&query, window.to)? {
        let mut label = |name: &str| labels.remove(name).unwrap_or_default();
        let (uid, name, node) = (label("pod_id"), label("pod_name"), label("node_name"));
        if wanted.is_pod(&wanted.namespace, &name, &uid) {
            pods.insert(uid, (name, node));
        }
    }
    if wanted.kind == SubjectKind::Job {
        let message = "The pods of the job were found by their names, NAME- and five characters.";
        warnings.push(Warning { code: "job_by_name".to_owned(), message: message.to_owned() });
    }
    if pods.is_empty() {
        let query = format!(
            "group by (pod_name) (last_over_time({}{{pod_namespace={namespace}}}{}))",
            POD_METRICS[1],
            range(window)
        );
        return Err(missing(prometheus, wanted, window, &query, "pod_name")?);
    }
    if wanted.kind == SubjectKind::Pod && pods.len() > 1 {
        return Err(RunProblem::Usage(several(wanted, &pods)));
    }
    ask.pods = pods.into_keys().collect();
    Ok(FoundSubject { ask, warnings })
}

/// The sentence about several pods of one name.
pub(super) fn several(wanted: &ReportTarget, pods: &BTreeMap<String, (String, String)>) -> String {
    let listed: Vec<String> = pods.iter().take(LISTED).map(|(uid, (_, node))| format!("{uid} (node {node})")).collect();
    format!(
        "{} pods had the name {}/{} in this time: {}; choose one with --uid, or the time with --from and --to",
        pods.len(),
        wanted.namespace,
        wanted.name,
        listed.join(", ")
    )
}

/// A range selector over the whole window.
fn range(window: Window) -> String {
    format!("[{:.0}ms]", ((window.to - window.from) * 1000.0).ceil())
}

/// Why the subject is not found, and what can be done.
fn missing(
    prometheus: &Prometheus,
    wanted: &ReportTarget,
    window: Window,
    others: &str,
    label: &str,
) -> Result<RunProblem, RunProblem> {
    let Prometheus { url, .. } = prometheus;
    let when = |unix: f64| {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs_f64(unix.max(0.0));
        humantime::format_rfc3339_seconds(time).to_string()
    };
    let time = format!("between {} and {}", when(window.from), when(window.to));
    let age = unix_now() - window.to;
    if let Some(retention) = prometheus.retention().filter(|retention| age > *retention) {
        let days = retention / 86_400.0;
        return Ok(RunProblem::NotMeasured(format!(
            "Prometheus at {url} keeps samples for {days:.1} days (--storage.tsdb.retention.time), and the time asked for is \
             older; a server with longer retention may have it"
        )));
    }
    let agents =
        prometheus.query(&format!("group (last_over_time(energy_agent_ticks_total{}))", range(window)), window.to)?;
    if agents.is_empty() {
        return Ok(RunProblem::NotMeasured(format!(
            "Prometheus at {url} has no metrics of energy-agent {time}; does it scrape the agents, and did it then? \
             docs/install.md shows how"
        )));
    }
    let mut known: Vec<String> = prometheus
        .query(others, window.to)?
        .into_iter()
        .filter_map(|(mut labels, _)| labels.remove(label))
        .filter(|name| !name.is_empty())
        .collect();
    known.sort();
    let hint = if known.is_empty() {
        if wanted.namespace.is_empty() {
            String::new()
        } else {
            format!(
                " There is no pod with a name in namespace {} then; does the agent know names (energy-agent doctor)?",
                wanted.namespace
            )
        }
    } else {
        let more = if known.len() > LISTED { format!(" and {} more", known.len() - LISTED) } else { String::new() };
        known.truncate(LISTED);
        format!(" Known then: {}{more}.", known.join(", "))
    };
    Ok(RunProblem::NotMeasured(format!(
        "Prometheus at {url} has no {} {time}; is the name right, or was it earlier (--from)?{hint}",
        wanted.text()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_a_kind_and_a_name_or_a_file() {
        let of = |what: &str, name: Option<&str>| ReportTarget::of(what, name, None);
        let pod = of("pod", Some("ml/train")).unwrap().unwrap();
        assert_eq!((pod.kind, pod.namespace.as_str(), pod.name.as_str()), (SubjectKind::Pod, "ml", "train"));
        assert_eq!(of("run.json", None), Ok(None));
        for (what, name) in [("pod", Some("train")), ("pod", None), ("job", Some("a/b/c")), ("run.json", Some("x"))] {
            assert!(matches!(of(what, name), Err(RunProblem::Usage(_))), "{what} {name:?}");
        }
    }

    #[test]
    fn pods_of_a_job_are_known_by_their_names() {
        for pod in ["train-x7k2p", "train-0-x7k2p", "train-12-00000"] {
            assert!(is_of_job(pod, "train"), "{pod}");
        }
        for pod in
            ["train", "train-x7k2", "train-x7k2pq", "train-big-x7k2p", "trainer-x7k2p", "train-X7k2p", "train--x7k2p"]
        {
            assert!(!is_of_job(pod, "train"), "{pod}");
        }
    }
}
