//! What Prometheus knows of the nodes: the query of a round, and the reports that its answer makes. Pure.

use std::collections::HashMap;
use std::time::Duration;

use energy_cluster::prometheus::VectorSeries;
use energy_model::power_report::{HeldLevel, PowerReport};
use energy_model::units::floor_u64;

/// Figures of agents by their names; their age and what DCGM exporter says by the label `bound`, which no metric has with these
/// values. MIG instances repeat the power of their GPU.
pub const QUERY: &str = r#"
max by (__name__, node_name, bound, budget) ({__name__=~"energy_agent_node_(power|power_range|limit|budget_floor)_watts"})
or label_replace(min by (node_name) (timestamp(energy_agent_node_power_range_watts{bound="most"})), "bound", "read", "", "")
or label_replace(sum by (Hostname) (max by (Hostname, UUID) (DCGM_FI_DEV_POWER_USAGE)), "bound", "gpus", "", "")
or label_replace(count by (Hostname) (max by (Hostname, UUID) (DCGM_FI_DEV_POWER_USAGE)), "bound", "gpus_count", "", "")
or label_replace(min by (Hostname) (timestamp(DCGM_FI_DEV_POWER_USAGE)), "bound", "gpus_read", "", "")
"#;

/// By the name of the node.
#[derive(Debug, Default, PartialEq)]
pub struct Samples {
    pub agents: HashMap<String, AgentSample>,
    pub gpus: HashMap<String, GpuSample>,
}

/// What an agent has said of its node at its last scrape.
#[derive(Debug, Default, PartialEq)]
pub struct AgentSample {
    /// `seq` is the time of the scrape.
    pub report: PowerReport,
    /// At the time of the query.
    pub age: Duration,
    has_floor: bool,
    has_most: bool,
}

/// What the GPUs of a node draw together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuSample {
    pub watts: f64,
    /// How many they are.
    pub count: f64,
    /// The time of the scrape.
    pub seq: u64,
    pub age: Duration,
}

impl Samples {
    /// VectorSeries without a number count as none.
    pub fn new(series: &[VectorSeries]) -> Self {
        let (mut agents, mut watts) = (HashMap::<String, AgentSample>::new(), Vec::new());
        let (mut counts, mut reads) = (HashMap::new(), HashMap::new());
        for one in series {
            let Some(value) = one.value() else { continue };
            match (one.label("node_name"), one.label("Hostname"), one.label("bound")) {
                ("", "", _) => {}
                ("", host, "gpus") => watts.push((host, value)),
                ("", host, "gpus_count") => drop(counts.insert(host, value)),
                ("", host, "gpus_read") => drop(reads.insert(host, read(one, value))),
                ("", ..) => {}
                (node, ..) => agents.entry(node.to_owned()).or_default().add(one, value),
            }
        }
        // Without its range nothing can be said of a node, nor without the time of the scrape.
        agents.retain(|_, sample| sample.has_floor && sample.has_most && sample.report.seq > 0);
        let gpus = watts.into_iter().filter_map(|(host, watts)| {
            let (seq, age) = *reads.get(host)?;
            Some((host.to_owned(), GpuSample { watts, count: *counts.get(host)?, seq, age }))
        });
        Self { agents, gpus: gpus.collect() }
    }
}

impl AgentSample {
    fn add(&mut self, series: &VectorSeries, value: f64) {
        let report = &mut self.report;
        match (series.label("__name__"), series.label("bound")) {
            ("energy_agent_node_power_watts", _) => report.watts = Some(value),
            ("energy_agent_node_power_range_watts", "floor") => (report.floor_watts, self.has_floor) = (value, true),
            ("energy_agent_node_power_range_watts", "most") => (report.most_watts, self.has_most) = (value, true),
            // The highest, where two servers scrape and the label has changed between them.
            ("energy_agent_node_limit_watts", _) if report.limit_watts.is_none_or(|limit| limit <= value) => {
                let budget = series.label("budget");
                report.limit_watts = Some(value);
                report.limited_by = (!budget.is_empty()).then(|| budget.to_owned());
            }
            ("energy_agent_node_budget_floor_watts", _) => report.levels.push(HeldLevel {
                budget: series.label("budget").to_owned(),
                floor_watts: Some(value),
                ..HeldLevel::default()
            }),
            ("", "read") => {
                (report.seq, self.age) = read(series, value);
            }
            _ => {}
        }
    }
}

