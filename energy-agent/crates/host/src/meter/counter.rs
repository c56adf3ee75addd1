//! One wrapping hardware energy counter: successive readings become energy that never runs backwards, and what cannot
//! be proven is counted instead of charged.

use std::ops::AddAssign;
use std::time::Duration;

use energy_model::units::Microjoules;

/// Most that one zone can draw for the length of an interval; watts. The largest packages are rated at 500 W and may
/// exceed that by a fifth for a short time, so this is never reached, while a 65.5 kJ range still proves intervals of
/// up to 65 s free of an unseen wrap.
const PLAUSIBLE_W: u128 = 1_000;

/// No single machine draws this; watts. A rise beyond it is a new start of the counter or nonsense, not energy. Far above
/// [`PLAUSIBLE_W`] because a board sensor may cover a whole machine with its accelerators.
const IMPOSSIBLE_W: u128 = 20_000;

/// How much longer than `elapsed` the time between two readings may really have been: the zones are read one after
/// the other, and the reader can be preempted between the clock and the register.
const READ_JITTER: Duration = Duration::from_millis(100);

/// What was noticed on counters since the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneCounts {
    /// Falls that were charged as one pass through the end of the range.
    pub wraps: u64,
    /// Falls and impossible rises that were charged nothing.
    pub resets: u64,
    /// Intervals so long that a wrap may have gone unseen.
    pub gaps: u64,
    /// Readings that failed or were not a number.
    pub read_errors: u64,
}

impl AddAssign for ZoneCounts {
    fn add_assign(&mut self, other: Self) {
        let Self { wraps, resets, gaps, read_errors } = other;
        self.wraps += wraps;
        self.resets += resets;
        self.gaps += gaps;
        self.read_errors += read_errors;
    }
}

/// What a counter has gained since the previous reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    pub energy: Microjoules,
    /// As in [`ZoneEnergy::gap`](energy_model::zone::ZoneEnergy::gap).
    pub gap: bool,
}

/// A counter of microjoules that starts again at zero beyond its range.
#[derive(Clone, Debug)]
pub struct Counter {
    /// Value at which it wraps; `None` where the hardware does not say.
    range: Option<u64>,
    last: Option<u64>,
    /// Time since `last` that passed without a reading.
    missed: Duration,
}

impl Counter {
    /// `range` is the largest value the counter shows (`max_energy_range_uj`); zero stands for unknown.
    #[must_use]
    pub fn new(range: Option<u64>) -> Self {
        Self { range: range.filter(|&range| range > 0), last: None, missed: Duration::ZERO }
    }

    /// Takes a reading, `elapsed` after the previous [`advance`](Self::advance) or [`miss`](Self::miss); the first gives
    /// `None`.
    ///
    /// A fall is a wrap only if the range is known, at most one wrap fits into the time and the implied power is
    /// plausible; else it is a reset and charges nothing (FC-007, FC-076). Where a whole unseen wrap fits into the time,
    /// only a visible rise is charged (FC-010).
    pub fn advance(&mut self, raw: u64, elapsed: Duration, counts: &mut ZoneCounts) -> Option<Delta> {
        let last = self.last.replace(raw)?;
        let bridged = !self.missed.is_zero();
        let elapsed = std::mem::take(&mut self.missed).saturating_add(elapsed);
        let risen = raw.checked_sub(last);

        if self.range.is_some_and(|range| energy_at(PLAUSIBLE_W, elapsed) >= u128::from(range)) {
            counts.gaps += 1;
            return Some(Delta { energy: Microjoules(risen.unwrap_or(0)), gap: true });
        }
        let (energy, limit_w) = match risen {
            Some(risen) => (Some(risen), IMPOSSIBLE_W),
            None => (self.range.and_then(|range| range.checked_sub(last)?.checked_add(raw)), PLAUSIBLE_W),
        };
        match energy {
            Some(energy) if u128::from(energy) <= energy_at(limit_w, elapsed) => {
                counts.wraps += u64::from(risen.is_none());
                Some(Delta { energy: Microjoules(energy), gap: bridged })
            }
            _ => {
                counts.resets += 1;
                Some(Delta { energy: Microjoules::ZERO, gap: true })
            }
        }
    }

    /// An interval passed without a reading. The next reading covers it too: nothing is lost as long as no wrap can have
    /// gone unseen, and its delta is marked as a gap since it belongs to more than one interval.
    pub(crate) fn miss(&mut self, elapsed: Duration) {
        if self.last.is_some() {
            self.missed = self.missed.saturating_add(elapsed);
        }
    }

    /// Forgets the last reading: the hardware behind the counter went away, and what comes back counts from anywhere.
    pub fn restart(&mut self) {
        self.last = None;
        self.missed = Duration::ZERO;
    }
}

