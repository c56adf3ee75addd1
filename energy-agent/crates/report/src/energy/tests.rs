#![allow(clippy::float_cmp, reason = "sums of halves are exact")]
#![allow(clippy::unwrap_used, reason = "tests panic")]

use proptest::prelude::*;

use super::*;
use crate::samples::Labels;

const ALL: Window = Window { from: 100.0, to: 200.0 };
const LIFE: Option<u64> = Some(1_000);

fn pages(times: impl IntoIterator<Item = u32>, life: Option<u64>) -> Vec<(f64, Option<u64>)> {
    times.into_iter().map(|at| (f64::from(at), life)).collect()
}

/// Time, count, and the life of the agent in milliseconds.
type Sight = (f64, u64, Option<u64>);

/// A counter by what each reader saw of it, and the pages of the first reader.
fn counter(readers: &[&[Sight]], pages: &[(f64, Option<u64>)]) -> Counter {
    let reader = |number: usize| Labels::from([("replica".to_owned(), number.to_string())]);
    let reading = |(at, count, life_ms): &Sight| Reading { at: *at, count: *count, life_ms: *life_ms };
    Counter {
        readers: (0..).zip(readers).map(|(number, it)| (reader(number), it.iter().map(reading).collect())).collect(),
        pages: [(reader(0), pages.to_vec())].into(),
        ..Counter::default()
    }
}

fn is(counted: &Counted, total: u64, began: Began, restarts: u32) -> bool {
    (counted.total, counted.began, counted.restarts) == (total, began, restarts)
}

#[test]
fn a_job_between_two_scrapes_is_counted_whole() {
    // The agent was seen at 120 without the job and at 135 with its last total, 11.151 J.
    let readings = [(135.0, 11_151_000, LIFE), (150.0, 11_151_000, LIFE)];
    let counted = count(&counter(&[&readings], &pages([105, 120, 135, 150], LIFE)), ALL).unwrap();
    assert!(is(&counted, 11_151_000, Began::Within(120.0, 135.0), 0), "{counted:?}");
    assert_eq!((counted.unseen, counted.interval, counted.vanished), (0.0, 15.0, None));
}

#[test]
fn what_ran_before_the_window_does_not_count() {
    let readings = [(90.0, 500, LIFE), (110.0, 600, LIFE), (130.0, 750, LIFE)];
    let counted = count(&counter(&[&readings], &pages([90, 110, 130], LIFE)), ALL).unwrap();
    assert!(is(&counted, 250, Began::AtSample, 0), "{counted:?}");
    // (600 - 500) / 20 straddles the beginning; (750 - 600) / 20 does not.
    assert_eq!(peak::peak(&[&counted], ALL, 0.0), Some(7.5));
}

#[test]
fn without_a_page_before_the_first_sample_what_it_shows_is_not_known() {
    let readings = [(110.0, 600, LIFE), (130.0, 750, LIFE)];
    let counted = count(&counter(&[&readings], &pages([110, 130], LIFE)), ALL).unwrap();
    assert!(is(&counted, 150, Began::Lost, 0), "{counted:?}");
    assert_eq!(counted.unseen, 10.0);
}

#[test]
fn an_agent_that_began_within_the_window_has_counted_from_0() {
    let life = Some(104_000);
    let counted = count(&counter(&[&[(110.0, 60, life), (130.0, 90, life)]], &pages([110, 130], life)), ALL).unwrap();
    assert!(is(&counted, 90, Began::Within(104.0, 110.0), 0), "{counted:?}");
}

#[test]
fn a_restart_counts_from_0_and_the_time_without_an_agent_is_unseen() {
    // 100 -> 140 in the first life; the second began at 150 s and stood at 30 and 45 uJ.
    let (old, new) = (Some(1_000), Some(150_000));
    let readings = [(95.0, 100, old), (140.0, 140, old), (160.0, 30, new), (175.0, 45, new)];
    let counted = count(&counter(&[&readings], &[]), ALL).unwrap();
    assert!(is(&counted, 40 + 30 + 15, Began::AtSample, 1), "{counted:?}");
    assert_eq!((counted.unseen, counted.longest_unseen), (10.0, 10.0));
    // The new life may stand above the old one when it is seen first.
    let readings = [(95.0, 100, old), (140.0, 140, old), (160.0, 300, new)];
    assert_eq!(count(&counter(&[&readings], &[]), ALL).unwrap().total, 40 + 300);
}

