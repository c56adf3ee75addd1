//! A run from Prometheus: the samples of its subject, then those of its nodes for the time that it ran.

use std::collections::BTreeSet;

use energy_report::energy::{LOOK_BACK_S, Window};
use energy_report::gather::{self, Ask, agent_metrics, node_metrics, subject_metrics};
use energy_report::run::{Run, SubjectKind};
use energy_report::samples::Samples;

use super::prometheus::{Prometheus, any_of, quoted};
use crate::cli::run_problem::RunProblem;

/// Pods in one query.
const MANY: usize = 100;

/// The run that `ask` describes.
///
/// # Errors
/// When the server does not answer, or has no sample of the subject in the window.
pub(crate) fn run(prometheus: &Prometheus, ask: &Ask) -> Result<Run, RunProblem> {
    let mut samples = Samples::default();
    let window = Window { from: ask.window.from - LOOK_BACK_S, to: ask.window.to };
    let names = any_of(subject_metrics(ask.subject.kind));
    for which in matchers(ask) {
        prometheus.samples(&format!("{{__name__=~{names},{which}}}"), window, &mut samples)?;
    }
    let nothing = || {
        let name = &ask.subject.name;
        RunProblem::NotMeasured(format!("Prometheus at {} has no sample of {name} in this time", prometheus.url))
    };
    let (first, last) = samples.span().ok_or_else(nothing)?;
    let meanwhile = Window { from: (first - LOOK_BACK_S).max(window.from), to: (last + LOOK_BACK_S).min(window.to) };
    if ask.subject.kind != SubjectKind::Node {
        let nodes = any_of(samples.values("node_name").iter().map(String::as_str));
        let names = any_of(node_metrics());
        prometheus.samples(&format!("{{__name__=~{names},node_name=~{nodes}}}"), meanwhile, &mut samples)?;
    } else {
        let names =
            any_of(node_metrics().into_iter().filter(|name| !subject_metrics(SubjectKind::Node).contains(name)));
        let node = quoted(&ask.subject.name);
        prometheus.samples(&format!("{{__name__=~{names},node_name={node}}}"), meanwhile, &mut samples)?;
    }
    // The pages of the agents, by the labels of whatever scraped them.
    let instances = samples.values("instance");
    if !instances.is_empty() {
        let instances = any_of(instances.iter().map(String::as_str));
        let names = any_of(agent_metrics());
        prometheus.samples(&format!("{{__name__=~{names},instance=~{instances}}}"), meanwhile, &mut samples)?;
    }
    gather::run(&samples, ask).ok_or_else(nothing)
}

/// What selects the series of the subject; several where it has many pods.
fn matchers(ask: &Ask) -> Vec<String> {
    match ask.subject.kind {
        SubjectKind::Node => vec![format!("node_name={}", quoted(&ask.subject.name))],
        SubjectKind::Unit => vec![format!("unit={}", quoted(&ask.subject.name))],
        _ => {
            let uids: BTreeSet<&str> = ask.pods.iter().map(String::as_str).collect();
            let uids: Vec<&str> = uids.into_iter().collect();
            uids.chunks(MANY).map(|some| format!("pod_id=~{}", any_of(some.iter().copied()))).collect()
        }
    }
}
