//! One budget from tick to tick: lowered at once to what fits, raised slowly, held in between.

use std::ops::Add;
use std::time::Duration;

use crate::highs::Highs;
use crate::member::{Member, Report, State};
use crate::permille::Permille;
use crate::settings::Settings;
use crate::solve::{self, Share};

/// An excess this soon after a raise is blamed on it, and makes the next hold longer.
const BLAMED: Duration = Duration::from_secs(60);
const LONGEST_HOLD: Duration = Duration::from_secs(240);
/// More make no hold longer: the shortest hold is one second.
const MOST_DOUBLINGS: u32 = 8;
/// With more silent nodes than this, nothing is raised.
const MOST_SILENT: f64 = 0.2;
/// What the static share keeps back: floors and mosts change while nobody writes.
const RESERVE: f64 = 0.03;
/// One raise: to this share of the level, and this much more.
const RAISE: f64 = 1.10;
const RAISE_PERMILLE: f64 = 0.01;

/// What is remembered of a budget.
#[derive(Debug)]
pub struct Law {
    tiers: Vec<String>,
    levels: Vec<Permille>,
    /// Holds are twice as long for each excess in a row that followed a raise.
    doublings: u32,
    cut: Option<Duration>,
    raised: Option<Duration>,
    /// Of the last step in which anything was known of the nodes.
    fallback: Option<Permille>,
    highs: Highs,
}

/// A budget and its nodes at one tick.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// A clock that does not go backwards.
    pub now: Duration,
    pub watts: f64,
    /// What a watt of the nodes is in the building.
    pub factor: f64,
    pub members: &'a [Member],
    /// Too little is known of the nodes to raise anything.
    pub is_blind: bool,
    /// Nobody says anything of any node: all levels stay as they are.
    pub is_deaf: bool,
    /// Two raises are apart by so much: each needs news of the nodes.
    pub raise_every: Duration,
}

/// What a tick comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// One for each tier of the settings.
    pub levels: Vec<Permille>,
    /// The level for all at which limits add up to the budget.
    pub fallback: Permille,
    /// As the building draws it.
    pub watts: f64,
    /// What nodes may draw at these levels, as the building draws it.
    pub limit_watts: f64,
    /// What the nodes draw at their floors, where that is more than the target.
    pub floors_exceed: Option<f64>,
    pub too_many_silent: bool,
}

impl Law {
    /// Everything is open.
    #[must_use]
    pub fn open() -> Self {
        Self::resume(&[], None)
    }

    /// Goes on from levels, and the share in their place, that somebody has written before.
    #[must_use]
    pub fn resume(levels: &[(String, Permille)], fallback: Option<Permille>) -> Self {
        let (tiers, levels) = levels.iter().cloned().unzip();
        Self { tiers, levels, doublings: 0, cut: None, raised: None, fallback, highs: Highs::default() }
    }

    /// The levels after the last step, by the names of the tiers.
    pub fn levels(&self) -> impl Iterator<Item = (&str, Permille)> {
        self.tiers.iter().map(String::as_str).zip(self.levels.iter().copied())
    }