#[test]
fn a_fall_is_a_restart_where_lives_are_not_known() {
    let readings = [(95.0, 100, None), (140.0, 140, None), (160.0, 30, None), (175.0, 45, None)];
    let counted = count(&counter(&[&readings], &[]), ALL).unwrap();
    assert!(is(&counted, 85, Began::AtSample, 1), "{counted:?}");
    assert_eq!(counted.unseen, 20.0);
}

#[test]
fn two_scrapers_of_one_agent_count_once() {
    let a = [(95.0, 10, LIFE), (110.0, 20, LIFE), (125.0, 40, LIFE)];
    let b = [(102.0, 14, LIFE), (117.0, 31, LIFE), (132.0, 44, LIFE)];
    let both = count(&counter(&[&a, &b], &[]), ALL).unwrap();
    assert!(is(&both, 34, Began::AtSample, 0), "{both:?}");
    // The second is a moment behind the first, as pages without their own times may seem.
    let behind = [(102.0, 9, None), (110.1, 18, None), (125.1, 38, None)];
    let a = a.map(|(at, count, _)| (at, count, None));
    let both = count(&counter(&[&a, &behind], &[]), ALL).unwrap();
    assert!(is(&both, 30, Began::AtSample, 0), "{both:?}");
}

#[test]
fn two_scrapers_see_one_restart() {
    for (old, new) in [(Some(1), Some(118_000)), (None, None)] {
        let a = [(95.0, 100, old), (110.0, 120, old), (125.0, 5, new), (140.0, 12, new)];
        let b = [(102.0, 110, old), (117.0, 130, old), (132.0, 9, new), (147.0, 20, new)];
        let both = count(&counter(&[&a, &b], &[]), ALL).unwrap();
        assert!(is(&both, 30 + 20, Began::AtSample, 1), "{both:?}");
    }
}

#[test]
fn one_scraper_takes_over_where_the_other_ends_even_across_a_restart() {
    let a = [(95.0, 100, LIFE), (110.0, 120, LIFE)];
    // Another address of the agent's new pod.
    let b = [(150.0, 7, Some(120_000)), (165.0, 9, Some(120_000))];
    let both = count(&counter(&[&a, &b], &[]), ALL).unwrap();
    assert!(is(&both, 20 + 9, Began::AtSample, 1), "{both:?}");
    assert_eq!(both.unseen, 10.0);
    let (a, b) = (a.map(|(at, count, _)| (at, count, None)), b.map(|(at, count, _)| (at, count, None)));
    assert_eq!(count(&counter(&[&a, &b], &[]), ALL).unwrap().total, 29);
}

#[test]
fn a_gap_loses_nothing_and_a_unit_that_comes_back_starts_again() {
    let readings = [(95.0, 100, LIFE), (190.0, 900, LIFE)];
    let counted = count(&counter(&[&readings], &[]), ALL).unwrap();
    assert!(is(&counted, 800, Began::AtSample, 0) && counted.unseen.abs() < 1e-9, "{counted:?}");
    assert_eq!(counted.interval, 95.0);
    let readings = [(95.0, 100, LIFE), (110.0, 130, LIFE), (170.0, 4, LIFE), (180.0, 6, LIFE)];
    let counted = count(&counter(&[&readings], &[]), ALL).unwrap();
    assert!(is(&counted, 36, Began::AtSample, 1) && counted.unseen.abs() < 1e-9, "{counted:?}");
}

#[test]
fn a_counter_that_goes_while_its_agent_stays_has_vanished() {
    let readings = [(95.0, 100, LIFE), (110.0, 130, LIFE)];
    let counted = count(&counter(&[&readings], &pages([95, 110, 125, 140], LIFE)), ALL).unwrap();
    assert_eq!((counted.last, counted.vanished, counted.ended), (110.0, Some(125.0), None));
}

