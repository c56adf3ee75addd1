//! Where the selection comes from: flags below the environment below a file below a ConfigMap, the last two followed
//! while the agent runs. What cannot be had is said once, and what was in force stays.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::config::{Config, EbpfMode};
use crate::export::configmap::{self, Change};
use crate::export::layers::{Layers, Place};
use crate::export::metrics;
use crate::export::own::SelfMetrics;
use crate::export::selection::Selection;
use crate::export::settings::{Setting, Settings, terms};
use crate::export::settings_file;

/// Time between two looks at the file.
const LOOK: Duration = Duration::from_millis(500);
/// A changed file must read the same after this time: an editor may be in the middle of writing it.
const SETTLE: Duration = Duration::from_millis(50);

/// The selection as it is at present.
#[derive(Clone, Debug, Default)]
pub struct InForce {
    pub selection: Selection,
    /// What was asked for and could not be had, if anything.
    pub problem: Option<String>,
}

/// Follows the places that settings come from.
#[derive(Debug)]
pub struct SelectionSource {
    layers: Layers,
    file: Option<PathBuf>,
    /// For messages.
    configmap: String,
    /// The API server has answered: what it said holds while it is away.
    answered: bool,
    /// What the file had when it was last looked at.
    seen: Option<Result<Vec<(String, String)>, String>>,
    publish: watch::Sender<Arc<InForce>>,
    own: Arc<SelfMetrics>,
}

/// What the flags and the environment say.
///
/// # Errors
/// As [`Settings::read`] and [`Selection::new`]; followed by all metrics where a name was not known.
pub fn at_start(config: &Config) -> Result<Settings, String> {
    let flags = Settings {
        levels: Some(Setting { value: config.levels.clone(), by: "--export.levels".to_owned() }),
        metrics: Some(Setting { value: terms(&config.metrics), by: "--export.metrics".to_owned() }),
        ..Settings::default()
    };
    let variables = Settings::variables().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
    let environment = Settings::read(&variables.collect::<Vec<_>>(), "in the environment")?;
    let base = flags.below(&environment);
    match Selection::new(&base, metrics::ALL, config.ebpf != EbpfMode::Off) {
        Ok(_) => Ok(base),
        Err(problem) if problem.contains("names no metric") => {
            let names = metrics::ALL.iter().filter(|metric| metric.level.is_some()).map(|metric| metric.name);
            Err(format!("{problem}\nmetrics: {}", names.collect::<Vec<_>>().join(", ")))
        }
        Err(problem) => Err(problem),
    }
}

impl SelectionSource {
    /// Reads the file, if there is one. `base` is what [`at_start`] found, `processes` whether they can be accounted.
    pub fn open(config: &Config, base: Settings, processes: bool, own: Arc<SelfMetrics>) -> Self {
        let mut layers = Layers::new(base, processes);
        let configmap = config.export_configmap.as_ref().map(configmap::title).unwrap_or_default();
        let mut first = InForce::default();
        if !configmap.is_empty() {
            // Until the API server has answered, what is in force is not what was asked for; that alone is no news.
            layers.update(Place::ConfigMap, Err(format!("{configmap}: not read yet")));
            first.problem = layers.problem();
        }
        let (publish, _) = watch::channel(Arc::new(first));
        let mut source =
            Self { layers, file: config.export_config.clone(), configmap, answered: false, seen: None, publish, own };
        if let Some(file) = source.file.clone() {
            source.found_file(&file, settings_file::read(&file));
        } else {
            source.publish();
        }
        source
    }

    #[must_use]
    pub fn in_force(&self) -> watch::Receiver<Arc<InForce>> {
        self.publish.subscribe()
    }

    /// Follows the file and what happens to the ConfigMap, for ever.
    pub async fn follow(mut self, mut changes: mpsc::Receiver<Change>) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick(), if self.file.is_some() => self.look().await,
                Some(change) = changes.recv() => self.found_configmap(change),
                else => return,
            }
        }
    }

    /// Looks at the file; one that changed is read until it stays the same.
    async fn look(&mut self) {
        let Some(file) = self.file.clone() else { return };
        let read = || {
            let file = file.clone();
            // A file system that hangs must not stop the web server.
            tokio::task::spawn_blocking(move || settings_file::read(&file))
        };
        let Ok(mut found) = read().await else { return };
        while self.seen.as_ref() != Some(&found) {
            tokio::time::sleep(SETTLE).await;
            match read().await {
                Ok(again) if again == found => self.found_file(&file, again),
                Ok(again) => found = again,
                Err(_) => return,
            }
        }
    }

    fn found_file(&mut self, file: &Path, found: Result<Vec<(String, String)>, String>) {
        self.seen = Some(found.clone());
        let place = format!("in {}", file.display());
        self.update(Place::File, found.and_then(|entries| Settings::read(&entries, &place)));
    }

    fn found_configmap(&mut self, change: Change) {
        match change {
            Change::Found(entries) => {
                self.answered = true;
                let said = Settings::read(&entries, &format!("in {}", self.configmap));
                self.update(Place::ConfigMap, said);
            }
            Change::Gone => {
                self.answered = true;
                info!(configmap = self.configmap, "not there; file, environment and flags say what is exported");
                self.update(Place::ConfigMap, Ok(Settings::default()));
            }
            Change::Trouble(problem) if self.answered => {
                warn!(configmap = self.configmap, %problem, "not to be read at present, what it last said holds");
            }
            Change::Trouble(problem) => self.update(Place::ConfigMap, Err(format!("{}: {problem}", self.configmap))),
        }
    }

    fn update(&mut self, place: Place, said: Result<Settings, String>) {
        if let Ok(settings) = &said
            && !settings.ignored.is_empty()
        {
            info!(keys = settings.ignored.join(", "), "the old Kepler's, without a meaning here");
        }
        self.layers.update(place, said);
        self.publish();
    }

    /// Publishes and says what is different from before.
    fn publish(&self) {
        let now = InForce { selection: self.layers.selection().clone(), problem: self.layers.problem() };
        let before = self.publish.send_replace(Arc::new(now.clone()));
        if now.selection != before.selection {
            info!(selection = now.selection.text(), "export");
            self.own.export_changed(SystemTime::now());
        }
        match (&now.problem, &before.problem) {
            (Some(problem), before) if before.as_ref() != Some(problem) => {
                warn!(%problem, "the export stays as it was: {}", now.selection.text());
            }
            (None, Some(_)) => info!("all export settings are in force"),
            _ => {}
        }
        self.own.export_valid(now.problem.is_none());
    }
}
