//! The figures of a run from Prometheus: after its end they are waited for, as they come with the next scrape.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use energy_cluster::job::Course;
use energy_report::gather::Ask;
use energy_report::run::Run;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::progress::Progress;
use crate::cli::report::prometheus::{Prometheus, any_of};
use crate::cli::report::{source, unix_now};
use crate::cli::run_problem::RunProblem;

const PAUSE: Duration = Duration::from_secs(1);
/// An agent keeps ended pods for two minutes by default; a scrape later than that has nothing of them.
const PATIENCE: Duration = Duration::from_secs(150);
/// An agent that is not seen for so long is not scraped.
const UNSEEN: Duration = Duration::from_secs(30);
/// A pod that has no series so long after its end, while its agent is seen, will not get one.
const SETTLED_S: f64 = 20.0;

/// Whether the server has agents at all: else the run would be for nothing.
pub(super) fn check(prometheus: &Prometheus) -> Result<(), RunProblem> {
    if prometheus.query("count(energy_agent_ticks_total)", unix_now())?.is_empty() {
        let text = format!(
            "Prometheus at {} has no metrics of an energy-agent at the moment; have it scrape the agents (docs/install.md)",
            prometheus.url
        );
        return Err(RunProblem::NotMeasured(text));
    }
    Ok(())
}

/// The run, once the last totals of its pods are there.
pub(super) async fn run(
    prometheus: &Arc<Prometheus>,
    mut ask: Ask,
    course: &Course,
    progress: &mut Progress,
) -> Result<Run, RunProblem> {
    let began = Instant::now();
    // Pods that ran, with their node and their end.
    let mut waiting: BTreeMap<String, (String, f64)> = course
        .pods()
        .into_iter()
        .filter(|pod| pod.started.is_some())
        .map(|pod| (pod.uid, (pod.node, pod.finished.unwrap_or_else(unix_now))))
        .collect();
    while began.elapsed() < PATIENCE {
        // A server that is away comes back, or the last question says what is wrong.
        if let Ok((ended, pages)) = look(prometheus, &waiting).await {
            waiting.retain(|uid, (node, end)| {
                let page = pages.get(node).copied().unwrap_or_default();
                !ended.contains_key(uid) && page < *end + SETTLED_S
            });
            if waiting.is_empty() {
                break;
            }
            // One scrape may fail, and its agent is not there then.
            let unseen = waiting.values().find(|(node, _)| !pages.contains_key(node));
            if let Some((node, _)) = unseen.filter(|_| began.elapsed() >= UNSEEN) {
                return Err(RunProblem::NotMeasured(format!(
                    "Prometheus at {} has no energy-agent of node {node}; see that an agent runs there and is scraped",
                    prometheus.url
                )));
            }
        }
        progress.wait("ended; Prometheus has yet to scrape its last total", began.elapsed());
        sleep(PAUSE).await;
    }
    ask.window.to = unix_now();
    let prometheus = Arc::clone(prometheus);
    spawn_blocking(move || source::run(&prometheus, &ask)).await.context("asking Prometheus")?
}

/// Pods whose last total is there, and when the agents of their nodes were scraped last.
async fn look(
    prometheus: &Arc<Prometheus>,
    waiting: &BTreeMap<String, (String, f64)>,
) -> Result<(BTreeMap<String, f64>, BTreeMap<String, f64>), RunProblem> {
    let ended = query(prometheus, &ended_pods(waiting), "pod_id").await?;
    Ok((ended, query(prometheus, &last_pages(waiting), "node_name").await?))
}

fn ended_pods(waiting: &BTreeMap<String, (String, f64)>) -> String {
    let uids = any_of(waiting.keys().map(String::as_str));
    let metrics = "kepler_pod_cpu_joules_total|kepler_pod_gpu_joules_total";
    format!("count by (pod_id) ({{__name__=~\"{metrics}\",state=\"terminated\",pod_id=~{uids}}})")
}

fn last_pages(waiting: &BTreeMap<String, (String, f64)>) -> String {
    let nodes = any_of(waiting.values().map(|(node, _)| node.as_str()));
    format!("max by (node_name) (timestamp(kepler_build_info{{node_name=~{nodes}}}))")
}

/// Value by label.
async fn query(
    prometheus: &Arc<Prometheus>,
    query: &str,
    label: &'static str,
) -> Result<BTreeMap<String, f64>, RunProblem> {
    let (prometheus, query) = (Arc::clone(prometheus), query.to_owned());
    let asked = spawn_blocking(move || prometheus.query(&query, unix_now())).await;
    let series = asked.context("asking Prometheus")??;
    let labelled = series.into_iter().filter_map(|(labels, value)| Some((labels.get(label)?.clone(), value)));
    Ok(labelled.collect())
}
