//! Decisions, levels and status of budgets from objects and reports, without a cluster.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use energy_cluster::agents::Answered;
use energy_cluster::kinds::{AgentAddress, ClusterNode};
use energy_cluster::objects::ObjectKey;
use energy_model::power_report::PowerReport;
use energy_model::resources::object::KubeObject;
use energy_model::resources::power_level::PowerLevelSpec;
use serde_json::{Value, json};

use super::budget_spec::CheckedBudget;
use super::budget_status;
use super::budgets::{Laws, Round, Tick, parents};
use super::fleet::Fleet;
use super::levels::{LevelPlan, Write};
use super::queries::Readings;
use super::samples::Samples;
use super::statuses::Statuses;

const NAMESPACE: &str = "energy-agent";
const PATIENCE: Duration = Duration::from_secs(12);

type ObjectsByKey = BTreeMap<ObjectKey, Arc<KubeObject>>;

/// Nodes and budgets, and the rounds over them.
struct World {
    fleet: Fleet,
    budgets: Laws,
    objects: ObjectsByKey,
    levels: ObjectsByKey,
    readings: Readings,
    start: Instant,
    seconds: u64,
}

impl World {
    /// Nodes `n0`, `n1` and so on of 200 to 1000 W, the first half in rack `a`, which report this power.
    fn new(powers: &[f64]) -> Self {
        let mut fleet = Fleet::default();
        let node = |number: usize| {
            let rack = if number < powers.len() / 2 { "a" } else { "b" };
            let labels = json!({"hall": "h", "rack": rack});
            let node: ClusterNode =
                serde_json::from_value(json!({"metadata": {"name": format!("n{number}"), "labels": labels}})).unwrap();
            ((String::new(), format!("n{number}")), Arc::new(node))
        };
        fleet.follow_nodes(&(0..powers.len()).map(node).collect());
        let agent = |number| AgentAddress { node: format!("n{number}"), address: format!("{number}:1"), ready: true };
        fleet.follow_agents((0..powers.len()).map(agent));
        let (budgets, start) = (Laws::default(), Instant::now());
        let mut world = Self {
            fleet,
            budgets,
            objects: ObjectsByKey::new(),
            levels: ObjectsByKey::new(),
            readings: Readings::default(),
            start,
            seconds: 0,
        };
        world.report(powers);
        world
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.seconds)
    }

    /// What the first nodes say; the others do not answer.
    fn report(&mut self, powers: &[f64]) {
        let answers = powers.iter().enumerate().map(|(number, watts)| {
            let report =
                PowerReport { watts: Some(*watts), floor_watts: 200.0, most_watts: 1000.0, ..PowerReport::default() };
            Answered { node: format!("n{number}").into(), report: Ok(report) }
        });
        let asked = self.fleet.round();
        self.fleet.take(self.now(), &asked, answers.collect());
    }

    fn budget(&mut self, name: &str, generation: i64, spec: Value) {
        let object = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": generation, "resourceVersion": "1"},
            "spec": spec,
        });
        self.objects.insert((String::new(), name.to_owned()), Arc::new(serde_json::from_value(object).unwrap()));
    }

    fn round(&mut self) -> Round {
        let tick = Tick {
            now: self.now(),
            uptime: Duration::from_secs(self.seconds),
            wall: SystemTime::UNIX_EPOCH,
            patience: PATIENCE,
            is_deaf: false,
            raise_every: Duration::ZERO,
            namespace: NAMESPACE,
            readings: &self.readings,
            levels: &self.levels,
        };
        self.budgets.decide(&self.objects, &mut self.fleet, &tick)
    }

    fn writes(&self, round: &Round, epoch: i64) -> Vec<Write> {
        let mut plan = LevelPlan::default();
        plan.add_budgets(round, &self.objects, NAMESPACE);
        plan.writes(&self.levels, epoch, "2026-01-01T00:00:00Z").into_iter().map(|write| write.write).collect()
    }

    /// The API server has what was written.
    fn apply(&mut self, write: &Write) {
        let (Write::Create { object, .. } | Write::Replace { object, .. }) = write else { panic!("{write:?}") };
        let mut object: KubeObject = serde_json::from_value(object.clone()).unwrap();
        object.metadata.resource_version = "7".to_owned();
        let key = (object.metadata.namespace.clone(), object.metadata.name.clone());
        self.levels.insert(key, Arc::new(object));
    }
}

