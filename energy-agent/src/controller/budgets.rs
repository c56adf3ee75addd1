//! Every ClusterPowerBudget at one tick: its nodes, its law, and what comes of it. Smaller sets of nodes are decided before
//! larger ones. Pure: it reads objects and reports, and writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use energy_budget::factor::{Factor, Scale};
use energy_budget::law::{Decision, Law, Scene};
use energy_budget::member::{Member, Report, State};
use energy_budget::permille::Permille;
use energy_cluster::objects::ObjectKey;
use energy_model::capping::policy::Mode;
use energy_model::power_report::PowerReport;
use energy_model::resources::CONTROLLER;
use energy_model::resources::cluster_power_budget::{OnStale, WattsFrom};
use energy_model::resources::object::KubeObject;
use energy_model::resources::power_level::{PowerLevelSpec, name_for_budget};

use super::budget_spec::{CheckedBudget, Refusal, whole};
use super::fleet::{Fleet, NodeState};
use super::queries::Readings;

/// A node that has drawn more than its limit in so many rounds does not follow it.
pub const DISOBEYS: u32 = 6;
/// From this part of its limit on, a node would draw more if it could.
pub const AT_LIMIT: f64 = 0.9;

#[derive(Debug, Default)]
pub struct Laws {
    states: BTreeMap<String, BudgetState>,
    /// Levels that a leader before this one has written, by the budget's name.
    inherited: BTreeMap<String, PowerLevelSpec>,
}

#[derive(Debug)]
struct BudgetState {
    object: Arc<KubeObject>,
    spec: CheckedBudget,
    /// Why the last version of the object is not active.
    refusal: Option<Refusal>,
    law: Law,
    factor: Factor,
    /// What `wattsFrom` said last.
    from: Option<(f64, Instant)>,
    /// Places in the fleet, with the tier of each.
    members: Vec<(usize, usize)>,
    /// Of the fleet, when `members` was made.
    revision: Option<u64>,
}

/// What else there is at a tick.
#[derive(Clone, Copy, Debug)]
pub struct Tick<'a> {
    pub now: Instant,
    /// Since the program began.
    pub uptime: Duration,
    pub wall: SystemTime,
    /// An older report is none.
    pub patience: Duration,
    /// In this round, nobody has said anything of any node.
    pub is_deaf: bool,
    /// Between two raises of a level.
    pub raise_every: Duration,
    /// Namespace of the levels, and those there are.
    pub namespace: &'a str,
    pub readings: &'a Readings,
    pub levels: &'a BTreeMap<ObjectKey, Arc<KubeObject>>,
}

/// A budget after a tick.
#[derive(Clone, Debug)]
pub struct Decided {
    pub object: Arc<KubeObject>,
    pub spec: CheckedBudget,
    pub refusal: Option<Refusal>,
    /// What counts at present.
    pub budget_watts: f64,
    pub decision: Decision,
    /// Why the meter, or `wattsFrom`, has said nothing for too long.
    pub stale: Option<(&'static str, String)>,
    pub nodes: Vec<usize>,
    pub limited: usize,
    pub silent: usize,
    pub unreported: usize,
    /// Nothing is known of what its nodes draw.
    pub is_unheard: bool,
    /// This controller writes its level.
    pub is_ours: bool,
}

/// All of them, and what nodes may draw by the ones that are enforced.
#[derive(Debug, Default)]
pub struct Round {
    /// Ascending by the number of nodes, then by name.
    pub budgets: Vec<Decided>,
    /// Those that cannot be read at all.
    pub unread: Vec<UnreadBudget>,
    /// Those in mode Off.
    pub off: Vec<OffBudget>,
    /// For each node of the fleet: its limit, and whose it is. `None`: open.
    pub limits: Vec<Option<(f64, Arc<KubeObject>)>>,
}

/// A budget of which this leader has read no version.
#[derive(Clone, Debug)]
pub struct UnreadBudget {
    pub object: Arc<KubeObject>,
    pub refusal: Refusal,
    /// An earlier leader has written a level for it, which stays.
    pub has_level: bool,
}

/// A budget that limits nothing.
#[derive(Clone, Debug)]
pub struct OffBudget {
    pub object: Arc<KubeObject>,
    /// Why the last version of the object is not active.
    pub refusal: Option<Refusal>,
    pub nodes: usize,
}

impl Laws {
    /// A term begins: laws go on from the levels that there are.
    pub fn begin(&mut self, levels: BTreeMap<String, PowerLevelSpec>) {
        self.states.clear();
        self.inherited = levels;
    }

