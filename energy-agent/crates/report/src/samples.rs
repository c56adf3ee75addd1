//! What a server or a page gave: series of samples by name and labels. One agent may be read by several scrapers; the labels
//! that the agent did not write itself tell which scraper it was.

use std::collections::{BTreeMap, BTreeSet};

use crate::number::nearest;

/// Labels that the agent itself writes and that name what a series is of.
const IDENTITY: [&str; 11] =
    ["cluster", "node_name", "pod_id", "unit", "zone", "path", "source", "socket", "die", "gpu_uuid", "policy"];
/// Labels that the agent writes and that may change while the series stays one counter.
const DETAIL: [&str; 14] = [
    "state",
    "pod_name",
    "pod_namespace",
    "container_name",
    "container_id",
    "runtime",
    "gpu",
    "gpu_name",
    "vendor",
    "evidence",
    "actuator",
    "device",
    "policy_namespace",
    "method",
];
/// When the agent's process began.
pub const START: &str = "process_start_time_seconds";
/// When the values of a page were read.
pub const LAST_TICK: &str = "energy_agent_last_tick_timestamp_seconds";
/// The length of the agent's last interval.
pub const INTERVAL: &str = "energy_agent_interval_seconds";
/// A page's own time is believed this far from the time of its scrape.
const BELIEVED_S: f64 = 60.0;

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// One series: Unix time and value of each sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawSeries {
    pub name: String,
    pub labels: Labels,
    pub points: Vec<(f64, f64)>,
}

impl RawSeries {
    /// Value of a label; empty where the series does not have it.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// What it is of: the labels that tell one counter of a kind from another.
    pub(crate) fn identity(&self) -> Labels {
        self.labels.iter().filter(|(name, _)| IDENTITY.contains(&name.as_str())).map(own).collect()
    }

    /// Who read it: the labels that the scraper added.
    pub(crate) fn reader(&self) -> Labels {
        let foreign = |name: &str| name != "cluster" && (IDENTITY.contains(&name) || DETAIL.contains(&name));
        self.labels.iter().filter(|(name, _)| !foreign(name)).map(own).collect()
    }
}

fn own((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}

/// All that was gathered for a run.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    series: BTreeMap<(String, Labels), Vec<(f64, f64)>>,
}

impl Samples {
    /// Adds samples; those of a series that is there already are joined to it.
    pub fn add(&mut self, series: RawSeries) {
        let RawSeries { name, labels, points } = series;
        let all = self.series.entry((name, labels)).or_default();
        all.extend(points.into_iter().filter(|(at, value)| at.is_finite() && value.is_finite()));
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.dedup_by(|a, b| a.0.total_cmp(&b.0).is_eq());
    }

    /// All values of a label.
    #[must_use]
    pub fn values(&self, label: &str) -> BTreeSet<String> {
        self.series.keys().filter_map(|(_, labels)| labels.get(label).cloned()).collect()
    }

    /// Times of the first and the last sample.
    #[must_use]
    pub fn span(&self) -> Option<(f64, f64)> {
        let first = self.series.values().filter_map(|points| points.first()).map(|(at, _)| *at);
        let last = self.series.values().filter_map(|points| points.last()).map(|(at, _)| *at);
        first.min_by(f64::total_cmp).zip(last.max_by(f64::total_cmp))
    }

    /// The series of a name.
    pub(crate) fn of(&self, name: &str) -> Vec<RawSeries> {
        let named = self.series.iter().filter(|((own, _), _)| own == name);
        named
            .map(|((name, labels), points)| RawSeries {
                name: name.clone(),
                labels: labels.clone(),
                points: points.clone(),
            })
            .collect()
    }
}

/// One sight of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    /// When the agent read its meters; the scrape's time where that is not known.
    pub at: f64,
    /// In millionths of the counter's unit.
    pub count: u64,
    /// When the agent's process began, in milliseconds; all readings of a life are of one counter that began at 0.
    pub life_ms: Option<u64>,
}

/// The agents as their scrapers saw them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    scrapers: Vec<Scraper>,
}

#[derive(Clone, Debug, Default)]
struct Scraper {
    labels: Labels,
    starts: Vec<(f64, f64)>,
    ticks: Vec<(f64, f64)>,
}

impl Pages {
    pub(crate) fn of(samples: &Samples) -> Self {
        let mut scrapers: BTreeMap<Labels, Scraper> = BTreeMap::new();
        for name in [START, LAST_TICK] {
            for series in samples.of(name) {
                let scraper = scrapers.entry(series.reader()).or_default();
                scraper.labels = series.reader();
                if name == START { scraper.starts = series.points } else { scraper.ticks = series.points }
            }
        }
        Self { scrapers: scrapers.into_values().collect() }
    }

    /// The scraper that read this series: all its labels are on the series, and no other has more of them.
    fn scraper(&self, labels: &Labels) -> Option<&Scraper> {
        let fits = |scraper: &&Scraper| scraper.labels.iter().all(|(name, value)| labels.get(name) == Some(value));
        self.scrapers.iter().filter(fits).max_by_key(|scraper| scraper.labels.len())
    }

