//! ClusterPowerBudgets that select this node, with the level of each and the signs of life of its writer: what the tick
//! thread follows. All budgets are watched; the node, levels and Leases by their names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use energy_cluster::kubernetes::{ClusterError, Credentials};
use energy_cluster::resources::{self, Followable, KnownObjects};
use energy_model::capping::knob::Knob;
use energy_model::capping::policy::{Authority, Mode, PolicyName};
use energy_model::capping::status::{DocumentPlace, Problem, SourceState};
use energy_model::follower::{FollowedBudget, Seen};
use energy_model::meter_state::Reason;
use energy_model::resources::cluster_power_budget::{self, ClusterPowerBudgetSpec, LossLimit};
use energy_model::resources::node_frequencies::{self, NodeFrequenciesSpec};
use energy_model::resources::object::{KubeObject, Metadata};
use energy_model::resources::power_level::{self, PowerLevelSpec};
use k8s_openapi::jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::config::Config;

/// What the cluster says of budgets, and whether it can be asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownBudgets {
    pub seen: Seen,
    pub problems: Vec<Problem>,
    pub sources: Vec<SourceState>,
    pub bounds: Vec<Bound>,
}

/// A clock that a recommender asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    pub knob: Knob,
    /// In the unit of the knob.
    pub value: u64,
    /// It ends by itself then.
    pub expires: Option<Timestamp>,
}

/// The bounds that have not expired; of two for one knob the lower.
#[must_use]
pub fn bounds_at(bounds: &[Bound], now: Timestamp) -> BTreeMap<Knob, u64> {
    let mut valid = BTreeMap::new();
    for bound in bounds.iter().filter(|bound| bound.expires.is_none_or(|expires| now < expires)) {
        let value = valid.entry(bound.knob.clone()).or_insert(bound.value);
        *value = bound.value.min(*value);
    }
    valid
}

/// The tick thread's ends.
pub struct BudgetsEnd {
    pub told: watch::Receiver<Arc<KnownBudgets>>,
    /// Policies of scope Total that select a pod of this node: only their levels are followed.
    pub totals: watch::Sender<BTreeSet<PolicyName>>,
}

/// Follows them in a task of the current runtime that goes on until nobody listens.
#[must_use]
pub fn start(config: &Config, node: Arc<str>) -> BudgetsEnd {
    let (publish, told) = watch::channel(Arc::default());
    let (totals, wanted) = watch::channel(BTreeSet::new());
    let watching = Watching::new(config, node, wanted);
    tokio::spawn(watching.run(publish));
    BudgetsEnd { told, totals }
}

/// One watch, whose news wake the task.
struct Followed {
    told: watch::Receiver<KnownObjects>,
    forward: JoinHandle<()>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.forward.abort();
    }
}

impl Followed {
    fn start(credentials: Option<Credentials>, which: &Followable, news: &Arc<Notify>) -> Self {
        let told = resources::start(credentials, which);
        let (mut heard, news) = (told.clone(), Arc::clone(news));
        let forward = tokio::spawn(async move {
            while heard.changed().await.is_ok() {
                news.notify_one();
            }
        });
        Self { told, forward }
    }

    fn known(&self) -> KnownObjects {
        self.told.borrow().clone()
    }

    /// The only object; and whether the server has said whether there is one.
    fn only(&self) -> (Option<Arc<KubeObject>>, bool) {
        let KnownObjects { objects, .. } = self.known();
        let answered = objects.is_some();
        (objects.and_then(|objects| objects.values().next().cloned()), answered)
    }
}

/// What is watched by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WatchedName {
    Level { namespace: String, name: String },
    Lease(String),
}

struct Watching {
    credentials: Option<Credentials>,
    node: Arc<str>,
    /// Where the levels of budgets and the Leases of their writers are.
    namespace: String,
    most: Mode,
    news: Arc<Notify>,
    budgets: Followed,
    of_node: Followed,
    frequencies: Followed,
    totals: watch::Receiver<BTreeSet<PolicyName>>,
    /// Levels and Leases.
    named: BTreeMap<WatchedName, Followed>,
    /// The last version of each budget that could be read.
    good: BTreeMap<String, Arc<ClusterPowerBudgetSpec>>,
}

