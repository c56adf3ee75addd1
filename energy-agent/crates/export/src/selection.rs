//! Which families a scrape shows: settings and the table of metrics into a set of names. Pure; where the settings come
//! from is the program's matter.

use std::fmt::{self, Write as _};

use energy_model::nearest::nearest;
use energy_model::workload::units::Units;

use crate::level::Level;
use crate::metrics::Metric;
use crate::settings::{Setting, Settings, SourceSwitch, Term};

/// What is exported. The agent's own metrics always are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Names of the families that are not shown, in order.
    hidden: Vec<&'static str>,
    levels: Vec<Level>,
    names: bool,
    units: Units,
    text: String,
}

impl Selection {
    /// Chooses among the families of `table`. `processes` says whether they can be accounted.
    ///
    /// # Errors
    /// One line that names the setting, its value and a remedy: a word that is neither level nor metric, or a set that
    /// is not available, such as a metric of a level or source that is off.
    pub fn new(settings: &Settings, table: &[Metric], processes: bool) -> Result<Self, SelectionError> {
        let request = SelectionRequest::new(settings);
        if let Some(metrics) = &settings.metrics {
            for term in &metrics.value {
                request.check(term, table).map_err(|refusal| refusal.of(&format!("{}: {term}", metrics.by)))?;
            }
        }
        let shown = |metric: &Metric, level| request.shows(metric, level);
        let any_shown = |level: &Level| table.iter().any(|metric| shown(metric, *level));
        let levels: Vec<Level> = Level::ALL.into_iter().filter(any_shown).collect();
        if (levels.contains(&Level::Process) || request.whole.contains(&Level::Process))
            && !request.terms().any(|term| term.without && term.level == Some(Level::Process))
            && !processes
        {
            let by = request.by(Level::Process);
            let text = format!("{by}: level process needs eBPF, which is not in use (energy-agent doctor says why)");
            return Err(text.into());
        }
        let hides = |metric: &&Metric| metric.level.is_some_and(|level| !shown(metric, level));
        let mut hidden: Vec<_> = table.iter().filter(hides).map(|metric| metric.name).collect();
        hidden.sort_unstable();
        let units = settings.units.as_ref().map(|set| set.value.clone()).unwrap_or_default();
        Ok(Self { hidden, levels, names: request.on(SourceSwitch::Kubelet), units, text: request.text() })
    }

    /// Whether the family is on the page.
    #[must_use]
    pub fn shows(&self, name: &str) -> bool {
        self.hidden.binary_search(&name).is_err()
    }

    /// The levels of which anything is shown.
    #[must_use]
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Whether names of pods and containers are shown beside their ids.
    #[must_use]
    pub const fn names(&self) -> bool {
        self.names
    }

    /// Which units have rows of their own.
    #[must_use]
    pub const fn units(&self) -> &Units {
        &self.units
    }

    /// What was chosen and by what, for the log and the landing page.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Why settings make no selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectionError {
    /// A word is neither a level nor the name of a metric.
    pub names_nothing: bool,
    text: String,
}

impl SelectionError {
    fn of(self, what: &str) -> Self {
        Self { text: format!("{what}: {}", self.text), ..self }
    }
}

impl From<String> for SelectionError {
    fn from(text: String) -> Self {
        Self { names_nothing: false, text }
    }
}

impl fmt::Display for SelectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Settings made plain.
struct SelectionRequest<'a> {
    settings: &'a Settings,
    /// Levels that names and wildcards choose from.
    reach: Vec<Level>,
    /// Levels that are shown whole.
    whole: Vec<Level>,
}

impl<'a> SelectionRequest<'a> {
    fn new(settings: &'a Settings) -> Self {
        let default = [Level::Node, Level::Pod, Level::Container];
        let mut levels = settings.levels.as_ref().map_or(default.to_vec(), |set| set.value.clone());
        for (level, toggle) in [(Level::Container, &settings.containers), (Level::Process, &settings.processes)] {
            if let Some(Setting { value, .. }) = toggle {
                levels.retain(|other| *other != level);
                levels.extend(value.then_some(level));
            }
        }
        let wanted = || settings.metrics.iter().flat_map(|set| &set.value).filter(|term| !term.without);
        let named: Vec<Level> = wanted().filter_map(|term| term.level).collect();
        let whole = if wanted().next().is_none() { levels.clone() } else { named.clone() };
        levels.extend(named);
        levels.sort_unstable();
        levels.dedup();
        Self { settings, reach: levels, whole }
    }

    fn terms(&self) -> impl Iterator<Item = &'a Term> + use<'a> {
        self.settings.metrics.iter().flat_map(|set| &set.value)
    }

    fn on(&self, source: SourceSwitch) -> bool {
        self.settings.source(source).is_none_or(|set| set.value)
    }

