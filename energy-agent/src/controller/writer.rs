//! Writes to the API server: levels under an epoch, the Lease that shows nodes a living controller, status, and Events. A write
//! that fails stops no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use energy_cluster::api::{Api, ApiError};
use energy_cluster::kinds;
use energy_cluster::objects::ObjectKey;
use energy_export::budgets::view::Counts;
use energy_files::log_limit::LogLimit;
use energy_model::meter_state::Reason;
use energy_model::resources::LEVELS_LEASE;
use energy_model::resources::object::KubeObject;
use energy_model::resources::power_level::PowerLevelSpec;
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::json;
use tokio::time::timeout_at;
use tracing::warn;

use super::levels::{LevelPlan, LevelWrite, Write};
use super::sources::{SeenCluster, time};
use super::statuses::{self, StatusDraft, StatusWrite, Statuses};

/// Requests at the same time.
const AT_ONCE: usize = 32;
/// Nodes count from when they saw it change; the shortest patience that a budget can have is 30 s.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// How levels and status should be after a round.
pub struct Intentions {
    pub levels: LevelPlan,
    pub statuses: Vec<StatusDraft>,
    /// In the cluster.
    pub nodes: usize,
}

/// A later leader has written: nothing more may be written.
#[derive(Debug)]
pub struct Deposed;

pub struct ClusterWriter {
    api: Arc<Api>,
    namespace: String,
    identity: String,
    epoch: i64,
    /// What was written and the watch has not told yet: by key the version that the watch told before, and what there is now.
    written: BTreeMap<ObjectKey, (Option<String>, Option<Arc<KubeObject>>)>,
    statuses: Statuses,
    /// Version of the Lease of levels, and when it was renewed.
    sign: Option<(String, Instant)>,
    counts: Counts,
    news: LogLimit<Reason>,
    trouble: Option<String>,
}

impl ClusterWriter {
    pub fn new(api: Arc<Api>, namespace: String, identity: String) -> Self {
        Self {
            api,
            namespace,
            identity,
            epoch: 0,
            written: BTreeMap::new(),
            statuses: Statuses::default(),
            sign: None,
            counts: Counts::default(),
            news: LogLimit::default(),
            trouble: None,
        }
    }

    pub const fn epoch(&self) -> i64 {
        self.epoch
    }

    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Adds what was written so far.
    pub fn count(&self, counts: &mut Counts) {
        let Counts { writes, failed_writes, conflicts, terms, .. } = self.counts;
        *counts = Counts { writes, failed_writes, conflicts, terms, ..*counts };
    }

    /// A term begins: the epoch rises above all that was ever written. Returns the levels there are.
    pub async fn begin(
        &mut self,
        transitions: i64,
        seen: Option<SeenCluster>,
    ) -> Result<Vec<Arc<KubeObject>>, ApiError> {
        let listed = self.api.list(&kinds::levels()).await?;
        let levels: Vec<Arc<KubeObject>> = listed.into_iter().map(Arc::new).collect();
        let epochs = levels.iter().filter_map(|object| object.spec["epoch"].as_i64());
        self.epoch = epochs.chain([transitions, self.epoch]).max().unwrap_or(0).saturating_add(1);
        self.counts.terms += 1;
        self.sign = None;
        self.written.clear();
        for object in &levels {
            let key = (object.metadata.namespace.clone(), object.metadata.name.clone());
            self.wrote(seen.as_ref(), key, Some(Arc::clone(object)));
        }
        Ok(levels)
    }

    /// The levels there are: as the watch says, or as they were written since.
    pub fn levels(&mut self, seen: &SeenCluster) -> BTreeMap<ObjectKey, Arc<KubeObject>> {
        let mut levels = (*seen.levels).clone();
        self.written.retain(|key, (before, now)| {
            let told = levels.get(key).map(|object| object.metadata.resource_version.clone());
            if told != *before {
                return false;
            }
            match now {
                Some(object) => drop(levels.insert(key.clone(), Arc::clone(object))),
                None => drop(levels.remove(key)),
            }
            true
        });
        levels
    }

