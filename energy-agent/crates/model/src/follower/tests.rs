//! The rows of what may fail, each by hand.

use super::*;
use crate::resources::power_level::{LevelSubject as For, TierLevel};

const STALE: u64 = 60;

/// A budget with a level of 420 for tier batch, else open, and a static share of 310.
struct World {
    follower: Follower,
    seen: Seen,
}

fn level(epoch: i64, batch: u32) -> PowerLevelSpec {
    let tier = |tier: &str, permille| TierLevel { tier: tier.to_owned(), permille };
    PowerLevelSpec {
        subject: For { kind: "ClusterPowerBudget".into(), name: "hall".into(), uid: "u1".into(), generation: 1 },
        epoch,
        change_time: None,
        lease_name: "levels".into(),
        stale_after_seconds: 60,
        levels: vec![tier("batch", batch), tier("", OPEN)],
        lowest_permille: None,
        fallback_permille: 310,
    }
}

fn world(loss: LossLimit) -> World {
    let name = PolicyName { authority: Authority::Budget, name: "hall".into(), ..PolicyName::default() };
    let (uid, tier) = ("u1".to_owned(), "batch".to_owned());
    let level = Some(level(7, 420));
    let subject = FollowedBudget { name, uid, mode: Mode::Enforce, tier, loss, protect: None, level };
    let leases = BTreeMap::from([("levels".to_owned(), "1".to_owned())]);
    World { follower: Follower::default(), seen: Seen { subjects: vec![subject], leases, complete: true } }
}

impl World {
    fn at(&mut self, seconds: u64) -> (NodeLevel, Standing) {
        let levels = self.follower.step(&self.seen, Duration::from_secs(seconds));
        let budget = levels.budgets.first().unwrap();
        (budget.level, budget.standing)
    }

    fn renew(&mut self, version: &str) {
        self.seen.leases.insert("levels".to_owned(), version.to_owned());
    }

    fn subject(&mut self) -> &mut FollowedBudget {
        &mut self.seen.subjects[0]
    }
}

const CUT: NodeLevel = NodeLevel::Permille(420);
const SHARE: NodeLevel = NodeLevel::Permille(310);

#[test]
fn a_level_stands_while_its_writer_renews_the_lease() {
    let mut world = world(LossLimit::StaticShare);
    for (at, version) in [(0, "1"), (59, "1"), (59, "2"), (118, "2"), (118, "3"), (177, "3")] {
        world.renew(version);
        assert_eq!(world.at(at), (CUT, Standing::Followed), "{at}");
    }
}

#[test]
fn a_silent_writer_is_lost_and_comes_back() {
    for (loss, expected) in
        [(LossLimit::StaticShare, SHARE), (LossLimit::Hold, CUT), (LossLimit::Release, NodeLevel::Open)]
    {
        let mut world = world(loss);
        assert_eq!(world.at(0), (CUT, Standing::Followed));
        assert_eq!(world.at(STALE), (expected, Standing::WriterLost), "{loss:?}");
        // A Lease that was deleted and made anew has another version too.
        world.renew("made anew");
        assert_eq!(world.at(STALE + 1), (CUT, Standing::Followed));
    }
}

#[test]
fn the_static_share_is_never_more_than_what_was_said_last() {
    let mut world = world(LossLimit::StaticShare);
    world.subject().level = Some(level(7, 200));
    assert_eq!(world.at(0), (NodeLevel::Permille(200), Standing::Followed));
    assert_eq!(world.at(STALE), (NodeLevel::Permille(200), Standing::WriterLost));
    // A node of no tier was open, and has its share now.
    world.subject().tier = String::new();
    assert_eq!(world.at(STALE + 1), (SHARE, Standing::WriterLost));
}

