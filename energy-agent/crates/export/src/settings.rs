//! Key and value pairs, as an environment, a file or a ConfigMap has them, into one layer of export settings; layers
//! lie over each other key by key. Knows the names of the old Kepler's ConfigMap.

use std::fmt;

use clap::ValueEnum as _;
use energy_model::nearest::nearest;
use energy_model::printable::cut;
use energy_model::workload::units::Units;

use crate::level::Level;

/// What the old Kepler called a source of metrics, and what turning it off hides here. Attribution stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceSwitch {
    /// Hardware counters: the families of CPU cycles.
    Counter,
    /// What is accounted per cgroup beside energy: CPU time and context switches of units, pods and containers.
    Cgroup,
    /// What the API server or the kubelet reports about pods: they are shown by uid and id, as with `--pods.source=none`.
    Kubelet,
    /// Every family about GPUs.
    Gpu,
}

impl SourceSwitch {
    pub const ALL: [Self; 4] = [Self::Counter, Self::Cgroup, Self::Kubelet, Self::Gpu];
}

energy_model::as_str!(SourceSwitch {
    Counter => "SOURCE.COUNTER",
    Cgroup => "SOURCE.CGROUP",
    Kubelet => "SOURCE.KUBELET",
    Gpu => "SOURCE.GPU",
});

/// What a key sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettingKey {
    Metrics,
    Levels,
    Units,
    Source(SourceSwitch),
    Level(Level),
}

/// The names of each key; a dot may also be an underscore, and case is not looked at. The last six are switches of the
/// old Kepler, `EXPOSE_CGROUP_METRICS` and `EXPOSE_KUBELET_METRICS` of its earlier releases, the others as in
/// <https://github.com/sustainable-computing-io/kepler/blob/012738f23477f5aacc372676e792b6fcf4e614a3/pkg/config/config.go>.
const NAMES: [(&str, SettingKey); 13] = [
    ("EXPORT_METRICS", SettingKey::Metrics),
    ("EXPORT_LEVELS", SettingKey::Levels),
    ("EXPORT_UNITS", SettingKey::Units),
    ("SOURCE.COUNTER", SettingKey::Source(SourceSwitch::Counter)),
    ("SOURCE.CGROUP", SettingKey::Source(SourceSwitch::Cgroup)),
    ("SOURCE.KUBELET", SettingKey::Source(SourceSwitch::Kubelet)),
    ("SOURCE.GPU", SettingKey::Source(SourceSwitch::Gpu)),
    ("EXPOSE_HW_COUNTER_METRICS", SettingKey::Source(SourceSwitch::Counter)),
    ("EXPOSE_CGROUP_METRICS", SettingKey::Source(SourceSwitch::Cgroup)),
    ("EXPOSE_KUBELET_METRICS", SettingKey::Source(SourceSwitch::Kubelet)),
    ("ENABLE_GPU", SettingKey::Source(SourceSwitch::Gpu)),
    ("ENABLE_PROCESS_METRICS", SettingKey::Level(Level::Process)),
    ("EXPOSE_CONTAINER_METRICS", SettingKey::Level(Level::Container)),
];

/// Keys of the old Kepler's ConfigMap that have no meaning here: known, so that the map can be used as it is.
const IGNORED: [&str; 21] = [
    "BIND_ADDRESS",
    "BPF_METRICS",
    "CGROUP_METRICS",
    "COUNTER_METRICS",
    "CPU_ARCH_OVERRIDE",
    "ENABLE_EBPF_CGROUPID",
    "ENABLE_MSR",
    "ENABLE_QAT",
    "EXPERIMENTAL_BPF_SAMPLE_RATE",
    "EXPOSE_BPF_METRICS",
    "EXPOSE_COMPONENT_POWER",
    "EXPOSE_ESTIMATED_IDLE_POWER_METRICS",
    "EXPOSE_IRQ_COUNTER_METRICS",
    "EXPOSE_VM_METRICS",
    "GPU_METRICS",
    "KUBELET_METRICS",
    "MAX_LOOKUP_RETRY",
    "METRIC_PATH",
    "MOCK_ACPI_POWER_PATH",
    "PERF_METRICS",
    "SAMPLE_PERIOD_SEC",
];
const IGNORED_PREFIXES: [&str; 4] = ["ESTIMATOR_", "KEPLER_", "MODEL_", "REDFISH_"];

