//! The largest power that counters show.
//!
//! A rise between two readings of a counter is a mean over the time between them. It is no more than that where the counter was
//! read at these times. A GPU is read by a thread of its own, at any time within an interval: what two readings show may have
//! been used within their distance and one interval. So such a rise is divided by that longer time, and a peak is never higher
//! than what was; over many readings the difference is small.

use super::{Counted, Step, Window};

/// Windows of this many times the uncertainty are looked at beside single steps.
const LONG: f64 = 10.0;
/// Times that lie closer together are one.
const SAME_S: f64 = 1e-3;

/// The largest mean that is certain of the sum of these counters, in counts per second. What a reading shows was counted up to
/// `late` seconds before it.
pub(crate) fn peak(counted: &[&Counted], window: Window, late: f64) -> Option<f64> {
    let of_window = |step: &&Step| step.to > step.from && step.from >= window.from;
    let steps = || counted.iter().flat_map(|counted| &counted.steps).filter(of_window);
    let mut times: Vec<f64> = steps().flat_map(|step| [step.from, step.to]).collect();
    times.sort_by(f64::total_cmp);
    times.dedup_by(|later, earlier| *later - *earlier < SAME_S);
    let mut rates = vec![0.0; times.len().saturating_sub(1)];
    let place = |at: f64| times.partition_point(|time| *time < at - SAME_S);
    for step in steps() {
        let rate = crate::number::float(step.count) / (step.to - step.from);
        rates[place(step.from)..place(step.to)].iter_mut().for_each(|sum| *sum += rate);
    }
    let lengths: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut sorted = lengths.clone();
    sorted.sort_by(f64::total_cmp);
    let usual = *sorted.get(sorted.len() / 2)?;
    // Readings that lie closer together than half of what is usual show more of the clock than of the power.
    let whole = rates.iter().zip(&lengths).filter(|(_, length)| **length >= usual / 2.0);
    let of_steps = whole.map(|(rate, length)| rate * length / (length + late)).max_by(f64::total_cmp);
    let of_windows = if late > 0.0 { long(&times, &rates, late) } else { None };
    of_steps.into_iter().chain(of_windows).max_by(f64::total_cmp)
}

/// The same over windows of many readings.
fn long(times: &[f64], rates: &[f64], late: f64) -> Option<f64> {
    let mut totals = vec![0.0];
    for (rate, pair) in rates.iter().zip(times.windows(2)) {
        totals.push(totals.last().copied().unwrap_or_default() + rate * (pair[1] - pair[0]));
    }
    let (mut begin, mut highest) = (0, None);
    for end in 1..times.len() {
        while times[end] - times[begin + 1] >= LONG * late {
            begin += 1;
        }
        let length = times[end] - times[begin];
        if length >= LONG * late {
            let mean = (totals[end] - totals[begin]) / (length + late);
            highest = Some(highest.map_or(mean, |highest: f64| highest.max(mean)));
        }
    }
    highest
}

#[cfg(test)]
mod tests {
    use super::super::Began;
    use super::*;

    const ALL: Window = Window { from: 0.0, to: 1e9 };

    /// Rises, each over so many seconds.
    fn counted(rises: &[(f64, u64)]) -> Counted {
        let mut at = 100.0;
        let step = |(length, count): &(f64, u64)| {
            at += length;
            Step { from: at - length, to: at, count: *count }
        };
        let steps: Vec<Step> = rises.iter().map(step).collect();
        Counted {
            total: steps.iter().map(|step| step.count).sum(),
            steps,
            began: Began::AtSample,
            last: at,
            ended: None,
            vanished: None,
            restarts: 0,
            unseen: 0.0,
            longest_unseen: 0.0,
            interval: 1.0,
        }
    }

    fn is(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < 1e-9)
    }

    /// 630 a second, of which a step of a second shows no reading, one or two.
    #[test]
    fn two_readings_in_one_step_are_no_peak() {
        let rises: Vec<(f64, u64)> =
            [1, 0, 2, 1, 1, 0, 2, 1, 1, 1, 1, 1].map(|readings| (1.0, readings * 630)).to_vec();
        // Two readings in 1 + 1 s; ten seconds from the third on have 11 readings in 10 + 1 s.
        assert!(is(peak(&[&counted(&rises)], ALL, 1.0), 630.0));
        // Where each reading is of its own time, the step is what it says.
        assert!(is(peak(&[&counted(&rises)], ALL, 0.0), 1260.0));
        // 15 s apart: the highest has 16 readings.
        let rare: Vec<(f64, u64)> = [15, 16, 14].map(|readings| (15.0, readings * 630)).to_vec();
        assert!(is(peak(&[&counted(&rare)], ALL, 1.0), 630.0));
    }

    #[test]
    fn a_real_peak_is_seen_from_below() {
        // 100 a second, and 500 for 20 s: 10,000 in 20 + 1 s, by any ten of these seconds 5,000 in 11.
        let mut rises = vec![(1.0, 100); 30];
        rises[5..25].fill((1.0, 500));
        assert!(is(peak(&[&counted(&rises)], ALL, 1.0), 5000.0 / 11.0));
    }

    #[test]
    fn several_counters_have_the_peak_of_their_sum_and_the_window_bounds_it() {
        let (a, b) = (counted(&[(10.0, 100), (10.0, 20)]), counted(&[(10.0, 50), (10.0, 30)]));
        assert!(is(peak(&[&a, &b], ALL, 0.0), 15.0));
        assert!(is(peak(&[&a, &b], Window { from: 105.0, to: 1e9 }, 0.0), 5.0));
        // One that is read half as often is even in between.
        let rare = counted(&[(20.0, 200)]);
        assert!(is(peak(&[&a, &rare], ALL, 0.0), 20.0));
        assert_eq!(peak(&[], ALL, 0.0), None);
        assert_eq!(peak(&[&counted(&[])], ALL, 1.0), None);
    }
}
