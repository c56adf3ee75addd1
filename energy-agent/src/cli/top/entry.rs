//! The samples of a metrics page, gathered by what they are about: the node, and one entry for each pod, container, unit and
//! process.

use std::collections::{BTreeMap, HashMap};

use energy_export::parse::ParsedSample;
use energy_model::printable::printable;
use energy_model::snapshot::WorkloadState;

use super::figures::{Figures, sum};
use super::node::NodeFigures;
use super::rates::PreviousPage;

/// What an entry is, and what tells it from others of its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKey {
    Pod {
        uid: String,
    },
    /// `id` is its name where it has one: a restart goes on counting. Outside pods the uid is empty.
    Container {
        uid: String,
        id: String,
    },
    Unit {
        name: String,
    },
    Process {
        pid: String,
        comm: String,
        container: String,
    },
    /// A counter of the node.
    Unattributed {
        gpu: bool,
    },
}

/// What is known of one of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Of a pod; empty where it is not known.
    pub namespace: String,
    /// What people call it; printable.
    pub name: String,
    pub figures: Figures,
    /// Its cgroup is gone; the totals are its last.
    pub ended: bool,
}

/// One page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entries {
    pub node: NodeFigures,
    pub all: BTreeMap<EntryKey, Entry>,
    /// The unit that holds a container outside pods, by the container's id.
    pub unit_of: HashMap<String, String>,
}

/// What a metric says of an entry.
enum Figure {
    CpuWatts,
    GpuWatts,
    Joules,
    Seconds,
}

impl Entries {
    /// Reads a page; `memory` is that of the pages before it.
    pub fn read(samples: &[ParsedSample], memory: &mut PreviousPage<EntryKey>) -> Self {
        let mut entries = Self::default();
        let mut counters = HashMap::new();
        let mut tick = None;
        for sample in samples {
            let value = sample.number();
            match sample.name.as_str() {
                "energy_agent_node_cpu_unattributed_joules_total" => {
                    *counters.entry(EntryKey::Unattributed { gpu: false }).or_default() += value;
                }
                "energy_agent_node_gpu_unattributed_joules_total" => {
                    *counters.entry(EntryKey::Unattributed { gpu: true }).or_default() += value;
                }
                "energy_agent_last_tick_timestamp_seconds" => tick = Some(value),
                "energy_agent_container_unit_info" => {
                    entries.unit_of.insert(sample.label("container_id").to_owned(), sample.label("unit").to_owned());
                }
                name => match metric(name) {
                    Some((identity, figure)) => {
                        let key = identity(sample);
                        if let Figure::Seconds = figure {
                            *counters.entry(key.clone()).or_default() += value;
                        }
                        let entry = entries.all.entry(key).or_insert_with_key(|key| Entry::new(key, sample));
                        entry.take(&figure, value);
                    }
                    None => entries.node.take(sample),
                },
            }
        }
        memory.advance(tick, counters);
        entries.node.ticked_at(tick);
        entries.node.unattributed = memory.rate(&EntryKey::Unattributed { gpu: false });
        if let Some(gpus) = &mut entries.node.gpus {
            gpus.unattributed = memory.rate(&EntryKey::Unattributed { gpu: true });
        }
        for (key, entry) in &mut entries.all {
            entry.figures.cpu_percent = memory.rate(key).map(|share| share * 100.0);
        }
        entries
    }
}

impl Entry {
    fn new(key: &EntryKey, sample: &ParsedSample) -> Self {
        let first = |text: &str, letters: usize| text.chars().take(letters).collect::<String>();
        let name = match key {
            EntryKey::Pod { uid } => match sample.label("pod_name") {
                "" => uid.clone(),
                name => name.to_owned(),
            },
            EntryKey::Container { .. } => match sample.label("container_name") {
                "" => first(sample.label("container_id"), 12),
                name => name.to_owned(),
            },
            EntryKey::Unit { name } => name.clone(),
            EntryKey::Process { pid, comm, container } => {
                let of = if container.is_empty() { String::new() } else { format!(" in {}", first(container, 12)) };
                if pid.is_empty() { comm.clone() } else { format!("{comm} ({pid}){of}") }
            }
            EntryKey::Unattributed { .. } => String::new(),
        };
        Self {
            // Tenants name all of these.
            namespace: printable(sample.label("pod_namespace")).into_owned(),
            name: printable(&name).into_owned(),
            figures: Figures::default(),
            ended: sample.label("state") == WorkloadState::Terminated.as_str(),
        }
    }