/// A value, and what it was set by, for messages: `EXPORT_METRICS in /etc/energy-agent/export`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    pub by: String,
}

/// One word of a list of metrics: a level, or a metric's name with any number of `*`; `-` before it takes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub name: String,
    pub without: bool,
    /// The level that it names, if it names one.
    pub level: Option<Level>,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.without { "-" } else { "" }, self.name)
    }
}

/// What one place says about the export; what it does not mention is left to the places below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub levels: Option<Setting<Vec<Level>>>,
    pub metrics: Option<Setting<Vec<Term>>>,
    pub units: Option<Setting<Units>>,
    /// In the order of [`SourceSwitch::ALL`].
    pub sources: [Option<Setting<bool>>; 4],
    /// Whether the levels of containers and processes are added or taken away.
    pub containers: Option<Setting<bool>>,
    pub processes: Option<Setting<bool>>,
    /// Keys that were known but mean nothing here.
    pub ignored: Vec<String>,
}

impl Settings {
    /// Reads what `place` (words such as `in the environment`) has. A key that is set twice must say the same.
    ///
    /// # Errors
    /// One line with the key, the value, what is valid, and where: for an unknown key, a bad value, or a contradiction.
    pub fn read(entries: &[(String, String)], place: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        // Any file may be named by mistake, and the words of another file are not repeated.
        let is_ours = entries.iter().any(|(name, _)| key(name).is_some() || ignored(name));
        for (name, value) in entries {
            let Some(key) = key(name) else {
                if ignored(name) {
                    settings.ignored.push(name.clone());
                    continue;
                }
                let names = NAMES.map(|(name, _)| name);
                let hint =
                    nearest(&name.to_uppercase(), names).map_or(String::new(), |name| format!("did you mean {name}? "));
                let what = if is_ours {
                    format!("{} {place} is not a key", cut(name))
                } else {
                    format!("{place} there is no known key")
                };
                return Err(format!("{what}; {hint}valid are {}", names.join(", ")));
            };
            let by = format!("{name} {place}");
            match key {
                SettingKey::Metrics => set(&mut settings.metrics, terms(value), by)?,
                SettingKey::Levels => set(&mut settings.levels, levels(value, &by)?, by)?,
                SettingKey::Units => set(&mut settings.units, units(value, &by)?, by)?,
                SettingKey::Source(source) => {
                    set(&mut settings.sources[index(source)], switch(value, &by)?, by)?;
                }
                SettingKey::Level(Level::Container) => set(&mut settings.containers, switch(value, &by)?, by)?,
                SettingKey::Level(_) => set(&mut settings.processes, switch(value, &by)?, by)?,
            }
        }
        Ok(settings)
    }

    /// Names that an environment is asked for.
    pub fn variables() -> impl Iterator<Item = String> {
        NAMES.iter().flat_map(|(name, _)| {
            let underscored = name.replace('.', "_");
            let dotted = (underscored != *name).then(|| (*name).to_owned());
            dotted.into_iter().chain([underscored])
        })
    }

    /// These settings, and those of `self` for what `upper` does not mention.
    #[must_use]
    pub fn below(&self, upper: &Self) -> Self {
        let sources = std::array::from_fn(|at| upper.sources[at].clone().or_else(|| self.sources[at].clone()));
        Self {
            levels: upper.levels.clone().or_else(|| self.levels.clone()),
            metrics: upper.metrics.clone().or_else(|| self.metrics.clone()),
            units: upper.units.clone().or_else(|| self.units.clone()),
            sources,
            containers: upper.containers.clone().or_else(|| self.containers.clone()),
            processes: upper.processes.clone().or_else(|| self.processes.clone()),
            ignored: Vec::new(),
        }
    }

    #[must_use]
    pub const fn source(&self, source: SourceSwitch) -> Option<&Setting<bool>> {
        self.sources[index(source)].as_ref()
    }
}

