//! A scraped page: its samples, and the identities that hold on the text of every page, in whole microjoules.

use std::collections::{BTreeMap, BTreeSet};

use energy_export::parse::{ParsedSample, samples};

pub struct Page {
    pub text: String,
    pub samples: Vec<ParsedSample>,
}

impl Page {
    pub fn parse(text: String) -> Self {
        let samples = samples(&text).unwrap();
        Self { text, samples }
    }

    /// The samples of a family that have all these labels.
    pub fn select(&self, name: &str, labels: &[(&str, &str)]) -> Vec<&ParsedSample> {
        let has = |sample: &ParsedSample| labels.iter().all(|(label, value)| sample.label(label) == *value);
        self.samples.iter().filter(|sample| sample.name == name && has(sample)).collect()
    }

    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        !self.select(name, labels).is_empty()
    }

    /// The one sample of a family with these labels.
    pub fn one(&self, name: &str, labels: &[(&str, &str)]) -> &ParsedSample {
        let found = self.select(name, labels);
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:#?}");
        found[0]
    }

    pub fn number(&self, name: &str) -> f64 {
        self.one(name, &[]).number()
    }

    /// The value of the one sample of a family with these labels.
    pub fn number_of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.one(name, labels).number()
    }

    pub fn count(&self, name: &str) -> u64 {
        self.one(name, &[]).value.parse().unwrap()
    }

    pub fn ticks(&self) -> u64 {
        self.count("energy_agent_ticks_total")
    }

    /// Sum of a family of energies with these labels.
    pub fn microjoules(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.select(name, labels).iter().map(|sample| decimal(&sample.value, 6)).sum()
    }

    /// Sum of a family of times with these labels.
    pub fn nanoseconds(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.select(name, labels).iter().map(|sample| decimal(&sample.value, 9)).sum()
    }

    /// Names of all families that have a sample.
    pub fn names(&self) -> BTreeSet<&str> {
        self.samples.iter().map(|sample| sample.name.as_str()).collect()
    }

    /// Names of the families of energy or power that have a sample.
    pub fn energy_names(&self) -> Vec<&str> {
        self.names().into_iter().filter(|name| name.contains("joules") || name.contains("watts")).collect()
    }

    /// Zone and source of the energies that are divided.
    pub fn divided(&self) -> BTreeSet<(&str, &str)> {
        let active = self.select("kepler_node_cpu_active_joules_total", &[]);
        active.iter().map(|sample| (sample.label("zone"), sample.label("source"))).collect()
    }

    /// Active and idle energy are what was measured, zone by zone; pods, system, retired and unattributed energy are the
    /// active energy of all zones of a kind and source; no energy is charged that no zone shows.
    pub fn assert_conserved(&self) {
        for active in self.select("kepler_node_cpu_active_joules_total", &[]) {
            let labels: Vec<_> = active.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let part = |name: &str| decimal(&self.one(name, &labels).value, 6);
            let measured = part("kepler_node_cpu_joules_total");
            assert_eq!(decimal(&active.value, 6) + part("kepler_node_cpu_idle_joules_total"), measured, "{labels:?}");
        }
        let divided = self.divided();
        for (zone, source) in &divided {
            let sum = |name: &str| self.microjoules(name, &[("zone", zone), ("source", source)]);
            let (active, unattributed) =
                (sum("kepler_node_cpu_active_joules_total"), sum("energy_agent_node_cpu_unattributed_joules_total"));
            let (pods, system, retired) = (
                sum("kepler_pod_cpu_joules_total"),
                sum("energy_agent_system_cpu_joules_total"),
                sum("energy_agent_retired_cpu_joules_total"),
            );
            assert_eq!(
                active,
                pods + system + retired + unattributed,
                "{zone} {source}: pods {pods} system {system} retired {retired} unattributed {unattributed}"
            );
        }
        self.assert_processes_conserved(&divided);
        for name in ["kepler_pod_cpu_joules_total", "energy_agent_system_cpu_joules_total"] {
            for sample in self.select(name, &[]) {
                assert!(divided.contains(&(sample.label("zone"), sample.label("source"))), "{sample:?}");
            }
        }
        self.assert_gpus_conserved();
        assert_eq!(self.count("energy_agent_duplicate_series_total"), 0);
    }

    /// The same for GPUs, source by source.
    fn assert_gpus_conserved(&self) {
        for active in self.select("kepler_node_gpu_active_joules_total", &[]) {
            let labels: Vec<_> = active.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let part = |name: &str| decimal(&self.one(name, &labels).value, 6);
            let measured = part("kepler_node_gpu_joules_total");
            assert_eq!(decimal(&active.value, 6) + part("kepler_node_gpu_idle_joules_total"), measured, "{labels:?}");
        }
        for source in ["nvml", "nvml_integrated"] {
            let sum = |name: &str| self.microjoules(name, &[("source", source)]);
            let parts = [
                "kepler_pod_gpu_joules_total",
                "energy_agent_system_gpu_joules_total",
                "energy_agent_retired_gpu_joules_total",
                "energy_agent_node_gpu_unattributed_joules_total",
            ]
            .map(sum);
            assert_eq!(sum("kepler_node_gpu_active_joules_total"), parts.iter().sum::<u64>(), "{source}: {parts:?}");
        }
    }

    /// Where processes are shown: they are the active energy too, kernel threads are the unit `kernel`, a pid is there once,
    /// and the idle task never.
    fn assert_processes_conserved(&self, divided: &BTreeSet<(&str, &str)>) {
        let name = "kepler_process_cpu_joules_total";
        if !self.has(name, &[]) && !self.has("kepler_process_gpu_joules_total", &[]) {
            return;
        }
        for (zone, source) in divided {
            let labels = [("zone", *zone), ("source", *source)];
            let active = self.microjoules("kepler_node_cpu_active_joules_total", &labels);
            let unattributed = self.microjoules("energy_agent_node_cpu_unattributed_joules_total", &labels);
            let processes = self.microjoules(name, &labels);
            assert_eq!(active, processes + unattributed, "{zone} {source}: unattributed {unattributed}");
            let kernel = self.microjoules(name, &[("type", "kernel"), labels[0], labels[1]]);
            let unit = [("unit", "kernel"), labels[0], labels[1]];
            assert_eq!(kernel, self.microjoules("energy_agent_system_cpu_joules_total", &unit), "{zone} {source}");
        }
        for source in ["nvml", "nvml_integrated"] {
            let sum = |name: &str| self.microjoules(name, &[("source", source)]);
            let processes = sum("kepler_process_gpu_joules_total");
            let unattributed = sum("energy_agent_node_gpu_unattributed_joules_total");
            assert_eq!(sum("kepler_node_gpu_active_joules_total"), processes + unattributed, "{source}");
        }
        let mut pids = BTreeSet::new();
        for sample in self.select("kepler_process_cpu_seconds_total", &[]) {
            assert!(
                pids.insert(sample.label("pid").to_owned() + sample.label("type")),
                "{sample:?}: the pid is there twice"
            );
            assert_ne!(sample.label("pid"), "0", "{sample:?}");
        }
    }

    /// No counter that is on both pages fell; a workload that ended goes on counting from where it was.
    pub fn assert_not_below(&self, earlier: &Self) {
        let (before, now) = (earlier.counters(), self.counters());
        for (series, before) in before {
            if let Some(now) = now.get(&series) {
                assert!(*now >= before, "{series} fell from {before} to {now}");
            }
        }
    }

    /// Counters by name and labels, without the label `state`.
    fn counters(&self) -> BTreeMap<String, f64> {
        let counts = |name: &str| ["_total", "_bucket", "_sum", "_count"].iter().any(|end| name.ends_with(end));
        let mut counters = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| counts(&sample.name)) {
            let labels = sample.labels.iter().filter(|(name, _)| name != "state");
            let labels: Vec<_> = labels.map(|(name, value)| format!("{name}={value}")).collect();
            let series = format!("{}{{{}}}", sample.name, labels.join(","));
            assert_eq!(counters.insert(series, sample.number()), None, "{sample:?} is there twice");
        }
        counters
    }
}

/// A decimal with this many places as a whole number of the last place.
pub fn decimal(value: &str, places: usize) -> u64 {
    let (whole, fraction) = value.split_once('.').unwrap_or_else(|| panic!("{value} has no decimals"));
    assert_eq!(fraction.len(), places, "{value}");
    format!("{whole}{fraction}").parse().unwrap()
}
