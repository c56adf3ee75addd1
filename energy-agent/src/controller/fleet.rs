//! The nodes of the cluster with what their agents said last.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_cluster::agents::{Answered, Asked};
use energy_cluster::kinds::{AgentAddress, ClusterNode};
use energy_cluster::objects::ObjectKey;
use energy_model::power_report::PowerReport;

use super::samples::{AgentSample, GpuSample, Samples};

/// A node that draws more is none, or lies.
const MOST_WATTS: f64 = 1e6;
/// Devices may draw a little more than their limit for a moment.
const OVERSHOOT: f64 = 1.25;

/// Power moves around a limit by less than this.
const OVER: f64 = 1.1;
const OVER_WATTS: f64 = 10.0;

#[derive(Debug, Default)]
pub struct Fleet {
    pub nodes: Vec<NodeState>,
    places: HashMap<Arc<str>, usize>,
    /// Rises when nodes come or go, or have other labels.
    pub revision: u64,
    pub answers: Answers,
}

/// Rounds so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers {
    pub reports: u64,
    pub failures: u64,
}

#[derive(Debug)]
pub struct NodeState {
    pub name: Arc<str>,
    object: Arc<ClusterNode>,
    pub address: Option<Arc<str>>,
    pub heard: Option<HeardReport>,
    /// What its GPUs draw, where DCGM exporter says it and there is no agent.
    pub gpus: Option<HeardGpus>,
    /// Why it could not be asked, for people.
    pub trouble: Option<Arc<str>>,
    /// What it may draw by all that it may have been told since its last report.
    pub allowed: f64,
    /// For how many rounds it has drawn more than its limit.
    pub over: u32,
}

#[derive(Debug)]
pub struct HeardReport {
    pub report: PowerReport,
    pub at: Instant,
}

#[derive(Clone, Copy, Debug)]
pub struct HeardGpus {
    pub watts: f64,
    /// Of all that was heard.
    pub highest: f64,
    /// How many they were at most.
    count: f64,
    seq: u64,
    pub at: Instant,
}

impl NodeState {
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.object.metadata.labels
    }

    /// Its last report, if it is not too old.
    pub fn fresh(&self, now: Instant, patience: Duration) -> Option<&PowerReport> {
        let heard = self.heard.as_ref()?;
        (now.saturating_duration_since(heard.at) <= patience).then_some(&heard.report)
    }

    /// What its GPUs draw, if that is not too old.
    pub fn fresh_gpus(&self, now: Instant, patience: Duration) -> Option<f64> {
        let heard = self.gpus?;
        (now.saturating_duration_since(heard.at) <= patience).then_some(heard.watts)
    }

    fn take_report(&mut self, report: PowerReport, at: Instant) {
        self.over = if is_over(report.watts, report.limit_watts) { self.over.saturating_add(1) } else { 0 };
        self.allowed = report.limit_watts.unwrap_or(report.most_watts).min(report.most_watts);
        self.heard = Some(HeardReport { report, at });
    }

    /// A scrape that was taken in before is no other report, and goes on to age by the own clock.
    fn take_sample(&mut self, sample: AgentSample, now: Instant) -> Result<(), Arc<str>> {
        let report = sane(sample.report)?;
        if self.heard.as_ref().is_none_or(|heard| heard.report.seq != report.seq) {
            self.take_report(report, before(now, sample.age));
        }
        Ok(())
    }

    fn take_gpus(&mut self, sample: GpuSample, now: Instant) -> Result<(), Arc<str>> {
        if !is_possible(sample.watts) {
            return Err(format!("GPUs with figures that no node can draw (0 to {MOST_WATTS} W are taken)").into());
        }
        if self.gpus.is_none_or(|heard| heard.seq != sample.seq) {
            let highest = self.gpus.map_or(sample.watts, |heard| heard.highest.max(sample.watts));
            let count = self.gpus.map_or(sample.count, |heard| heard.count.max(sample.count));
            self.gpus = Some(HeardGpus {
                // A GPU that nobody reports any more does not draw 0 W.
                watts: if sample.count < count { highest } else { sample.watts },
                highest,
                count,
                seq: sample.seq,
                at: before(now, sample.age),
            });
        }
        Ok(())
    }
}

/// A clock may be younger than what it tells the age of.
fn before(now: Instant, age: Duration) -> Instant {
    now.checked_sub(age).unwrap_or(now)
}