const fn index(source: SourceSwitch) -> usize {
    match source {
        SourceSwitch::Counter => 0,
        SourceSwitch::Cgroup => 1,
        SourceSwitch::Kubelet => 2,
        SourceSwitch::Gpu => 3,
    }
}

fn set<T: PartialEq>(place: &mut Option<Setting<T>>, value: T, by: String) -> Result<(), String> {
    match place {
        Some(set) if set.value != value => Err(format!("{by} says the opposite of {}; remove one of them", set.by)),
        _ => {
            *place = Some(Setting { value, by });
            Ok(())
        }
    }
}

fn key(name: &str) -> Option<SettingKey> {
    let name = name.to_uppercase().replace('.', "_");
    NAMES.iter().find(|(known, _)| known.replace('.', "_") == name).map(|(_, key)| *key)
}

/// Whether something is set by this name.
#[must_use]
pub fn is_key(name: &str) -> bool {
    key(name).is_some()
}

fn ignored(name: &str) -> bool {
    let name = name.to_uppercase();
    IGNORED.contains(&&*name) || IGNORED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Words are parted by commas or white space, so that a value may have several lines.
fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty())
}

/// The words of a list of metrics.
#[must_use]
pub fn terms(value: &str) -> Vec<Term> {
    let term = |word: &str| {
        let name = word.strip_prefix('-').unwrap_or(word);
        Term { name: name.to_owned(), without: name.len() < word.len(), level: Level::from_str(name, true).ok() }
    };
    words(value).map(term).collect()
}

fn levels(value: &str, by: &str) -> Result<Vec<Level>, String> {
    let level = |word: &str| {
        let valid = Level::ALL.map(Level::as_str);
        let hint = || nearest(word, valid).map_or(String::new(), |name| format!("did you mean {name}? "));
        Level::from_str(word, true)
            .map_err(|_| format!("{by}: {word:?} is not a level; {}valid are {}", hint(), valid.join(", ")))
    };
    let levels: Vec<_> = words(value).map(level).collect::<Result<_, _>>()?;
    if levels.is_empty() {
        return Err(format!("{by}: no level; valid are {}", Level::ALL.map(Level::as_str).join(", ")));
    }
    Ok(levels)
}

/// The units whose whole name matches; `by` is what asks for them.
///
/// # Errors
/// One line that names `by` and says what is wrong with the pattern.
pub fn units(value: &str, by: &str) -> Result<Units, String> {
    Units::matching(value).map_err(|problem| {
        format!("{by}: not a regular expression: {problem}; expected one such as sshd\\.service|user-.*\\.slice")
    })
}

