//! Follows all sources at once and publishes the active policies: soon after a change, and once for several.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use energy_cluster::configmaps::{self, ConfigMapValue, KnownConfigMaps, Which};
use energy_cluster::kubernetes::{ClusterError, Credentials};
use energy_cluster::resources::{self, KnownObjects, Objects};
use energy_export::self_metrics::SelfMetrics;
use energy_files::config_file::FileError;
use energy_files::log_limit::LogLimit;
use energy_files::reader::{FileReader, NoAnswer};
use energy_files::reload::Reload;
use energy_files::stable_read::{self, Look};
use energy_model::capping::source::ActivePolicies;
use energy_model::capping::status::DocumentPlace;
use energy_model::meter_state::Reason;
use energy_model::resources::object::KubeObject;
use energy_model::resources::power_capping_policy;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tracing::{info, warn};

use super::files::{self, SourceError};
use super::store::{Documents, PolicyStore};
use crate::config::{Config, Resources};

/// Time between two looks at the file.
const LOOK: Duration = Duration::from_millis(500);
/// After a change, others that belong to it may follow.
const SETTLE: Duration = Duration::from_millis(150);
/// Shortest time between two publications.
const PACE: Duration = Duration::from_millis(500);
/// Most problems that one change writes to the log; all of them are in what is published.
const LOGGED: usize = 10;

/// The source of this number, and what it says now.
type SourceAnswer = (usize, Result<Documents, SourceError>);

/// Follows what `--capping.policy`, `--capping.configmap` and `--capping.configmap-selector` name, and objects if
/// `--capping.resources` says so, in tasks of the current runtime that go on until nobody listens.
#[must_use]
pub fn start(config: &Config, own: &Arc<SelfMetrics>) -> watch::Receiver<Arc<ActivePolicies>> {
    let file = config.capping_policy.clone();
    let named = config.capping_configmap.clone().map(Which::Named);
    let labelled = config.capping_selector.clone().map(Which::Labelled);
    let maps: Vec<Which> = named.into_iter().chain(labelled).collect();
    let mut titles: Vec<String> = file.iter().map(|path| format!("file {}", path.display())).collect();
    let first_map = titles.len();
    titles.extend(maps.iter().map(Which::title));
    let follows_objects = config.capping_resources != Resources::Off;
    let of_objects = titles.len();
    titles.extend(follows_objects.then(|| "PowerCappingPolicies".to_owned()));
    let book = PolicyStore::new(&titles, config.capping_resources.most());
    let (publish, in_force) = watch::channel(Arc::new(book.in_force()));
    let (tell, told) = mpsc::channel(16);
    if let Some(path) = file {
        tokio::spawn(follow_file(path, 0, tell.clone(), Arc::clone(own)));
    }
    for (source, which) in (first_map..).zip(maps) {
        let credentials = Credentials::find(config.cluster.kubeconfig.as_deref());
        tokio::spawn(follow_maps(configmaps::start(credentials, &which), which, source, tell.clone()));
    }
    if follows_objects {
        let credentials = Credentials::find(config.cluster.kubeconfig.as_deref());
        let told = resources::start(credentials, &resources::Followable::All(power_capping_policy::PLURAL));
        tokio::spawn(follow_objects(told, of_objects, tell.clone()));
    }
    let speaker = Speaker { before: Arc::clone(&in_force.borrow()), news: LogLimit::default() };
    tokio::spawn(run(book, told, publish, speaker));
    in_force
}

/// What a source has said since the last publication.
#[derive(Default)]
struct Latest {
    documents: Option<Documents>,
    /// Came after the documents.
    failure: Option<SourceError>,
}

impl Latest {
    fn hear(&mut self, said: Result<Documents, SourceError>) {
        match said {
            Ok(documents) => *self = Self { documents: Some(documents), failure: None },
            Err(failure) => self.failure = Some(failure),
        }
    }
}

async fn run(
    mut book: PolicyStore,
    mut told: mpsc::Receiver<SourceAnswer>,
    publish: watch::Sender<Arc<ActivePolicies>>,
    mut speaker: Speaker,
) {
    let mut last = None;
    while let Some((source, said)) = told.recv().await {
        let mut latest: BTreeMap<usize, Latest> = BTreeMap::new();
        latest.entry(source).or_default().hear(said);
        let now = Instant::now();
        let due = last.map_or(now, |last: Instant| last + PACE).max(now + SETTLE);
        while let Ok(Some((source, said))) = timeout_at(due, told.recv()).await {
            latest.entry(source).or_default().hear(said);
        }
        // Reading a large document takes longer than the web server may stand still.
        let noted = spawn_blocking(move || {
            for (source, Latest { documents, failure }) in latest {
                if let Some(documents) = documents {
                    book.tell(source, documents);
                }
                if let Some(SourceError { reason, message }) = failure {
                    book.fail(source, reason, message);
                }
            }
            let in_force = book.in_force();
            (book, in_force)
        });
        // The runtime ends.
        let Ok((noted, in_force)) = noted.await else { return };
        book = noted;
        if in_force == **publish.borrow() {
            continue;
        }
        let in_force = Arc::new(in_force);
        speaker.say(&in_force);
        publish.send_replace(in_force);
        last = Some(Instant::now());
    }
    // With no source to follow, what was published holds.
    publish.closed().await;
}

