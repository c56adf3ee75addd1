//! Turns the samples of a metrics page into what `top` shows: the node's power and one entry for each pod, container and
//! unit. CPU shares are differences between two pages, over the time between the ticks they show.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use energy_export::parse::ParsedSample;
use energy_model::printable::printable;
use energy_model::snapshot::WorkloadState;

use super::node::NodeFigures;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    Pod,
    Container,
    Unit,
}

energy_model::as_str!(EntryKind { Pod => "pod", Container => "container", Unit => "unit" });

/// A pod, a container or a unit. Containers are parts of pods and units, so entries do not add up.
#[derive(Clone, Debug, PartialEq)]
pub struct TableEntry {
    pub kind: EntryKind,
    pub name: String,
    /// Of CPUs and memory, as is `joules`.
    pub watts: Option<f64>,
    pub gpu_watts: Option<f64>,
    pub joules: Option<f64>,
    /// Percent of one CPU.
    pub cpu: Option<f64>,
    /// Its cgroup is gone; the totals are its last.
    pub ended: bool,
}

impl TableEntry {
    /// What is shown in a column.
    #[must_use]
    pub fn number(&self, column: Column) -> String {
        match column {
            Column::Watts => number(self.watts, 3),
            Column::GpuWatts => number(self.gpu_watts, 3),
            Column::Joules => number(self.joules, 1),
            Column::Cpu => number(self.cpu, 1),
        }
    }

    /// Of everything that is measured of it.
    fn all_watts(&self) -> Option<f64> {
        self.watts.into_iter().chain(self.gpu_watts).reduce(|a, b| a + b)
    }
}

/// A column of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Watts,
    GpuWatts,
    Joules,
    /// Percent of one CPU.
    Cpu,
}

impl Column {
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Watts => "WATTS",
            Self::GpuWatts => "GPU WATTS",
            Self::Joules => "JOULES",
            Self::Cpu => "CPU%",
        }
    }

    #[must_use]
    pub const fn order(self) -> Order {
        match self {
            Self::Watts => Order::Watts,
            Self::GpuWatts => Order::GpuWatts,
            Self::Joules => Order::Joules,
            Self::Cpu => Order::Cpu,
        }
    }
}

/// By what entries are ordered; the largest first, names from A to Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Those of CPUs and GPUs together.
    Watts,
    GpuWatts,
    Joules,
    Cpu,
    Name,
}

/// What the previous page said, which differences are taken from.
#[derive(Debug, Default)]
pub struct PreviousPage {
    tick: Option<f64>,
    counters: HashMap<CounterKey, f64>,
    /// Differences by second between the last two ticks.
    rates: HashMap<CounterKey, f64>,
}

/// Pod and container id, or the unit; [`UNATTRIBUTED`] and [`GPU_UNATTRIBUTED`] for the node.
type CounterKey = (EntryKind, String, String);

const UNATTRIBUTED: &str = "\0unattributed";
const GPU_UNATTRIBUTED: &str = "\0GPU unattributed";

fn of_node(what: &str) -> CounterKey {
    (EntryKind::Unit, what.to_owned(), String::new())
}

