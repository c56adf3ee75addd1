//! Who used how much CPU in one interval, ordered so that everything downstream walks it beside other ordered lists
//! instead of looking names up.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::workload::Workload;

/// What one workload did on the CPUs of one domain during the interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuShare {
    pub workload: Arc<Workload>,
    /// As in [`crate::sample::Work::domain`]; `None` weighs in every zone.
    pub domain: Option<u32>,
    pub runtime_ns: u64,
    pub cycles: u64,
    pub switches: u64,
}

impl CpuShare {
    /// For a workload that need not have run, so that something else can be charged to it.
    #[must_use]
    pub const fn none(workload: Arc<Workload>) -> Self {
        Self { workload, domain: None, runtime_ns: 0, cycles: 0, switches: 0 }
    }
}

/// All shares of an interval, ascending by workload and domain, each pair once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    shares: Vec<CpuShare>,
    /// Where each workload's shares end.
    ends: Vec<usize>,
}

impl CpuUsage {
    /// Sorts the shares and merges those of the same workload and domain.
    ///
    /// Fast when they come nearly sorted, and when equal workloads are the same `Arc`.
    #[must_use]
    pub fn group(mut shares: Vec<CpuShare>) -> Self {
        shares.sort_by(|a, b| order(&a.workload, &b.workload).then(a.domain.cmp(&b.domain)));
        shares.dedup_by(|next, kept| {
            let same = next.domain == kept.domain && order(&next.workload, &kept.workload).is_eq();
            if same {
                kept.runtime_ns = kept.runtime_ns.saturating_add(next.runtime_ns);
                kept.cycles = kept.cycles.saturating_add(next.cycles);
                kept.switches = kept.switches.saturating_add(next.switches);
            }
            same
        });
        let mut end = 0;
        let ends = shares
            .chunk_by(|a, b| order(&a.workload, &b.workload).is_eq())
            .map(|group| {
                end += group.len();
                end
            })
            .collect();
        Self { shares, ends }
    }

    /// The shares of each workload, never empty, ascending by workload.
    pub fn workloads(&self) -> impl Iterator<Item = &[CpuShare]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.shares[start..end])
    }

    /// Where a workload is among [`Self::workloads`].
    #[must_use]
    pub fn position(&self, workload: &Arc<Workload>) -> Option<usize> {
        self.ends.binary_search_by(|&end| order(&self.shares[end - 1].workload, workload)).ok()
    }

    /// The workload at a place among [`Self::workloads`].
    ///
    /// # Panics
    /// When there are not so many.
    #[must_use]
    pub fn workload(&self, position: usize) -> &Arc<Workload> {
        &self.shares[self.ends[position] - 1].workload
    }

    /// Number of workloads.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// The order of workloads; comparing names only where the pointers differ.
#[must_use]
pub fn order(a: &Arc<Workload>, b: &Arc<Workload>) -> Ordering {
    if Arc::ptr_eq(a, b) { Ordering::Equal } else { a.cmp(b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(unit: &str, domain: Option<u32>, runtime_ns: u64) -> CpuShare {
        let workload = Arc::new(Workload::Unit { unit: unit.into() });
        CpuShare { workload, domain, runtime_ns, cycles: runtime_ns * 3, switches: 1 }
    }

    #[test]
    fn shares_of_one_workload_and_domain_are_merged() {
        let usage = CpuUsage::group(vec![
            share("b", Some(1), 5),
            share("a", Some(0), 1),
            share("b", Some(0), 2),
            share("b", Some(1), 7),
        ]);
        let groups: Vec<Vec<_>> = usage
            .workloads()
            .map(|shares| shares.iter().map(|s| (s.domain, s.runtime_ns, s.cycles, s.switches)).collect())
            .collect();
        assert_eq!(groups, [vec![(Some(0), 1, 3, 1)], vec![(Some(0), 2, 6, 1), (Some(1), 12, 36, 2)]]);
        assert_eq!(usage.len(), 2);
    }
}