async fn follow_file(path: PathBuf, source: usize, tell: mpsc::Sender<SourceAnswer>, own: Arc<SelfMetrics>) {
    own.count_lost_readings("policies");
    let title = path.display().to_string();
    let reader = FileReader::default();
    let mut seen = None;
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reload = Reload::subscribe();
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = reload.asked() => {}
        }
        let path = path.clone();
        let (now, said) =
            match stable_read::look(&reader, |found| seen.as_ref() == Some(found), move || files::read(&path)).await {
                Look::Same => continue,
                Look::Found(said) => (Some(said.clone()), said),
                Look::Changing => {
                    let message = format!("{title}: it changes at each reading; write it less often");
                    let failure = SourceError { reason: Reason::Changing, message };
                    (Some(Err(failure.clone())), Err(failure))
                }
                Look::Lost(lost) => {
                    if lost == NoAnswer::GivenUp {
                        own.lost_reading("policies");
                    }
                    // Whatever it answers next, is news.
                    (
                        None,
                        Err(SourceError {
                            reason: Reason::Unreadable,
                            message: format!("{title}: {}", FileError::Hangs),
                        }),
                    )
                }
            };
        seen = now;
        if tell.send((source, said)).await.is_err() {
            return;
        }
    }
}

async fn follow_maps(
    mut told: watch::Receiver<KnownConfigMaps>,
    which: Which,
    source: usize,
    tell: mpsc::Sender<SourceAnswer>,
) {
    told.mark_changed();
    let mut known = BTreeSet::new();
    while told.changed().await.is_ok() {
        let KnownConfigMaps { maps, trouble } = told.borrow_and_update().clone();
        if let Some(maps) = maps {
            let documents = documents(which.namespace(), &maps, &known);
            known = documents.keys().cloned().collect();
            if tell.send((source, files::within_limits(&which.title(), documents))).await.is_err() {
                return;
            }
        }
        if let Some(trouble) = trouble {
            let failure = SourceError { reason: trouble.reason, message: trouble.to_string() };
            if tell.send((source, Err(failure))).await.is_err() {
                return;
            }
        }
    }
}

async fn follow_objects(mut told: watch::Receiver<KnownObjects>, source: usize, tell: mpsc::Sender<SourceAnswer>) {
    told.mark_changed();
    let (mut before, mut failing): (Option<Arc<Objects>>, bool) = (None, false);
    while told.changed().await.is_ok() {
        let KnownObjects { objects, trouble } = told.borrow_and_update().clone();
        if let Some(objects) = objects.filter(|objects| failing || before.as_ref() != Some(objects)) {
            before = Some(Arc::clone(&objects));
            let document = |((namespace, name), object): (&resources::Name, &Arc<KubeObject>)| {
                let (namespace, name) = (namespace.clone(), name.clone());
                let place = DocumentPlace::Object { kind: power_capping_policy::KIND, namespace, name };
                (place, Ok(Arc::from(object.spec.to_string())))
            };
            if tell.send((source, Ok(objects.iter().map(document).collect()))).await.is_err() {
                return;
            }
        }
        failing = trouble.is_some();
        if let Some(ClusterError { reason, advice }) = trouble {
            let advice = match reason {
                Reason::Absent => {
                    advice.or_remedy("install it: energy-agent policy crd | kubectl apply --server-side -f -")
                }
                _ => advice,
            };
            if tell.send((source, Err(SourceError { reason, message: advice.to_string() }))).await.is_err() {
                return;
            }
        }
    }
}

