//! The rounds of the controller: asking, deciding, writing, and telling what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use energy_cluster::api::{Api, ApiError};
use energy_cluster::https::HttpLogin;
use energy_cluster::kubernetes::Credentials;
use energy_cluster::prometheus::PromqlClient;
use energy_export::budgets::view::View;
use energy_files::log_limit::LogLimit;
use energy_model::meter_state::Reason;
use energy_model::resources::power_level::PowerLevelSpec;
use energy_model::resources::{cluster_power_budget, power_capping_policy};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep_until, timeout};
use tracing::{info, warn};

use super::budgets::{Laws, Round, Tick};
use super::climatik::Bridge;
use super::fleet::Fleet;
use super::hearing::{HeardRound, Hearing, NO_POLICIES};
use super::leader::{Leader, Step};
use super::levels::LevelPlan;
use super::queries::{self, Readings};
use super::shown::ShownRounds;
use super::sources::{SeenCluster, Sources, time, uptime};
use super::totals::{DecidedPolicy, Totals};
use super::writer::{ClusterWriter, Intentions};
use super::{budget_status, node_status, policy_status};
use crate::config::ControllerArgs;

/// Passwords and tokens are read anew.
const LOGIN: Duration = Duration::from_secs(60);
/// Between two decisions outside of rounds.
const CALM: Duration = Duration::from_millis(250);
/// How long the end waits for the Lease to be given up.
const FAREWELL: Duration = Duration::from_secs(1);

pub struct Rounds {
    config: ControllerArgs,
    api: Arc<Api>,
    hearing: Hearing,
    sources: Sources,
    fleet: Fleet,
    budgets: Laws,
    totals: Totals,
    leader: Leader,
    prometheus: Option<PromqlClient>,
    readings: Readings,
    /// Why the last round has heard of no node.
    deaf: Option<String>,
    /// When the files with passwords and tokens were read.
    logged_in: Option<Instant>,
    writer: ClusterWriter,
    /// From Climatik's objects to ours.
    bridge: Option<Bridge>,
    shown: ShownRounds,
    publish: watch::Sender<Arc<View>>,
    /// Generations of all budgets and policies, by uid, at the last decision.
    decided: Vec<(String, i64)>,
    /// Before this, edits wait: many of them cost no more than some.
    calm: Instant,
    lease_news: LogLimit<Reason>,
}

impl Rounds {
    pub fn new(
        config: &ControllerArgs,
        credentials: &Credentials,
        identity: String,
        publish: watch::Sender<Arc<View>>,
    ) -> Result<Self> {
        ensure!(
            config.lease_duration >= config.interval * 3,
            "--controller.lease-duration={:?} is less than three intervals of {:?}: a leader could not keep its Lease",
            config.lease_duration,
            config.interval
        );
        // The leader stops writing at two thirds of the Lease's duration: a request is over by then.
        let patience = (config.lease_duration / 3).min(Duration::from_secs(5));
        let api = Arc::new(Api::new(credentials.clone(), patience));
        let leader = Leader::new(config.namespace.clone(), config.lease.clone(), identity, config.lease_duration);
        let prometheus = config.prometheus.as_deref().map(|url| PromqlClient::new(url, &config.prometheus_tls()));
        let prometheus = prometheus.transpose().map_err(anyhow::Error::msg).context("--controller.prometheus")?;
        let mut rounds = Self {
            hearing: Hearing::new(config, prometheus.as_ref())?,
            sources: Sources::follow(config, credentials),
            fleet: Fleet::default(),
            budgets: Laws::default(),
            totals: Totals::default(),
            writer: ClusterWriter::new(Arc::clone(&api), config.namespace.clone(), leader.identity().to_owned()),
            bridge: config.climatik_bridge.then(|| Bridge::new(Arc::clone(&api), leader.identity().to_owned())),
            leader,
            prometheus,
            deaf: None,
            logged_in: None,
            readings: Readings::default(),
            api,
            config: config.clone(),
            shown: ShownRounds::default(),
            publish,
            decided: Vec::new(),
            calm: Instant::now(),
            lease_news: LogLimit::default(),
        };
        rounds.log_in().map_err(anyhow::Error::msg)?;
        Ok(rounds)
    }

