//! Where the selection comes from: flags below the environment below a file below a ConfigMap, the last two followed
//! while the agent runs. An error is logged once, and the previous selection stays active.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use energy_cluster::configmaps::{self, ConfigMapValue, Data, KnownConfigMaps, Which};
use energy_export::layers::{LayerSource, Layers};
use energy_export::selection::{ActiveSelection, Selection};
use energy_export::self_metrics::SelfMetrics;
use energy_export::settings::{self, Setting, Settings, terms, units};
use energy_export::{metrics, settings_file};
use energy_files::config_file::FileError;
use energy_files::log_limit::LogLimit;
use energy_files::reader::{self, FileReader, NoAnswer};
use energy_files::reload::Reload;
use energy_files::stable_read::{self, Look};
use energy_host::config::EbpfMode;
use energy_model::meter_state::Reason;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::config::Config;

/// Time between two looks at the file.
const LOOK: Duration = Duration::from_millis(500);

/// Follows the places that settings come from.
#[derive(Debug)]
pub struct SelectionSource {
    layers: Layers,
    file: Option<PathBuf>,
    /// For messages.
    configmap: String,
    /// What the API server said last; holds while it is away.
    told: KnownConfigMaps,
    news: LogLimit<Reason>,
    reader: FileReader,
    /// What the file had when it was last looked at.
    seen: Option<Result<Vec<(String, String)>, String>>,
    publish: watch::Sender<Arc<ActiveSelection>>,
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
        units: Some(Setting { value: units(&config.units, "--export.units")?, by: "--export.units".to_owned() }),
        ..Settings::default()
    };
    let variables = Settings::variables().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
    let environment = Settings::read(&variables.collect::<Vec<_>>(), "in the environment")?;
    let base = flags.below(&environment);
    match Selection::new(&base, metrics::ALL, config.host.ebpf != EbpfMode::Off) {
        Ok(_) => Ok(base),
        Err(refusal) if refusal.names_nothing => {
            let names = metrics::ALL.iter().filter(|metric| metric.level.is_some()).map(|metric| metric.name);
            Err(format!("{refusal}\nmetrics: {}", names.collect::<Vec<_>>().join(", ")))
        }
        Err(refusal) => Err(refusal.to_string()),
    }
}

impl SelectionSource {
    /// Reads the file, if there is one. `base` is what [`at_start`] found, `processes` whether they can be accounted.
    pub fn open(config: &Config, base: Settings, processes: bool, own: Arc<SelfMetrics>) -> Self {
        let mut layers = Layers::new(base, processes);
        let configmap = config.export_configmap.clone().map(|object| Which::Named(object).title()).unwrap_or_default();
        let mut first = ActiveSelection::default();
        if !configmap.is_empty() {
            // Until the API server has answered, the active selection is not the requested one; that alone is not logged.
            layers.update(LayerSource::ConfigMap, Err(format!("{configmap}: not read yet")));
            first.problem = layers.problem();
        }
        let (publish, _) = watch::channel(Arc::new(first));
        let (file, told, news) = (config.export_config.clone(), KnownConfigMaps::default(), LogLimit::default());
        let reader = FileReader::default();
        let mut source = Self { layers, file, configmap, told, news, reader, seen: None, publish, own };
        if let Some(file) = source.file.clone() {
            source.own.count_lost_readings("export_config");
            let path = file.clone();
            let found = reader::at_start(move || settings_file::read(&path));
            source.found_file(&file, found.unwrap_or_else(|fault| Err(format!("{}: {fault}", file.display()))));
        } else {
            source.publish();
        }
        source
    }

    #[must_use]
    pub fn in_force(&self) -> watch::Receiver<Arc<ActiveSelection>> {
        self.publish.subscribe()
    }

    /// Follows the file and the versions of the ConfigMap, for ever.
    pub async fn follow(mut self, mut told: Option<watch::Receiver<KnownConfigMaps>>) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        if let Some(told) = &mut told {
            told.mark_changed();
        }
        let mut reload = Reload::subscribe();
        loop {
            let is_told = async {
                match &mut told {
                    Some(told) => told.changed().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                _ = looks.tick(), if self.file.is_some() => self.look().await,
                () = reload.asked(), if self.file.is_some() => self.look().await,
                changed = is_told => match (changed, &mut told) {
                    (Ok(()), Some(receiver)) => {
                        let now = receiver.borrow_and_update().clone();
                        self.found_configmap(now);
                    }
                    // Its task has said all that it will.
                    _ => told = None,
                },
            }
        }
    }