/// The documents in ConfigMaps: every key in `data`, and of `binaryData` those that are `known` or named as documents are. A
/// logo beside policies is not one.
fn documents(
    namespace: &str,
    maps: &BTreeMap<String, Arc<configmaps::Data>>,
    known: &BTreeSet<DocumentPlace>,
) -> Documents {
    let mut documents = Documents::new();
    for (name, data) in maps {
        let mut found = Documents::new();
        for (key, content) in &**data {
            let place =
                DocumentPlace::ConfigMap { namespace: namespace.to_owned(), name: name.clone(), key: key.clone() };
            let text = match content {
                ConfigMapValue::Text(text) => Ok(Arc::clone(text)),
                ConfigMapValue::Binary(_) if !files::is_document(key) && !known.contains(&place) => continue,
                ConfigMapValue::Binary(text) => text.clone().ok_or_else(|| configmaps::not_text().to_owned()),
            };
            found.insert(place, text);
        }
        if found.values().flatten().map(|text| text.len()).sum::<usize>() > files::MAX_BYTES {
            found.values_mut().for_each(|text| *text = Err(files::too_large()));
        }
        documents.append(&mut found);
    }
    documents
}

/// Writes changes to the log.
struct Speaker {
    before: Arc<ActivePolicies>,
    news: LogLimit<Reason>,
}

impl Speaker {
    fn say(&mut self, now: &Arc<ActivePolicies>) {
        let before = std::mem::replace(&mut self.before, Arc::clone(now));
        for (state, before) in now.sources.iter().zip(&before.sources) {
            let (source, detail) = (&*state.source, &*state.detail);
            if (state.up, state.reason) == (before.up, before.reason) {
                continue;
            }
            match (state.up, state.reason) {
                (true, Reason::Absent) => info!(source, "no policies found"),
                (true, _)
                    if !before.up
                        && before.reason != Reason::Connecting
                        && self.news.is(Reason::Ok, Instant::now().into_std()) =>
                {
                    info!(source, found = detail, "policies can be read again");
                }
                (true, _) => {}
                (false, Reason::Absent) if self.news.is(Reason::Absent, Instant::now().into_std()) => {
                    info!(source, problem = detail, "objects cannot be followed yet; everything else goes on");
                }
                (false, reason) if self.news.is(reason, Instant::now().into_std()) => {
                    warn!(
                        source,
                        reason = reason.as_str(),
                        problem = detail,
                        "policies cannot be read, the previous version stays active"
                    );
                }
                (false, _) => {}
            }
        }
        for source in changed_documents(&before, now) {
            let policies = now.policies.values().filter(|sourced| sourced.source == *source).count();
            match policies {
                0 => info!(%source, "its policies were deleted"),
                _ => info!(%source, policies, "policies loaded"),
            }
        }
        let news: Vec<_> = now.problems.iter().filter(|problem| !before.problems.contains(problem)).collect();
        for problem in news.iter().take(LOGGED) {
            let policy = problem.policy.as_ref().map_or_else(|| "the whole document".to_owned(), ToString::to_string);
            let outcome = if problem.kept { "refused, the previous version stays active" } else { "refused" };
            warn!(source = %problem.place, policy, problem = problem.message, "{outcome}");
        }
        if news.len() > LOGGED {
            warn!(problems = news.len(), logged = LOGGED, "more policies are refused, /policies lists all of them");
        }
        if now.problems.is_empty() && !before.problems.is_empty() {
            info!("no policy is refused any more");
        }
    }
}

/// Documents whose active policies have changed.
fn changed_documents<'a>(before: &'a ActivePolicies, now: &'a ActivePolicies) -> BTreeSet<&'a Arc<str>> {
    let differences = |one: &'a ActivePolicies, other: &'a ActivePolicies| {
        one.policies
            .iter()
            .filter(|(name, sourced)| other.policies.get(*name) != Some(sourced))
            .map(|(_, sourced)| &sourced.source)
    };
    differences(before, now).chain(differences(now, before)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_right_after_an_edit_does_not_lose_the_edit() {
        let failure = SourceError { reason: Reason::Unreachable, message: String::new() };
        let mut latest = Latest::default();
        latest.hear(Ok(Documents::new()));
        latest.hear(Err(failure.clone()));
        assert_eq!((&latest.documents, &latest.failure), (&Some(Documents::new()), &Some(failure)));
        latest.hear(Ok(Documents::new()));
        assert_eq!(latest.failure, None);
    }

    #[test]
    fn a_configmap_that_is_too_large_loses_none_of_its_keys() {
        let large: Arc<str> = "x".repeat(files::MAX_BYTES).into();
        let keys = [("a.yaml", large), ("b.yaml", Arc::from("x"))];
        let data = keys.map(|(key, text)| (key.to_owned(), ConfigMapValue::Text(text)));
        let maps = BTreeMap::from([("p".to_owned(), Arc::new(BTreeMap::from(data)))]);
        let documents = documents("energy", &maps, &BTreeSet::new());
        assert_eq!(documents.into_values().collect::<Vec<_>>(), [Err(files::too_large()), Err(files::too_large())]);
    }
}
