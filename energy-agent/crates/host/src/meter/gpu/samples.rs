//! Utilisation samples of processes become work: each sample is used once, for the time that it is the mean of.
//!
//! What the driver answers (seen with 580 on an H200): it looks at the GPU five times a second, credits the process it finds
//! with all of that moment's utilisation, and gives for each process the mean of its credits since the time it was asked
//! for, stamped with the last moment in which it found it. So all means of one answer are over the same time, whatever
//! their stamps, and one answer's end is the next one's beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use energy_model::gpu::Ignored;
use energy_model::units::micros;

/// How far a sample may lie ahead of this machine's clock; microseconds.
pub(crate) const AHEAD_US: u64 = 2_000_000;

/// SM utilisation of one process, as NVML gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtilSample {
    pub pid: u32,
    /// Microseconds on the driver's clock.
    pub at_us: u64,
    /// Percent of the SMs' time; a mean since the time that the driver was asked for.
    pub sm: u32,
}

/// Up to when samples were used (FC-053).
#[derive(Debug, Default)]
pub struct Cursor {
    /// Newest sample used, of any process.
    newest_us: u64,
    /// Processes that were there at the previous reading.
    present: BTreeSet<u32>,
    /// There was a reading before.
    primed: bool,
}

impl Cursor {
    /// The time after which the driver is asked for samples; 0 asks for all.
    #[must_use]
    pub const fn last_seen_us(&self) -> u64 {
        self.newest_us
    }

    /// Takes the answer to a question after `last_seen_us`. `alive` are the processes that are there now, `elapsed` is the
    /// time since the previous reading, `now_us` this machine's clock.
    ///
    /// The work of each process is percent times microseconds. The first reading gives none: its samples are of the time
    /// before.
    pub fn advance(
        &mut self,
        samples: &[UtilSample],
        alive: &BTreeSet<u32>,
        elapsed: Duration,
        now_us: u64,
        ignored: &mut Ignored,
    ) -> BTreeMap<u32, u64> {
        if self.newest_us > now_us.saturating_add(AHEAD_US) {
            // The clock was set back. Waiting until it has caught up would be endless zero.
            self.newest_us = 0;
        }
        let asked_us = self.newest_us;
        let mut used: BTreeMap<u32, Vec<UtilSample>> = BTreeMap::new();
        for sample in samples {
            let reason = if sample.pid == 0 {
                &mut ignored.no_process
            } else if sample.sm > 100 {
                &mut ignored.over_100_percent
            } else if sample.at_us > now_us.saturating_add(AHEAD_US) {
                &mut ignored.future
            } else if sample.at_us <= asked_us {
                &mut ignored.past
            } else if !alive.contains(&sample.pid) && !self.present.contains(&sample.pid) {
                &mut ignored.exited
            } else {
                self.newest_us = self.newest_us.max(sample.at_us);
                used.entry(sample.pid).or_default().push(*sample);
                continue;
            };
            *reason += 1;
        }
        self.present.clone_from(alive);
        if !std::mem::replace(&mut self.primed, true) {
            return BTreeMap::new();
        }
        let elapsed_us = micros(elapsed);
        // After the clock was set back, or with nothing used before, the samples are of the interval.
        let window_us = if asked_us == 0 { elapsed_us } else { elapsed_us.min(self.newest_us - asked_us) };
        used.into_iter().map(|(pid, samples)| (pid, work(samples, asked_us, window_us))).collect()
    }
}

