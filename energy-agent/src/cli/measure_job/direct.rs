//! The figures of a run from the pages of the agents, read through the API server while it runs.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use energy_cluster::job::Course;
use energy_cluster::kubernetes::{ClusterError, Credentials};
use energy_cluster::proxies::AgentProxies;
use energy_export::parse::{self, ParsedSample};
use energy_report::gather::{self, Ask, agent_metrics, node_metrics, subject_metrics};
use energy_report::run::{Run, SubjectKind};
use energy_report::samples::{LAST_TICK, RawSeries, START, Samples};
use tokio::time::sleep;

use super::progress::Progress;
use crate::cli::agent_page;
use crate::cli::report::unix_now;
use crate::cli::run_problem::RunProblem;

/// Between two readings of a page: its totals are exact at any distance, only the curves have this detail.
const EVERY: Duration = Duration::from_secs(2);
/// After the end, the last total is on the page a few ticks later.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Direct {
    agents: AgentProxies,
    samples: Samples,
    /// When the object was created: no agent had its pods on a page before.
    created: f64,
    /// Nodes whose page was read.
    known: BTreeSet<String>,
    /// Pods whose last total was read.
    ended: BTreeSet<String>,
    /// Why a node's page could not be read last.
    troubles: BTreeMap<String, String>,
}

impl Direct {
    /// # Errors
    /// When there is no agent, or this account may not look for one.
    pub(super) async fn new(credentials: &Credentials, namespace: &str) -> Result<Self, ClusterError> {
        let agents = AgentProxies::new(credentials, namespace).await?;
        agents.check().await?;
        let (known, ended) = (BTreeSet::new(), BTreeSet::new());
        Ok(Self { agents, samples: Samples::default(), created: 0.0, known, ended, troubles: BTreeMap::new() })
    }

    /// The object was created now.
    pub(super) fn begin(&mut self, created: Option<f64>) {
        self.created = created.unwrap_or_else(unix_now);
    }

    /// Reads the pages of the nodes that the run's pods are on, for ever. Pods are uids with their nodes.
    pub(super) async fn follow(&mut self, pods: &RefCell<BTreeMap<String, String>>) -> Infallible {
        loop {
            sleep(EVERY).await;
            let now = pods.borrow().clone();
            self.read(&now).await;
        }
    }

    /// The run, once the last totals of its pods are there.
    pub(super) async fn run(
        &mut self,
        mut ask: Ask,
        course: &Course,
        progress: &mut Progress,
    ) -> Result<Run, RunProblem> {
        let began = Instant::now();
        let pods = course.pods().into_iter().filter(|pod| pod.started.is_some());
        let mut waiting: BTreeMap<String, String> = pods.map(|pod| (pod.uid, pod.node)).collect();
        loop {
            waiting.retain(|uid, _| !self.ended.contains(uid));
            if waiting.is_empty() || began.elapsed() >= PATIENCE {
                break;
            }
            self.read(&waiting).await;
            progress.wait("ended; its agent has yet to show its last total", began.elapsed());
            sleep(EVERY).await;
        }
        ask.window.to = unix_now();
        gather::run(&self.samples, &ask).ok_or_else(|| {
            let why = self.troubles.values().next().cloned();
            let why = why.unwrap_or_else(|| "the agents of its nodes show none of its pods".to_owned());
            RunProblem::NotMeasured(format!("{} was not measured: {why}", ask.subject.name))
        })
    }

    async fn read(&mut self, pods: &BTreeMap<String, String>) {
        let nodes: BTreeSet<&String> = pods.values().collect();
        for node in nodes {
            let page = self.agents.page(node).await.map_err(|error| error.to_string());
            let page = page.and_then(|text| {
                let samples = parse::samples(&text);
                samples.map_err(|_| format!("what answers on node {node} is no energy-agent"))
            });
            match page {
                Ok(page) => {
                    self.troubles.remove(node);
                    self.add(&page, pods);
                }
                Err(trouble) => drop(self.troubles.insert(node.clone(), trouble)),
            }
        }
    }

    fn add(&mut self, page: &[ParsedSample], pods: &BTreeMap<String, String>) {
        let at = agent_page::time(page);
        // Pages of several nodes are told apart as Prometheus does.
        let node =
            page.iter().find(|sample| sample.name == "kepler_build_info").map(|it| it.label("node_name").to_owned());
        let node = node.unwrap_or_default();
        if self.known.insert(node.clone()) {
            self.add_page_before(page, &node);
        }
        let of_pods = subject_metrics(SubjectKind::Job);
        let of_node: BTreeSet<&str> = node_metrics().into_iter().chain(agent_metrics()).collect();
        for sample in page {
            let is_pod = of_pods.contains(&sample.name.as_str()) && pods.contains_key(sample.label("pod_id"));
            if !is_pod && !of_node.contains(sample.name.as_str()) {
                continue;
            }
            if is_pod && sample.label("state") == "terminated" {
                self.ended.insert(sample.label("pod_id").to_owned());
            }
            let mut series = agent_page::series(sample, at);
            series.labels.insert("instance".to_owned(), node.clone());
            self.samples.add(series);
        }
    }

    /// An agent that is older than the object had a page without its pods then: what it counted of them, it saw from their
    /// beginning.
    fn add_page_before(&mut self, page: &[ParsedSample], node: &str) {
        let start = page.iter().find(|sample| sample.name == START).map(ParsedSample::number);
        let Some(start) = start.filter(|start| *start < self.created) else { return };
        let labels = BTreeMap::from([("instance".to_owned(), node.to_owned())]);
        for (name, value) in [(START, start), (LAST_TICK, self.created)] {
            let points = vec![(self.created, value)];
            self.samples.add(RawSeries { name: name.to_owned(), labels: labels.clone(), points });
        }
    }
}