fn hall(watts: i64) -> Value {
    json!({"mode": "Enforce", "watts": watts, "nodes": {"matchLabels": {"hall": "h"}}})
}

fn levels(round: &Round, name: &str) -> Vec<u16> {
    let decided = round.budgets.iter().find(|decided| decided.object.metadata.name == name).unwrap();
    decided.decision.levels.iter().map(|level| level.get()).collect()
}

#[test]
fn a_rack_is_decided_before_its_hall_and_bounds_what_the_hall_counts_on() {
    let mut world = World::new(&[1000.0, 1000.0, 600.0, 600.0]);
    world.budget("hall", 1, hall(2400));
    world.budget("rack-a", 1, json!({"mode": "Enforce", "watts": 1000, "nodes": {"matchLabels": {"rack": "a"}}}));
    let round = world.round();
    // The rack: 950 W for two, (950 - 400) / 1600 = 0.34375, so 474.4 W each at 343.
    assert_eq!(levels(&round, "rack-a"), [343]);
    // The hall: 2280 - 948.8 = 1331.2 W are left, more than twice 612 W: the racks' levels are enough.
    assert_eq!(levels(&round, "hall"), [1000]);
    let order: Vec<&str> = round.budgets.iter().map(|decided| decided.object.metadata.name.as_str()).collect();
    assert_eq!(order, ["rack-a", "hall"]);
    assert_eq!(parents(&round), BTreeMap::from([("rack-a".to_owned(), "hall".to_owned())]));
    let (limit, whose) = round.limits[0].as_ref().unwrap();
    assert!((limit - 474.4).abs() < 1e-9 && whose.metadata.name == "rack-a", "{limit}");
    assert!(round.limits[3].is_none());
}

#[test]
fn of_two_budgets_with_the_same_nodes_the_lower_one_is_within_the_other() {
    let mut world = World::new(&[1000.0, 1000.0]);
    world.budget("a-hall", 1, hall(2400));
    world.budget("b-rack", 1, hall(1000));
    assert_eq!(parents(&world.round()), BTreeMap::from([("b-rack".to_owned(), "a-hall".to_owned())]));
    world.budget("b-rack", 2, hall(3000));
    assert_eq!(parents(&world.round()), BTreeMap::from([("a-hall".to_owned(), "b-rack".to_owned())]));
}

#[test]
fn an_agent_that_was_never_heard_counts_with_as_much_as_any_other_may_draw() {
    let mut world = World::new(&[900.0; 4]);
    world.budget("hall", 1, hall(4000));
    world.fleet.nodes[3].heard = None;
    world.fleet.nodes[0].heard.as_mut().unwrap().report.most_watts = 3000.0;
    let round = world.round();
    let decided = &round.budgets[0];
    // 3 * 900 + 3000 W.
    assert!((decided.decision.watts - 5700.0).abs() < 1e-9, "{}", decided.decision.watts);
    assert_eq!((decided.silent, decided.unreported), (1, 0));
    // Without an address there is no agent: what the budget states, here nothing.
    world.fleet.follow_agents((0..3).map(|number| AgentAddress {
        node: format!("n{number}"),
        address: "1:1".to_owned(),
        ready: true,
    }));
    let round = world.round();
    assert_eq!((round.budgets[0].silent, round.budgets[0].unreported), (0, 1));
    assert!((round.budgets[0].decision.watts - 2700.0).abs() < 1e-9);
}

/// A later leader goes on from this level and this share.
fn inherit(world: &mut World, permille: u32, fallback: u32) {
    let level = json!({
        "for": {"kind": "ClusterPowerBudget", "name": "hall", "uid": "uid-hall", "generation": 1},
        "epoch": 5, "changeTime": "2026-01-01T00:00:00Z", "leaseName": "l", "staleAfterSeconds": 60,
        "levels": [{"tier": "", "permille": permille}], "lowestPermille": permille, "fallbackPermille": fallback,
    });
    world.budgets.begin(BTreeMap::from([("hall".to_owned(), serde_json::from_value(level).unwrap())]));
}