/// Work of one process: its only sample is the mean of the whole window; of several, each counts since the one before.
fn work(mut samples: Vec<UtilSample>, asked_us: u64, window_us: u64) -> u64 {
    if let [only] = samples[..] {
        return u64::from(only.sm) * window_us;
    }
    samples.sort_by_key(|sample| sample.at_us);
    let (mut since_us, mut left_us, mut work) = (asked_us, window_us, 0);
    for UtilSample { pid: _, at_us, sm } in samples {
        let spent_us = (at_us - since_us).min(left_us);
        work += u64::from(sm) * spent_us;
        (since_us, left_us) = (at_us, left_us - spent_us);
    }
    work
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// FC-053's first three digits of seconds.
    const T: u64 = 1_623_157_600_000_000;
    const NOW: u64 = T + 60_000_000;

    const fn sample(pid: u32, at_us: u64, sm: u32) -> UtilSample {
        UtilSample { pid, at_us: T + at_us, sm }
    }

    #[test]
    fn each_sample_is_used_once_fc_053() {
        let (mut cursor, mut ignored) = (Cursor::default(), Ignored::default());
        let first = [sample(18429, 29_331_552, 1), sample(7044, 33_175_692, 12), sample(7180, 32_005_826, 7)];
        let all = BTreeSet::from([18429, 7044, 7180]);
        let live = BTreeSet::from([7044, 7180]);
        assert_eq!(cursor.last_seen_us(), 0);
        assert!(cursor.advance(&first, &all, SECOND, NOW, &mut ignored).is_empty(), "of the time before");
        assert_eq!(cursor.last_seen_us(), T + 33_175_692);

        // 18429 ended; its old sample comes again.
        let second = [sample(7044, 37_687_768, 4), sample(7180, 39_191_912, 16), sample(18429, 29_331_552, 1)];
        let work = cursor.advance(&second, &live, Duration::from_secs(10), NOW, &mut ignored);
        // 4 % and 16 % of 39191912 - 33175692 = 6016220 us.
        assert_eq!(work, BTreeMap::from([(7044, 24_064_880), (7180, 96_259_520)]));
        assert_eq!(ignored, Ignored { past: 1, ..Ignored::default() });

        assert!(cursor.advance(&second, &live, SECOND, NOW, &mut ignored).is_empty(), "replayed");
        let back = [sample(7044, 31_000_000, 50)];
        assert!(cursor.advance(&back, &live, SECOND, NOW, &mut ignored).is_empty());
        assert_eq!(ignored, Ignored { past: 5, ..Ignored::default() });

        let on = [sample(7044, 40_687_768, 50)];
        let work = cursor.advance(&on, &live, Duration::from_secs(3), NOW, &mut ignored);
        // 50 % of 1495856 us.
        assert_eq!(work, BTreeMap::from([(7044, 74_792_800)]));
    }

    /// An H200 under two processes that never pause: it was asked for the last second, and found the second one last.
    #[test]
    fn means_of_one_answer_are_over_the_same_time_whenever_the_process_was_last_found() {
        let (mut cursor, mut ignored) = (Cursor::default(), Ignored::default());
        let live = BTreeSet::from([453, 454]);
        cursor.advance(&[sample(453, 9_000_000, 50), sample(454, 8_800_000, 50)], &live, SECOND, NOW, &mut ignored);
        let answer = [sample(454, 9_800_000, 40), sample(453, 10_000_000, 60)];
        let work = cursor.advance(&answer, &live, SECOND, NOW, &mut ignored);
        assert_eq!(work, BTreeMap::from([(453, 60_000_000), (454, 40_000_000)]));
    }

    #[test]
    fn of_several_samples_each_counts_since_the_one_before() {
        let (mut cursor, mut ignored) = (Cursor::default(), Ignored::default());
        let live = BTreeSet::from([1]);
        cursor.advance(&[sample(1, 1_000_000, 10)], &live, SECOND, NOW, &mut ignored);
        let samples = [sample(1, 2_000_000, 80), sample(1, 1_250_000, 20)];
        let work = cursor.advance(&samples, &live, SECOND, NOW, &mut ignored);
        // 20 % of 0.25 s and 80 % of 0.75 s.
        assert_eq!(work, BTreeMap::from([(1, 65_000_000)]));
    }

    #[test]
    fn garbage_is_ignored_and_counted() {
        let (mut cursor, mut ignored) = (Cursor::default(), Ignored::default());
        let live = BTreeSet::from([1, 2]);
        cursor.advance(&[sample(1, 1_000_000, 10)], &live, SECOND, NOW, &mut ignored);
        let garbage = [
            sample(0, 2_000_000, 10),
            sample(1, 2_000_000, 101),
            sample(1, 62_000_001, 10),
            sample(1, 999_999, 10),
            sample(3, 2_000_000, 10),
        ];
        assert!(cursor.advance(&garbage, &live, SECOND, NOW, &mut ignored).is_empty());
        let one_each = Ignored { no_process: 1, over_100_percent: 1, past: 1, future: 1, exited: 1 };
        assert_eq!(ignored, one_each);
        assert_eq!(
            cursor.advance(&[sample(1, 2_000_000, 10)], &live, SECOND, NOW, &mut ignored),
            BTreeMap::from([(1, 10_000_000)])
        );
    }

    #[test]
    fn a_clock_set_back_does_not_end_the_samples_fc_053() {
        let (mut cursor, mut ignored) = (Cursor::default(), Ignored::default());
        let live = BTreeSet::from([1]);
        cursor.advance(&[sample(1, 50_000_000, 10)], &live, SECOND, NOW, &mut ignored);
        let hour = 3_600_000_000;
        let back = UtilSample { pid: 1, at_us: T + 51_000_000 - hour, sm: 30 };
        let work = cursor.advance(&[back], &live, SECOND, NOW - hour, &mut ignored);
        assert_eq!(work, BTreeMap::from([(1, 30_000_000)]));
    }

    #[test]
    fn no_sample_weighs_more_than_the_interval() {
        let (mut cursor, mut ignored) = (Cursor::default(), Ignored::default());
        let live = BTreeSet::from([1, 2]);
        cursor.advance(&[sample(1, 1_000_000, 10)], &live, SECOND, NOW, &mut ignored);
        // Process 1 was idle for 30 s, process 2 is new.
        let samples = [sample(1, 31_000_000, 40), sample(2, 31_000_000, 60)];
        let work = cursor.advance(&samples, &live, SECOND, NOW, &mut ignored);
        assert_eq!(work, BTreeMap::from([(1, 40_000_000), (2, 60_000_000)]));
    }

    #[test]
    fn a_process_that_ended_in_the_interval_keeps_its_last_work_and_gets_no_more() {
        let (mut cursor, mut ignored) = (Cursor::default(), Ignored::default());
        cursor.advance(&[sample(1, 1_000_000, 10)], &BTreeSet::from([1]), SECOND, NOW, &mut ignored);
        let work = cursor.advance(&[sample(1, 1_500_000, 10)], &BTreeSet::new(), SECOND, NOW, &mut ignored);
        assert_eq!(work, BTreeMap::from([(1, 5_000_000)]));
        let work = cursor.advance(&[sample(1, 2_500_000, 10)], &BTreeSet::new(), SECOND, NOW, &mut ignored);
        assert!(work.is_empty());
        assert_eq!(ignored.exited, 1);
    }
}