impl Watching {
    fn new(config: &Config, node: Arc<str>, totals: watch::Receiver<BTreeSet<PolicyName>>) -> Self {
        let credentials = Credentials::find(config.cluster.kubeconfig.as_deref());
        let news = Arc::new(Notify::new());
        let budgets = Followed::start(credentials.clone(), &Followable::All(cluster_power_budget::PLURAL), &news);
        let of_node = Followed::start(credentials.clone(), &Followable::Node(node.to_string()), &news);
        let name = node.to_string();
        let which = Followable::Named { plural: node_frequencies::PLURAL, namespace: String::new(), name };
        let frequencies = Followed::start(credentials.clone(), &which, &news);
        let (namespace, most) = (config.resources_namespace(), config.capping_resources.most());
        let (named, good) = (BTreeMap::new(), BTreeMap::new());
        Self { credentials, node, namespace, most, news, budgets, of_node, frequencies, totals, named, good }
    }

    async fn run(mut self, publish: watch::Sender<Arc<KnownBudgets>>) {
        loop {
            let now = self.look();
            let before = Arc::clone(&publish.borrow());
            if now != *before {
                say(&before, &now);
                publish.send_replace(Arc::new(now));
            }
            tokio::select! {
                () = self.news.notified() => {}
                Ok(()) = self.totals.changed() => {}
                () = publish.closed() => return,
            }
        }
    }

    /// What all watches say together.
    fn look(&mut self) -> KnownBudgets {
        let known = self.budgets.known();
        let (node, node_answered) = self.of_node.only();
        let labels = node.map(|node| node.metadata.labels.clone()).unwrap_or_default();
        let mut complete = known.objects.is_some() && node_answered;
        let mut problems = Vec::new();
        let objects = known.objects.clone().unwrap_or_default();
        let mut selected = Vec::new();
        let mut earlier = std::mem::take(&mut self.good);
        for ((_, name), object) in objects.iter() {
            let kept = earlier.remove(name);
            let spec = match object.spec::<ClusterPowerBudgetSpec>() {
                Ok(spec) => Some(Arc::new(spec)),
                Err(message) => {
                    problems.push(Problem {
                        policy: Some(budget_name(name)),
                        place: DocumentPlace::Object {
                            kind: cluster_power_budget::KIND,
                            namespace: String::new(),
                            name: name.clone(),
                        },
                        message,
                        kept: kept.is_some(),
                    });
                    kept
                }
            };
            let Some(spec) = spec else { continue };
            self.good.insert(name.clone(), Arc::clone(&spec));
            if spec.nodes.selects(&labels) {
                selected.push((name.clone(), object.metadata.uid.clone(), spec));
            }
        }
        let mut wanted = BTreeSet::new();
        let (mut subjects, mut leases) = (Vec::new(), BTreeMap::new());
        for (name, uid, spec) in selected {
            let key =
                WatchedName::Level { namespace: self.namespace.clone(), name: power_level::name_for_budget(&name) };
            let level = self.level(key, &budget_name(&name), &mut wanted, &mut complete, &mut problems);
            subjects.push(FollowedBudget {
                name: budget_name(&name),
                uid,
                mode: spec.mode.min(self.most),
                tier: spec.tier_of(&labels).to_owned(),
                loss: spec.loss_limit(),
                protect: spec.protect.clone(),
                level,
            });
        }
        let totals = self.totals.borrow_and_update().clone();
        for name in totals {
            let key = WatchedName::Level {
                namespace: name.namespace.to_string(),
                name: power_level::name_for_policy(&name.name),
            };
            let level = self.level(key, &name, &mut wanted, &mut complete, &mut problems);
            // It goes with its policy: its owner.
            let uid = level.as_ref().map(|level| level.subject.uid.clone()).unwrap_or_default();
            subjects.push(FollowedBudget {
                name,
                uid,
                mode: self.most,
                tier: String::new(),
                loss: LossLimit::Hold,
                protect: None,
                level,
            });
        }
        subjects.sort_by(|a, b| a.name.cmp(&b.name));
        for level in subjects.iter().filter_map(|subject| subject.level.as_ref()) {
            let key = WatchedName::Lease(level.lease_name.clone());
            let (lease, answered) = self.named(&key);
            complete &= answered;
            if let Some(lease) = lease {
                leases.insert(level.lease_name.clone(), lease.metadata.resource_version.clone());
            }
            wanted.insert(key);
        }
        let bounds = self.bounds(&mut problems);
        self.named.retain(|key, _| wanted.contains(key));
        let sources = vec![
            source("ClusterPowerBudgets", &known, |objects| {
                format!("budgets: {objects}, of this node: {}", subjects.len())
            }),
            source(&format!("Node {}", self.node), &self.of_node.known(), |objects| {
                format!("labels: {}, nodes: {objects}", labels.len())
            }),
        ];
        KnownBudgets { seen: Seen { subjects, leases, complete }, problems, sources, bounds }
    }