/// Status and reason of a condition of the only budget.
fn says(world: &mut World, kind: &str) -> (String, String) {
    let round = world.round();
    let mut drafts = Statuses::default().writes(budget_status::drafts(&round, "2026-01-01T00:00:00Z"), 4, world.now());
    let conditions = drafts.remove(0).patch["status"]["conditions"].take();
    let found = conditions.as_array().unwrap().iter().find(|condition| condition["type"] == kind).unwrap();
    (found["status"].as_str().unwrap().to_owned(), found["reason"].as_str().unwrap().to_owned())
}

#[test]
fn a_leader_that_hears_of_nobody_keeps_level_and_share_and_says_that_it_knows_nothing() {
    let mut world = World::new(&[900.0; 4]);
    world.budget("hall", 1, hall(5000));
    world.fleet.nodes.iter_mut().for_each(|node| node.heard = None);
    for (level, share) in [(1000, 480), (300, 400)] {
        inherit(&mut world, level, share);
        let round = world.round();
        assert_eq!(levels(&round, "hall"), [u16::try_from(level).unwrap()]);
        assert_eq!(u32::from(round.budgets[0].decision.fallback.get()), share);
    }
    assert_eq!(says(&mut world, "InBudget"), ("Unknown".to_owned(), "NotHeard".to_owned()));
    assert_eq!(says(&mut world, "Ready"), ("False".to_owned(), "TooManySilent".to_owned()));
    // One node is heard: 900 W, and three times the 1000 W that it may draw, of 5000 W.
    world.report(&[900.0]);
    assert_eq!(says(&mut world, "InBudget"), ("True".to_owned(), "UnderBudget".to_owned()));
}

#[test]
fn a_level_stays_until_the_queries_of_its_budget_were_asked() {
    let mut spec = hall(5000);
    spec["wattsFrom"] = json!({"query": "price", "min": 1000, "max": 3000, "staleAfterSeconds": 10});
    spec["meter"] = json!({"query": "pdu"});
    let mut world = World::new(&[500.0; 4]);
    world.budget("hall", 1, spec);
    inherit(&mut world, 700, 480);
    let round = world.round();
    assert_eq!((levels(&round, "hall"), round.budgets[0].stale.is_none()), (vec![700], true));
    world.readings.meters.insert("hall".to_owned(), Ok(2000.0));
    assert_eq!(levels(&world.round(), "hall"), [700]);
    // Asked, and no answer: the lowest value counts. 950 W for four: (950 - 800) / 3200 = 0.047.
    world.readings.watts.insert("hall".to_owned(), Err("no route".to_owned()));
    let round = world.round();
    assert_eq!((levels(&round, "hall"), round.budgets[0].stale.is_some()), (vec![46], true));
}

#[test]
fn a_budget_that_is_off_says_so() {
    let mut world = World::new(&[900.0; 4]);
    world.budget("hall", 7, json!({"mode": "Off", "watts": 2400, "nodes": {"matchLabels": {"hall": "h"}}}));
    assert_eq!(says(&mut world, "Ready"), ("True".to_owned(), "Off".to_owned()));
    assert_eq!(says(&mut world, "Limiting"), ("False".to_owned(), "Open".to_owned()));
    let round = world.round();
    let mut drafts = Statuses::default().writes(budget_status::drafts(&round, "2026-01-01T00:00:00Z"), 4, world.now());
    let status = drafts.remove(0).patch["status"].take();
    assert_eq!((&status["observedGeneration"], &status["watts"]), (&json!(7), &Value::Null), "{status}");
}