    /// One tick.
    pub fn decide(
        &mut self,
        objects: &BTreeMap<ObjectKey, Arc<KubeObject>>,
        fleet: &mut Fleet,
        tick: &Tick<'_>,
    ) -> Round {
        let mut round = Round { limits: vec![None; fleet.nodes.len()], ..Round::default() };
        for (object, refusal) in self.follow(objects, fleet) {
            let key = (tick.namespace.to_owned(), name_for_budget(&object.metadata.name));
            round.unread.push(UnreadBudget { object, refusal, has_level: tick.levels.contains_key(&key) });
        }
        // A rack before its hall; of two with the same nodes, the lower budget is within the other.
        let place = |(name, state): (&String, &BudgetState)| (state.members.len(), state.spec.spec.watts, name.clone());
        let mut order: Vec<_> = self.states.iter().map(place).collect();
        order.sort();
        for (.., name) in order {
            let Some(state) = self.states.get_mut(&name) else { continue };
            if state.spec.spec.mode == Mode::Off {
                let (object, refusal) = (Arc::clone(&state.object), state.refusal.clone());
                round.off.push(OffBudget { object, refusal, nodes: state.members.len() });
                continue;
            }
            let decided = state.decide(fleet, tick, &round.limits);
            if decided.spec.spec.mode == Mode::Enforce {
                state.limit(&decided, fleet, &mut round.limits);
            }
            round.budgets.push(decided);
        }
        // A silent node may have heard of every level that was written since.
        for (node, limit) in fleet.nodes.iter_mut().zip(&round.limits) {
            if let Some(heard) = &node.heard {
                let now = limit.as_ref().map_or(heard.report.most_watts, |(watts, _)| *watts);
                node.allowed = node.allowed.max(now);
            }
        }
        round
    }

    /// Takes in what is new in the objects and in the fleet; returns the objects that cannot be read.
    fn follow(
        &mut self,
        objects: &BTreeMap<ObjectKey, Arc<KubeObject>>,
        fleet: &Fleet,
    ) -> Vec<(Arc<KubeObject>, Refusal)> {
        let mut unread = Vec::new();
        self.states.retain(|name, state| {
            objects
                .get(&(String::new(), name.clone()))
                .is_some_and(|object| object.metadata.uid == state.object.metadata.uid)
        });
        for object in objects.values() {
            let name = &object.metadata.name;
            match self.states.get_mut(name) {
                Some(state) if Arc::ptr_eq(&state.object, object) => {}
                Some(state) => state.replace(object),
                None => match CheckedBudget::read(object) {
                    Ok(spec) => {
                        // Once: one that is made anew later has nothing to do with it.
                        let inherited = self.inherited.remove(name);
                        let inherited =
                            inherited.filter(|level| spec.is_enforced() && level.subject.uid == object.metadata.uid);
                        let law = inherited.as_ref().map_or_else(Law::open, resumed);
                        let state = BudgetState {
                            object: Arc::clone(object),
                            spec,
                            refusal: None,
                            law,
                            factor: Factor::default(),
                            from: None,
                            members: Vec::new(),
                            revision: None,
                        };
                        self.states.insert(name.clone(), state);
                    }
                    Err(refusal) => unread.push((Arc::clone(object), refusal)),
                },
            }
        }
        for state in self.states.values_mut().filter(|state| state.revision != Some(fleet.revision)) {
            state.revision = Some(fleet.revision);
            let selected =
                fleet.nodes.iter().enumerate().filter(|(_, node)| state.spec.spec.nodes.selects(node.labels()));
            state.members = selected.map(|(place, node)| (place, state.spec.tier(node.labels()))).collect();
        }
        unread
    }
}

/// The law that goes on from a level.
pub fn resumed(level: &PowerLevelSpec) -> Law {
    let permille = |permille: u32| Permille::new(u16::try_from(permille).unwrap_or(u16::MAX));
    let levels: Vec<_> = level.levels.iter().map(|tier| (tier.tier.clone(), permille(tier.permille))).collect();
    Law::resume(&levels, Some(permille(level.fallback_permille)))
}

impl BudgetState {
    /// The object has changed; where its new version cannot be read, the previous one stays active.
    fn replace(&mut self, object: &Arc<KubeObject>) {
        self.object = Arc::clone(object);
        match CheckedBudget::read(object) {
            Ok(spec) => {
                if spec.is_enforced() != self.spec.is_enforced() {
                    // What was only recommended is no level to go on from.
                    self.law = Law::open();
                }
                (self.spec, self.refusal, self.revision) = (spec, None, None);
            }
            Err(refusal) => self.refusal = Some(refusal),
        }
    }

