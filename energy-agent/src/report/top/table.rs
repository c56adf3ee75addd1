//! Turns the samples of a metrics page into what `top` shows: the node's power and one entry for each pod, container and
//! unit. CPU shares are differences between two pages, over the time between the ticks they show.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use crate::export::parse::Sample;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Pod,
    Container,
    Unit,
}

impl Kind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Container => "container",
            Self::Unit => "unit",
        }
    }
}

/// A pod, a container or a unit. Containers are parts of pods and units, so entries do not add up.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub kind: Kind,
    pub name: String,
    pub watts: Option<f64>,
    pub joules: Option<f64>,
    /// Percent of one CPU.
    pub cpu: Option<f64>,
    /// Its cgroup is gone; the totals are its last.
    pub ended: bool,
}

impl Entry {
    /// Watts, joules and CPU share as they are shown.
    #[must_use]
    pub fn numbers(&self) -> [String; 3] {
        [number(self.watts, 3), number(self.joules, 1), number(self.cpu, 1)]
    }
}

/// By what entries are ordered; the largest first, names from A to Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Watts,
    Joules,
    Cpu,
    Name,
}

/// The node's totals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    pub name: String,
    /// Watts by (zone, source), summed over sockets.
    pub zones: BTreeMap<(String, String), f64>,
    pub active: Option<f64>,
    pub idle: Option<f64>,
    pub unattributed: Option<f64>,
    /// Busy share of all CPUs, 0 to 1.
    pub busy: Option<f64>,
}

impl Node {
    /// One line: the node and the power of its zones, with how it is known.
    #[must_use]
    pub fn meters(&self) -> String {
        let mut line = if self.name.is_empty() { "node".to_owned() } else { self.name.clone() };
        if self.zones.is_empty() {
            line.push_str("   no power reading yet (the agent's landing page shows its meters)");
        }
        for ((zone, source), watts) in &self.zones {
            let source = if source == "estimate" { "estimated" } else { source };
            line.push_str(&format!("   {zone} {watts:.2} W ({source})"));
        }
        line
    }

    /// One line: how that power was divided.
    #[must_use]
    pub fn shares(&self) -> String {
        let watts = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |watts| format!("{watts:.2} W"));
        let busy = self.busy.map_or_else(|| "-".to_owned(), |busy| format!("{:.0} %", busy * 100.0));
        let [active, idle, unattributed] = [self.active, self.idle, self.unattributed].map(watts);
        format!("active {active}   idle {idle}   unattributed {unattributed}   CPU busy {busy}")
    }
}

/// What the previous page said, which differences are taken from.
#[derive(Debug, Default)]
pub struct Memory {
    tick: Option<f64>,
    counters: HashMap<Key, f64>,
    /// Differences by second between the last two ticks.
    rates: HashMap<Key, f64>,
}

/// Pod and container id, or the unit; [`UNATTRIBUTED`] for the node.
type Key = (Kind, String, String);

const UNATTRIBUTED: &str = "\0unattributed";

impl Memory {
    /// Takes the counters of a page whose values were read at `tick`. A page of the same tick changes nothing.
    fn advance(&mut self, tick: Option<f64>, counters: HashMap<Key, f64>) {
        let elapsed = match (self.tick, tick) {
            (Some(before), Some(now)) => now - before,
            _ => 0.0,
        };
        if elapsed == 0.0 && self.tick == tick && self.tick.is_some() {
            return;
        }
        // After a restart or a step of the clock there is nothing to compare with.
        self.rates.clear();
        if elapsed > 0.0 {
            let rate = |(key, now): (&Key, &f64)| {
                let grown = now - self.counters.get(key)?;
                (grown >= 0.0).then(|| (key.clone(), grown / elapsed))
            };
            self.rates = counters.iter().filter_map(rate).collect();
        }
        (self.tick, self.counters) = (tick, counters);
    }
}

/// One refresh.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub node: Node,
    pub entries: Vec<Entry>,
}