    /// The setting that turns off what the metric comes from.
    fn off_by(&self, metric: &Metric) -> Option<&'a Setting<bool>> {
        self.settings.source(metric.source?).filter(|set| !set.value)
    }

    /// Whether the metric, if it is of the level, is on the page.
    fn shows(&self, metric: &Metric, level: Level) -> bool {
        metric.level == Some(level)
            && self.off_by(metric).is_none()
            && (self.whole.contains(&level)
                || self.reach.contains(&level) && self.terms().any(|term| !term.without && names(term, metric)))
            && !self.terms().any(|term| term.without && (term.level == Some(level) || names(term, metric)))
    }

    /// Whether the word is known and names something available.
    fn check(&self, term: &Term, table: &[Metric]) -> Result<(), SelectionError> {
        if let Some(level) = term.level {
            let toggle = if level == Level::Process { &self.settings.processes } else { &self.settings.containers };
            return match toggle {
                Some(set) if !set.value && !term.without && level >= Level::Container => {
                    Err(format!("the level is turned off by {}", set.by).into())
                }
                _ => Ok(()),
            };
        }
        let found: Vec<&Metric> = table.iter().filter(|metric| names(term, metric)).collect();
        let levels = || Level::ALL.map(Level::as_str).join(", ");
        if found.is_empty() && !glob("process_*", &term.name) {
            let words = table.iter().map(|metric| metric.name).chain(Level::ALL.map(Level::as_str));
            let hint = nearest(&term.name, words).map_or(String::new(), |name| format!(", did you mean {name}?"));
            let text = format!("is not a level ({}) and matches no metric{hint}", levels());
            return Err(SelectionError { names_nothing: true, text });
        }
        let own = found.iter().all(|metric| metric.level.is_none());
        if own && term.without {
            return Err("the agent's own metrics are always exported".to_owned().into());
        }
        if own || term.without {
            return Ok(());
        }
        let leveled = || found.iter().filter_map(|metric| Some((*metric, metric.level?)));
        let Some(first) = leveled().find(|(_, level)| self.reach.contains(level)) else {
            let level = found[0].level.map_or("", Level::as_str);
            let by = self.settings.levels.as_ref().map_or("--export.levels", |set| &set.by);
            return Err(format!("belongs to the level {level}, which is not selected; add {level} to {by}").into());
        };
        let off =
            leveled().filter(|(_, level)| self.reach.contains(level)).all(|(metric, _)| self.off_by(metric).is_some());
        match self.off_by(first.0) {
            Some(set) if off => Err(format!("its source is turned off by {}", set.by).into()),
            _ => Ok(()),
        }
    }

    /// What the level was asked for by.
    fn by(&self, level: Level) -> &'a str {
        let named = self.settings.metrics.as_ref().filter(|set| set.value.iter().any(|term| term.level == Some(level)));
        let toggled = self.settings.processes.as_ref().filter(|set| set.value);
        let listed = self.settings.levels.as_ref().map(|set| &*set.by);
        named.map(|set| &*set.by).or(toggled.map(|set| &*set.by)).or(listed).unwrap_or("--export.levels")
    }

    fn text(&self) -> String {
        let levels: Vec<_> = self.reach.iter().map(|level| level.as_str()).collect();
        let mut text = format!("levels {}", levels.join(","));
        let mut add = |part: std::fmt::Arguments<'_>| text.write_fmt(part).expect("a String takes every write");
        if let Some(set) = &self.settings.levels {
            add(format_args!(" ({})", set.by));
        }
        if let Some(set) = self.settings.metrics.as_ref().filter(|set| !set.value.is_empty()) {
            let terms: Vec<_> = set.value.iter().map(Term::to_string).collect();
            add(format_args!("; of them {} ({})", terms.join(","), set.by));
        }
        if let Some((pattern, by)) = self.settings.units.as_ref().and_then(|set| Some((set.value.pattern()?, &set.by)))
        {
            add(format_args!("; units {pattern} ({by})"));
        }
        for set in self.settings.sources.iter().flatten().filter(|set| !set.value) {
            add(format_args!("; without {}", set.by));
        }
        text
    }
}

/// Whether the term, level words apart, names the metric.
fn names(term: &Term, metric: &Metric) -> bool {
    term.level.is_none() && glob(&term.name, metric.name)
}

/// Whether `pattern`, in which each `*` stands for any text, is the whole of `name`.
fn glob(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*').filter(|part| !part.is_empty()) {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(tail)
}

/// The selection as it is at present.
#[derive(Clone, Debug, Default)]
pub struct ActiveSelection {
    pub selection: Selection,
    /// What was asked for and is not available, if anything.
    pub problem: Option<String>,
}

#[cfg(test)]
#[path = "selection/tests.rs"]
mod tests;