    /// Writes what the round asks for, until the term is over.
    ///
    /// # Errors
    /// When a later leader has written a level.
    pub async fn write(&mut self, intentions: Intentions, seen: &SeenCluster, until: Instant) -> Result<(), Deposed> {
        self.trouble = None;
        // What the watch itself has told, for what is written now.
        let told = seen.clone();
        let mut seen = seen.clone();
        // A second time for those whose version was not the last one.
        for _ in 0..2 {
            let writes = intentions.levels.writes(&seen.levels, self.epoch, &time());
            if writes.is_empty() {
                break;
            }
            let (lower, raise) = writes.into_iter().partition(|write| write.lowers);
            for writes in [lower, raise] {
                self.write_levels(writes, &told, until).await?;
            }
            let merged = self.merged(&told);
            seen.levels = Arc::new(merged);
        }
        self.show_life(until).await;
        let statuses = self.statuses.writes(intentions.statuses, intentions.nodes, Instant::now());
        self.write_statuses(statuses, until).await;
        Ok(())
    }

    fn merged(&self, told: &SeenCluster) -> BTreeMap<ObjectKey, Arc<KubeObject>> {
        let mut levels = (*told.levels).clone();
        for (key, (_, now)) in &self.written {
            match now {
                Some(object) => drop(levels.insert(key.clone(), Arc::clone(object))),
                None => drop(levels.remove(key)),
            }
        }
        levels
    }

    async fn write_levels(
        &mut self,
        writes: Vec<LevelWrite>,
        told: &SeenCluster,
        until: Instant,
    ) -> Result<(), Deposed> {
        let api = Arc::clone(&self.api);
        let one = |write: LevelWrite| {
            let api = Arc::clone(&api);
            async move {
                let answer = timeout_at(until.into(), request(&api, &write.write)).await;
                (write, answer.unwrap_or(Err(ApiError::Conflict)))
            }
        };
        let outcomes: Vec<_> = stream::iter(writes).map(one).buffer_unordered(AT_ONCE).collect().await;
        if Instant::now() >= until {
            return Err(Deposed);
        }
        for (write, outcome) in outcomes {
            let key = write.key.clone();
            match outcome {
                Ok(object) => {
                    self.counts.writes += 1;
                    self.wrote(Some(told), key, object.map(Arc::new));
                }
                Err(ApiError::Failed(trouble)) => self.failed(&shown(&key), &ApiError::Failed(trouble)),
                Err(error) => {
                    if error == ApiError::Conflict {
                        self.counts.conflicts += 1;
                    } else if error != ApiError::Absent {
                        self.failed(&shown(&key), &error);
                    }
                    self.look_again(&write, key, told).await?;
                }
            }
        }
        Ok(())
    }

    /// Somebody else has written the level: a later leader, or somebody who may not.
    async fn look_again(&mut self, write: &LevelWrite, key: ObjectKey, told: &SeenCluster) -> Result<(), Deposed> {
        let path = match &write.write {
            Write::Create { collection, .. } => format!("{collection}/{}", key.1),
            Write::Replace { path, .. } | Write::Delete { path } => path.clone(),
        };
        match self.api.get(&path).await {
            Ok(object) => {
                let epoch = object.spec::<PowerLevelSpec>().map_or(0, |level| level.epoch);
                if epoch > self.epoch {
                    return Err(Deposed);
                }
                self.wrote(Some(told), key, Some(Arc::new(object)));
            }
            Err(ApiError::Absent) => self.wrote(Some(told), key, None),
            Err(error) => self.failed(&shown(&key), &error),
        }
        Ok(())
    }

    fn wrote(&mut self, told: Option<&SeenCluster>, key: ObjectKey, object: Option<Arc<KubeObject>>) {
        let before = told.and_then(|told| told.levels.get(&key)).map(|object| object.metadata.resource_version.clone());
        self.written.insert(key, (before, object));
    }