    fn decide(&mut self, fleet: &Fleet, tick: &Tick<'_>, limits: &[Option<(f64, Arc<KubeObject>)>]) -> Decided {
        let levels: BTreeMap<String, Permille> =
            self.law.levels().map(|(tier, level)| (tier.to_owned(), level)).collect();
        let unheard = self.unheard_watts(fleet);
        let is_unheard = self.is_unheard(fleet);
        let (mut limited, mut silent, mut unreported) = (0, 0, 0);
        let mut members = Vec::with_capacity(self.members.len());
        for &(place, tier) in &self.members {
            let node = &fleet.nodes[place];
            let level = levels.get(&self.spec.settings.tiers[tier]).copied().unwrap_or(Permille::OPEN);
            let ceiling = limits[place].as_ref().map_or(f64::INFINITY, |(watts, _)| *watts);
            let state = match node.fresh(tick.now, tick.patience) {
                Some(report) => self.reporting(node, report, level, ceiling),
                None if let Some(heard) = &node.heard => State::Silent {
                    limit: node.allowed,
                    floor: self.floor_of(&heard.report),
                    most: heard.report.most_watts,
                },
                None if node.address.is_some() => constant(unheard),
                None => self.without_agent(node, tick),
            };
            match state {
                State::Reporting(report) => limited += usize::from(report.held && !level.is_open()),
                State::Silent { .. } => silent += 1,
                State::Fixed { .. } => unreported += usize::from(node.heard.is_none() && node.gpus.is_none()),
            }
            members.push(Member { tier, state });
        }
        let nodes: f64 = members.iter().map(|member| reported(&member.state)).sum();
        let name = &self.object.metadata.name;
        // Between two rounds a budget can be new: what it asks Prometheus for is asked in the next round.
        let is_unasked = self.is_unasked(tick.readings);
        let reading = tick.readings.meters.get(name);
        let meter = self.spec.spec.meter.as_ref().map(|_| reading.and_then(|reading| reading.clone().ok()));
        let Scale { factor, stale } = self.factor.step(tick.uptime, self.spec.overhead, meter, nodes);
        let why = |reading: Option<&Result<f64, String>>| match reading {
            Some(Err(why)) => why.clone(),
            _ => "no answer yet".to_owned(),
        };
        let mut stale = (stale && !is_unasked)
            .then(|| ("MeterStale", format!("spec.meter: {}; overheadPercent counts in its place", why(reading))));
        let mut budget_watts = self.spec.watts_at(tick.wall);
        if let Some(from) = self.spec.spec.watts_from.as_ref().filter(|_| !is_unasked) {
            let reading = tick.readings.watts.get(name);
            let (watts, is_stale) = from_query(&mut self.from, from, reading, tick.now);
            budget_watts = budget_watts.min(watts);
            if is_stale {
                stale = Some(("WattsFromStale", format!("spec.wattsFrom: {}; {watts:.0} W count", why(reading))));
            }
        }
        let budget_watts = budget_watts;
        let scene = Scene {
            now: tick.uptime,
            watts: budget_watts,
            factor,
            members: &members,
            is_blind: false,
            is_deaf: tick.is_deaf || is_unheard || is_unasked,
            raise_every: tick.raise_every,
        };
        let mut decision = self.law.step(&self.spec.settings, &scene);
        let is_ours = self.spec.spec.control.controller_name == CONTROLLER;
        if !is_ours {
            self.follow_other(&mut decision, tick);
        }
        Decided {
            object: Arc::clone(&self.object),
            spec: self.spec.clone(),
            refusal: self.refusal.clone(),
            budget_watts,
            decision,
            stale,
            nodes: self.members.iter().map(|(place, _)| *place).collect(),
            limited,
            silent,
            unreported,
            is_unheard,
            is_ours,
        }
    }