    /// The counters of a name: what each is of, its readings by each reader, and the pages that its readers saw.
    pub(crate) fn counters(&self, samples: &Samples, name: &str) -> Vec<Counter> {
        let mut counters: BTreeMap<Labels, Counter> = BTreeMap::new();
        for series in samples.of(name) {
            let counter = counters.entry(series.identity()).or_default();
            counter.labels = series.identity();
            let scraper = self.scraper(&series.labels);
            let reading = |(at, value): &(f64, f64)| match scraper {
                Some(scraper) => scraper.reading(*at, *value),
                None => Reading { at: *at, count: nearest(value * 1e6), life_ms: None },
            };
            let reader = series.reader();
            let readings = counter.readers.entry(reader.clone()).or_default();
            readings.extend(series.points.iter().map(reading));
            readings.sort_by(|a, b| a.at.total_cmp(&b.at).then(a.count.cmp(&b.count)));
            if let Some(scraper) = scraper {
                counter.pages.entry(reader).or_insert_with(|| scraper.pages());
            }
            let times = series.points.iter().map(reading).map(|reading| reading.at);
            if series.label("state") == "terminated" { &mut counter.terminated } else { &mut counter.running }
                .extend(times);
        }
        counters.into_values().collect()
    }
}

impl Scraper {
    fn reading(&self, at: f64, value: f64) -> Reading {
        let (at, life_ms) = self.page(at);
        Reading { at, count: nearest(value * 1e6), life_ms }
    }

    /// The page's own time and the life that it is of.
    fn page(&self, at: f64) -> (f64, Option<u64>) {
        let tick = found(&self.ticks, at).filter(|tick| (tick - at).abs() <= BELIEVED_S);
        (tick.unwrap_or(at), found(&self.starts, at).map(|start| nearest(start * 1000.0)))
    }

    fn pages(&self) -> Vec<(f64, Option<u64>)> {
        let times = if self.ticks.is_empty() { &self.starts } else { &self.ticks };
        times.iter().map(|(at, _)| self.page(*at)).collect()
    }
}

/// The value at exactly this time: all samples of a scrape have its time.
fn found(points: &[(f64, f64)], at: f64) -> Option<f64> {
    let index = points.binary_search_by(|(time, _)| time.total_cmp(&at)).ok()?;
    Some(points[index].1)
}

/// One counter, whoever read it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counter {
    /// What it is of.
    pub labels: Labels,
    /// Readings in the order of time, by reader.
    pub readers: BTreeMap<Labels, Vec<Reading>>,
    /// Times and lives of all pages that the readers saw, with this counter or without it.
    pub pages: BTreeMap<Labels, Vec<(f64, Option<u64>)>>,
    /// When it was seen to be of something that runs, and of something that has ended.
    pub running: Vec<f64>,
    pub terminated: Vec<f64>,
}

impl Counter {
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// When it was first seen to be of something that has ended, up to `to`; `None` where it ran after that.
    pub(crate) fn ended(&self, to: f64) -> Option<f64> {
        let until = |times: &[f64]| times.iter().copied().filter(|at| *at <= to).collect::<Vec<f64>>();
        let running = until(&self.running).into_iter().fold(f64::NEG_INFINITY, f64::max);
        until(&self.terminated).into_iter().filter(|at| *at > running).min_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn series(name: &str, pairs: &[(&str, &str)], points: &[(f64, f64)]) -> RawSeries {
        RawSeries { name: name.to_owned(), labels: labels(pairs), points: points.to_vec() }
    }

    #[test]
    fn running_and_ended_are_one_counter_and_a_page_has_its_own_time() {
        let mut samples = Samples::default();
        let target = [("instance", "a:9102"), ("job", "agents")];
        let of = |state| [&target[..], &[("pod_id", "u"), ("state", state)]].concat();
        samples.add(series("joules", &of("running"), &[(10.0, 1.0), (20.0, 2.5)]));
        samples.add(series("joules", &of("terminated"), &[(30.0, 3.0)]));
        samples.add(series(START, &target, &[(10.0, 1.25), (20.0, 1.25), (30.0, 1.25)]));
        samples.add(series(LAST_TICK, &target, &[(10.0, 9.5), (20.0, 19.5), (30.0, 29.5)]));
        let counters = Pages::of(&samples).counters(&samples, "joules");
        assert_eq!(counters.len(), 1);
        assert_eq!(counters[0].label("pod_id"), "u");
        assert_eq!(counters[0].ended(40.0), Some(29.5));
        let readings: Vec<_> = counters[0].readers.values().flatten().copied().collect();
        let reading = |at, count| Reading { at, count, life_ms: Some(1250) };
        assert_eq!(readings, [reading(9.5, 1_000_000), reading(19.5, 2_500_000), reading(29.5, 3_000_000)]);
    }

    #[test]
    fn samples_that_come_twice_are_there_once() {
        let mut samples = Samples::default();
        samples.add(series("a", &[], &[(2.0, 2.0), (1.0, 1.0)]));
        samples.add(series("a", &[], &[(2.0, 2.0), (3.0, f64::NAN)]));
        assert_eq!(samples.of("a")[0].points, [(1.0, 1.0), (2.0, 2.0)]);
    }
}