    /// The Lease that nodes look at: it changes as long as somebody writes levels.
    async fn show_life(&mut self, until: Instant) {
        if self.sign.as_ref().is_some_and(|(_, at)| at.elapsed() < SIGN_OF_LIFE) {
            return;
        }
        let collection = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace);
        let path = format!("{collection}/{LEVELS_LEASE}");
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": self.namespace, "name": LEVELS_LEASE},
            "spec": {
                "holderIdentity": self.identity,
                "renewTime": humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
            },
        });
        let renew = async {
            let version = match self.sign.take() {
                Some((version, _)) => Some(version),
                None => match self.api.get(&path).await {
                    Ok(lease) => Some(lease.metadata.resource_version),
                    Err(ApiError::Absent) => None,
                    Err(error) => return Err(error),
                },
            };
            match version {
                Some(version) => {
                    lease["metadata"]["resourceVersion"] = json!(version);
                    self.api.replace(&path, &lease).await
                }
                None => self.api.create(&collection, &lease).await,
            }
        };
        match timeout_at(until.into(), renew).await {
            Ok(Ok(lease)) => {
                self.counts.writes += 1;
                self.sign = Some((lease.metadata.resource_version, Instant::now()));
            }
            // Read anew in the next round.
            Ok(Err(ApiError::Conflict | ApiError::Absent)) => self.counts.conflicts += 1,
            Ok(Err(error)) => self.failed(LEVELS_LEASE, &error),
            Err(_) => {}
        }
    }

    async fn write_statuses(&mut self, writes: Vec<StatusWrite>, until: Instant) {
        let api = Arc::clone(&self.api);
        let identity = self.identity.clone();
        let one = |write: StatusWrite| {
            let (api, identity) = (Arc::clone(&api), identity.clone());
            async move {
                let both = async {
                    let outcome = api.patch_status(&write.path, &write.patch).await.map(drop);
                    let mut posted = 0_u64;
                    if outcome.is_ok() {
                        for news in write.news.iter().filter(|news| statuses::is_news(&write.object, news)) {
                            let at = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
                            let (collection, event) = statuses::event(&write, news, &identity, number(), &at);
                            let created = api.create(&collection, &event).await;
                            posted += u64::from(created.is_ok());
                        }
                    }
                    (outcome, posted)
                };
                let (outcome, posted) = timeout_at(until.into(), both).await.unwrap_or((Err(ApiError::Conflict), 0));
                (write, outcome, posted)
            }
        };
        let outcomes: Vec<_> = stream::iter(writes).map(one).buffer_unordered(AT_ONCE).collect().await;
        for (write, outcome, posted) in outcomes {
            self.counts.writes += posted;
            match outcome {
                Ok(()) => self.counts.writes += 1,
                // Edited or deleted meanwhile: the next round knows the new version.
                Err(ApiError::Conflict | ApiError::Absent) => self.counts.conflicts += 1,
                Err(error) => self.failed(&write.path, &error),
            }
        }
    }

    fn failed(&mut self, what: &str, error: &ApiError) {
        self.counts.failed_writes += 1;
        let (ApiError::Failed(trouble) | ApiError::Invalid(trouble)) = error else { return };
        if self.news.is(trouble.reason, Instant::now()) {
            warn!(object = what, problem = %trouble, "an object can't be written; the others are");
        }
        self.trouble = Some(format!("{what}: {trouble}"));
    }
}

/// A level as people know it.
fn shown((namespace, name): &ObjectKey) -> String {
    format!("PowerLevel {namespace}/{name}")
}

/// For names of Events, which have to differ.
pub fn number() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

async fn request(api: &Api, write: &Write) -> Result<Option<KubeObject>, ApiError> {
    match write {
        Write::Create { collection, object } => api.create(collection, object).await.map(Some),
        Write::Replace { path, object } => api.replace(path, object).await.map(Some),
        Write::Delete { path } => match api.delete(path).await {
            Ok(()) | Err(ApiError::Absent) => Ok(None),
            Err(error) => Err(error),
        },
    }
}