impl PreviousPage {
    /// Takes the counters of a page whose values were read at `tick`. A page of the same tick changes nothing.
    fn advance(&mut self, tick: Option<f64>, counters: HashMap<CounterKey, f64>) {
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
            let rate = |(key, now): (&CounterKey, &f64)| {
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
    pub node: NodeFigures,
    pub entries: Vec<TableEntry>,
}

impl Table {
    /// Reads a page; `memory` is that of the pages before it.
    #[must_use]
    pub fn read(samples: &[ParsedSample], memory: &mut PreviousPage) -> Self {
        let mut node = NodeFigures::default();
        let mut entries = BTreeMap::<CounterKey, TableEntry>::new();
        let mut counters = HashMap::new();
        let mut tick = None;
        for sample in samples {
            let value = sample.number();
            match sample.name.as_str() {
                "kepler_node_cpu_watts" => {
                    node.name = printable(sample.label("node_name")).into_owned();
                    let zone = ["zone", "source"].map(|label| printable(sample.label(label)).into_owned()).into();
                    *node.zones.entry(zone).or_default() += value;
                }
                "kepler_node_cpu_active_watts" => add(&mut node.active, value),
                "kepler_node_cpu_idle_watts" => add(&mut node.idle, value),
                "kepler_node_cpu_usage_ratio" => node.busy = Some(value),
                "energy_agent_node_cpu_unattributed_joules_total" => {
                    *counters.entry(of_node(UNATTRIBUTED)).or_default() += value;
                }
                "kepler_node_gpu_info" => node.gpus.get_or_insert_default().count += 1,
                "kepler_node_gpu_watts" => {
                    let source = printable(sample.label("source")).into_owned();
                    *node.gpus.get_or_insert_default().watts.entry(source).or_default() += value;
                }
                "kepler_node_gpu_active_watts" => add(&mut node.gpus.get_or_insert_default().active, value),
                "kepler_node_gpu_idle_watts" => add(&mut node.gpus.get_or_insert_default().idle, value),
                "energy_agent_node_gpu_unattributed_joules_total" => {
                    *counters.entry(of_node(GPU_UNATTRIBUTED)).or_default() += value;
                }
                "energy_agent_last_tick_timestamp_seconds" => tick = Some(value),
                name => {
                    let Some((kind, what)) = workload(name) else { continue };
                    let (key, label) = identity(kind, sample);
                    let entry = entries.entry(key.clone()).or_insert_with(|| TableEntry {
                        kind,
                        // A cgroup may have any name.
                        name: printable(&label).into_owned(),
                        watts: None,
                        gpu_watts: None,
                        joules: None,
                        cpu: None,
                        ended: sample.label("state") == WorkloadState::Terminated.as_str(),
                    });
                    match what {
                        Figure::Watts => add(&mut entry.watts, value),
                        Figure::GpuWatts => add(&mut entry.gpu_watts, value),
                        Figure::Joules => add(&mut entry.joules, value),
                        Figure::Seconds => *counters.entry(key).or_default() += value,
                    }
                }
            }
        }
        memory.advance(tick, counters);
        node.unattributed = memory.rates.get(&of_node(UNATTRIBUTED)).copied();
        if let Some(gpus) = &mut node.gpus {
            gpus.unattributed = memory.rates.get(&of_node(GPU_UNATTRIBUTED)).copied();
        }
        for (key, entry) in &mut entries {
            entry.cpu = memory.rates.get(key).map(|share| share * 100.0);
        }
        Self { node, entries: entries.into_values().collect() }
    }

    /// The columns that there is something for, in order.
    #[must_use]
    pub fn columns(&self) -> &'static [Column] {
        const ALL: [Column; 4] = [Column::Watts, Column::GpuWatts, Column::Joules, Column::Cpu];
        const WITHOUT_GPU: [Column; 3] = [Column::Watts, Column::Joules, Column::Cpu];
        if self.node.gpus.is_some() { &ALL } else { &WITHOUT_GPU }
    }

    pub fn sort(&mut self, order: Order) {
        let largest = |a: Option<f64>, b: Option<f64>| b.partial_cmp(&a).unwrap_or(Ordering::Equal);
        self.entries.sort_by(|a, b| {
            let first = match order {
                Order::Watts => largest(a.all_watts(), b.all_watts()).then(largest(a.joules, b.joules)),
                Order::GpuWatts => largest(a.gpu_watts, b.gpu_watts),
                Order::Joules => largest(a.joules, b.joules),
                Order::Cpu => largest(a.cpu, b.cpu),
                Order::Name => Ordering::Equal,
            };
            first.then_with(|| (&a.name, a.kind).cmp(&(&b.name, b.kind)))
        });
    }
}

enum Figure {
    Watts,
    GpuWatts,
    Joules,
    Seconds,
}

fn workload(name: &str) -> Option<(EntryKind, Figure)> {
    Some(match name {
        "kepler_pod_cpu_watts" => (EntryKind::Pod, Figure::Watts),
        "kepler_pod_gpu_watts" => (EntryKind::Pod, Figure::GpuWatts),
        "kepler_pod_cpu_joules_total" => (EntryKind::Pod, Figure::Joules),
        "energy_agent_pod_cpu_seconds_total" => (EntryKind::Pod, Figure::Seconds),
        "kepler_container_cpu_watts" => (EntryKind::Container, Figure::Watts),
        "kepler_container_gpu_watts" => (EntryKind::Container, Figure::GpuWatts),
        "kepler_container_cpu_joules_total" => (EntryKind::Container, Figure::Joules),
        "kepler_container_cpu_seconds_total" => (EntryKind::Container, Figure::Seconds),
        "energy_agent_system_cpu_watts" => (EntryKind::Unit, Figure::Watts),
        "energy_agent_system_gpu_watts" => (EntryKind::Unit, Figure::GpuWatts),
        "energy_agent_system_cpu_joules_total" => (EntryKind::Unit, Figure::Joules),
        "energy_agent_system_cpu_seconds_total" => (EntryKind::Unit, Figure::Seconds),
        _ => return None,
    })
}

/// What identifies an entry, and what people call it.
fn identity(kind: EntryKind, sample: &ParsedSample) -> (CounterKey, String) {
    let [pod, container, unit] = ["pod_id", "container_id", "unit"].map(|label| sample.label(label));
    match kind {
        EntryKind::Pod => {
            let name = match (sample.label("pod_namespace"), sample.label("pod_name")) {
                (_, "") => pod.to_owned(),
                (namespace, name) => format!("{namespace}/{name}"),
            };
            ((kind, pod.to_owned(), String::new()), name)
        }
        EntryKind::Container => {
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
        EntryKind::Unit => ((kind, unit.to_owned(), String::new()), unit.to_owned()),
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
    use energy_export::parse::samples;

    fn page(tick: u32, seconds: u32, unattributed: u32) -> Vec<ParsedSample> {
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

    fn numbers(table: &Table, entry: &TableEntry) -> Vec<String> {
        table.columns().iter().map(|column| entry.number(*column)).collect()
    }

    #[test]
    fn gpus_have_a_line_and_a_column_and_count_in_the_order() {
        let gpus = |unattributed: u32| {
            samples(&format!(
                "kepler_node_gpu_info{{gpu_uuid=\"a\"}} 1\nkepler_node_gpu_info{{gpu_uuid=\"b\"}} 1\n\
                 kepler_node_gpu_watts{{gpu_uuid=\"a\",source=\"nvml\"}} 200\nkepler_node_gpu_watts{{gpu_uuid=\"b\",source=\"nvml\"}} 64\n\
                 kepler_node_gpu_active_watts{{gpu_uuid=\"a\"}} 186\nkepler_node_gpu_idle_watts{{gpu_uuid=\"a\"}} 14\n\
                 kepler_node_gpu_idle_watts{{gpu_uuid=\"b\"}} 64\n\
                 energy_agent_node_gpu_unattributed_joules_total{{gpu_uuid=\"a\"}} {unattributed}\n\
                 kepler_pod_gpu_watts{{pod_id=\"u0\",source=\"nvml\"}} 150\n\
                 kepler_container_gpu_watts{{pod_id=\"u0\",container_id=\"c\",container_name=\"main\"}} 150\n\
                 energy_agent_system_gpu_watts{{unit=\"a.service\"}} 36\nkepler_pod_gpu_watts{{pod_id=\"u1\"}} 0\n"
            ))
            .unwrap()
        };
        let mut memory = PreviousPage::default();
        let first = Table::read(&[page(100, 10, 6), gpus(3)].concat(), &mut memory);
        assert_eq!(first.node.gpus.unwrap().unattributed, None);
        let mut table = Table::read(&[page(102, 10, 6), gpus(5)].concat(), &mut memory);
        let line = "2 GPUs  264.0 W (nvml)  active 186.0 W  idle 78.0 W  unattributed 1.0 W";
        assert_eq!(table.node.gpus.as_ref().unwrap().line(), line);
        assert_eq!(table.node.meters(), "n   package 42.50 W (rapl)", "the line of CPUs stays");
        table.sort(Order::Watts);
        let seen: Vec<_> =
            table.entries.iter().map(|it| (it.name.as_str(), numbers(&table, it)[..2].join(" "))).collect();
        let expected = [
            ("main in pod u0", "- 150.000"),
            ("u0", "- 150.000"),
            ("a.service", "- 36.000"),
            ("u1", "5.000 0.000"),
            ("0123456789ab in pod u1", "- -"),
        ];
        assert_eq!(seen, expected.map(|(name, numbers)| (name, numbers.to_owned())));
        assert_eq!(table.columns().len(), 4);
        assert_eq!(
            Table::read(&page(100, 10, 6), &mut PreviousPage::default()).columns().len(),
            3,
            "no GPU, no column"
        );
    }

    #[test]
    fn sockets_and_zones_are_summed_and_rates_need_two_ticks() {
        let mut memory = PreviousPage::default();
        let first = Table::read(&page(100, 10, 6), &mut memory);
        assert_eq!(first.node.meters(), "n   package 42.50 W (rapl)");
        assert_eq!(first.node.shares(), "active 30.00 W   idle 12.50 W   unattributed -   CPU busy 50 %");
        let [pod, container] = &first.entries[..] else { panic!("{first:?}") };
        assert_eq!(
            (pod.name.as_str(), numbers(&first, pod)),
            ("u1", ["5.000", "90.0", "-"].map(str::to_owned).to_vec())
        );
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
        let entry = |name: &str, watts, joules| TableEntry {
            kind: EntryKind::Unit,
            name: name.to_owned(),
            watts,
            gpu_watts: None,
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