    /// Reads the files with passwords and tokens, unless they were read a short time ago.
    fn log_in(&mut self) -> Result<(), String> {
        if self.logged_in.is_some_and(|at| at.elapsed() < LOGIN) {
            return Ok(());
        }
        self.logged_in = Some(Instant::now());
        let header = |login: Option<HttpLogin>| login.map(|login| login.header()).transpose();
        let of_prometheus = header(self.config.prometheus_login())?;
        match &mut self.hearing {
            Hearing::Agents(agents) => agents.log_in(header(self.config.agents_login())?),
            Hearing::Prometheus(prometheus) => prometheus.log_in(of_prometheus.clone()),
        }
        if let Some(prometheus) = &mut self.prometheus {
            prometheus.log_in(of_prometheus);
        }
        Ok(())
    }

    /// Goes on until the end is asked for, then gives the Lease up.
    pub async fn run(mut self, mut ended: oneshot::Receiver<()>) {
        let mut due = Instant::now();
        loop {
            let calm = self.calm;
            let edited = async {
                sleep_until(calm.into()).await;
                self.sources.changed().await;
            };
            let full = tokio::select! {
                () = sleep_until(due.into()) => true,
                () = edited => false,
                _ = &mut ended => break,
            };
            if full {
                self.round().await;
                due = self.next(due);
            } else if self.leader.leads(Instant::now()) && self.is_other() {
                // A budget or policy was edited or deleted: nobody waits for the next round.
                self.decide_and_write().await;
            }
        }
        if let Some(lease) = self.leader.farewell(SystemTime::now()) {
            let _ = timeout(FAREWELL, self.api.replace(&self.lease_path(), &lease)).await;
        }
    }

    /// When the round after the one of `due` is due: a replica that waits looks at the Lease more often than a leader renews it.
    fn next(&self, due: Instant) -> Instant {
        let waits = self.config.lease_duration * 2 / 15;
        let pause = if self.leader.has_term() { self.config.interval } else { waits.min(self.config.interval) };
        (due + pause).max(Instant::now() + pause / 4)
    }

    /// Whether a budget or policy is not as it was at the last decision.
    fn is_other(&mut self) -> bool {
        self.sources.see(&mut self.fleet).is_some_and(|seen| generations(&seen) != self.decided)
    }

    async fn round(&mut self) {
        if let Err(problem) = self.log_in()
            && self.lease_news.is(Reason::Config, Instant::now())
        {
            warn!(problem, "a password or token cannot be read; the one before is used");
        }
        let asked = self.fleet.round();
        // A replica that never led asks nobody but the API server.
        let has_term = self.leader.has_term();
        let patience = self.query_patience();
        let hearing = self.hearing.clone();
        let polls = async { if has_term { Some(hearing.round(asked, patience).await) } else { None } };
        // One that does not know the cluster yet can't lead.
        let knows = self.sources.see(&mut self.fleet).is_some();
        let lease = async {
            if knows { lease_round(&mut self.leader, &self.api, &self.config).await } else { Ok(LeaseTurn::Same) }
        };
        let (prometheus, budgets) = (self.prometheus.clone(), self.sources.budgets());
        let queries = async {
            if has_term { queries::ask(prometheus.as_ref(), &budgets, patience).await } else { Readings::default() }
        };
        let (heard, outcome, readings) = tokio::join!(polls, lease, queries);
        self.readings = readings;
        if let Some(heard) = heard {
            self.take(heard);
        }
        match outcome {
            Ok(LeaseTurn::Same) => {}
            Ok(LeaseTurn::Taken) => self.begin().await,
            Ok(LeaseTurn::Lost) => {
                warn!(lease = self.config.lease, "another replica leads now; this one waits");
            }
            Err(trouble) => self.say(&trouble, "the Lease cannot be read or renewed"),
        }
        self.decide_and_write().await;
    }

    /// How long a round waits for nodes and for Prometheus.
    fn query_patience(&self) -> Duration {
        (self.config.interval / 2).min(Duration::from_secs(2))
    }