#[test]
fn gpus_without_an_agent_count_and_are_not_held() {
    let mut world = World::new(&[900.0, 900.0, 900.0, 900.0]);
    world.budget("hall", 1, hall(2400));
    world.fleet.nodes[3].heard = None;
    let agent = |number| AgentAddress { node: format!("n{number}"), address: "1:1".to_owned(), ready: true };
    world.fleet.follow_agents((0..3).map(agent));
    let scraped = |world: &mut World, read: &str, watts: &str| {
        let one = |bound: &str, value: &str| {
            serde_json::from_value(
                json!({"metric": {"Hostname": "n3", "bound": bound}, "value": [world.seconds, value]}),
            )
        };
        let series = [one("gpus", watts).unwrap(), one("gpus_count", "2").unwrap(), one("gpus_read", read).unwrap()];
        world.fleet.take_samples(world.now(), Ok(Samples::new(&series)));
        world.report(&[900.0; 3]);
        let decided = world.round().budgets.remove(0);
        let counts = (decided.silent, decided.unreported);
        (format!("{:.0}", decided.decision.watts), decided.decision.levels[0].get(), counts)
    };
    world.seconds = 1000;
    // 2280 - 650 = 1630 W for three: 1030 of 2400 W.
    assert_eq!(scraped(&mut world, "999", "650"), ("3350".to_owned(), 429, (0, 0)));
    world.seconds += 5;
    assert_eq!(scraped(&mut world, "1004", "300"), ("3000".to_owned(), 429, (0, 0)));
    // No scrape for more than 12 s: they may draw what they drew before.
    world.seconds += 12;
    assert_eq!(scraped(&mut world, "1004", "300"), ("3350".to_owned(), 429, (1, 0)));
}

#[test]
fn a_budget_follows_its_query_within_bounds_and_its_lowest_value_without_it() {
    let mut world = World::new(&[500.0; 4]);
    let mut spec = hall(5000);
    spec["wattsFrom"] = json!({"query": "price", "min": 1000, "max": 3000, "staleAfterSeconds": 10});
    spec["meter"] = json!({"query": "pdu"});
    world.budget("hall", 1, spec);
    let said = |world: &mut World, watts: Result<f64, String>, meter: Result<f64, String>| {
        world.readings.watts.insert("hall".to_owned(), watts);
        world.readings.meters.insert("hall".to_owned(), meter);
        world.report(&[500.0; 4]);
        let decided = world.round().budgets.remove(0);
        (
            format!("{:.0} of {:.0}", decided.decision.watts, decided.budget_watts),
            decided.stale.map(|(reason, _)| reason),
        )
    };
    // The meter says a quarter more than the nodes.
    assert_eq!(said(&mut world, Ok(2500.0), Ok(2500.0)), ("2500 of 2500".to_owned(), None));
    assert_eq!(said(&mut world, Ok(9999.0), Ok(2500.0)), ("2500 of 3000".to_owned(), None));
    assert_eq!(said(&mut world, Ok(-7.0), Ok(2500.0)), ("2500 of 1000".to_owned(), None));
    // No answer: the last one for ten seconds, then the lowest.
    world.seconds += 10;
    let lost = || Err("the query gives 2 series; sum them up".to_owned());
    assert_eq!(said(&mut world, lost(), Ok(2500.0)), ("2500 of 1000".to_owned(), None));
    world.seconds += 1;
    assert_eq!(said(&mut world, lost(), lost()), ("2500 of 1000".to_owned(), Some("WattsFromStale")));
    // The factor of the meter holds for a minute.
    world.seconds += 60;
    assert_eq!(said(&mut world, Ok(3000.0), lost()), ("2000 of 3000".to_owned(), Some("MeterStale")));
}

#[test]
fn a_node_that_does_not_obey_counts_with_what_it_draws() {
    let mut world = World::new(&[1000.0; 4]);
    world.budget("hall", 1, hall(2400));
    assert_eq!(levels(&world.round(), "hall"), [462]);
    let limit = 200.0 + 0.462 * 800.0;
    let report = |watts: f64| PowerReport {
        watts: Some(watts),
        floor_watts: 200.0,
        most_watts: 1000.0,
        limit_watts: Some(limit),
        ..PowerReport::default()
    };
    for round in 1..=6 {
        world.seconds += 5;
        let asked = world.fleet.round();
        let powers = [1000.0, 550.0, 550.0, 550.0];
        let answers = powers
            .iter()
            .zip(0..)
            .map(|(watts, number)| Answered { node: format!("n{number}").into(), report: Ok(report(*watts)) });
        world.fleet.take(world.now(), &asked, answers.collect());
        // 2280 - 1000 = 1280 W for the three that obey: 680 / 2400 = 0.2833.
        assert_eq!(levels(&world.round(), "hall"), [if round < 6 { 462 } else { 283 }], "round {round}");
    }
}