fn switch(value: &str, by: &str) -> Result<bool, String> {
    match &*value.trim().to_lowercase() {
        "enabled" | "true" => Ok(true),
        "disabled" | "false" => Ok(false),
        _ => Err(format!("{by}: {:?} is neither on nor off; valid are enabled, disabled, true, false", value.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &[(&str, &str)]) -> Result<Settings, String> {
        let entries: Vec<_> = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Settings::read(&entries, "in a test")
    }

    #[test]
    fn a_source_is_known_by_keplers_names_in_any_case() {
        for (key, value, source, on) in [
            ("SOURCE.COUNTER", "enabled", SourceSwitch::Counter, true),
            ("SOURCE_COUNTER", "Disabled", SourceSwitch::Counter, false),
            ("source.gpu", " FALSE\n", SourceSwitch::Gpu, false),
            ("ENABLE_GPU", "true", SourceSwitch::Gpu, true),
            ("EXPOSE_HW_COUNTER_METRICS", "false", SourceSwitch::Counter, false),
            ("EXPOSE_CGROUP_METRICS", "True", SourceSwitch::Cgroup, true),
            ("EXPOSE_KUBELET_METRICS", "disabled", SourceSwitch::Kubelet, false),
        ] {
            let settings = read(&[(key, value)]).unwrap();
            let set = settings.source(source).unwrap();
            assert_eq!((set.value, &*set.by), (on, &*format!("{key} in a test")));
            assert_eq!(settings.sources.iter().flatten().count(), 1, "{key}");
        }
    }

    #[test]
    fn a_list_takes_commas_and_lines_and_tells_levels_from_names() {
        let metrics = read(&[("EXPORT_METRICS", "Pod, kepler_node_*\n-energy_agent_*,,-container ")]).unwrap().metrics;
        let term = |name: &str, without, level| Term { name: name.to_owned(), without, level };
        assert_eq!(
            metrics.unwrap().value,
            [
                term("Pod", false, Some(Level::Pod)),
                term("kepler_node_*", false, None),
                term("energy_agent_*", true, None),
                term("container", true, Some(Level::Container)),
            ]
        );
        assert_eq!(read(&[("EXPORT_METRICS", " ")]).unwrap().metrics.unwrap().value, []);
        assert_eq!(
            read(&[("EXPORT_LEVELS", "node,process")]).unwrap().levels.unwrap().value,
            [Level::Node, Level::Process]
        );
    }

    #[test]
    fn a_bad_entry_names_the_key_the_value_and_what_is_valid() {
        for (entries, parts) in [
            (&[("SOURCE.GPU", "maybe")] as &[_], &["SOURCE.GPU in a test", "\"maybe\"", "enabled, disabled"] as &[_]),
            (
                &[("SOURCE.GPUS", "enabled"), ("ENABLE_GPU", "true")],
                &["SOURCE.GPUS in a test is not a key", "did you mean SOURCE.GPU?"],
            ),
            // Nothing says that this file is about the export at all.
            (&[("SOURCE.GPUS", "enabled")], &["in a test there is no known key; did you mean SOURCE.GPU?"]),
            (
                &[("EXPORT_LEVELS", "node,pods")],
                &["\"pods\" is not a level", "did you mean pod?", "node, pod, container"],
            ),
            (&[("EXPORT_LEVELS", "")], &["no level; valid are node"]),
            (&[("nonsense", "1")], &["in a test there is no known key; valid are EXPORT_METRICS"]),
            (
                &[("SOURCE.GPU", "enabled"), ("ENABLE_GPU", "false")],
                &["ENABLE_GPU in a test says the opposite of SOURCE.GPU in a test"],
            ),
        ] {
            let problem = read(entries).unwrap_err();
            for part in parts {
                assert!(problem.contains(part), "{part:?} is not in {problem:?}");
            }
            assert!(!problem.contains('\n'));
        }
    }

    #[test]
    fn the_rest_of_an_old_kepler_map_is_left_alone() {
        let map = [
            ("KEPLER_NAMESPACE", "kepler"),
            ("METRIC_PATH", "/metrics"),
            ("ENABLE_GPU", "true"),
            ("CGROUP_METRICS", "*"),
            ("MODEL_CONFIG", "A=b\nC=d"),
            ("ENABLE_PROCESS_METRICS", "false"),
        ];
        let settings = read(&map).unwrap();
        assert_eq!(settings.ignored, ["KEPLER_NAMESPACE", "METRIC_PATH", "CGROUP_METRICS", "MODEL_CONFIG"]);
        assert_eq!(settings.processes.map(|set| set.value), Some(false));
        assert_eq!(settings.metrics, None);
    }

    #[test]
    fn the_upper_place_wins_key_by_key() {
        let lower =
            read(&[("EXPORT_LEVELS", "node"), ("SOURCE.GPU", "disabled"), ("SOURCE.CGROUP", "disabled")]).unwrap();
        let upper = read(&[("ENABLE_GPU", "true"), ("EXPORT_METRICS", "pod")]).unwrap();
        let both = lower.below(&upper);
        assert_eq!(both.levels, lower.levels);
        assert_eq!(both.metrics, upper.metrics);
        assert_eq!(both.source(SourceSwitch::Gpu).map(|set| set.value), Some(true));
        assert_eq!(both.source(SourceSwitch::Cgroup).map(|set| set.value), Some(false));
        assert_eq!(both.source(SourceSwitch::Counter), None);
    }

    #[test]
    fn an_environment_is_asked_for_both_spellings() {
        let variables: Vec<_> = Settings::variables().collect();
        for name in ["EXPORT_METRICS", "SOURCE.GPU", "SOURCE_GPU", "ENABLE_PROCESS_METRICS"] {
            assert_eq!(variables.iter().filter(|variable| *variable == name).count(), 1, "{name}");
        }
    }
}