    /// What recommenders ask for. The clock of a core is that of the `cpufreq` policy with its number.
    fn bounds(&self, problems: &mut Vec<Problem>) -> Vec<Bound> {
        let (Some(object), _) = self.frequencies.only() else { return Vec::new() };
        let mut refused = |message| {
            let (kind, name) = (node_frequencies::KIND, object.metadata.name.clone());
            let place = DocumentPlace::Object { kind, namespace: String::new(), name };
            problems.push(Problem { policy: None, place, message, kept: false });
        };
        if object.spec.is_null() {
            return Vec::new();
        }
        let spec: NodeFrequenciesSpec = match object.spec() {
            Ok(spec) => spec,
            Err(message) => {
                refused(message);
                return Vec::new();
            }
        };
        let gpus = spec.gpu_frequencies.iter().map(|gpu| {
            (Knob::GpuClock(gpu.uuid.as_str().into()), u64::from(gpu.graphics_frequency), &gpu.expiration_time)
        });
        let cpus = spec
            .cpu_frequencies
            .iter()
            .map(|cpu| (Knob::CpuFrequency(cpu.core_id), u64::from(cpu.frequency) * 1000, &cpu.expiration_time));
        let mut bounds = Vec::new();
        for (knob, value, time) in gpus.chain(cpus) {
            match time.as_deref().map(str::parse::<Timestamp>).transpose() {
                Ok(expires) => bounds.push(Bound { knob, value, expires }),
                Err(_) => {
                    refused(format!("spec: the expirationTime of {knob} is not a time such as 2026-12-01T17:00:00Z"))
                }
            }
        }
        bounds
    }

    /// The level or Lease of this name, which is watched from now on.
    fn named(&mut self, key: &WatchedName) -> (Option<Arc<KubeObject>>, bool) {
        let followed = self.named.entry(key.clone()).or_insert_with(|| {
            let which = match key.clone() {
                WatchedName::Level { namespace, name } => {
                    Followable::Named { plural: power_level::PLURAL, namespace, name }
                }
                WatchedName::Lease(name) => Followable::Lease { namespace: self.namespace.clone(), name },
            };
            Followed::start(self.credentials.clone(), &which, &self.news)
        });
        followed.only()
    }

    /// The level of that name, which is watched from now on.
    fn level(
        &mut self,
        key: WatchedName,
        of: &PolicyName,
        wanted: &mut BTreeSet<WatchedName>,
        complete: &mut bool,
        problems: &mut Vec<Problem>,
    ) -> Option<PowerLevelSpec> {
        let (object, answered) = self.named(&key);
        wanted.insert(key);
        *complete &= answered;
        let object = object?;
        match object.spec() {
            Ok(level) => Some(level),
            Err(message) => {
                let Metadata { namespace, name, .. } = object.metadata.clone();
                let place = DocumentPlace::Object { kind: power_level::KIND, namespace, name };
                problems.push(Problem { policy: Some(of.clone()), place, message, kept: false });
                None
            }
        }
    }
}

fn budget_name(name: &str) -> PolicyName {
    PolicyName { authority: Authority::Budget, name: name.into(), ..PolicyName::default() }
}

/// `found` says what the number of objects means.
fn source(title: &str, known: &KnownObjects, found: impl Fn(usize) -> String) -> SourceState {
    let (up, reason, detail) = match (&known.trouble, &known.objects) {
        (Some(ClusterError { reason, advice }), _) => (false, *reason, advice.to_string()),
        (None, None) => (false, Reason::Connecting, "no answer yet".to_owned()),
        (None, Some(objects)) => (true, Reason::Ok, found(objects.len())),
    };
    SourceState { source: Arc::from(title), up, reason, detail }
}

/// Writes changes to the log.
fn say(before: &KnownBudgets, now: &KnownBudgets) {
    for (index, state) in now.sources.iter().enumerate() {
        let (source, detail) = (&*state.source, &*state.detail);
        let was = before.sources.get(index);
        if was.is_some_and(|was| (was.up, was.reason) == (state.up, state.reason)) {
            continue;
        }
        match (state.up, state.reason) {
            (_, Reason::Connecting) => {}
            (true, _) => info!(source, found = detail, "budgets of nodes are followed"),
            (false, Reason::Absent) => {
                info!(source, problem = detail, "objects cannot be followed yet; everything else goes on");
            }
            (false, reason) => {
                warn!(
                    source,
                    reason = reason.as_str(),
                    problem = detail,
                    "budgets of nodes cannot be followed; what was known holds"
                );
            }
        }
    }
    for problem in now.problems.iter().filter(|problem| !before.problems.contains(problem)) {
        let outcome = if problem.kept { "refused, the previous version stays active" } else { "refused" };
        warn!(source = %problem.place, problem = problem.message, "{outcome}");
    }
}
