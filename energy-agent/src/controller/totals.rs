//! PowerCappingPolicies at one tick: what the nodes say of each, and of those with scope Total the level of the devices of
//! their pods. Pure.

use std::collections::{BTreeMap, HashMap};
use std::ops::Add;
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_budget::law::{Decision, Law, Scene};
use energy_budget::member::{Member, Report, State};
use energy_budget::permille::Permille;
use energy_budget::settings::Settings;
use energy_cluster::objects::ObjectKey;
use energy_model::capping::policy::{Amount, BudgetScope, Mode, Policy};
use energy_model::power_report::PolicyReport;
use energy_model::resources::object::KubeObject;
use energy_model::resources::power_capping_policy;
use energy_model::resources::power_level::{PowerLevelSpec, name_for_policy};

use super::budgets::{AT_LIMIT, DISOBEYS, Tick, is_foreign, resumed, shown_levels};
use super::fleet::{Fleet, is_over};
use super::sources::ObjectsByKey;

/// A level's name is seven longer than its policy's, and names have 253 characters.
const LONGEST_NAME: usize = 246;
/// With more agents than this that were never heard, nothing is raised: they may have pods of any policy.
const MOST_UNHEARD: f64 = 0.2;
/// A level holds for so many rounds at least: power follows it within some.
const HOLD_ROUNDS: u32 = 6;

#[derive(Debug, Default)]
pub struct Totals {
    states: BTreeMap<ObjectKey, PolicyState>,
    /// Levels that a leader before this one has written, by the policy.
    inherited: BTreeMap<ObjectKey, PowerLevelSpec>,
}

#[derive(Debug)]
struct PolicyState {
    object: Arc<KubeObject>,
    /// The last version that was right.
    policy: Option<Policy>,
    /// What is wrong with the last version.
    refusal: Option<String>,
    law: Law,
    /// By node.
    members: HashMap<Arc<str>, MemberMemory>,
}

/// What is remembered of a node with pods of the policy.
#[derive(Clone, Copy, Debug)]
struct MemberMemory {
    /// Of its last report.
    at: Instant,
    /// What its pods may draw by all that it may have been told since.
    allowed: f64,
    /// For how many reports they have drawn more than they may.
    over: u32,
}

/// A policy after a tick.
#[derive(Clone, Debug)]
pub struct DecidedPolicy {
    pub object: Arc<KubeObject>,
    /// Of the version in force.
    pub mode: Mode,
    /// Where it is a budget over many nodes.
    pub total: Option<DecidedTotal>,
    pub refusal: Option<String>,
    pub was_never_right: bool,
    /// This controller writes its level, if it has one.
    pub is_ours: bool,
    /// What its pods draw, as far as it is measured.
    pub watts: f64,
    /// That is all of it: every node with pods of it has measured them, and enough agents have answered to know of the nodes.
    pub is_measured: bool,
    pub pods: u32,
    pub capped: u32,
    /// Places in the fleet of the nodes with pods of it.
    pub nodes: Vec<usize>,
    pub silent: usize,
}

#[derive(Clone, Debug)]
pub struct DecidedTotal {
    pub budget_watts: f64,
    pub is_enforced: bool,
    pub decision: Decision,
}

/// A node's last word about a policy.
#[derive(Clone, Copy)]
struct NodeSaid<'a> {
    place: usize,
    at: Instant,
    report: &'a PolicyReport,
}

type SaidOf<'a> = HashMap<(&'a str, &'a str), Vec<NodeSaid<'a>>>;

impl Totals {
    /// A term begins: laws go on from the levels that there are.
    pub fn begin(&mut self, levels: BTreeMap<ObjectKey, PowerLevelSpec>) {
        self.states.clear();
        self.inherited = levels;
    }

    /// One tick. `interval`: between two rounds.
    pub fn decide(
        &mut self,
        objects: &ObjectsByKey,
        fleet: &Fleet,
        tick: &Tick<'_>,
        interval: Duration,
    ) -> Vec<DecidedPolicy> {
        self.follow(objects);
        let said = said(fleet);
        let is_blind = is_blind(fleet);
        let of = |(key, state): (&ObjectKey, &mut PolicyState)| {
            let said = said.get(&(key.0.as_str(), key.1.as_str())).map_or(&[][..], Vec::as_slice);
            state.decide(said, fleet, tick, interval * HOLD_ROUNDS, is_blind)
        };
        self.states.iter_mut().map(of).collect()
    }