    /// Whether a query of this budget has not been asked yet: not that it has no answer.
    fn is_unasked(&self, readings: &Readings) -> bool {
        let (name, spec) = (&self.object.metadata.name, &self.spec.spec);
        spec.meter.is_some() && !readings.meters.contains_key(name)
            || spec.watts_from.is_some() && !readings.watts.contains_key(name)
    }

    /// Whether there are agents on its nodes, and none has ever answered this leader.
    fn is_unheard(&self, fleet: &Fleet) -> bool {
        let mut nodes = self.members.iter().map(|(place, _)| &fleet.nodes[*place]);
        nodes.clone().any(|node| node.address.is_some())
            && nodes.all(|node| node.heard.is_none() && node.gpus.is_none())
    }

    /// What a node without an agent draws can't be limited. GPUs that nobody reports any more may draw what they drew at most.
    fn without_agent(&self, node: &NodeState, tick: &Tick<'_>) -> State {
        match (node.fresh_gpus(tick.now, tick.patience), node.gpus) {
            (Some(watts), _) => State::Fixed { watts },
            (None, Some(heard)) => constant(heard.highest.max(self.spec.unreported_watts)),
            (None, None) => State::Fixed { watts: self.spec.unreported_watts },
        }
    }

    fn reporting(&self, node: &NodeState, report: &PowerReport, level: Permille, ceiling: f64) -> State {
        let name = &self.object.metadata.name;
        let most = report.most_watts;
        let floor = self.floor_of(report);
        let limit = level.limit(floor, most);
        let Some(power) = report.watts else {
            // Not measured: it may draw all that it is allowed, and says nothing of what it wishes.
            return State::Reporting(Report { power: limit.min(ceiling), floor, most, held: true, ceiling });
        };
        if self.spec.is_enforced() && node.over >= DISOBEYS {
            return State::Fixed { watts: power };
        }
        let is_named = report.limited_by.as_deref() == Some(name.as_str());
        let held = self.spec.is_enforced() && !level.is_open() && (is_named || power >= AT_LIMIT * limit);
        State::Reporting(Report { power, floor, most, held, ceiling })
    }

    /// The node's own floor, or that for this budget where protected pods raise it.
    fn floor_of(&self, report: &PowerReport) -> f64 {
        let held = report.levels.iter().find(|held| held.budget == self.object.metadata.name);
        held.and_then(|held| held.floor_watts).unwrap_or(report.floor_watts).clamp(0.0, report.most_watts)
    }