/// Energy at `watts` for `elapsed` and the jitter of reading; a watt is a microjoule each microsecond.
const fn energy_at(watts: u128, elapsed: Duration) -> u128 {
    watts * elapsed.saturating_add(READ_JITTER).as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// 32 bits at 2^-14 J, as Intel servers show it.
    const RANGE: u64 = 262_143_328_850;

    const fn clean(energy: u64) -> Option<Delta> {
        Some(Delta { energy: Microjoules(energy), gap: false })
    }

    const fn gap(energy: u64) -> Option<Delta> {
        Some(Delta { energy: Microjoules(energy), gap: true })
    }

    /// The delta of `new` after `old`, and what was counted.
    fn step(range: Option<u64>, old: u64, new: u64, elapsed: Duration) -> (Option<Delta>, ZoneCounts) {
        let (mut counter, mut counts) = (Counter::new(range), ZoneCounts::default());
        assert_eq!(counter.advance(old, SECOND, &mut counts), None, "the first reading is no delta");
        assert_eq!(counts, ZoneCounts::default());
        (counter.advance(new, elapsed, &mut counts), counts)
    }

    #[test]
    fn a_wrapped_counter_charges_the_true_difference_fc_007() {
        let (delta, counts) = step(Some(RANGE), 248_923_000_000, 30_811_100_000, Duration::from_secs(249));
        assert_eq!(delta, clean(44_031_428_850));
        assert_eq!(counts, ZoneCounts { wraps: 1, ..ZoneCounts::default() });
    }

    #[test]
    fn an_interval_that_may_hide_wraps_charges_only_the_visible_rise_fc_010() {
        let stall = Duration::from_secs(1500);
        let (delta, counts) = step(Some(RANGE), 1_000_000_000, 132_213_342_300, stall);
        assert_eq!(delta, gap(131_213_342_300));
        assert_eq!(counts, ZoneCounts { gaps: 1, ..ZoneCounts::default() });

        let (delta, counts) = step(Some(RANGE), 132_213_342_300, 1_000_000_000, stall);
        assert_eq!(delta, gap(0));
        assert_eq!(counts, ZoneCounts { gaps: 1, ..ZoneCounts::default() });
    }

    #[test]
    fn the_exported_total_never_falls_fc_076() {
        for range in [None, Some(0), Some(RANGE)] {
            let (mut counter, mut counts) = (Counter::new(range), ZoneCounts::default());
            let mut total = 0;
            let totals: Vec<u64> = [57, 60, 21, 25]
                .into_iter()
                .map(|raw| {
                    total += counter.advance(raw, SECOND, &mut counts).map_or(0, |delta| delta.energy.0);
                    total
                })
                .collect();
            assert_eq!(totals, [0, 3, 3, 7]);
            assert_eq!(counts, ZoneCounts { resets: 1, ..ZoneCounts::default() });
        }
    }

    #[test]
    fn a_fall_without_a_known_range_is_a_reset_however_near_the_end() {
        let (delta, counts) = step(None, RANGE - 10, 10, SECOND);
        assert_eq!(delta, gap(0));
        assert_eq!(counts, ZoneCounts { resets: 1, ..ZoneCounts::default() });
    }

    #[test]
    fn a_wrap_that_implies_more_power_than_a_zone_can_draw_is_a_reset() {
        // 1100 J are the most that 1 s and the read jitter allow.
        let (delta, counts) = step(Some(RANGE), RANGE - 1_099_999_000, 1_000, SECOND);
        assert_eq!((delta, counts.wraps), (clean(1_100_000_000), 1));
        let (delta, counts) = step(Some(RANGE), RANGE - 1_100_000_000, 1_000, SECOND);
        assert_eq!((delta, counts.wraps, counts.resets), (gap(0), 0, 1));
    }

    #[test]
    fn a_rise_that_no_machine_can_cause_is_a_reset() {
        let (delta, counts) = step(None, 5, 100_000_000_000, SECOND);
        assert_eq!((delta, counts.resets), (gap(0), 1));
        let (delta, counts) = step(None, 5, u64::MAX, SECOND);
        assert_eq!((delta, counts.resets), (gap(0), 1));
        let (delta, counts) = step(None, 0, 14_000_000_000, SECOND);
        assert_eq!((delta, counts.resets), (clean(14_000_000_000), 0));
    }

    #[test]
    fn a_value_beyond_the_range_is_not_a_wrap() {
        let (delta, counts) = step(Some(1_000_000_000_000), u64::MAX, 3, SECOND);
        assert_eq!((delta, counts.resets), (gap(0), 1));
    }

    #[test]
    fn an_unreadable_spell_is_bridged_without_loss() {
        let (mut counter, mut counts) = (Counter::new(Some(RANGE)), ZoneCounts::default());
        counter.advance(1_000, SECOND, &mut counts);
        counter.miss(SECOND);
        counter.miss(SECOND);
        assert_eq!(counter.advance(4_000, SECOND, &mut counts), gap(3_000));
        assert_eq!(counter.advance(5_000, SECOND, &mut counts), clean(1_000));
        assert_eq!(counts, ZoneCounts::default());
    }

    #[test]
    fn an_unreadable_spell_that_may_hide_a_wrap_is_a_gap() {
        let (mut counter, mut counts) = (Counter::new(Some(RANGE)), ZoneCounts::default());
        counter.advance(4_000, SECOND, &mut counts);
        counter.miss(Duration::from_secs(300));
        assert_eq!(counter.advance(1_000, SECOND, &mut counts), gap(0));
        assert_eq!(counts, ZoneCounts { gaps: 1, ..ZoneCounts::default() });
    }

    #[test]
    fn the_first_delta_after_a_restart_is_discarded() {
        let (mut counter, mut counts) = (Counter::new(Some(RANGE)), ZoneCounts::default());
        counter.advance(1_000, SECOND, &mut counts);
        counter.restart();
        counter.miss(Duration::from_secs(3600));
        assert_eq!(counter.advance(9_000, SECOND, &mut counts), None);
        assert_eq!(counter.advance(9_500, SECOND, &mut counts), clean(500));
        assert_eq!(counts, ZoneCounts::default());
    }
}
