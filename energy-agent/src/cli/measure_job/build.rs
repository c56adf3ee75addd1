//! What the cluster knows of a run, put into its figures.

use energy_cluster::job::{Course, JobDocument, JobKind, PodRun, PodState, RunEnd, Submitted};
use energy_report::energy::Window;
use energy_report::gather::Ask;
use energy_report::run::{MeasuredBy, Outcome, PodPart, Run, Subject, SubjectKind, Waited};
use ring::digest::{SHA256, digest};

use crate::cli::report::unix_now;

/// The clocks of the cluster and of whoever reads the agents may differ by this much. No other pod has the uid.
const SKEW_S: f64 = 60.0;

/// What is asked of the source of figures.
pub(super) fn ask(id: &str, document: &JobDocument, submitted: &Submitted, course: &Course, direct: bool) -> Ask {
    let pods = course.pods();
    let start = pods.iter().filter_map(|pod| pod.started).reduce(f64::min);
    let end = pods.iter().filter_map(|pod| pod.finished).reduce(f64::max);
    let now = unix_now();
    let from = submitted.created.or(start).unwrap_or(now) - SKEW_S;
    Ask {
        id: id.to_owned(),
        subject: Subject {
            kind: match submitted.kind {
                JobKind::Job => SubjectKind::Job,
                JobKind::Pod => SubjectKind::Pod,
            },
            namespace: Some(submitted.namespace.clone()),
            name: submitted.name.clone(),
            class: Some(document.class().to_owned()),
            command_line: Vec::new(),
            digest: Some(work_digest(document, &pods)),
        },
        by: if direct { MeasuredBy::Agent } else { MeasuredBy::Prometheus },
        window: Window { from, to: now },
        ran: start.map(|start| (start, end.unwrap_or(now).max(start))),
        pods: pods.into_iter().map(|pod| pod.uid).collect(),
    }
}

/// SHA-256 over the images and what they are told to do. An image counts as the node has resolved it, as a tag may move.
fn work_digest(document: &JobDocument, pods: &[PodRun]) -> String {
    let mut text = String::new();
    for [name, image, command, args] in document.containers() {
        let resolved = pods.iter().flat_map(|pod| &pod.images).find(|(of, _)| name == of.as_str());
        let image = resolved.map_or_else(|| image.to_string(), |(_, id)| id.clone());
        text += &format!("{image} {command} {args}\n");
    }
    let sum = digest(&SHA256, text.as_bytes());
    let hex: String = sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Adds what only the cluster knows.
pub(super) fn complete(run: &mut Run, submitted: &Submitted, course: &Course, end: &RunEnd) {
    let (queue_seconds, image_seconds) = course.waited(submitted.created);
    run.waited = Some(Waited { queue_seconds, image_seconds });
    let pods = course.pods();
    // A Job that completed may have pods that failed before.
    let succeeded = *end == RunEnd::Complete;
    let mut codes = pods.iter().rev().filter_map(|pod| pod.exit_code);
    run.outcome = Some(Outcome {
        succeeded,
        exit_code: codes.find(|code| (*code == 0) == succeeded),
        reason: end.reason().to_owned(),
    });
    // Each pod is a row, as the cluster tells of it; a pod without figures has used nothing that was seen.
    let parts = std::mem::take(&mut run.pods);
    run.pods = pods.iter().filter(|pod| pod.started.is_some()).map(|pod| row(pod, &parts, run)).collect();
}

fn row(pod: &PodRun, parts: &[PodPart], run: &Run) -> PodPart {
    let part = parts.iter().find(|part| part.name == pod.name || part.name == pod.uid);
    PodPart {
        name: pod.name.clone(),
        node: pod.node.clone(),
        start: pod.started.unwrap_or(run.start),
        end: pod.finished.unwrap_or(run.end),
        microjoules: part.map_or(0, |part| part.microjoules),
        estimated_microjoules: part.map_or(0, |part| part.estimated_microjoules),
        phase: match &pod.state {
            PodState::Succeeded => "Succeeded",
            PodState::Failed { .. } => "Failed",
            PodState::Running | PodState::Waiting(_) => "Running",
        }
        .to_owned(),
    }
}