    /// Looks at the file.
    async fn look(&mut self) {
        let Some(file) = self.file.clone() else { return };
        let path = file.clone();
        let is_seen = |found: &_| self.seen.as_ref() == Some(found);
        match stable_read::look(&self.reader, is_seen, move || settings_file::read(&path)).await {
            Look::Same => {}
            Look::Found(found) => self.found_file(&file, found),
            Look::Changing => {
                let problem = format!("{}: it changes at each reading; write it less often", file.display());
                self.found_file(&file, Err(problem));
            }
            Look::Lost(lost) => {
                if lost == NoAnswer::GivenUp {
                    self.own.lost_reading("export_config");
                }
                self.found_file(&file, Err(format!("{}: {}", file.display(), FileError::Hangs)));
            }
        }
    }

    fn found_file(&mut self, file: &Path, found: Result<Vec<(String, String)>, String>) {
        self.seen = Some(found.clone());
        let place = format!("in {}", file.display());
        self.update(LayerSource::File, found.and_then(|entries| Settings::read(&entries, &place)));
    }

    fn found_configmap(&mut self, now: KnownConfigMaps) {
        let before = std::mem::replace(&mut self.told, now);
        let KnownConfigMaps { maps, trouble } = &self.told;
        match (maps, trouble) {
            // A version that was refused before may now be the same as the active one.
            (Some(maps), None) => match maps.values().next() {
                Some(data) => {
                    let place = format!("in {}", self.configmap);
                    let said = entries(data, &place).and_then(|entries| Settings::read(&entries, &place));
                    self.update(LayerSource::ConfigMap, said);
                }
                None if before.maps.as_ref() == Some(maps) => {}
                None => {
                    info!(
                        configmap = self.configmap,
                        "the ConfigMap does not exist; file, environment and flags select what is exported"
                    );
                    self.update(LayerSource::ConfigMap, Ok(Settings::default()));
                }
            },
            (_, Some(trouble)) if !self.news.is(trouble.reason, Instant::now()) => {}
            (Some(_), Some(trouble)) => {
                let problem = trouble.to_string();
                warn!(configmap = self.configmap, %problem, "the ConfigMap cannot be read, the previous version stays active");
            }
            (None, Some(trouble)) => {
                let problem = format!("{}: {trouble}", self.configmap);
                self.update(LayerSource::ConfigMap, Err(problem));
            }
            (None, None) => {}
        }
    }

    fn update(&mut self, place: LayerSource, said: Result<Settings, String>) {
        if let Ok(settings) = &said
            && !settings.ignored.is_empty()
        {
            info!(keys = settings.ignored.join(", "), "keys of the old Kepler without a meaning here are ignored");
        }
        self.layers.update(place, said);
        self.publish();
    }

    /// Publishes and says what is different from before.
    fn publish(&self) {
        let now = ActiveSelection { selection: self.layers.selection().clone(), problem: self.layers.problem() };
        let before = self.publish.send_replace(Arc::new(now.clone()));
        if now.selection != before.selection {
            info!(selection = now.selection.text(), "export");
            self.own.export_changed(SystemTime::now());
        }
        match (&now.problem, &before.problem) {
            (Some(problem), before) if before.as_ref() != Some(problem) => {
                warn!(%problem, "the previous selection stays active: {}", now.selection.text());
            }
            (None, Some(_)) => info!("all export settings are active"),
            _ => {}
        }
        self.own.export_valid(now.problem.is_none());
    }
}

/// Keys and values. Of `binaryData` only the keys that are settings.
fn entries(data: &Data, place: &str) -> Result<Vec<(String, String)>, String> {
    let entry = |(key, content): (&String, &ConfigMapValue)| match content {
        ConfigMapValue::Text(text) => Some(Ok((key.clone(), text.to_string()))),
        ConfigMapValue::Binary(_) if !settings::is_key(key) => None,
        ConfigMapValue::Binary(Some(text)) => Some(Ok((key.clone(), text.to_string()))),
        ConfigMapValue::Binary(None) => Some(Err(format!("{key} {place}: {}", configmaps::not_text()))),
    };
    data.iter().filter_map(entry).collect()
}