#[test]
fn nothing_in_the_window_is_nothing() {
    assert_eq!(count(&counter(&[&[(95.0, 100, LIFE)], &[(250.0, 1, LIFE)]], &[]), ALL), None);
}

#[test]
fn rates_are_steps_of_one_counter_and_slices_of_several() {
    let a = count(&counter(&[&[(100.0, 0, LIFE), (110.0, 100, LIFE), (120.0, 100, LIFE)]], &[]), ALL).unwrap();
    assert_eq!(Sum { counted: vec![&a] }.rates(), [(100.0, 0.0), (110.0, 10.0), (120.0, 0.0)]);
    let b = count(&counter(&[&[(100.0, 0, LIFE), (110.0, 50, LIFE), (120.0, 80, LIFE)]], &[]), ALL).unwrap();
    let both = Sum { counted: vec![&a, &b] };
    assert_eq!(both.rates(), [(100.0, 0.0), (110.0, 15.0), (120.0, 3.0)]);
}

/// A counter over several lives of its agent: rises of each reading, and the readings at which the agent began anew.
fn histories() -> impl Strategy<Value = Vec<(u64, bool)>> {
    prop::collection::vec((0_u64..1000, prop::bool::weighted(0.1)), 3..60)
}

/// Readings every second from 100.5 s on, and what was counted at each.
fn played(history: &[(u64, bool)], known: bool) -> (Vec<Sight>, Vec<u64>) {
    let (mut at, mut stands, mut life) = (100.5, 0, Some(0));
    let (mut readings, mut rises) = (Vec::new(), Vec::new());
    for (index, (rise, anew)) in history.iter().enumerate() {
        // Without lives a restart is seen only if the counter falls.
        if *anew && index > 0 && (known || stands > *rise) {
            (stands, life) = (0, Some(nearest_ms(at - 0.5)));
        }
        stands += rise;
        readings.push((at, stands, life.filter(|_| known)));
        rises.push(*rise);
        at += 1.0;
    }
    (readings, rises)
}

fn nearest_ms(at: f64) -> u64 {
    crate::number::nearest(at * 1000.0)
}

proptest! {
    /// The truth is the sum of what was put in; the first reading is the base.
    #[test]
    fn every_rise_counts_once(history in histories(), known: bool) {
        let (readings, rises) = played(&history, known);
        let counted = count(&counter(&[&readings], &[]), Window { from: 100.0, to: 1000.0 }).unwrap();
        prop_assert_eq!(counted.total, rises[1..].iter().sum::<u64>());
    }

    /// Two windows that meet add up to the window over both.
    #[test]
    fn a_split_window_adds_up(history in histories(), known: bool, part in 1_u32..58) {
        let (readings, _) = played(&history, known);
        let counter = counter(&[&readings], &[]);
        let middle = 100.0 + f64::from(part);
        let of = |from, to| count(&counter, Window { from, to }).map_or(0, |counted| counted.total);
        prop_assert_eq!(of(100.0, middle) + of(middle, 1000.0), of(100.0, 1000.0));
    }

    /// Any readings that are left out by some of the readers change nothing, as long as one has each reading around a restart.
    #[test]
    fn readers_of_one_counter_count_once(history in histories(), takers in prop::collection::vec(0_usize..3, 60)) {
        let (readings, _) = played(&history, true);
        let mut parts: [Vec<_>; 3] = Default::default();
        for (reading, taker) in readings.iter().zip(&takers) {
            parts[*taker].push(*reading);
        }
        let parts: Vec<&[_]> = parts.iter().map(Vec::as_slice).collect();
        let window = Window { from: 100.0, to: 1000.0 };
        let (one, many) = (count(&counter(&[&readings], &[]), window), count(&counter(&parts, &[]), window));
        prop_assert_eq!(one.map(|it| (it.total, it.restarts)), many.map(|it| (it.total, it.restarts)));
    }
}