/// Milliseconds of the scrape at this Unix time, and its age.
fn read(series: &VectorSeries, read_s: f64) -> (u64, Duration) {
    let age = Duration::try_from_secs_f64(series.asked_s() - read_s).unwrap_or_default();
    (floor_u64(read_s * 1000.0), age)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use serde_json::{Value, json};

    use super::*;

    fn samples(series: &[(Value, &str)]) -> Samples {
        let one = |(labels, value): &(Value, &str)| {
            serde_json::from_value(json!({"metric": labels, "value": [1_000.5, value]})).unwrap()
        };
        Samples::new(&series.iter().map(one).collect::<Vec<VectorSeries>>())
    }

    fn range(node: &str) -> Vec<(Value, &'static str)> {
        let name = "energy_agent_node_power_range_watts";
        vec![
            (json!({"__name__": name, "node_name": node, "bound": "floor"}), "200"),
            (json!({"__name__": name, "node_name": node, "bound": "most"}), "1000"),
            (json!({"node_name": node, "bound": "read"}), "998.25"),
        ]
    }

    #[test]
    fn an_agent_says_by_its_metrics_what_it_says_by_its_report() {
        let mut series = range("n1");
        for (name, budget, watts) in [
            ("energy_agent_node_power_watts", "", "612.5"),
            ("energy_agent_node_limit_watts", "rack", "600"),
            ("energy_agent_node_budget_floor_watts", "hall", "400"),
        ] {
            series.push((json!({"__name__": name, "node_name": "n1", "budget": budget}), watts));
        }
        let found = samples(&series);
        let sample = &found.agents["n1"];
        let held = HeldLevel { budget: "hall".to_owned(), floor_watts: Some(400.0), ..HeldLevel::default() };
        let expected = PowerReport {
            seq: 998_250,
            watts: Some(612.5),
            floor_watts: 200.0,
            most_watts: 1000.0,
            limit_watts: Some(600.0),
            limited_by: Some("rack".to_owned()),
            levels: vec![held],
            ..PowerReport::default()
        };
        assert_eq!((&sample.report, sample.age), (&expected, Duration::from_millis(2250)));
        assert_eq!(found.gpus, HashMap::new());
    }

    #[test]
    fn what_is_missing_is_never_a_zero() {
        // Power that was not measured, or is no number.
        let mut series = range("n1");
        series.push((json!({"__name__": "energy_agent_node_power_watts", "node_name": "n1"}), "NaN"));
        assert_eq!(samples(&series).agents["n1"].report.watts, None);
        // Without a bound of its range, or the time of its scrape, an agent has said nothing.
        for missing in 0..3 {
            let mut series = range("n1");
            series.remove(missing);
            assert_eq!(samples(&series), Samples::default(), "{missing}");
        }
        let gpus = json!({"Hostname": "n2", "bound": "gpus"});
        assert_eq!(samples(&[(gpus.clone(), "700")]), Samples::default());
        let read = json!({"Hostname": "n2", "bound": "gpus_read"});
        let count = json!({"Hostname": "n2", "bound": "gpus_count"});
        let found = samples(&[(gpus, "700"), (read.clone(), "1000"), (count, "2")]);
        let expected = GpuSample { watts: 700.0, count: 2.0, seq: 1_000_000, age: Duration::from_millis(500) };
        assert_eq!(found.gpus, HashMap::from([("n2".to_owned(), expected)]));
        // Nor is the power of GPUs without a number.
        assert!(samples(&[(read, "1000")]).gpus.is_empty());
    }

    #[test]
    fn a_scrape_from_the_future_has_no_age() {
        let mut series = range("n1");
        series[2].1 = "5000";
        assert_eq!(samples(&series).agents["n1"].age, Duration::ZERO);
    }
}
