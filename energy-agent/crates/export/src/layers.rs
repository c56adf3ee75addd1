//! The settings of all sources, where a later source overrides an earlier one, and the selection that they make. Pure: a
//! source that is not valid together with the others keeps its last valid version.

use crate::level::Level;
use crate::metrics;
use crate::selection::{Selection, SelectionError};
use crate::settings::{Settings, Term};

/// A source whose settings may change while the agent runs; the later overrides the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerSource {
    File,
    ConfigMap,
}

/// What one place says.
#[derive(Clone, Debug, Default)]
struct Layer {
    /// The newest that could be read.
    newest: Settings,
    /// The newest valid version.
    good: Settings,
    /// Why it cannot be read.
    unreadable: Option<String>,
    /// Why `newest` is not valid.
    refused: Option<String>,
}

/// Flags and environment at the bottom, then a file, then a ConfigMap.
#[derive(Debug)]
pub struct Layers {
    base: Settings,
    /// Why a part of the base is missing: the level process, where processes cannot be accounted for.
    refused: Option<String>,
    file: Layer,
    configmap: Layer,
    processes: bool,
    selection: Selection,
}

impl Layers {
    /// `base` is the selection with eBPF; where processes cannot be accounted for, it goes on without them.
    #[must_use]
    pub fn new(mut base: Settings, processes: bool) -> Self {
        let refused = Selection::new(&base, metrics::ALL, processes).err().map(|refusal| refusal.to_string());
        if refused.is_some() {
            without_processes(&mut base);
        }
        let selection = Selection::new(&base, metrics::ALL, processes).unwrap_or_default();
        let [file, configmap] = [Layer::default(), Layer::default()];
        Self { base, refused, file, configmap, processes, selection }
    }

    #[must_use]
    pub const fn selection(&self) -> &Selection {
        &self.selection
    }

    /// What was asked for and is not active, the highest source first.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let layers = [&self.configmap, &self.file].into_iter();
        layers.flat_map(|layer| [&layer.unreadable, &layer.refused]).chain([&self.refused]).flatten().next().cloned()
    }

    /// Takes what a place says now, or why it says nothing.
    pub fn update(&mut self, place: LayerSource, said: Result<Settings, String>) {
        let layer = self.layer(place);
        match said {
            Err(problem) => {
                layer.unreadable = Some(problem);
                layer.refused = None;
                layer.newest = layer.good.clone();
            }
            Ok(settings) => {
                layer.unreadable = None;
                layer.newest = settings;
                self.choose(place);
            }
        }
    }

    /// Takes the newest of both sources, else the newest of `place` with the active version of the other.
    fn choose(&mut self, place: LayerSource) {
        let [file, configmap] = [&self.file, &self.configmap];
        let alone = match place {
            LayerSource::File => [&file.newest, &configmap.good],
            LayerSource::ConfigMap => [&file.good, &configmap.newest],
        };
        let outcome = match self.resolve([&file.newest, &configmap.newest]) {
            Ok(selection) => Ok((selection, true)),
            Err(_) => self.resolve(alone).map(|selection| (selection, false)),
        };
        match outcome {
            Ok((selection, both)) => {
                self.selection = selection;
                if both {
                    [&mut self.file, &mut self.configmap].into_iter().for_each(Layer::take);
                } else {
                    self.layer(place).take();
                }
            }
            Err(refusal) => self.layer(place).refused = Some(refusal.to_string()),
        }
    }

    fn resolve(&self, layers: [&Settings; 2]) -> Result<Selection, SelectionError> {
        let settings = layers.into_iter().fold(self.base.clone(), |below, layer| below.below(layer));
        Selection::new(&settings, metrics::ALL, self.processes)
    }

    const fn layer(&mut self, place: LayerSource) -> &mut Layer {
        match place {
            LayerSource::File => &mut self.file,
            LayerSource::ConfigMap => &mut self.configmap,
        }
    }
}

impl Layer {
    fn take(&mut self) {
        self.good = self.newest.clone();
        self.refused = None;
    }
}