#[test]
fn a_silent_node_counts_with_the_highest_limit_that_it_may_have_heard_of() {
    let mut world = World::new(&[1000.0; 4]);
    world.budget("hall", 1, hall(2400));
    assert_eq!(levels(&world.round(), "hall"), [462]);
    // The last one says nothing more; it was open when it reported.
    for _ in 0..3 {
        world.seconds += 5;
        world.report(&[550.0, 550.0, 550.0]);
    }
    let decided = &world.round().budgets[0];
    assert_eq!(decided.silent, 1);
    assert!((decided.decision.watts - (3.0 * 550.0 + 1000.0)).abs() < 1e-9, "{}", decided.decision.watts);
}

#[test]
fn where_a_version_cannot_be_read_the_previous_one_stays_active() {
    let mut world = World::new(&[1000.0; 4]);
    world.budget("hall", 1, hall(2400));
    assert_eq!(levels(&world.round(), "hall"), [462]);
    let mut worse = hall(9000);
    worse["targets"] = json!([{"id": "peak", "from": "tomorrow", "to": "2026-01-01T00:00:00Z", "watts": 100}]);
    world.budget("hall", 2, worse.clone());
    let round = world.round();
    assert_eq!(levels(&round, "hall"), [462]);
    let refusal = round.budgets[0].refusal.clone().unwrap();
    assert_eq!(refusal.0, "spec.targets peak: from is no time such as 2026-01-31T18:00:00Z");
    // One that was never right limits nothing, and says so; the level of an earlier leader stays.
    world.budget("other", 1, worse);
    let outcome = |world: &mut World| {
        let round = world.round();
        let drafts = Statuses::default().writes(budget_status::drafts(&round, "2026-01-01T00:00:00Z"), 4, world.now());
        let other = drafts.iter().find(|write| write.object.metadata.name == "other").unwrap();
        let message = other.patch["status"]["conditions"][0]["message"].as_str().unwrap().to_owned();
        message.rsplit_once("; ").unwrap().1.to_owned()
    };
    assert_eq!(outcome(&mut world), "nothing is limited by it");
    let level = (*world.objects[&(String::new(), "hall".to_owned())]).clone();
    world.levels.insert((NAMESPACE.to_owned(), "budget.other".to_owned()), Arc::new(level));
    assert_eq!(outcome(&mut world), "the level of an earlier version stays");
}

#[test]
fn targets_count_while_they_last_and_the_lowest_of_all() {
    let spec = json!({
        "watts": 1000, "nodes": {"selectAll": true},
        "targets": [
            {"id": "a", "from": "2026-01-01T10:00:00Z", "to": "2026-01-01T12:00:00Z", "watts": 700},
            {"id": "b", "from": "2026-01-01T11:00:00+00:00", "to": "2026-01-01T13:00:00Z", "watts": 600},
            {"id": "c", "from": "2026-01-01T10:00:00Z", "to": "2026-01-01T20:00:00Z", "watts": 5000},
        ],
    });
    let object: KubeObject = serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec})).unwrap();
    let spec = CheckedBudget::read(&object).unwrap();
    let watts = |time: &str| {
        let watts = spec.watts_at(humantime::parse_rfc3339(&format!("2026-01-01T{time}Z")).unwrap());
        format!("{watts}")
    };
    let at = ["09:59:59", "10:00:00", "11:30:00", "12:00:00", "13:00:00"].map(watts);
    assert_eq!(at, ["1000", "700", "600", "600", "1000"]);
}