impl Table {
    /// Reads a page; `memory` is that of the pages before it.
    #[must_use]
    pub fn read(samples: &[Sample], memory: &mut Memory) -> Self {
        let mut node = Node::default();
        let mut entries = BTreeMap::<Key, Entry>::new();
        let mut counters = HashMap::new();
        let mut tick = None;
        for sample in samples {
            let value = sample.number();
            match sample.name.as_str() {
                "kepler_node_cpu_watts" => {
                    sample.label("node_name").clone_into(&mut node.name);
                    let zone = (sample.label("zone").to_owned(), sample.label("source").to_owned());
                    *node.zones.entry(zone).or_default() += value;
                }
                "kepler_node_cpu_active_watts" => add(&mut node.active, value),
                "kepler_node_cpu_idle_watts" => add(&mut node.idle, value),
                "kepler_node_cpu_usage_ratio" => node.busy = Some(value),
                "energy_agent_node_cpu_unattributed_joules_total" => {
                    *counters.entry((Kind::Unit, UNATTRIBUTED.to_owned(), String::new())).or_default() += value;
                }
                "energy_agent_last_tick_timestamp_seconds" => tick = Some(value),
                name => {
                    let Some((kind, what)) = workload(name) else { continue };
                    let (key, label) = identity(kind, sample);
                    let entry = entries.entry(key.clone()).or_insert_with(|| Entry {
                        kind,
                        name: label,
                        watts: None,
                        joules: None,
                        cpu: None,
                        ended: sample.label("state") == "terminated",
                    });
                    match what {
                        What::Watts => add(&mut entry.watts, value),
                        What::Joules => add(&mut entry.joules, value),
                        What::Seconds => *counters.entry(key).or_default() += value,
                    }
                }
            }
        }
        memory.advance(tick, counters);
        node.unattributed = memory.rates.get(&(Kind::Unit, UNATTRIBUTED.to_owned(), String::new())).copied();
        for (key, entry) in &mut entries {
            entry.cpu = memory.rates.get(key).map(|share| share * 100.0);
        }
        Self { node, entries: entries.into_values().collect() }
    }

    pub fn sort(&mut self, order: Order) {
        let largest = |a: Option<f64>, b: Option<f64>| b.partial_cmp(&a).unwrap_or(Ordering::Equal);
        self.entries.sort_by(|a, b| {
            let first = match order {
                Order::Watts => largest(a.watts, b.watts).then(largest(a.joules, b.joules)),
                Order::Joules => largest(a.joules, b.joules),
                Order::Cpu => largest(a.cpu, b.cpu),
                Order::Name => Ordering::Equal,
            };
            first.then_with(|| (&a.name, a.kind).cmp(&(&b.name, b.kind)))
        });
    }
}

enum What {
    Watts,
    Joules,
    Seconds,
}

fn workload(name: &str) -> Option<(Kind, What)> {
    Some(match name {
        "kepler_pod_cpu_watts" => (Kind::Pod, What::Watts),
        "kepler_pod_cpu_joules_total" => (Kind::Pod, What::Joules),
        "energy_agent_pod_cpu_seconds_total" => (Kind::Pod, What::Seconds),
        "kepler_container_cpu_watts" => (Kind::Container, What::Watts),
        "kepler_container_cpu_joules_total" => (Kind::Container, What::Joules),
        "energy_agent_container_cpu_seconds_total" => (Kind::Container, What::Seconds),
        "energy_agent_system_cpu_watts" => (Kind::Unit, What::Watts),
        "energy_agent_system_cpu_joules_total" => (Kind::Unit, What::Joules),
        "energy_agent_system_cpu_seconds_total" => (Kind::Unit, What::Seconds),
        _ => return None,
    })
}

/// What tells entries apart, and what people call them.
fn identity(kind: Kind, sample: &Sample) -> (Key, String) {
    let [pod, container, unit] = ["pod_id", "container_id", "unit"].map(|label| sample.label(label));
    match kind {
        Kind::Pod => {
            let name = match (sample.label("pod_namespace"), sample.label("pod_name")) {
                (_, "") => pod.to_owned(),
                (namespace, name) => format!("{namespace}/{name}"),
            };
            ((kind, pod.to_owned(), String::new()), name)
        }
        Kind::Container => {
            let mut name = match sample.label("container_name") {
                "" => container.chars().take(12).collect(),
                name => name.to_owned(),
            };
            if !pod.is_empty() {
                name.push_str(" in pod ");
                name.extend(pod.chars().take(8));
            }
            ((kind, pod.to_owned(), container.to_owned()), name)
        }
        Kind::Unit => ((kind, unit.to_owned(), String::new()), unit.to_owned()),
    }
}