impl Fleet {
    /// The nodes that there are now.
    pub fn follow_nodes(&mut self, objects: &BTreeMap<ObjectKey, Arc<ClusterNode>>) {
        let is_same = self.nodes.len() == objects.len()
            && self.nodes.iter().zip(objects.values()).all(|(node, object)| {
                *node.name == *object.metadata.name && node.object.metadata.labels == object.metadata.labels
            });
        if is_same {
            return;
        }
        let mut before: HashMap<Arc<str>, NodeState> =
            std::mem::take(&mut self.nodes).into_iter().map(|node| (Arc::clone(&node.name), node)).collect();
        for object in objects.values() {
            let node = before.remove(object.metadata.name.as_str());
            let object = Arc::clone(object);
            self.nodes.push(match node {
                Some(node) => NodeState { object, ..node },
                None => NodeState {
                    name: Arc::from(object.metadata.name.as_str()),
                    object,
                    address: None,
                    heard: None,
                    gpus: None,
                    trouble: None,
                    allowed: 0.0,
                    over: 0,
                },
            });
        }
        self.places = self.nodes.iter().enumerate().map(|(place, node)| (Arc::clone(&node.name), place)).collect();
        self.revision += 1;
    }

    /// Where agents are asked now; one that is ready goes before one that is not.
    pub fn follow_agents(&mut self, agents: impl Iterator<Item = AgentAddress>) {
        let mut found: HashMap<String, AgentAddress> = HashMap::new();
        for agent in agents {
            if agent.ready || !found.contains_key(&agent.node) {
                found.insert(agent.node.clone(), agent);
            }
        }
        for node in &mut self.nodes {
            let address = found.remove(&*node.name).map(|agent| agent.address);
            if node.address.as_deref() != address.as_deref() {
                node.address = address.map(Arc::from);
            }
        }
    }

    pub fn node(&self, name: &str) -> Option<&NodeState> {
        self.places.get(name).map(|place| &self.nodes[*place])
    }

    /// Whom to ask in this round. It does not wait for those that did not answer in the last one.
    pub fn round(&self) -> Vec<Asked> {
        let asked = |node: &NodeState| {
            let address = Arc::clone(node.address.as_ref()?);
            Some(Asked { node: Arc::clone(&node.name), address, awaited: node.trouble.is_none() })
        };
        self.nodes.iter().filter_map(asked).collect()
    }

    /// What came of it. `asked` but not in `answered` did not answer in time.
    pub fn take(&mut self, now: Instant, asked: &[Asked], answered: Vec<Answered>) {
        let mut missing: HashMap<&str, ()> = asked.iter().map(|asked| (&*asked.node, ())).collect();
        for Answered { node: name, report } in answered {
            missing.remove(&*name);
            let Some(node) = self.places.get(&name).map(|place| &mut self.nodes[*place]) else { continue };
            match report.and_then(sane) {
                Ok(report) => {
                    self.answers.reports += 1;
                    node.trouble = None;
                    node.take_report(report, now);
                }
                Err(trouble) => {
                    self.answers.failures += 1;
                    node.trouble = Some(trouble.into());
                }
            }
        }
        for name in missing.keys() {
            self.answers.failures += 1;
            if let Some(node) = self.places.get(*name).map(|place| &mut self.nodes[*place]) {
                node.trouble = Some("no answer in time".into());
            }
        }
    }

    /// What Prometheus knows of all nodes, or why it does not say it.
    pub fn take_samples(&mut self, now: Instant, samples: Result<Samples, String>) {
        // One text for all nodes.
        let (mut samples, why): (_, Arc<str>) = match samples {
            Ok(samples) => {
                (samples, "Prometheus has no figures of its agent: it must scrape one with capping on".into())
            }
            Err(why) => (Samples::default(), why.into()),
        };
        for node in &mut self.nodes {
            let taken = match (samples.agents.remove(&*node.name), samples.gpus.remove(&*node.name)) {
                (Some(sample), _) => node.take_sample(sample, now),
                // With an agent, its GPUs are a part of what it draws.
                (None, Some(sample)) if node.address.is_none() && node.heard.is_none() => node.take_gpus(sample, now),
                _ if node.address.is_none() && node.heard.is_none() && node.gpus.is_none() => continue,
                _ => Err(Arc::clone(&why)),
            };
            match taken {
                Ok(()) => self.answers.reports += 1,
                Err(_) => self.answers.failures += 1,
            }
            node.trouble = taken.err();
        }
    }
}

/// It draws clearly more than the limit that it says it follows.
pub fn is_over(watts: Option<f64>, limit: Option<f64>) -> bool {
    watts.zip(limit).is_some_and(|(watts, limit)| watts > limit * OVER + OVER_WATTS)
}

fn is_possible(watts: f64) -> bool {
    watts.is_finite() && (0.0..=MOST_WATTS).contains(&watts)
}

