//! What the controller follows of the cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use energy_cluster::kinds::{self, ClusterNode, EndpointSlice};
use energy_cluster::kubernetes::{ClusterError, Credentials};
use energy_cluster::objects::{Known, ObjectKey};
use energy_files::log_limit::LogLimit;
use energy_model::meter_state::Reason;
use energy_model::resources::object::KubeObject;
use tokio::sync::watch::Receiver;
use tracing::{info, warn};

use super::fleet::Fleet;
use crate::config::ControllerArgs;

pub type ObjectsByKey = BTreeMap<ObjectKey, Arc<KubeObject>>;

pub struct Sources {
    budgets: Receiver<Known<KubeObject>>,
    levels: Receiver<Known<KubeObject>>,
    policies: Receiver<Known<KubeObject>>,
    frequencies: Receiver<Known<KubeObject>>,
    nodes: Receiver<Known<ClusterNode>>,
    slices: Receiver<Known<EndpointSlice>>,
    climatik: Option<ClimatikSources>,
    news: BTreeMap<&'static str, News>,
}

struct ClimatikSources {
    policies: Receiver<Known<KubeObject>>,
    frequencies: Receiver<Known<KubeObject>>,
}

/// What was said of a source in the log.
#[derive(Default)]
struct News {
    limit: LogLimit<Reason>,
    failing: bool,
}

/// Objects as they are at a tick.
#[derive(Clone)]
pub struct SeenCluster {
    pub budgets: Arc<ObjectsByKey>,
    pub levels: Arc<ObjectsByKey>,
    /// `None`: they were never told, as where the role does not allow it.
    pub policies: Option<Arc<ObjectsByKey>>,
    pub frequencies: Arc<ObjectsByKey>,
    /// `None`: they are not followed.
    pub climatik: Option<SeenClimatik>,
}

/// Climatik's objects; `None`: they were never told.
#[derive(Clone)]
pub struct SeenClimatik {
    pub policies: Option<Arc<ObjectsByKey>>,
    pub frequencies: Option<Arc<ObjectsByKey>>,
}

impl Sources {
    pub fn follow(config: &ControllerArgs, credentials: &Credentials) -> Self {
        Self {
            budgets: kinds::follow_budgets(credentials.clone()),
            levels: kinds::follow_levels(credentials.clone()),
            policies: kinds::follow_policies(credentials.clone()),
            frequencies: kinds::follow_frequencies(credentials.clone()),
            nodes: kinds::follow_nodes(credentials.clone()),
            slices: kinds::follow_endpoint_slices(credentials.clone(), &config.namespace, &config.service),
            climatik: config.climatik_bridge.then(|| ClimatikSources {
                policies: kinds::follow_climatik_policies(credentials.clone()),
                frequencies: kinds::follow_climatik_frequencies(credentials.clone(), &config.climatik_namespace),
            }),
            news: BTreeMap::new(),
        }
    }

    /// Waits for a change of a budget, a policy or a level.
    pub async fn changed(&mut self) {
        let ended = tokio::select! {
            changed = self.budgets.changed() => changed.is_err(),
            changed = self.policies.changed() => changed.is_err(),
            changed = self.levels.changed() => changed.is_err(),
        };
        if ended {
            // The runtime ends.
            std::future::pending::<()>().await;
        }
    }

    /// Takes in what is there now; `None`: some of it has never been told.
    pub fn see(&mut self, fleet: &mut Fleet) -> Option<SeenCluster> {
        self.say();
        let nodes = self.nodes.borrow_and_update();
        fleet.follow_nodes(nodes.objects.as_ref()?);
        drop(nodes);
        let slices = self.slices.borrow_and_update();
        fleet.follow_agents(slices.objects.as_ref()?.values().flat_map(|slice| slice.agents()));
        drop(slices);
        let budgets = self.budgets.borrow_and_update().objects.clone()?;
        let levels = self.levels.borrow_and_update().objects.clone()?;
        let policies = self.policies.borrow_and_update().objects.clone().map(Arc::new);
        let frequencies = self.frequencies.borrow_and_update().objects.clone().unwrap_or_default();
        let climatik = self.climatik.as_mut().map(|theirs| SeenClimatik {
            policies: theirs.policies.borrow_and_update().objects.clone().map(Arc::new),
            frequencies: theirs.frequencies.borrow_and_update().objects.clone().map(Arc::new),
        });
        Some(SeenCluster {
            budgets: Arc::new(budgets),
            levels: Arc::new(levels),
            policies,
            frequencies: Arc::new(frequencies),
            climatik,
        })
    }

    /// The budgets as they were told last.
    pub fn budgets(&self) -> ObjectsByKey {
        self.budgets.borrow().objects.clone().unwrap_or_default()
    }

    pub fn has_policies(&self) -> bool {
        self.policies.borrow().objects.as_ref().is_some_and(|objects| !objects.is_empty())
    }

    /// What keeps each source from being followed, by its name, and what helps where its kind is absent.
    fn states(&self) -> Vec<(&'static str, &'static str, Option<ClusterError>)> {
        const INSTALL: &str = "install the kinds: energy-agent policy crd | kubectl apply --server-side -f -";
        const CLIMATIK: &str = "install Climatik's kinds: kubectl apply -f deploy/components/climatik/kinds.yaml";
        let mut states = vec![
            ("ClusterPowerBudgets", INSTALL, self.budgets.borrow().trouble.clone()),
            ("PowerLevels", INSTALL, self.levels.borrow().trouble.clone()),
            ("PowerCappingPolicies", INSTALL, self.policies.borrow().trouble.clone()),
            ("NodeFrequencies", INSTALL, self.frequencies.borrow().trouble.clone()),
            ("Nodes", "", self.nodes.borrow().trouble.clone()),
            ("EndpointSlices", "", self.slices.borrow().trouble.clone()),
        ];
        if let Some(ClimatikSources { policies, frequencies }) = &self.climatik {
            states.push(("Climatik's PowerCappingPolicies", CLIMATIK, policies.borrow().trouble.clone()));
            states.push(("Climatik's NodeFrequencies", CLIMATIK, frequencies.borrow().trouble.clone()));
        }
        states
    }

    /// The same, for people.
    pub fn troubles(&self) -> Vec<String> {
        self.states().into_iter().filter_map(|(.., trouble)| Some(trouble?.to_string())).collect()
    }

    /// Says once what is in the way, and when it no longer is.
    fn say(&mut self) {
        for (what, if_absent, trouble) in self.states() {
            let news = self.news.entry(what).or_default();
            match trouble {
                Some(trouble) => {
                    if news.limit.is(trouble.reason, Instant::now()) {
                        let remedy = if trouble.reason == Reason::Absent { if_absent } else { "" };
                        warn!(
                            reason = trouble.reason.as_str(),
                            problem = %trouble.advice.or_remedy(remedy),
                            "{what} cannot be followed; what was told last holds"
                        );
                    }
                    news.failing = true;
                }
                None if std::mem::take(&mut news.failing) => info!("{what} are followed again"),
                None => {}
            }
        }
    }
}

/// The time as objects have it.
pub fn time() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

/// Since the program began.
pub fn uptime(now: Instant) -> Duration {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    now.saturating_duration_since(*BEGAN)
}