    fn take(&mut self, figure: &Figure, value: f64) {
        let place = match figure {
            Figure::CpuWatts => &mut self.figures.cpu_watts,
            Figure::GpuWatts => &mut self.figures.gpu_watts,
            Figure::Joules => &mut self.figures.joules,
            Figure::Seconds => return,
        };
        *place = sum(*place, Some(value));
    }
}

type KeyOf = fn(&ParsedSample) -> EntryKey;

fn metric(name: &str) -> Option<(KeyOf, Figure)> {
    let (identity, rest): (KeyOf, &str) = if let Some(rest) = name.strip_prefix("kepler_pod_") {
        (pod, rest)
    } else if let Some(rest) = name.strip_prefix("kepler_container_") {
        (container, rest)
    } else if let Some(rest) = name.strip_prefix("kepler_process_") {
        (process, rest)
    } else if let Some(rest) = name.strip_prefix("energy_agent_system_") {
        (unit, rest)
    } else {
        (pod, name.strip_prefix("energy_agent_pod_").filter(|rest| *rest == "cpu_seconds_total")?)
    };
    let figure = match rest {
        "cpu_watts" => Figure::CpuWatts,
        "gpu_watts" => Figure::GpuWatts,
        "cpu_joules_total" | "gpu_joules_total" => Figure::Joules,
        "cpu_seconds_total" => Figure::Seconds,
        _ => return None,
    };
    Some((identity, figure))
}

fn pod(sample: &ParsedSample) -> EntryKey {
    EntryKey::Pod { uid: sample.label("pod_id").to_owned() }
}

fn container(sample: &ParsedSample) -> EntryKey {
    let id = match sample.label("container_name") {
        "" => sample.label("container_id"),
        name => name,
    };
    EntryKey::Container { uid: sample.label("pod_id").to_owned(), id: id.to_owned() }
}

fn unit(sample: &ParsedSample) -> EntryKey {
    EntryKey::Unit { name: sample.label("unit").to_owned() }
}

fn process(sample: &ParsedSample) -> EntryKey {
    let [pid, comm, container] = ["pid", "comm", "container_id"].map(|label| sample.label(label).to_owned());
    EntryKey::Process { pid, comm, container }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use energy_export::parse::samples;

    use super::*;

    #[test]
    fn zones_and_sources_of_one_entry_are_summed_and_cpu_shares_need_two_ticks() {
        let page = |tick: u32, seconds: u32| {
            samples(&format!(
                "energy_agent_last_tick_timestamp_seconds {tick}\n\
                 kepler_pod_cpu_watts{{pod_id=\"u1\",zone=\"package\"}} 4\nkepler_pod_cpu_watts{{pod_id=\"u1\",zone=\"dram\"}} 1\n\
                 kepler_pod_gpu_watts{{pod_id=\"u1\",source=\"nvml\"}} 150\nkepler_pod_gpu_joules_total{{pod_id=\"u1\"}} 10\n\
                 kepler_pod_cpu_joules_total{{pod_id=\"u1\",zone=\"package\"}} 90\n\
                 energy_agent_pod_cpu_seconds_total{{pod_id=\"u1\"}} {seconds}\n\
                 energy_agent_pod_idle_joules_total{{pod_id=\"u1\"}} 1000\n\
                 kepler_container_cpu_joules_total{{container_id=\"0123456789abcdef\",pod_id=\"u1\",state=\"terminated\"}} 80\n\
                 kepler_process_cpu_watts{{pid=\"7\",comm=\"a\\nb\",container_id=\"0123456789abcdef\"}} 1\n"
            ))
            .unwrap()
        };
        let mut memory = PreviousPage::default();
        Entries::read(&page(100, 10), &mut memory);
        let read = Entries::read(&page(102, 13), &mut memory);
        let seen: Vec<_> = read.all.values().map(|it| (it.name.as_str(), it.ended, it.figures)).collect();
        // 3 s of CPU time in 2 s.
        let pod =
            Figures { cpu_watts: Some(5.0), gpu_watts: Some(150.0), joules: Some(100.0), cpu_percent: Some(150.0) };
        let container = Figures { joules: Some(80.0), ..Figures::default() };
        let process = Figures { cpu_watts: Some(1.0), ..Figures::default() };
        let expected =
            [("u1", false, pod), ("0123456789ab", true, container), ("a\\nb (7) in 0123456789ab", false, process)];
        assert_eq!(seen, expected);
    }
}