    fn follow(&mut self, objects: &ObjectsByKey) {
        self.states.retain(|key, state| {
            objects.get(key).is_some_and(|object| object.metadata.uid == state.object.metadata.uid)
        });
        for (key, object) in objects {
            match self.states.get_mut(key) {
                Some(state) if Arc::ptr_eq(&state.object, object) => {}
                Some(state) => state.replace(object),
                None => {
                    // Once: one that is made anew later has nothing to do with it.
                    let level = self.inherited.remove(key);
                    self.states.insert(key.clone(), PolicyState::new(object, level.as_ref()));
                }
            }
        }
    }
}

/// What nodes said last, by policy.
fn said(fleet: &Fleet) -> SaidOf<'_> {
    let mut said = SaidOf::new();
    for (place, node) in fleet.nodes.iter().enumerate() {
        let Some(heard) = &node.heard else { continue };
        for report in &heard.report.policies {
            let one = NodeSaid { place, at: heard.at, report };
            said.entry((&report.namespace, &report.name)).or_default().push(one);
        }
    }
    said
}

fn is_blind(fleet: &Fleet) -> bool {
    let agents = fleet.nodes.iter().filter(|node| node.address.is_some());
    let (mut all, mut unheard) = (0.0, 0.0);
    for node in agents {
        all += 1.0;
        unheard += if node.heard.is_none() { 1.0 } else { 0.0 };
    }
    unheard > MOST_UNHEARD * all
}

fn read(object: &KubeObject) -> Result<Policy, String> {
    if object.metadata.name.len() > LONGEST_NAME {
        return Err(format!("the name has more than {LONGEST_NAME} characters; give it a shorter one"));
    }
    power_capping_policy::policy(object).map_err(|problems| problems.join("; "))
}

impl PolicyState {
    fn new(object: &Arc<KubeObject>, level: Option<&PowerLevelSpec>) -> Self {
        let (policy, refusal) = match read(object) {
            Ok(policy) => (Some(policy), None),
            Err(refusal) => (None, Some(refusal)),
        };
        let is_enforced = policy.as_ref().is_some_and(|policy| policy.mode == Mode::Enforce);
        let level = level.filter(|level| is_enforced && level.subject.uid == object.metadata.uid);
        let law = level.map_or_else(Law::open, resumed);
        Self { object: Arc::clone(object), policy, refusal, law, members: HashMap::new() }
    }

    /// A version that cannot be read leaves the last good one in force.
    fn replace(&mut self, object: &Arc<KubeObject>) {
        self.object = Arc::clone(object);
        match read(object) {
            Ok(policy) => {
                let mode = |policy: &Policy| (policy.mode, policy.budget.scope);
                if self.policy.as_ref().map(mode) != Some(mode(&policy)) {
                    // What was only recommended is no level to go on from.
                    self.law = Law::open();
                }
                (self.policy, self.refusal) = (Some(policy), None);
            }
            Err(refusal) => self.refusal = Some(refusal),
        }
    }