    /// What was heard of the nodes; that nothing was is said once.
    fn take(&mut self, heard: HeardRound) {
        let deaf = heard.trouble().map(str::to_owned);
        match (&deaf, &self.deaf) {
            (Some(problem), None) => {
                warn!(problem, "Prometheus does not say what nodes draw; levels stay as they are")
            }
            (None, Some(_)) => info!("Prometheus says again what nodes draw"),
            _ => {}
        }
        self.deaf = deaf;
        heard.tell(&mut self.fleet, Instant::now());
    }

    /// The lead was taken: levels go on from where they are, under a later epoch.
    async fn begin(&mut self) {
        match self.writer.begin(self.leader.transitions(), self.sources.see(&mut self.fleet)).await {
            Ok(levels) => {
                info!(epoch = self.writer.epoch(), identity = self.leader.identity(), "this replica leads");
                let (mut of_budgets, mut of_policies) = (BTreeMap::new(), BTreeMap::new());
                for object in &levels {
                    let Ok(level) = object.spec::<PowerLevelSpec>() else { continue };
                    let name = level.subject.name.clone();
                    match level.subject.kind.as_str() {
                        cluster_power_budget::KIND => drop(of_budgets.insert(name, level)),
                        power_capping_policy::KIND => {
                            drop(of_policies.insert((object.metadata.namespace.clone(), name), level));
                        }
                        _ => {}
                    }
                }
                self.budgets.begin(of_budgets);
                self.totals.begin(of_policies);
                // Nothing is decided before the nodes were heard of, and queries were asked.
                let patience = self.query_patience();
                let budgets = self.sources.budgets();
                let (heard, readings) = tokio::join!(
                    self.hearing.round(self.fleet.round(), self.config.interval / 2),
                    queries::ask(self.prometheus.as_ref(), &budgets, patience),
                );
                self.readings = readings;
                self.take(heard);
            }
            Err(trouble) => {
                self.say(&trouble, "the levels cannot be listed; this replica does not lead yet");
                self.leader.lost();
            }
        }
    }

    /// Once for each kind of trouble.
    fn say(&mut self, trouble: &ApiError, what: &str) {
        let reason = if let ApiError::Failed(trouble) = trouble { trouble.reason } else { Reason::Error };
        if self.lease_news.is(reason, Instant::now()) {
            warn!(lease = self.config.lease, problem = trouble.message(), "{what}");
        }
    }

    async fn decide_and_write(&mut self) {
        let started = Instant::now();
        let Some(seen) = self.sources.see(&mut self.fleet) else {
            self.tell(None, Duration::ZERO);
            return;
        };
        if !self.leader.has_term() {
            self.tell(None, Duration::ZERO);
            return;
        }
        self.decided = generations(&seen);
        let levels = self.writer.levels(&seen);
        let tick = Tick {
            now: started,
            uptime: uptime(started),
            wall: SystemTime::now(),
            patience: self.config.patience(),
            is_deaf: self.deaf.is_some(),
            raise_every: self.config.raise_every(),
            namespace: &self.config.namespace,
            readings: &self.readings,
            levels: &levels,
        };
        let round = self.budgets.decide(&seen.budgets, &mut self.fleet, &tick);
        let policies = seen.policies.as_ref().filter(|_| self.hearing.knows_pods());
        let policies = policies.map(|objects| self.totals.decide(objects, &self.fleet, &tick, self.config.interval));
        let decision = started.elapsed();
        if self.leader.leads(Instant::now()) {
            let until = self.leader.until();
            let intentions = self.intentions(&round, policies.as_deref(), &seen);
            let seen = SeenCluster { levels: Arc::new(levels), ..seen };
            if self.writer.write(intentions, &seen, until).await.is_err() {
                warn!("a later leader has written a level; this replica waits");
                self.leader.lost();
            } else if let Some(bridge) = &mut self.bridge {
                bridge.follow(&seen, policies.as_deref().unwrap_or_default(), until).await;
            }
        }
        self.calm = Instant::now() + CALM.min(self.config.interval / 4);
        self.tell(Some((&round, policies.as_deref().unwrap_or_default())), decision);
    }