#[test]
fn a_new_level_is_a_sign_of_life() {
    let mut world = world(LossLimit::Release);
    assert_eq!(world.at(0), (CUT, Standing::Followed));
    world.subject().level = Some(level(7, 500));
    assert_eq!(world.at(50), (NodeLevel::Permille(500), Standing::Followed));
    assert_eq!(world.at(109), (NodeLevel::Permille(500), Standing::Followed));
    assert_eq!(world.at(110), (NodeLevel::Open, Standing::WriterLost));
}

#[test]
fn a_level_of_an_earlier_epoch_is_refused_for_a_while_and_then_taken() {
    let mut world = world(LossLimit::Hold);
    assert_eq!(world.at(0), (CUT, Standing::Followed));
    // From a backup: an earlier leader had opened all.
    world.subject().level = Some(level(3, OPEN));
    for (at, version) in [(10, "b"), (40, "c"), (69, "d")] {
        world.renew(version);
        assert_eq!(world.at(at), (CUT, Standing::OlderRefused), "{at}");
    }
    assert_eq!(world.at(70), (NodeLevel::Open, Standing::Followed));
    // The leader that finds it raises the epoch above all that was seen.
    world.subject().level = Some(level(8, 420));
    assert_eq!(world.at(71), (CUT, Standing::Followed));
}

#[test]
fn the_epoch_that_comes_back_ends_the_refusal() {
    let mut world = world(LossLimit::Hold);
    world.at(0);
    world.subject().level = Some(level(3, OPEN));
    assert_eq!(world.at(50), (CUT, Standing::OlderRefused));
    world.subject().level = Some(level(7, 420));
    world.renew("2");
    assert_eq!(world.at(51), (CUT, Standing::Followed));
    world.subject().level = Some(level(3, OPEN));
    world.renew("3");
    assert_eq!(world.at(109), (CUT, Standing::OlderRefused), "the time of the refusal begins anew");
}

#[test]
fn mode_off_and_a_deleted_budget_open_at_once() {
    let mut world = world(LossLimit::Hold);
    assert_eq!(world.at(0), (CUT, Standing::Followed));
    world.subject().mode = Mode::Off;
    assert_eq!(world.at(1), (NodeLevel::Open, Standing::None));
    world.subject().mode = Mode::Enforce;
    world.seen.subjects.clear();
    assert_eq!(world.follower.step(&world.seen, Duration::from_secs(2)).budgets, []);
}

#[test]
fn a_level_that_vanishes_while_its_budget_stands_is_a_lost_writer() {
    let mut world = world(LossLimit::StaticShare);
    assert_eq!(world.at(0), (CUT, Standing::Followed));
    world.subject().level = None;
    assert_eq!(world.at(59), (CUT, Standing::Followed));
    assert_eq!(world.at(60), (SHARE, Standing::WriterLost));
}

#[test]
fn a_level_for_an_earlier_budget_of_the_name_is_none() {
    let mut world = world(LossLimit::Hold);
    world.subject().uid = "u2".to_owned();
    assert_eq!(world.at(0), (NodeLevel::Open, Standing::None));
    // The new budget has a history of its own: no epoch of the earlier one is held against it.
    let mut new = level(1, 600);
    new.subject.uid = "u2".to_owned();
    world.subject().level = Some(new);
    assert_eq!(world.at(1), (NodeLevel::Permille(600), Standing::Followed));
}

#[test]
fn without_a_level_a_node_is_open() {
    let mut world = world(LossLimit::StaticShare);
    world.subject().level = None;
    assert_eq!(world.at(0), (NodeLevel::Open, Standing::None));
    assert_eq!(world.at(600), (NodeLevel::Open, Standing::None));
}

#[test]
fn a_policy_of_scope_total_follows_its_level() {
    let mut world = world(LossLimit::Hold);
    let name = PolicyName { authority: Authority::Tenant, namespace: "ml".into(), name: "vllm".into() };
    world.subject().name = name.clone();
    let levels = world.follower.step(&world.seen, Duration::ZERO);
    assert_eq!((levels.budgets.len(), levels.policies.get(&name)), (0, Some(&CUT)));
}
