//! Expected values are sums done by hand.
#![allow(clippy::unwrap_used, reason = "tests panic")]

mod properties;
mod simulation;

use std::time::Duration;

use crate::factor::{Factor, Scale};
use crate::law::{Decision, Law, Scene};
use crate::member::{Member, Report, State};
use crate::permille::Permille;
use crate::settings::Settings;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A node of 200 to 1000 W that nothing else limits.
const fn node(power: f64) -> Report {
    Report { power, floor: 200.0, most: 1000.0, held: false, ceiling: f64::INFINITY }
}

const fn held(power: f64) -> Report {
    Report { held: true, ..node(power) }
}

const fn member(report: Report) -> Member {
    Member { tier: 0, state: State::Reporting(report) }
}

fn step(law: &mut Law, settings: &Settings, now: u64, watts: f64, members: &[Member]) -> Decision {
    law.step(settings, &scene(now, watts, members))
}

/// All that there is to know is known.
const fn scene(now: u64, watts: f64, members: &[Member]) -> Scene<'_> {
    let raise_every = Duration::ZERO;
    Scene { now: seconds(now), watts, factor: 1.0, members, is_blind: false, is_deaf: false, raise_every }
}

fn permille(decision: &Decision) -> Vec<u16> {
    decision.levels.iter().map(|level| level.get()).collect()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn nothing_is_limited_under_the_budget() {
    let decision =
        step(&mut Law::open(), &Settings::default(), 0, 2000.0, &[member(node(900.0)), member(node(1000.0))]);
    assert_eq!(permille(&decision), [1000]);
    assert!(near(decision.watts, 1900.0) && near(decision.limit_watts, 2000.0), "{decision:?}");
    assert_eq!((decision.floors_exceed, decision.too_many_silent), (None, false));
}

#[test]
fn an_excess_is_cut_at_once_to_the_target() {
    // 1000 W + 300 W of 1200 W. The second wishes 306 W, so 1140 - 306 = 834 W are for the first: (834 - 200) / 800 = 0.7925.
    // There the second may draw 834 W and keeps what it wishes.
    let decision =
        step(&mut Law::open(), &Settings::default(), 0, 1200.0, &[member(node(1000.0)), member(node(300.0))]);
    assert_eq!(permille(&decision), [792]);
    // 2 * (200 + 0.792 * 800) = 1667.2.
    assert!(near(decision.limit_watts, 1667.2), "{decision:?}");
}

#[test]
fn an_excess_goes_on_cutting_and_never_lifts() {
    let (mut law, settings) = (Law::open(), Settings::default());
    step(&mut law, &settings, 0, 1200.0, &[member(node(1000.0)), member(node(300.0))]);
    // Still on its way down; the other one has become idle, which would allow more.
    let decision = step(&mut law, &settings, 5, 1200.0, &[member(held(1190.0)), member(node(200.0))]);
    assert_eq!(permille(&decision), [792]);
    // The other one works too: 2 * (200 + L * 800) = 1140, L = 0.4625.
    let decision = step(&mut law, &settings, 10, 1200.0, &[member(held(834.0)), member(node(900.0))]);
    assert_eq!(permille(&decision), [462]);
}

#[test]
fn a_level_is_raised_by_a_tenth_and_ten_after_the_hold_and_not_above_what_fits() {
    let (mut law, settings) = (Law::open(), Settings::default());
    step(&mut law, &settings, 0, 1200.0, &[member(node(1000.0)), member(node(900.0))]);
    // The hold counts from the cut, and the highest power in it.
    let calm = [member(held(530.0)), member(node(200.0))];
    for now in (5..30).step_by(5) {
        assert_eq!(permille(&step(&mut law, &settings, now, 1200.0, &calm)), [462], "{now}");
    }
    // 0.462 * 1.1 + 0.01 = 0.5182.
    assert_eq!(permille(&step(&mut law, &settings, 30, 1200.0, &calm)), [462], "the cut's own power is in the window");
    assert_eq!(permille(&step(&mut law, &settings, 35, 1200.0, &calm)), [518]);
    // 0.518 * 1.1 + 0.01 = 0.5798; then 0.6468, 0.7206 and so on, up to (1140 - 204 - 200) / 800 = 0.92.
    let raised: Vec<u16> =
        (40..80).step_by(5).map(|now| permille(&step(&mut law, &settings, now, 1200.0, &calm))[0]).collect();
    assert_eq!(raised, [579, 646, 720, 802, 892, 920, 920, 920]);
    // Nobody is held any more, and all fits: open.
    let idle = [member(node(530.0)), member(node(200.0))];
    assert_eq!(permille(&step(&mut law, &settings, 80, 1200.0, &idle)), [1000]);
}

#[test]
fn an_excess_after_a_raise_doubles_the_hold() {
    let (mut law, settings) = (Law::open(), Settings::default());
    let (calm, busy) = ([member(held(500.0))], [member(held(1000.0))]);
    let mut level = |now, members: &[Member]| permille(&step(&mut law, &settings, now, 600.0, members))[0];
    // (570 - 200) / 800 = 0.4625.
    assert_eq!(level(0, &busy), 462);
    assert_eq!(level(31, &calm), 462, "500 W are 83 %, and the next step may raise no more than what fits");
    assert_eq!(level(36, &[member(node(250.0))]), 518, "one that is not held may have more");
    assert_eq!(level(41, &busy), 462);
    // 30 s are not enough now, 60 s are.
    assert_eq!(level(75, &[member(node(250.0))]), 462);
    assert_eq!(level(100, &[member(node(250.0))]), 462);
    assert_eq!(level(102, &[member(node(250.0))]), 518);
}

#[test]
fn tiers_are_cut_in_their_order_and_floors_always_served() {
    let settings = Settings { tiers: ["batch", "serving", ""].map(str::to_owned).to_vec(), ..Settings::default() };
    let members: Vec<Member> = (0..3).map(|tier| Member { tier, state: State::Reporting(held(1000.0)) }).collect();
    let levels = |watts: f64| permille(&step(&mut Law::open(), &settings, 0, watts, &members));
    // 95 % of 2800 W are 2660 W: 600 W are floors, 1600 W are for the last two, 460 W are left: 0.575.
    assert_eq!(levels(2800.0), [575, 1000, 1000]);
    // 1900 W: 600 + 800 + 500 = 0.625 of 800 W.
    assert_eq!(levels(2000.0), [0, 625, 1000]);
    // 950 W: 600 + 350 = 0.4375 of 800 W.
    assert_eq!(levels(1000.0), [0, 0, 437]);
}

#[test]
fn floors_over_the_target_are_said_and_nothing_hunts() {
    let (mut law, settings) = (Law::open(), Settings::default());
    let members = [member(held(200.0)), member(held(200.0))];
    for now in (0..600).step_by(5) {
        let decision = step(&mut law, &settings, now, 300.0, &members);
        assert_eq!(permille(&decision), [0]);
        assert_eq!(decision.floors_exceed, Some(400.0));
    }
}

#[test]
fn limits_never_add_up_to_more_than_the_oversubscription() {
    let settings = Settings { oversubscription: Some(1.0), ..Settings::default() };
    // Nobody draws much, and all together may not draw more than 1000 W: 400 + L * 1600 = 1000, L = 0.375.
    let decision = step(&mut Law::open(), &settings, 0, 1000.0, &[member(node(210.0)), member(node(210.0))]);
    assert_eq!(permille(&decision), [375]);
    assert!(near(decision.limit_watts, 1000.0), "{decision:?}");
    // 970 W for the static share: 570 / 1600 = 0.35625.
    assert_eq!(decision.fallback.get(), 356);
    // Supplies draw a quarter beside: 800 W for the nodes, 400 / 1600 = 0.25.
    let members = [member(node(210.0)), member(node(210.0))];
    let scene = Scene { factor: 1.25, ..scene(0, 1000.0, &members) };
    assert_eq!(permille(&Law::open().step(&settings, &scene)), [250]);
    // A building that draws less than its nodes say does not lift the guard.
    assert_eq!(permille(&Law::open().step(&settings, &Scene { factor: 0.8, ..scene })), [375]);
}

#[test]
fn levels_and_the_static_share_stay_while_nobody_says_anything() {
    for oversubscription in [None, Some(1.3)] {
        let (mut law, settings) = (Law::open(), Settings { oversubscription, ..Settings::default() });
        let calm = [member(node(900.0)), member(node(300.0))];
        // 1200 of 1300 W. (0.97 * 1300 - 400) / 1600 = 0.538; 1690 W of limits: (1690 - 400) / 1600 = 0.806.
        let before = step(&mut law, &settings, 0, 1300.0, &calm);
        let level = if oversubscription.is_some() { 806 } else { 1000 };
        assert_eq!((permille(&before), before.fallback.get()), (vec![level], 538));
        let silent = [1000.0, 1000.0]
            .map(|limit| Member { tier: 0, state: State::Silent { limit, floor: 200.0, most: 1000.0 } });
        for (now, watts) in [(5, 1300.0), (40, 1300.0), (45, 5000.0), (100, 5000.0), (105, 100.0)] {
            let deaf = law.step(&settings, &Scene { is_deaf: true, ..scene(now, watts, &silent) });
            assert_eq!((permille(&deaf), deaf.fallback.get()), (vec![level], 538), "{now}");
        }
    }
    // One that goes on from the level of an earlier leader keeps its share too, also where the level is open.
    for (level, fallback, kept) in [(300, Some(480), 480), (1000, Some(480), 480), (300, None, 300)] {
        let mut law = Law::resume(&[(String::new(), Permille::new(level))], fallback.map(Permille::new));
        let deaf = law.step(&Settings::default(), &Scene { is_deaf: true, ..scene(0, 1300.0, &[]) });
        assert_eq!((permille(&deaf), deaf.fallback.get()), (vec![level], kept));
    }
}

#[test]
fn two_raises_are_as_far_apart_as_news_of_the_nodes() {
    let (mut law, settings) = (Law::open(), Settings::default());
    step(&mut law, &settings, 0, 1200.0, &[member(node(1000.0)), member(node(900.0))]);
    let calm = [member(held(530.0)), member(node(200.0))];
    let level = |now| {
        let scene = Scene { raise_every: seconds(15), ..scene(now, 1200.0, &calm) };
        permille(&law.step(&settings, &scene))[0]
    };
    // As in the test above, but at every third step.
    let raised: Vec<u16> = (5..80).step_by(5).map(level).collect();
    assert_eq!(raised, [462, 462, 462, 462, 462, 462, 518, 518, 518, 579, 579, 579, 646, 646, 646]);
}

#[test]
fn the_silent_count_with_their_limit_and_hold_up_every_raise() {
    let settings = Settings::default();
    let silent = |limit| Member { tier: 0, state: State::Silent { limit, floor: 200.0, most: 1000.0 } };
    // 900 + 1000 of 1500 W: 1425 - 1000 = 425 W for the one that listens, (425 - 200) / 800 = 0.28125.
    let decision = step(&mut Law::open(), &settings, 0, 1500.0, &[member(node(900.0)), silent(1000.0)]);
    assert_eq!((permille(&decision), decision.too_many_silent), (vec![281], true));
    assert!(near(decision.watts, 1900.0), "{decision:?}");
    // One of two is silent: cut, and never raised, however little is drawn.
    let mut law = Law::resume(&[(String::new(), Permille::new(281))], None);
    for now in (0..300).step_by(5) {
        let decision = step(&mut law, &settings, now, 1500.0, &[member(node(250.0)), silent(400.0)]);
        assert_eq!(permille(&decision), [281]);
    }
    // It is gone.
    assert_eq!(permille(&step(&mut law, &settings, 300, 1500.0, &[member(node(250.0))])), [319]);
}

#[test]
fn a_raise_leaves_room_for_silent_nodes_that_follow_it() {
    let settings = Settings { oversubscription: Some(1.0), ..Settings::default() };
    // The level was 10 when the fifth node was heard last: 200 + 0.01 * 800 W.
    let mut law = Law::resume(&[(String::new(), Permille::new(10))], None);
    let silent = Member { tier: 0, state: State::Silent { limit: 208.0, floor: 200.0, most: 1000.0 } };
    let members = [member(node(190.0)), member(node(190.0)), member(node(190.0)), member(node(190.0)), silent];
    let mut levels = Vec::new();
    for now in (0..600).step_by(5) {
        let decision = step(&mut law, &settings, now, 3000.0, &members);
        let level = f64::from(permille(&decision)[0]) / 1000.0;
        // Four that are heard, and the silent one as far as it has followed.
        let limits = 5.0 * (200.0 + 800.0 * level);
        assert!(limits <= 3000.0 + 1e-6, "{limits} W at {now} s");
        levels.push(permille(&decision)[0]);
    }
    // 5 * 200 W are floors: 2000 of 4000 W are left. Without the fifth it would be (3000 - 208 - 800) / 3200 = 0.622.
    assert!(levels.last().is_some_and(|level| (480..=500).contains(level)), "{levels:?}");
}

#[test]
fn nodes_without_an_agent_count_with_what_they_are_taken_to_draw() {
    let unreported = Member { tier: 0, state: State::Fixed { watts: 800.0 } };
    // 1900 - 800 = 1100 W for two: 400 + L * 1600, L = 0.4375.
    let members = [member(held(900.0)), member(held(900.0)), unreported];
    let decision = step(&mut Law::open(), &Settings::default(), 0, 2000.0, &members);
    assert_eq!((permille(&decision), decision.too_many_silent), (vec![437], false));
}

#[test]
fn what_a_smaller_budget_allows_is_all_that_a_node_wishes_for() {
    // The first is held to 400 W by its rack, so 1140 - 400 = 740 W are for the second: 0.675.
    let rack = Report { ceiling: 400.0, ..held(600.0) };
    let decision = step(&mut Law::open(), &Settings::default(), 0, 1200.0, &[member(rack), member(held(1000.0))]);
    assert_eq!(permille(&decision), [675]);
}

#[test]
fn a_recommended_level_is_solved_anew_at_each_excess() {
    let (mut law, settings) = (Law::open(), Settings { enforced: false, ..Settings::default() });
    // 1140 = 2 * (200 + L * 800), then 1140 - 306 for the first.
    assert_eq!(permille(&step(&mut law, &settings, 0, 1200.0, &[member(node(1000.0)), member(node(1000.0))])), [462]);
    assert_eq!(permille(&step(&mut law, &settings, 5, 1200.0, &[member(node(1000.0)), member(node(300.0))])), [792]);
}

#[test]
fn new_tiers_start_at_the_lowest_level() {
    let mut law = Law::resume(&[("batch".to_owned(), Permille::new(100)), (String::new(), Permille::new(700))], None);
    let settings = Settings { tiers: ["night", "batch", ""].map(str::to_owned).to_vec(), ..Settings::default() };
    let members: Vec<Member> = (0..3).map(|tier| Member { tier, state: State::Reporting(node(300.0)) }).collect();
    assert_eq!(permille(&step(&mut law, &settings, 0, 3000.0, &members)), [100, 100, 700]);
}

#[test]
fn a_level_in_thousandths_is_the_one_that_was_solved() {
    // 0.42 * 1000.0 is 420.0 in floating point, 0.29 * 1000.0 is 290.0 - 3e-14.
    for permille in 0..=1000_u16 {
        assert_eq!(Permille::at_most(f64::from(permille) / 1000.0).get(), permille);
    }
    assert_eq!((Permille::at_most(-1.0), Permille::at_most(7.0)), (Permille::FLOOR, Permille::OPEN));
    assert_eq!(Permille::new(60_000), Permille::OPEN);
}

#[test]
fn the_meter_scales_what_nodes_say_within_bounds_and_for_a_minute() {
    let mut factor = Factor::default();
    let fresh = |factor| Scale { factor, stale: false };
    assert_eq!(factor.step(seconds(0), 0.08, None, 1000.0), fresh(1.08));
    assert_eq!(factor.step(seconds(5), 0.08, Some(Some(1500.0)), 1000.0), fresh(1.5));
    // A fifth of the way to 1.0.
    let Scale { factor: next, .. } = factor.step(seconds(10), 0.08, Some(Some(1000.0)), 1000.0);
    assert!(near(next, 1.4), "{next}");
    // Gone: the last one for a minute, then what is stated. Nonsense is no reading.
    for nonsense in [None, Some(f64::NAN), Some(-5.0), Some(0.0), Some(f64::INFINITY)] {
        assert_eq!(factor.step(seconds(70), 0.08, Some(nonsense), 1000.0), fresh(next));
        assert_eq!(factor.step(seconds(71), 0.08, Some(nonsense), 1000.0), Scale { factor: 1.08, stale: true });
    }
    // A meter of something else altogether.
    assert_eq!(Factor::default().step(seconds(0), 0.0, Some(Some(1e9)), 1000.0), fresh(2.0));
    assert_eq!(Factor::default().step(seconds(0), 0.0, Some(Some(1.0)), 1000.0), fresh(0.8));
}