    /// One tick.
    pub fn step(&mut self, settings: &Settings, scene: &Scene<'_>) -> Decision {
        let Scene { now, watts: budget, factor, members, is_blind, is_deaf, raise_every } = *scene;
        self.follow_tiers(&settings.tiers);
        let fixed: f64 = members.iter().filter(|member| !is_reporting(member)).map(Member::power).sum();
        // Not by `sum`, which is -0 of no members.
        let power = factor * members.iter().map(Member::power).fold(0.0, Add::add);
        // What the nodes that can be told something may draw, when all may draw a share of the budget.
        let goal = |share: f64, factor: f64| share * budget / factor - fixed;
        let wishes = shares(members, settings.tiers.len(), Report::wish);
        let target = goal(settings.target, factor);
        let solution = solve::levels(&wishes, target);
        let too_many_silent = is_blind || too_many_silent(members);
        // The first step of a law that goes on from levels begins a hold too.
        let since_cut = now.saturating_sub(*self.cut.get_or_insert(now));
        self.highs.add(now, power);
        let hold = self.hold(settings);
        if is_deaf {
            // What silent nodes may draw says nothing of what they do.
        } else if power > settings.engage * budget {
            self.lower(settings, now, &solution);
        } else if since_cut >= hold
            && !too_many_silent
            && self.is_limited()
            && self.raised.is_none_or(|raised| now.saturating_sub(raised) >= raise_every)
            && self.highs.since(now.saturating_sub(hold)) < settings.release * budget
        {
            self.raise(now, &solution);
        }
        // The guards are for the nodes' own watts where the building draws less than they say.
        let safe = factor.max(1.0);
        let limits = shares(members, settings.tiers.len(), |report| report.most);
        // Nodes that are silent to us may follow what is written all the same.
        let silent = |level: &dyn Fn(usize) -> Permille| -> f64 {
            let others = members.iter().filter(|member| !is_reporting(member));
            others.map(|member| member.limit(level(member.tier))).sum()
        };
        if let Some(share) = settings.oversubscription.filter(|_| !is_deaf) {
            let goal = share * budget / safe - silent(&|tier| self.levels[tier]);
            for (level, most) in self.levels.iter_mut().zip(solve::levels(&limits, goal)) {
                *level = (*level).min(most);
            }
        }
        let fallback = if is_deaf {
            // Nothing is known to share by.
            self.fallback.unwrap_or_else(|| self.lowest())
        } else {
            let all = [limits.concat()];
            let without = solve::levels(&all, goal(1.0 - RESERVE, safe))[0];
            let goal = (1.0 - RESERVE) * budget / safe - silent(&|_| without);
            solve::levels(&all, goal)[0].min(without)
        };
        self.fallback = Some(fallback);
        let floors = factor * (solve::floors(&limits) + fixed);
        Decision {
            levels: self.levels.clone(),
            fallback,
            watts: power,
            limit_watts: factor
                * members.iter().map(|member| member.limit(self.levels[member.tier])).fold(0.0, Add::add),
            floors_exceed: (floors > settings.target * budget).then_some(floors),
            too_many_silent,
        }
    }

    /// New tiers begin where the lowest of the old ones was: a change of the budget lifts no limit.
    fn follow_tiers(&mut self, tiers: &[String]) {
        if self.tiers == tiers {
            return;
        }
        let lowest = self.lowest();
        let level = |name| self.tiers.iter().position(|tier| tier == name).map_or(lowest, |at| self.levels[at]);
        self.levels = tiers.iter().map(level).collect();
        self.tiers = tiers.to_vec();
    }

    fn lowest(&self) -> Permille {
        self.levels.iter().min().copied().unwrap_or(Permille::OPEN)
    }

    fn is_limited(&self) -> bool {
        self.levels.iter().any(|level| !level.is_open())
    }

    fn hold(&self, settings: &Settings) -> Duration {
        (settings.hold * 2_u32.pow(self.doublings)).min(LONGEST_HOLD.max(settings.hold))
    }

    fn lower(&mut self, settings: &Settings, now: Duration, solution: &[Permille]) {
        let hold = self.hold(settings);
        if self.raised.take().is_some_and(|raised| now.saturating_sub(raised) <= BLAMED) {
            self.doublings = (self.doublings + 1).min(MOST_DOUBLINGS);
        } else if self.cut.is_none_or(|cut| now.saturating_sub(cut) > hold + BLAMED) {
            self.doublings = 0;
        }
        self.cut = Some(now);
        for (level, solved) in self.levels.iter_mut().zip(solution) {
            // Nodes that do not follow draw the same at each tick; those that do may not have followed yet.
            *level = if settings.enforced { (*level).min(*solved) } else { *solved };
        }
    }

    fn raise(&mut self, now: Duration, solution: &[Permille]) {
        for (level, solved) in self.levels.iter_mut().zip(solution) {
            let step = Permille::at_most(level.level() * RAISE + RAISE_PERMILLE);
            let next = step.min(*solved);
            if next > *level {
                *level = next;
                self.raised = Some(now);
            }
        }
    }
}

const fn is_reporting(member: &Member) -> bool {
    matches!(member.state, State::Reporting(_))
}

fn too_many_silent(members: &[Member]) -> bool {
    let silent = members.iter().filter(|member| matches!(member.state, State::Silent { .. })).count();
    let reporting = members.iter().filter(|member| is_reporting(member)).count();
    let count = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    count(silent) > MOST_SILENT * count(silent + reporting)
}

/// Those that can be told something, by tier.
fn shares(members: &[Member], tiers: usize, wish: impl Fn(&Report) -> f64) -> Vec<Vec<Share>> {
    let mut shares = vec![Vec::new(); tiers];
    for member in members {
        if let State::Reporting(report) = &member.state {
            let Report { floor, most, .. } = *report;
            shares[member.tier].push(Share { floor, most, wish: wish(report) });
        }
    }
    shares
}