fn add(sum: &mut Option<f64>, value: f64) {
    *sum = Some(sum.unwrap_or(0.0) + value);
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::parse::samples;

    fn page(tick: u32, seconds: u32, unattributed: u32) -> Vec<Sample> {
        samples(&format!(
            "kepler_node_cpu_watts{{zone=\"package\",source=\"rapl\",node_name=\"n\",socket=\"0\"}} 20\n\
             kepler_node_cpu_watts{{zone=\"package\",source=\"rapl\",node_name=\"n\",socket=\"1\"}} 22.5\n\
             kepler_node_cpu_active_watts{{zone=\"package\"}} 30\nkepler_node_cpu_idle_watts{{zone=\"package\"}} 12.5\n\
             energy_agent_node_cpu_unattributed_joules_total{{zone=\"package\"}} {unattributed}\n\
             kepler_node_cpu_usage_ratio 0.5\nenergy_agent_last_tick_timestamp_seconds {tick}\n\
             kepler_pod_cpu_watts{{pod_id=\"u1\",zone=\"package\"}} 4\nkepler_pod_cpu_watts{{pod_id=\"u1\",zone=\"dram\"}} 1\n\
             kepler_pod_cpu_joules_total{{pod_id=\"u1\",zone=\"package\"}} 90\n\
             energy_agent_pod_cpu_seconds_total{{pod_id=\"u1\"}} {seconds}\n\
             kepler_container_cpu_joules_total{{container_id=\"0123456789abcdef\",pod_id=\"u1\",state=\"terminated\"}} 80\n"
        ))
        .unwrap()
    }

    #[test]
    fn sockets_and_zones_are_summed_and_rates_need_two_ticks() {
        let mut memory = Memory::default();
        let first = Table::read(&page(100, 10, 6), &mut memory);
        assert_eq!(first.node.meters(), "n   package 42.50 W (rapl)");
        assert_eq!(first.node.shares(), "active 30.00 W   idle 12.50 W   unattributed -   CPU busy 50 %");
        let [pod, container] = &first.entries[..] else { panic!("{first:?}") };
        assert_eq!((pod.name.as_str(), pod.numbers()), ("u1", ["5.000", "90.0", "-"].map(str::to_owned)));
        assert_eq!((container.name.as_str(), container.ended), ("0123456789ab in pod u1", true));
        // Two seconds later: 3 s of CPU time are 150 % of one CPU, 1 J unattributed is half a watt.
        let second = Table::read(&page(102, 13, 7), &mut memory);
        assert_eq!((second.entries[0].cpu, second.node.unattributed), (Some(150.0), Some(0.5)));
        // The same tick again: the same rates.
        assert_eq!(Table::read(&page(102, 13, 7), &mut memory), second);
        // A restarted agent counts from zero: no rate.
        assert_eq!(Table::read(&page(104, 1, 0), &mut memory).entries[0].cpu, None);
    }

    #[test]
    fn the_largest_comes_first_and_what_has_no_value_last() {
        let entry = |name: &str, watts, joules| Entry {
            kind: Kind::Unit,
            name: name.to_owned(),
            watts,
            joules,
            cpu: None,
            ended: false,
        };
        let mut table = Table {
            entries: vec![entry("a", None, Some(9.0)), entry("c", Some(2.0), Some(1.0)), entry("b", Some(3.0), None)],
            ..Table::default()
        };
        let mut names = |order| {
            table.sort(order);
            table.entries.iter().map(|entry| entry.name.clone()).collect::<String>()
        };
        assert_eq!(names(Order::Watts), "bca");
        assert_eq!(names(Order::Joules), "acb");
        assert_eq!(names(Order::Name), "abc");
    }
}