fn without_processes(base: &mut Settings) {
    base.processes = None;
    if let Some(levels) = &mut base.levels {
        levels.value.retain(|level| *level != Level::Process);
    }
    if let Some(metrics) = &mut base.metrics {
        metrics.value.push(Term { name: "process".to_owned(), without: true, level: Some(Level::Process) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(entries: &[(&str, &str)]) -> Settings {
        let entries: Vec<_> = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Settings::read(&entries, "in a test").unwrap()
    }

    fn text(layers: &Layers) -> &str {
        layers.selection().text()
    }

    #[test]
    fn the_configmap_goes_over_the_file_and_that_over_the_flags() {
        let mut layers = Layers::new(settings(&[("EXPORT_LEVELS", "node"), ("SOURCE.GPU", "disabled")]), true);
        layers.update(LayerSource::ConfigMap, Ok(settings(&[("EXPORT_LEVELS", "pod")])));
        layers.update(LayerSource::File, Ok(settings(&[("EXPORT_LEVELS", "container"), ("SOURCE.GPU", "enabled")])));
        assert_eq!(text(&layers), "levels pod (EXPORT_LEVELS in a test)");
        layers.update(LayerSource::ConfigMap, Ok(Settings::default()));
        assert_eq!(text(&layers), "levels container (EXPORT_LEVELS in a test)");
        layers.update(LayerSource::File, Ok(Settings::default()));
        assert_eq!(text(&layers), "levels node (EXPORT_LEVELS in a test); without SOURCE.GPU in a test");
        assert_eq!(layers.problem(), None);
    }

    #[test]
    fn what_cannot_be_read_or_had_keeps_what_was_in_force() {
        let mut layers = Layers::new(Settings::default(), true);
        layers.update(LayerSource::File, Ok(settings(&[("EXPORT_LEVELS", "pod")])));
        let before = layers.selection().clone();
        layers.update(LayerSource::File, Err("gone".to_owned()));
        assert_eq!((layers.selection(), layers.problem().as_deref()), (&before, Some("gone")));
        layers.update(LayerSource::File, Ok(settings(&[("EXPORT_METRICS", "nonsense")])));
        assert_eq!(layers.selection(), &before);
        assert!(layers.problem().unwrap().contains("nonsense"));
        // The other place goes on.
        layers.update(LayerSource::ConfigMap, Ok(settings(&[("SOURCE.CGROUP", "disabled")])));
        assert_eq!(text(&layers), "levels pod (EXPORT_LEVELS in a test); without SOURCE.CGROUP in a test");
        assert!(layers.problem().unwrap().contains("nonsense"));
        layers.update(LayerSource::File, Ok(settings(&[("EXPORT_LEVELS", "pod")])));
        assert_eq!(layers.problem(), None);
    }

    #[test]
    fn places_that_contradict_each_other_agree_later_in_any_order() {
        let mut layers = Layers::new(Settings::default(), true);
        layers.update(LayerSource::File, Ok(settings(&[("SOURCE.CGROUP", "disabled")])));
        layers
            .update(LayerSource::ConfigMap, Ok(settings(&[("EXPORT_METRICS", "kepler_container_cpu_seconds_total")])));
        assert!(layers.problem().unwrap().contains("turned off by SOURCE.CGROUP"));
        assert!(!layers.selection().shows("kepler_container_cpu_seconds_total"));
        layers.update(LayerSource::File, Ok(Settings::default()));
        assert_eq!(layers.problem(), None);
        assert!(layers.selection().shows("kepler_container_cpu_seconds_total"));
        assert!(!layers.selection().shows("kepler_pod_cpu_joules_total"));
    }

    #[test]
    fn a_start_without_ebpf_goes_on_without_processes() {
        for base in [
            settings(&[("EXPORT_LEVELS", "node,process")]),
            settings(&[("EXPORT_METRICS", "node,process")]),
            settings(&[("EXPORT_METRICS", "kepler_node_*"), ("EXPORT_LEVELS", "node,process")]),
            settings(&[("EXPORT_LEVELS", "node"), ("ENABLE_PROCESS_METRICS", "true")]),
        ] {
            let layers = Layers::new(base.clone(), false);
            assert!(layers.selection().shows("kepler_node_cpu_watts"));
            assert_eq!(layers.selection().levels(), [Level::Node], "{base:?}");
            assert_eq!(Layers::new(base, true).problem(), None);
        }
        let only_processes = Layers::new(settings(&[("EXPORT_METRICS", "process")]), false);
        assert_eq!(only_processes.selection().levels(), []);
        assert!(Layers::new(settings(&[("EXPORT_LEVELS", "node,process")]), false).problem().unwrap().contains("eBPF"));
    }
}
