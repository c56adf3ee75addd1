//! Who holds one GPU, and how much of its energy each has used, as long as the workload has a row in the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::gpu::HeldBy;
use crate::snapshot::GpuHolder;
use crate::units::Microjoules;
use crate::workload::Workload;

/// The workloads that hold, or held, one GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuHolders {
    known: BTreeMap<Arc<Workload>, HeldGpu>,
}

#[derive(Clone, Copy, Debug)]
struct HeldGpu {
    /// The best reason so far, so that a pause between two kernels does not change a series.
    evidence: HeldBy,
    seen: Instant,
    /// It holds the GPU, or did when it ended.
    holds: bool,
    used: Microjoules,
}

impl GpuHolders {
    /// Takes note of who holds the GPU at a reading.
    pub fn see<'a>(&mut self, found: impl Iterator<Item = (&'a Arc<Workload>, HeldBy)>, now: Instant) {
        for (workload, evidence) in found {
            self.known(workload, evidence, now);
        }
    }

    /// Adds what a workload used of the GPU.
    pub fn charge(&mut self, workload: &Arc<Workload>, part: Microjoules, now: Instant) {
        self.known(workload, HeldBy::Context, now).used += part;
    }

    fn known(&mut self, workload: &Arc<Workload>, evidence: HeldBy, now: Instant) -> &mut HeldGpu {
        let new = HeldGpu { evidence, seen: now, holds: true, used: Microjoules::ZERO };
        let known = self.known.entry(Arc::clone(workload)).or_insert(new);
        (known.evidence, known.seen) = (known.evidence.max(evidence), now);
        known
    }

    /// After a tick: who lives and was not seen for `hold` holds it no more, who ended keeps what it held, and who has no
    /// row is forgotten.
    pub fn settle(
        &mut self,
        alive: &BTreeSet<Arc<Workload>>,
        has_row: impl Fn(&Arc<Workload>) -> bool,
        hold: Duration,
        now: Instant,
    ) {
        self.known.retain(|workload, known| {
            let lives = alive.contains(workload);
            if lives {
                known.holds = now.saturating_duration_since(known.seen) < hold;
            }
            lives || has_row(workload)
        });
    }

    /// All that have a row, whether they hold the GPU or did so once; ascending by workload.
    pub fn all(&self) -> impl Iterator<Item = GpuHolder> {
        self.known.iter().map(|(workload, known)| GpuHolder {
            workload: Arc::clone(workload),
            evidence: known.evidence,
            holds: known.holds,
            used: known.used,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOLD: Duration = Duration::from_millis(2500);

    fn workload(unit: &str) -> Arc<Workload> {
        Arc::new(Workload::Unit { unit: unit.into() })
    }

    /// Names and evidence of those who hold the GPU.
    fn held(holders: &GpuHolders) -> Vec<(String, HeldBy)> {
        let held = holders.all().filter(|holder| holder.holds);
        held.map(|holder| (holder.workload.to_string(), holder.evidence)).collect()
    }

    #[test]
    fn who_lives_and_is_not_seen_holds_it_no_more_after_a_while() {
        let (a, start) = (workload("a"), Instant::now());
        let alive = BTreeSet::from([Arc::clone(&a)]);
        let mut holders = GpuHolders::default();
        holders.see([(&a, HeldBy::Context)].into_iter(), start);
        let mut settled = |seconds: u32| {
            holders.settle(&alive, |_| true, HOLD, start + SECOND * seconds);
            held(&holders)
        };
        assert_eq!(settled(0), [("a".to_owned(), HeldBy::Context)]);
        assert_eq!(settled(2), [("a".to_owned(), HeldBy::Context)]);
        assert_eq!(settled(3), []);
        holders.see([(&a, HeldBy::Samples)].into_iter(), start + SECOND * 4);
        holders.settle(&alive, |_| true, HOLD, start + SECOND * 4);
        assert_eq!(held(&holders), [("a".to_owned(), HeldBy::Samples)]);
    }

    #[test]
    fn who_ended_keeps_what_it_held_until_its_row_ends() {
        let (a, b, start) = (workload("a"), workload("b"), Instant::now());
        let mut holders = GpuHolders::default();
        holders.see([(&a, HeldBy::Samples), (&b, HeldBy::Context)].into_iter(), start);
        // b goes on without the GPU and ends later.
        holders.settle(&BTreeSet::from([Arc::clone(&b)]), |_| true, HOLD, start + SECOND * 3);
        holders.settle(&BTreeSet::new(), |_| true, HOLD, start + SECOND * 100);
        assert_eq!(held(&holders), [("a".to_owned(), HeldBy::Samples)]);
        holders.settle(&BTreeSet::new(), |_| false, HOLD, start + SECOND * 120);
        assert_eq!(held(&holders), []);
    }

    #[test]
    fn the_best_reason_stays_and_energy_adds_up() {
        let (a, now) = (workload("a"), Instant::now());
        let mut holders = GpuHolders::default();
        for evidence in [HeldBy::Context, HeldBy::Allocation, HeldBy::Samples] {
            holders.see([(&a, evidence)].into_iter(), now);
            holders.charge(&a, Microjoules(7), now);
        }
        let holder = holders.all().next().unwrap();
        assert_eq!((holder.evidence, holder.used), (HeldBy::Allocation, Microjoules(21)));
    }
}