    /// What a node is taken to draw that has an agent and never answered: as much as any other may draw.
    fn unheard_watts(&self, fleet: &Fleet) -> f64 {
        let heard = self.members.iter().filter_map(|(place, _)| fleet.nodes[*place].heard.as_ref());
        heard.map(|heard| heard.report.most_watts).fold(self.spec.unreported_watts, f64::max)
    }

    /// Somebody else writes the level: what is shown is what nodes follow.
    fn follow_other(&self, decision: &mut Decision, tick: &Tick<'_>) {
        let key = (tick.namespace.to_owned(), name_for_budget(&self.object.metadata.name));
        decision.levels = shown_levels(tick, &key, &self.spec.settings.tiers);
    }

    /// What its nodes may draw at most by it.
    fn limit(&self, decided: &Decided, fleet: &Fleet, limits: &mut [Option<(f64, Arc<KubeObject>)>]) {
        for &(place, tier) in &self.members {
            let level = decided.decision.levels[tier];
            let Some(heard) = fleet.nodes[place].heard.as_ref().filter(|_| !level.is_open()) else { continue };
            let limit = level.limit(self.floor_of(&heard.report), heard.report.most_watts);
            if limits[place].as_ref().is_none_or(|(other, _)| limit < *other) {
                limits[place] = Some((limit, Arc::clone(&self.object)));
            }
        }
    }
}

/// Whether an object names somebody else who writes its level.
pub fn is_foreign(object: &KubeObject) -> bool {
    object.spec["control"]["controllerName"].as_str().is_some_and(|name| name != CONTROLLER)
}

/// The levels that somebody has written, by tier; open where there is none.
pub fn shown_levels(tick: &Tick<'_>, key: &ObjectKey, tiers: &[String]) -> Vec<Permille> {
    let level = tick.levels.get(key).and_then(|object| object.spec::<PowerLevelSpec>().ok());
    let of = |tier: &String| {
        let permille = level.as_ref().map_or(1000, |level| level.permille(tier));
        Permille::new(u16::try_from(permille).unwrap_or(u16::MAX))
    };
    tiers.iter().map(of).collect()
}

/// The watts that the query says, within its bounds, and whether it has said nothing for too long. `last`: what it said last.
fn from_query(
    last: &mut Option<(f64, Instant)>,
    from: &WattsFrom,
    reading: Option<&Result<f64, String>>,
    now: Instant,
) -> (f64, bool) {
    let (least, most) = (whole(from.min), whole(from.max));
    if let Some(Ok(watts)) = reading {
        *last = Some((watts.clamp(least, most.max(least)), now));
    }
    let patience = Duration::from_secs(from.stale_after_seconds.into());
    match *last {
        Some((watts, at)) if now.saturating_duration_since(at) <= patience => (watts, false),
        Some((watts, _)) if from.on_stale == OnStale::Last => (watts, true),
        _ => (least, true),
    }
}

/// A silent node of which nothing is known that a level could change.
const fn constant(limit: f64) -> State {
    State::Silent { limit, floor: limit, most: limit }
}

/// What a meter sees of it.
const fn reported(state: &State) -> f64 {
    match state {
        State::Reporting(report) => report.power,
        State::Silent { limit, .. } => *limit,
        State::Fixed { watts } => *watts,
    }
}

/// The smallest other budget that has all nodes of each; by name.
pub fn parents(round: &Round) -> BTreeMap<String, String> {
    let sets: Vec<(&str, BTreeSet<usize>)> = round
        .budgets
        .iter()
        .map(|budget| (budget.object.metadata.name.as_str(), budget.nodes.iter().copied().collect()))
        .collect();
    let parent = |(at, (name, nodes)): (usize, &(&str, BTreeSet<usize>))| {
        let larger = sets[at + 1..].iter().find(|(_, others)| !nodes.is_empty() && nodes.is_subset(others));
        larger.map(|(parent, _)| ((*name).to_owned(), (*parent).to_owned()))
    };
    sets.iter().enumerate().filter_map(parent).collect()
}
