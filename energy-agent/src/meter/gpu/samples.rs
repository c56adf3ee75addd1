//! Utilisation samples of processes become work: each sample is used once, for the time since the one before it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::units::micros;

/// How far a sample may lie ahead of this machine's clock; microseconds.
pub const AHEAD_US: u64 = 2_000_000;

/// Samples of the processes of one GPU lie this far apart at most; microseconds. What a process had before is not asked
/// for again.
const SPREAD_US: u64 = 10_000_000;

/// SM utilisation of one process, as NVML gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtilSample {
    pub pid: u32,
    /// Microseconds on the driver's clock.
    pub at_us: u64,
    /// Percent of the SMs' time since the process's previous sample.
    pub sm: u32,
}

/// Samples that were not used, by reason; the label `reason` of `energy_agent_gpu_samples_ignored_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Process 0.
    pub no_process: u64,
    pub over_100_percent: u64,
    /// Not newer than what the driver was asked for: said again, or stamped after the clock was set back.
    pub past: u64,
    pub future: u64,
    /// The process was not there, neither now nor at the previous reading.
    pub exited: u64,
}

impl Ignored {
    #[must_use]
    pub const fn by_reason(&self) -> [(&'static str, u64); 5] {
        let Self { no_process, over_100_percent, past, future, exited } = *self;
        [
            ("exited", exited),
            ("future", future),
            ("no_process", no_process),
            ("over_100_percent", over_100_percent),
            ("past", past),
        ]
    }
}

impl std::ops::AddAssign for Ignored {
    fn add_assign(&mut self, other: Self) {
        let Self { no_process, over_100_percent, past, future, exited } = other;
        self.no_process += no_process;
        self.over_100_percent += over_100_percent;
        self.past += past;
        self.future += future;
        self.exited += exited;
    }
}

/// Up to when each process's samples were used (FC-053).
#[derive(Debug, Default)]
pub struct Cursor {
    /// Newest sample used, of processes that are there.
    used_us: BTreeMap<u32, u64>,
    /// Newest sample of any process.
    newest_us: u64,
    /// There was a reading before.
    primed: bool,
}

impl Cursor {
    /// The time after which the driver is asked for samples; 0 asks for all.
    ///
    /// The processes' samples are not taken at the same time, so this is the oldest of their newest; the newest of all
    /// would lose those of the others.
    #[must_use]
    pub fn last_seen_us(&self) -> u64 {
        let oldest = self.used_us.values().copied().min().unwrap_or(self.newest_us);
        oldest.max(self.newest_us.saturating_sub(SPREAD_US))
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
            *self = Self { primed: self.primed, ..Self::default() };
        }
        let (asked_us, primed) = (self.last_seen_us(), std::mem::replace(&mut self.primed, true));
        // Work, and the time it stands for.
        let mut work: BTreeMap<u32, (u64, Duration)> = BTreeMap::new();
        let mut sorted = samples.to_vec();
        sorted.sort_by_key(|sample| sample.at_us);
        for UtilSample { pid, at_us, sm } in sorted {
            let known = self.used_us.get(&pid).copied();
            let reason = if pid == 0 {
                &mut ignored.no_process
            } else if sm > 100 {
                &mut ignored.over_100_percent
            } else if at_us > now_us.saturating_add(AHEAD_US) {
                &mut ignored.future
            } else if at_us < asked_us || (at_us == asked_us && known.is_none()) {
                &mut ignored.past
            } else if known.is_none() && !alive.contains(&pid) {
                &mut ignored.exited
            } else {
                if known.is_some_and(|used_us| at_us <= used_us) {
                    // Used before; asked for again because another process's are older.
                    continue;
                }
                if primed {
                    let (work, spent) = work.entry(pid).or_default();
                    let since = known.map_or(elapsed, |used_us| Duration::from_micros(at_us - used_us));
                    let since = since.min(elapsed.saturating_sub(*spent));
                    *work += u64::from(sm) * micros(since);
                    *spent += since;
                }
                self.used_us.insert(pid, at_us);
                self.newest_us = self.newest_us.max(at_us);
                continue;
            };
            *reason += 1;
        }
        self.used_us.retain(|pid, _| alive.contains(pid));
        work.into_iter().map(|(pid, (work, _))| (pid, work)).collect()
    }
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
    fn each_sample_is_used_once_for_the_time_since_the_one_before_fc_053() {
        let (mut cursor, mut ignored) = (Cursor::default(), Ignored::default());
        let first = [sample(18429, 29_331_552, 1), sample(7044, 33_175_692, 12), sample(7180, 32_005_826, 7)];
        let all = BTreeSet::from([18429, 7044, 7180]);
        let live = BTreeSet::from([7044, 7180]);
        assert_eq!(cursor.last_seen_us(), 0);
        assert!(cursor.advance(&first, &all, SECOND, NOW, &mut ignored).is_empty(), "of the time before");
        assert_eq!(cursor.last_seen_us(), T + 29_331_552, "the oldest of the newest");

        // 18429 ended; its old sample comes again.
        let second = [sample(7044, 37_687_768, 4), sample(7180, 39_191_912, 16), sample(18429, 29_331_552, 1)];
        let work = cursor.advance(&second, &live, Duration::from_secs(10), NOW, &mut ignored);
        // 4 % of 4512076 us, 16 % of 7186086 us.
        assert_eq!(work, BTreeMap::from([(7044, 18_048_304), (7180, 114_977_376)]));
        assert_eq!(cursor.last_seen_us(), T + 37_687_768);
        assert_eq!(ignored, Ignored::default());

        let work = cursor.advance(&second, &live, SECOND, NOW, &mut ignored);
        assert!(work.is_empty(), "replayed");
        assert_eq!(ignored.past, 1, "the ended process's");

        let back = [sample(7044, 31_000_000, 50)];
        assert!(cursor.advance(&back, &live, SECOND, NOW, &mut ignored).is_empty());
        assert_eq!(ignored, Ignored { past: 2, ..Ignored::default() });

        let on = [sample(7044, 40_687_768, 50)];
        let work = cursor.advance(&on, &live, Duration::from_secs(3), NOW, &mut ignored);
        assert_eq!(work, BTreeMap::from([(7044, 150_000_000)]));
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

    #[test]
    fn an_idle_process_does_not_hold_the_cursor_back_for_ever() {
        let (mut cursor, mut ignored) = (Cursor::default(), Ignored::default());
        let live = BTreeSet::from([1, 2]);
        cursor.advance(&[sample(1, 1_000_000, 0), sample(2, 1_000_000, 5)], &live, SECOND, NOW, &mut ignored);
        cursor.advance(&[sample(2, 40_000_000, 5)], &live, SECOND, NOW, &mut ignored);
        assert_eq!(cursor.last_seen_us(), T + 30_000_000);
    }
}
