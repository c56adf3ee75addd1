//! Hundreds of nodes that follow their limits, with loads that step and pulse.

use super::*;

/// Between two ticks.
const TICK: u64 = 5;

struct Plant {
    demand: f64,
    floor: f64,
    most: f64,
    power: f64,
    limit: f64,
}

impl Plant {
    /// Within one tick the node draws what it is asked for, or a little less than its limit.
    fn go_on(&mut self) {
        let capped = self.demand > self.limit;
        self.power = if capped { (self.limit * 0.97).max(self.floor) } else { self.demand };
    }

    fn report(&self) -> Member {
        let held = self.demand > self.limit;
        let Self { power, floor, most, .. } = *self;
        Member { tier: 0, state: State::Reporting(Report { power, floor, most, held, ceiling: f64::INFINITY }) }
    }
}

struct Cluster {
    nodes: Vec<Plant>,
    law: Law,
    settings: Settings,
    now: u64,
}

impl Cluster {
    /// Nodes of four sizes, which draw 60 % of their most.
    fn new(count: u32, settings: Settings) -> Self {
        let node = |number: u32| {
            let size = 1.0 + f64::from(number % 4);
            let (floor, most) = (size * 500.0, size * 2500.0);
            Plant { demand: most * 0.6, floor, most, power: most * 0.6, limit: most }
        };
        Self { nodes: (0..count).map(node).collect(), law: Law::open(), settings, now: 0 }
    }

    fn power(&self) -> f64 {
        self.nodes.iter().map(|node| node.power).sum()
    }

    fn limits(&self) -> f64 {
        self.nodes.iter().map(|node| node.limit).sum()
    }

    /// Nodes draw for one interval, then a decision is made and followed.
    fn tick(&mut self, watts: f64) {
        self.nodes.iter_mut().for_each(Plant::go_on);
        let members: Vec<Member> = self.nodes.iter().map(Plant::report).collect();
        let decision = step(&mut self.law, &self.settings, self.now, watts, &members);
        for node in &mut self.nodes {
            node.limit = node.floor + decision.levels[0].level() * (node.most - node.floor);
        }
        self.now += TICK;
    }
}

#[test]
fn a_step_to_133_percent_is_under_the_budget_after_two_ticks() {
    let mut cluster = Cluster::new(400, Settings::default());
    let budget = cluster.power();
    for node in &mut cluster.nodes {
        node.demand *= 0.9;
    }
    (0..20).for_each(|_| cluster.tick(budget));
    assert!(cluster.law.levels().all(|(_, level)| level.is_open()));
    for node in &mut cluster.nodes {
        node.demand *= 1.33 / 0.9;
    }
    cluster.tick(budget);
    assert!(cluster.power() > 1.3 * budget, "the step is seen by this tick");
    cluster.tick(budget);
    assert!(cluster.power() <= budget, "{} of {budget}", cluster.power());
    // It stays there, and most of the budget is used.
    for _ in 0..200 {
        cluster.tick(budget);
        assert!(cluster.power() <= budget && cluster.power() > 0.85 * budget, "{} of {budget}", cluster.power());
    }
}

#[test]
fn a_budget_that_is_cut_by_a_third_is_kept_after_two_ticks_and_lifted_slowly() {
    let mut cluster = Cluster::new(300, Settings::default());
    let before = cluster.power() * 1.25;
    (0..10).for_each(|_| cluster.tick(before));
    let cut = before * 0.67;
    cluster.tick(cut);
    cluster.tick(cut);
    assert!(cluster.power() <= cut, "{} of {cut}", cluster.power());
    // Lifted again: no sooner than the hold, and then all of it.
    (0..5).for_each(|_| cluster.tick(before));
    assert!(cluster.power() <= cut);
    (0..60).for_each(|_| cluster.tick(before));
    assert!(cluster.law.levels().all(|(_, level)| level.is_open()));
}

#[test]
fn nodes_that_pulse_together_are_over_the_budget_for_a_few_ticks_only() {
    let mut cluster = Cluster::new(300, Settings::default());
    let budget = cluster.power();
    let mut over = 0;
    for tick in 0..720 {
        // 30 s at half of it, 30 s at 150 %.
        let busy = tick / 6 % 2 == 1;
        for node in &mut cluster.nodes {
            node.demand = node.most * if busy { 0.9 } else { 0.3 };
        }
        cluster.tick(budget);
        over += u32::from(cluster.power() > budget * 1.001);
    }
    // One hour: at most 2 % of it, as holds double up to four minutes.
    assert!(over <= 14, "{over} of 720 ticks");
}

#[test]
fn limits_stay_within_the_oversubscription_at_each_tick() {
    let settings = Settings { oversubscription: Some(1.25), ..Settings::default() };
    let mut cluster = Cluster::new(300, settings);
    let budget = cluster.power();
    for tick in 0..400_u32 {
        for (number, node) in (0_u32..).zip(&mut cluster.nodes) {
            // Each for itself, in no order.
            let busy = (number * 7919 + tick / 8 * 104_729) % 97 < 50;
            node.demand = node.most * if busy { 1.0 } else { 0.25 };
        }
        cluster.tick(budget);
        assert!(cluster.limits() <= 1.25 * budget + 1.0, "tick {tick}: {} of {budget}", cluster.limits());
    }
}