/// The report with figures that its devices can draw.
fn sane(mut report: PowerReport) -> Result<PowerReport, String> {
    let own = [Some(report.floor_watts), Some(report.most_watts), report.watts, report.limit_watts];
    let of_levels = report.levels.iter().map(|held| held.floor_watts);
    let of_policies = report
        .policies
        .iter()
        .flat_map(|policy| [Some(policy.floor_watts), Some(policy.most_watts), policy.watts, policy.limit_watts]);
    if !own.into_iter().chain(of_levels).chain(of_policies).flatten().all(is_possible) {
        return Err(format!("the report has figures that no node can draw (0 to {MOST_WATTS} W are taken)"));
    }
    report.floor_watts = report.floor_watts.min(report.most_watts);
    for policy in &mut report.policies {
        policy.most_watts = policy.most_watts.min(report.most_watts);
        policy.watts = policy.watts.map(|watts| watts.min(report.most_watts * OVERSHOOT));
    }
    report.watts = report.watts.map(|watts| watts.min(report.most_watts * OVERSHOOT));
    Ok(report)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;
    use serde_json::json;

    fn nodes(names: &[&str]) -> BTreeMap<ObjectKey, Arc<ClusterNode>> {
        let node = |name: &&str| {
            let node: ClusterNode =
                serde_json::from_value(json!({"metadata": {"name": name, "labels": {"n": name}}})).unwrap();
            ((String::new(), (*name).to_owned()), Arc::new(node))
        };
        names.iter().map(node).collect()
    }

    fn report(watts: f64) -> PowerReport {
        PowerReport { watts: Some(watts), floor_watts: 200.0, most_watts: 1000.0, ..PowerReport::default() }
    }

    #[test]
    fn reports_of_nonsense_are_no_reports() {
        for figure in [f64::NAN, f64::INFINITY, -1.0, 2e6] {
            assert!(sane(report(figure)).is_err(), "{figure}");
            assert!(sane(PowerReport { most_watts: figure, ..report(1.0) }).is_err(), "{figure}");
        }
        // More than the devices may draw is cut to a quarter more.
        assert_eq!(sane(report(5000.0)).unwrap().watts, Some(1250.0));
        let floor = sane(PowerReport { floor_watts: 3000.0, ..report(1.0) }).unwrap().floor_watts;
        assert_eq!(format!("{floor}"), "1000");
    }

    /// What Prometheus says at a Unix time of 2000 s of node `b` with an agent and of node `c` with GPUs, at these scrapes.
    fn samples(agent: Option<(&str, f64)>, gpus: Option<(&str, f64)>) -> Samples {
        samples_of(agent, gpus.map(|(read, watts)| (read, watts, "2")))
    }

    /// The last one is the number of GPUs.
    fn samples_of(agent: Option<(&str, f64)>, gpus: Option<(&str, f64, &str)>) -> Samples {
        let series =
            |labels, value: &str| serde_json::from_value(json!({"metric": labels, "value": [2000.0, value]})).unwrap();
        let mut all = Vec::new();
        if let Some((read, watts)) = agent {
            for (name, bound, value) in [
                ("energy_agent_node_power_range_watts", "floor", "200"),
                ("energy_agent_node_power_range_watts", "most", "1000"),
                ("energy_agent_node_power_watts", "", &watts.to_string()),
                ("", "read", read),
            ] {
                all.push(series(json!({"__name__": name, "node_name": "b", "bound": bound}), value));
            }
        }
        if let Some((read, watts, count)) = gpus {
            for (bound, value) in [("gpus", watts.to_string().as_str()), ("gpus_count", count), ("gpus_read", read)] {
                all.push(series(json!({"Hostname": "c", "bound": bound}), value));
            }
        }
        Samples::new(&all)
    }

    #[test]
    fn a_scrape_is_taken_in_once_and_ages_from_when_it_was_made() {
        let (mut fleet, start) = (Fleet::default(), Instant::now() + Duration::from_secs(100));
        let (second, patience) = (Duration::from_secs(1), Duration::from_secs(10));
        fleet.follow_nodes(&nodes(&["a", "b", "c"]));
        let agent = AgentAddress { node: "b".into(), address: "1:1".into(), ready: true };
        fleet.follow_agents([agent].into_iter());
        // Scraped 4 s and 1 s ago.
        fleet.take_samples(start, Ok(samples(Some(("1996", 300.0)), Some(("1999", 650.0)))));
        assert_eq!(fleet.nodes[1].fresh(start + 6 * second, patience).unwrap().watts, Some(300.0));
        assert!(fleet.nodes[1].fresh(start + 7 * second, patience).is_none());
        assert_eq!(fleet.nodes[2].fresh_gpus(start + 9 * second, patience), Some(650.0));
        // The same scrapes again are no news, whatever the clock of Prometheus says; another one is.
        fleet.take_samples(start + 5 * second, Ok(samples(Some(("1996", 300.0)), Some(("1999", 650.0)))));
        assert!(fleet.nodes[1].fresh(start + 7 * second, patience).is_none());
        assert_eq!(fleet.nodes[2].fresh_gpus(start + 10 * second, patience), None);
        fleet.take_samples(start + 15 * second, Ok(samples(Some(("2000", 310.0)), Some(("2000", 100.0)))));
        assert_eq!(fleet.nodes[1].fresh(start + 25 * second, patience).unwrap().watts, Some(310.0));
        assert_eq!(fleet.nodes[2].gpus.map(|heard| (heard.watts, heard.highest)), Some((100.0, 650.0)));
        // Nothing is expected of a node of which nobody ever said anything.
        assert_eq!((fleet.nodes[0].trouble.as_ref(), fleet.answers.failures), (None, 0));
        fleet.take_samples(start + 20 * second, Err("Prometheus is away".to_owned()));
        let troubles: Vec<Option<&str>> = fleet.nodes.iter().map(|node| node.trouble.as_deref()).collect();
        assert_eq!(troubles, [None, Some("Prometheus is away"), Some("Prometheus is away")]);
        assert!(fleet.nodes[1].heard.is_some());
    }

    #[test]
    fn a_gpu_that_is_not_reported_does_not_draw_0_watts() {
        let (mut fleet, now) = (Fleet::default(), Instant::now());
        fleet.follow_nodes(&nodes(&["c"]));
        let mut watts = |read, watts, count| {
            fleet.take_samples(now, Ok(samples_of(None, Some((read, watts, count)))));
            fleet.nodes[0].gpus.map(|heard| heard.watts)
        };
        assert_eq!(watts("1990", 650.0, "2"), Some(650.0));
        assert_eq!(watts("1991", 600.0, "2"), Some(600.0));
        assert_eq!(watts("1992", 300.0, "1"), Some(650.0));
        assert_eq!(watts("1993", 310.0, "2"), Some(310.0));
    }

    #[test]
    fn gpus_count_only_where_there_is_no_agent_and_only_with_figures_that_can_be() {
        let (mut fleet, now) = (Fleet::default(), Instant::now());
        fleet.follow_nodes(&nodes(&["c"]));
        for watts in [-1.0, 2e6] {
            fleet.take_samples(now, Ok(samples(None, Some(("1999", watts)))));
            assert!(fleet.nodes[0].gpus.is_none() && fleet.answers.reports == 0, "{watts}");
        }
        let agent = AgentAddress { node: "c".into(), address: "1:1".into(), ready: true };
        fleet.follow_agents([agent].into_iter());
        fleet.take_samples(now, Ok(samples(None, Some(("1999", 650.0)))));
        assert!(fleet.nodes[0].gpus.is_none());
        let why = fleet.nodes[0].trouble.clone().unwrap();
        assert!(why.starts_with("Prometheus has no figures of its agent"), "{why}");
    }

    #[test]
    fn a_node_that_stays_keeps_its_report_and_one_that_is_gone_has_none() {
        let (mut fleet, now) = (Fleet::default(), Instant::now());
        fleet.follow_nodes(&nodes(&["a.example", "b"]));
        let agent =
            |node: &str, address: &str, ready| AgentAddress { node: node.into(), address: address.into(), ready };
        fleet.follow_agents([agent("b", "2:1", true), agent("b", "3:1", false), agent("x", "4:1", true)].into_iter());
        let asked = fleet.round();
        assert_eq!(asked.iter().map(|asked| (&*asked.node, &*asked.address)).collect::<Vec<_>>(), [("b", "2:1")]);
        fleet.take(now, &asked, vec![Answered { node: "b".into(), report: Ok(report(300.0)) }]);
        fleet.follow_nodes(&nodes(&["b", "c"]));
        let heard: Vec<bool> = fleet.nodes.iter().map(|node| node.heard.is_some()).collect();
        assert_eq!((heard, fleet.revision), (vec![true, false], 2));
        // Not answering is no report, and the old one ages.
        fleet.take(now, &asked, Vec::new());
        assert!(!fleet.round()[0].awaited);
        let patience = Duration::from_secs(10);
        assert!(fleet.nodes[0].fresh(now + patience, patience).is_some());
        assert!(fleet.nodes[0].fresh(now + patience * 2, patience).is_none());
    }
}