    fn decide(
        &mut self,
        said: &[NodeSaid<'_>],
        fleet: &Fleet,
        tick: &Tick<'_>,
        hold: Duration,
        is_blind: bool,
    ) -> DecidedPolicy {
        let mine: Vec<NodeSaid<'_>> = said.iter().filter(|said| said.report.pods > 0).copied().collect();
        let fresh = |said: &&NodeSaid<'_>| fleet.nodes[said.place].fresh(tick.now, tick.patience).is_some();
        let own = self.refusal.clone();
        let (refusing, of_nodes) = said.iter().filter(fresh).fold((0, None), |(count, first), said| {
            let refused = said.report.refused.as_ref();
            (count + u32::from(refused.is_some()), first.or(refused))
        });
        let of_nodes = of_nodes.map(|message| format!("{message} (said by {refusing} nodes)"));
        let policy = self.policy.clone();
        let total = policy.as_ref().filter(|policy| policy.budget.scope == BudgetScope::Total);
        let total = total.and_then(|policy| self.decide_total(policy, &mine, fleet, tick, hold, is_blind));
        let sum = |value: fn(&PolicyReport) -> u32| mine.iter().map(|said| value(said.report)).sum();
        DecidedPolicy {
            object: Arc::clone(&self.object),
            mode: policy.as_ref().map_or(Mode::Off, |policy| policy.mode),
            total,
            refusal: own.or(of_nodes),
            was_never_right: policy.is_none(),
            is_ours: !is_foreign(&self.object),
            // Not by `sum`, which is -0 of no nodes.
            watts: mine.iter().filter_map(|said| said.report.watts).fold(0.0, Add::add),
            is_measured: !is_blind && mine.iter().all(|said| said.report.watts.is_some()),
            pods: sum(|report| report.pods),
            capped: sum(|report| report.capped_pods),
            nodes: mine.iter().map(|said| said.place).collect(),
            silent: mine.len() - mine.iter().filter(fresh).count(),
        }
    }

    fn decide_total(
        &mut self,
        policy: &Policy,
        mine: &[NodeSaid<'_>],
        fleet: &Fleet,
        tick: &Tick<'_>,
        hold: Duration,
        is_blind: bool,
    ) -> Option<DecidedTotal> {
        let Amount::Watts(budget_watts) = policy.budget.amount else { return None };
        if policy.mode == Mode::Off {
            return None;
        }
        let is_enforced = policy.mode == Mode::Enforce;
        let settings = Settings {
            engage: policy.control.engage,
            target: policy.control.target,
            release: policy.control.release,
            hold: policy.control.hold.max(hold),
            enforced: is_enforced,
            ..Settings::default()
        };
        let level = self.law.levels().next().map_or(Permille::OPEN, |(_, level)| level);
        let before = std::mem::take(&mut self.members);
        let mut members = Vec::with_capacity(mine.len());
        for said in mine {
            let node = &fleet.nodes[said.place];
            let memory = remembered(before.get(&node.name), said);
            let is_fresh = node.fresh(tick.now, tick.patience).is_some();
            let state = if is_fresh {
                reporting(said.report, level, is_enforced, memory.over)
            } else {
                let (floor, most) = range(said.report);
                State::Silent { limit: memory.allowed, floor, most }
            };
            members.push(Member { tier: 0, state });
            self.members.insert(Arc::clone(&node.name), memory);
        }
        let scene = Scene {
            now: tick.uptime,
            watts: budget_watts,
            factor: 1.0,
            members: &members,
            is_blind,
            is_deaf: tick.is_deaf,
            raise_every: tick.raise_every,
        };
        let mut decision = self.law.step(&settings, &scene);
        if is_foreign(&self.object) {
            let metadata = &self.object.metadata;
            let key = (metadata.namespace.clone(), name_for_policy(&metadata.name));
            decision.levels = shown_levels(tick, &key, &settings.tiers);
        }
        // A silent node may have heard of every level that was written since.
        let level = decision.levels.first().copied().filter(|_| is_enforced).unwrap_or(Permille::OPEN);
        for said in mine {
            let (floor, most) = range(said.report);
            if let Some(memory) = self.members.get_mut(&fleet.nodes[said.place].name) {
                memory.allowed = memory.allowed.max(level.limit(floor, most));
            }
        }
        Some(DecidedTotal { budget_watts, is_enforced, decision })
    }
}

fn remembered(before: Option<&MemberMemory>, said: &NodeSaid<'_>) -> MemberMemory {
    match before {
        Some(memory) if memory.at == said.at => *memory,
        _ => {
            let report = said.report;
            let (_, most) = range(report);
            let over = before.map_or(0, |memory| memory.over);
            MemberMemory {
                at: said.at,
                allowed: report.limit_watts.unwrap_or(most).min(most),
                over: if is_over(report.watts, report.limit_watts) { over.saturating_add(1) } else { 0 },
            }
        }
    }
}

const fn range(report: &PolicyReport) -> (f64, f64) {
    let most = report.most_watts;
    (report.floor_watts.min(most), most)
}

fn reporting(report: &PolicyReport, level: Permille, is_enforced: bool, over: u32) -> State {
    let (floor, most) = range(report);
    let limit = level.limit(floor, most);
    let ceiling = f64::INFINITY;
    match report.watts {
        // Not measured: it may draw all that it is allowed, and says nothing of what it wishes.
        None => State::Reporting(Report { power: limit, floor, most, held: true, ceiling }),
        Some(watts) if is_enforced && over >= DISOBEYS => State::Fixed { watts },
        Some(power) => {
            let held = is_enforced && !level.is_open() && (report.capped_pods > 0 || power >= AT_LIMIT * limit);
            State::Reporting(Report { power, floor, most, held, ceiling })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use std::time::SystemTime;

    use energy_cluster::agents::Answered;
    use energy_cluster::kinds::{AgentAddress, ClusterNode};
    use energy_model::power_report::PowerReport;
    use serde_json::{Value, json};

    use super::super::queries::Readings;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(12);
    const INTERVAL: Duration = Duration::from_secs(5);

    /// Nodes `n0` and so on, whose pods of policy `ml/serve` can be held between 100 and 1000 W.
    struct World {
        fleet: Fleet,
        totals: Totals,
        objects: ObjectsByKey,
        start: Instant,
        seconds: u64,
    }

    impl World {
        fn new(nodes: usize) -> Self {
            let mut fleet = Fleet::default();
            let node = |number: usize| {
                let name = format!("n{number}");
                let node: ClusterNode = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
                ((String::new(), name), Arc::new(node))
            };
            fleet.follow_nodes(&(0..nodes).map(node).collect());
            let agent = |number| AgentAddress { node: format!("n{number}"), address: "1:1".to_owned(), ready: true };
            fleet.follow_agents((0..nodes).map(agent));
            let (totals, objects) = (Totals::default(), ObjectsByKey::new());
            Self { fleet, totals, objects, start: Instant::now(), seconds: 0 }
        }

        fn policy(&mut self, generation: i64, mode: &str, watts: u32) {
            let object = json!({
                "metadata": {"namespace": "ml", "name": "serve", "uid": "u1", "generation": generation},
                "spec": {
                    "mode": mode, "selector": {"matchLabels": {"app": "serve"}},
                    "budget": {"watts": watts, "scope": "Total", "components": ["gpu"]},
                    "control": {"engagePercent": 100, "targetPercent": 95, "releasePercent": 90},
                },
            });
            self.put(object);
        }

        fn put(&mut self, object: Value) {
            let object: KubeObject = serde_json::from_value(object).unwrap();
            self.objects.insert(("ml".to_owned(), object.metadata.name.clone()), Arc::new(object));
        }

        /// What the pods of the first nodes draw, and may draw; the others do not answer.
        fn report(&mut self, powers: &[(f64, Option<f64>)]) {
            let report = |(number, (watts, limit)): (usize, &(f64, Option<f64>))| {
                let policy = PolicyReport {
                    namespace: "ml".to_owned(),
                    name: "serve".to_owned(),
                    pods: 2,
                    watts: Some(*watts),
                    floor_watts: 100.0,
                    most_watts: 1000.0,
                    limit_watts: *limit,
                    ..PolicyReport::default()
                };
                let report = PowerReport { most_watts: 5000.0, policies: vec![policy], ..PowerReport::default() };
                Answered { node: format!("n{number}").into(), report: Ok(report) }
            };
            self.seconds += 5;
            let asked = self.fleet.round();
            let now = self.start + Duration::from_secs(self.seconds);
            self.fleet.take(now, &asked, powers.iter().enumerate().map(report).collect());
        }

        fn decide(&mut self) -> DecidedPolicy {
            let tick = Tick {
                now: self.start + Duration::from_secs(self.seconds),
                uptime: Duration::from_secs(self.seconds),
                wall: SystemTime::UNIX_EPOCH,
                patience: PATIENCE,
                is_deaf: false,
                raise_every: Duration::ZERO,
                namespace: "energy-agent",
                readings: &Readings::default(),
                levels: &ObjectsByKey::new(),
            };
            self.totals.decide(&self.objects, &self.fleet, &tick, INTERVAL).remove(0)
        }

        fn level(&mut self) -> u16 {
            self.decide().total.unwrap().decision.levels[0].get()
        }
    }

    #[test]
    fn the_level_is_that_of_the_devices_of_its_pods() {
        let mut world = World::new(3);
        world.policy(1, "Enforce", 2000);
        world.report(&[(1000.0, None), (1000.0, None), (200.0, None)]);
        let decided = world.decide();
        assert_eq!((decided.pods, decided.nodes.len(), decided.silent), (6, 3, 0));
        // 1900 W, of which the third wants 204 W: 848 W each for the others, (848 - 100) / 900.
        let decision = decided.total.unwrap().decision;
        assert_eq!(decision.levels[0].get(), 831);
        assert!((decision.watts - 2200.0).abs() < 1e-9);
        // Pods that left the third node are no part of it any more; they would be if it were only silent.
        world.report(&[(848.0, Some(847.9)), (848.0, Some(847.9))]);
        assert!((world.decide().total.unwrap().decision.watts - 1896.0).abs() < 1e-9);
    }

    #[test]
    fn without_pods_a_policy_draws_0_w_and_not_minus_0() {
        let mut world = World::new(1);
        world.policy(1, "Recommend", 2000);
        let decided = world.decide();
        let decision = decided.total.unwrap().decision;
        assert_eq!(format!("{} {} {}", decided.watts, decision.watts, decision.limit_watts), "0 0 0");
    }

    #[test]
    fn a_silent_node_counts_with_the_highest_limit_that_it_may_have_heard_of() {
        let mut world = World::new(4);
        world.policy(1, "Enforce", 2500);
        world.report(&[(900.0, None); 3]);
        // 2375 W are 791.7 W each: 691.7 / 900.
        assert_eq!(world.level(), 768);
        world.report(&[(780.0, Some(791.2)); 3]);
        assert_eq!(world.level(), 768);
        for _ in 0..3 {
            world.report(&[(780.0, Some(791.2)); 2]);
        }
        let decided = world.decide();
        assert_eq!(decided.silent, 1);
        assert!((decided.total.unwrap().decision.watts - (2.0 * 780.0 + 791.2)).abs() < 0.1);
    }

    #[test]
    fn a_bad_version_leaves_the_one_before_in_force_and_a_recommendation_is_no_level() {
        let mut world = World::new(2);
        world.policy(1, "Enforce", 1000);
        world.report(&[(900.0, None); 2]);
        // 475 W each.
        assert_eq!(world.level(), 416);
        world.put(json!({
            "metadata": {"namespace": "ml", "name": "serve", "uid": "u1", "generation": 2},
            "spec": {"selector": {}, "budget": {"watts": 1000}},
        }));
        let decided = world.decide();
        let refusal = decided.refusal.unwrap();
        assert!(refusal.starts_with("spec.budget.components: missing") && !decided.was_never_right, "{refusal}");
        assert_eq!(decided.total.unwrap().decision.levels[0].get(), 416);
        world.policy(3, "Recommend", 20_000);
        assert_eq!(world.level(), 1000);
        assert!(!world.decide().total.unwrap().is_enforced);
        world.policy(4, "Off", 20_000);
        assert!(world.decide().total.is_none());
    }

    #[test]
    fn nothing_is_raised_while_many_agents_were_never_heard() {
        let mut world = World::new(4);
        world.policy(1, "Enforce", 1000);
        world.report(&[(900.0, None); 2]);
        assert_eq!(world.level(), 416);
        for _ in 0..20 {
            world.report(&[(200.0, Some(474.4)); 2]);
            assert_eq!(world.level(), 416);
        }
        assert!(world.decide().total.unwrap().decision.too_many_silent);
        for _ in 0..20 {
            world.report(&[(200.0, Some(474.4)); 4]);
            world.level();
        }
        assert!(world.level() > 416);
    }
}