#[test]
fn a_level_is_written_when_it_changes_and_under_a_new_epoch() {
    let mut world = World::new(&[1000.0; 4]);
    world.budget("hall", 3, hall(2400));
    let round = world.round();
    let created = world.writes(&round, 5).remove(0);
    let Write::Create { object, .. } = &created else { panic!("{created:?}") };
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "uid-hall");
    let spec: PowerLevelSpec = serde_json::from_value(object["spec"].clone()).unwrap();
    assert_eq!((spec.epoch, spec.subject.generation, spec.levels[0].permille), (5, 3, 462));
    // 2328 W for four: (2328 - 800) / 3200.
    assert_eq!((spec.fallback_permille, spec.stale_after_seconds), (477, 60));
    world.apply(&created);
    assert_eq!(world.writes(&round, 5), []);
    // A later leader writes the same under its own epoch, with the version that is there, and the change keeps its time.
    let replaced = world.writes(&round, 6).remove(0);
    let Write::Replace { object, path } = &replaced else { panic!("{replaced:?}") };
    assert_eq!((&object["metadata"]["resourceVersion"], &object["spec"]["epoch"]), (&json!("7"), &json!(6)));
    assert!(path.ends_with("/namespaces/energy-agent/powerlevels/budget.hall"), "{path}");
    // The budget was deleted and made anew: a level is for one object.
    let mut anew = (*world.objects[&(String::new(), "hall".to_owned())]).clone();
    anew.metadata.uid = "uid-anew".to_owned();
    world.objects.insert((String::new(), "hall".to_owned()), Arc::new(anew));
    let round = world.round();
    assert!(matches!(world.writes(&round, 6)[..], [Write::Delete { .. }]));
}

#[test]
fn a_level_goes_with_enforcement_and_those_of_others_are_left_alone() {
    let mut world = World::new(&[1000.0; 4]);
    world.budget("hall", 1, hall(2400));
    let round = world.round();
    let created = world.writes(&round, 1).remove(0);
    world.apply(&created);
    for mode in ["Off", "Recommend"] {
        let mut spec = hall(2400);
        spec["mode"] = json!(mode);
        world.budget("hall", 2, spec);
        let round = world.round();
        assert!(matches!(world.writes(&round, 1)[..], [Write::Delete { .. }]), "{mode}");
    }
    let mut spec = hall(2400);
    spec["control"] = json!({"controllerName": "example.com/mine"});
    world.budget("hall", 3, spec);
    let round = world.round();
    assert_eq!(world.writes(&round, 1), []);
    assert_eq!(levels(&round, "hall"), [462], "what is shown is what the other one has written");
    world.objects.clear();
    let round = world.round();
    assert!(matches!(world.writes(&round, 1)[..], [Write::Delete { .. }]));
}

#[test]
fn changes_of_state_are_written_at_once_and_figures_as_the_rate_allows() {
    let mut world = World::new(&[500.0; 4]);
    for number in 0..6 {
        world.budget(&format!("b{number}"), 1, hall(2400));
    }
    let mut statuses = Statuses::default();
    let round = world.round();
    let all = statuses.writes(budget_status::drafts(&round, "2026-01-01T00:00:00Z"), 5000, world.now());
    assert_eq!(all.len(), 6);
    for write in all {
        let mut object = (*write.object).clone();
        object.status = write.patch["status"].clone();
        world.objects.insert((String::new(), object.metadata.name.clone()), Arc::new(object));
    }
    // Other figures of the same state: 0.2 a second for 5,000 nodes.
    world.seconds += 5;
    world.report(&[560.0; 4]);
    let round = world.round();
    let written = statuses.writes(budget_status::drafts(&round, "2026-01-01T00:00:05Z"), 5000, world.now());
    assert_eq!(written.iter().map(|write| write.object.metadata.name.as_str()).collect::<Vec<_>>(), ["b0"]);
    assert!(written[0].news.is_empty());
    assert_eq!(written[0].patch["status"]["watts"], 2240);
    // Over the budget: that is news for all.
    world.report(&[700.0; 4]);
    let round = world.round();
    let written = statuses.writes(budget_status::drafts(&round, "2026-01-01T00:00:10Z"), 5000, world.now());
    assert_eq!(written.len(), 6);
    let reasons: Vec<&str> = written[0].news.iter().map(|news| news.reason.as_str()).collect();
    assert_eq!(reasons, ["OverBudget", "Limited"]);
}