    /// How levels and status should be.
    fn intentions(&self, round: &Round, policies: Option<&[DecidedPolicy]>, seen: &SeenCluster) -> Intentions {
        let mut levels = LevelPlan::default();
        levels.add_budgets(round, &seen.budgets, &self.config.namespace);
        let mut statuses = budget_status::drafts(round, &time());
        if let Some(policies) = policies {
            levels.add_policies(policies);
            statuses.extend(policies.iter().map(|decided| policy_status::draft(decided, &time())));
        }
        if self.hearing.knows_pods() {
            statuses.extend(node_status::drafts(&seen.frequencies, &self.fleet, SystemTime::now()));
        }
        Intentions { levels, statuses, nodes: self.fleet.nodes.len() }
    }

    fn tell(&mut self, round: Option<(&Round, &[DecidedPolicy])>, decision: Duration) {
        let mut troubles = self.sources.troubles();
        troubles.extend(self.deaf.clone());
        troubles.extend((!self.hearing.knows_pods() && self.sources.has_policies()).then(|| NO_POLICIES.to_owned()));
        troubles.extend(self.writer.trouble().map(str::to_owned));
        troubles.extend(self.bridge.as_ref().and_then(Bridge::trouble).map(str::to_owned));
        let leads = self.leader.leads(Instant::now());
        let leader = self.leader.holder().filter(|holder| !holder.is_empty()).map(str::to_owned);
        let mut view = self.shown.view(round, &self.fleet, self.config.patience());
        view.identity = self.leader.identity().to_owned();
        (view.leader, view.leads, view.epoch) = (leader, leads, self.writer.epoch());
        (view.decision, view.troubles) = (decision, troubles);
        self.writer.count(&mut view.counts);
        self.publish.send_replace(Arc::new(view));
    }

    fn lease_path(&self) -> String {
        lease_path(&self.config)
    }
}

/// How leadership stands after a look at the Lease.
enum LeaseTurn {
    Same,
    Taken,
    Lost,
}

fn lease_path(config: &ControllerArgs) -> String {
    format!("{}/{}", lease_collection(config), config.lease)
}

fn lease_collection(config: &ControllerArgs) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", config.namespace)
}

/// Renews the Lease, or looks whether it can be taken.
async fn lease_round(leader: &mut Leader, api: &Api, config: &ControllerArgs) -> Result<LeaseTurn, ApiError> {
    let path = lease_path(config);
    let asked = Instant::now();
    if let Some(lease) = leader.renewal(SystemTime::now()) {
        return match api.replace(&path, &lease).await {
            Ok(lease) => {
                leader.wrote(asked, &lease);
                Ok(LeaseTurn::Same)
            }
            // Taken, or deleted: in the next round it is looked at anew.
            Err(ApiError::Conflict | ApiError::Absent) => {
                leader.lost();
                Ok(LeaseTurn::Lost)
            }
            Err(error) => Err(error),
        };
    }
    let lease = match api.get(&path).await {
        Ok(lease) => Some(lease),
        Err(ApiError::Absent) => None,
        Err(error) => return Err(error),
    };
    let asked = Instant::now();
    let written = match leader.plan(asked, lease.as_ref(), SystemTime::now()) {
        Step::Wait => return Ok(LeaseTurn::Same),
        Step::Create(lease) => api.create(&lease_collection(config), &lease).await,
        Step::Replace(lease) => api.replace(&path, &lease).await,
    };
    match written {
        Ok(lease) => {
            leader.wrote(asked, &lease);
            Ok(LeaseTurn::Taken)
        }
        // Another replica was faster.
        Err(ApiError::Conflict | ApiError::Absent) => Ok(LeaseTurn::Same),
        Err(error) => Err(error),
    }
}

fn generations(seen: &SeenCluster) -> Vec<(String, i64)> {
    let generation = |object: &Arc<energy_model::resources::object::KubeObject>| {
        (object.metadata.uid.clone(), object.metadata.generation)
    };
    let policies = seen.policies.iter().flat_map(|policies| policies.values());
    seen.budgets.values().chain(policies).map(generation).collect()
}
