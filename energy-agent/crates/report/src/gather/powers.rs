//! The power that the agent itself says: a mean over one of its intervals, and for a GPU over the GPU's own. It is exact where a
//! counter that is read as often shows two readings at once; between two scrapes nothing is known of it.

use std::collections::BTreeMap;

use super::Used;
use crate::energy::{Sum, Window};
use crate::samples::{Counter, INTERVAL, LAST_TICK, RawSeries, Samples};

/// Pages that come more often than each so many readings show single readings.
const OFTEN: f64 = 5.0;

/// All series of one gauge of power.
pub(super) struct Powers(Vec<RawSeries>);

impl Powers {
    pub(super) fn of(samples: &Samples, metric: Option<&str>) -> Self {
        Self(metric.map(|metric| samples.of(metric)).unwrap_or_default())
    }

    /// Time and watts of what these counters count together, at each page that one reader saw.
    pub(super) fn sums(&self, counters: &[&Counter], window: Window) -> Vec<(f64, f64)> {
        let mut pages = BTreeMap::new();
        let concerned = self.0.iter().filter(|series| {
            let identity = series.identity();
            counters.iter().any(|counter| counter.labels == identity)
        });
        for series in concerned {
            let reader = series.reader();
            for (at, watts) in series.points.iter().filter(|(at, _)| *at >= window.from && *at <= window.to) {
                let page = pages.entry((reader.clone(), at.to_bits())).or_insert((*at, 0.0));
                page.1 += watts;
            }
        }
        let mut sums: Vec<(f64, f64)> = pages.into_values().collect();
        sums.sort_by(|a, b| a.0.total_cmp(&b.0));
        sums
    }
}

/// How long before a reading of a counter that what it shows may have been counted; seconds.
pub(super) struct Late {
    pub cpu: f64,
    /// GPUs are read by threads of their own, within an interval of the agent.
    pub gpu: f64,
}

impl Late {
    /// `longest` is the longest time between two readings, where the agent does not say its interval.
    pub(super) fn of(samples: &Samples, longest: f64) -> Self {
        let mut said: Vec<f64> =
            samples.of(INTERVAL).into_iter().flat_map(|series| series.points).map(|it| it.1).collect();
        said.sort_by(f64::total_cmp);
        let gpu = said.get(said.len() / 2).copied().unwrap_or(longest);
        // A page that does not say when its meters were read was read up to an interval after that.
        let cpu = if samples.of(LAST_TICK).is_empty() { gpu } else { 0.0 };
        Self { cpu, gpu }
    }
}

/// The power of GPUs that was charged to the subject. Where pages come about as often as readings, the agent's own figure; else
/// the means between pages.
pub(super) fn charged(gpu: &[Used], powers: &Powers, window: Window, late: &Late) -> Vec<(f64, f64)> {
    let sum = Sum { counted: gpu.iter().map(|used| &used.counted).collect() };
    let rates = sum.rates();
    let mut lengths: Vec<f64> = rates.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    lengths.sort_by(f64::total_cmp);
    let is_dense = lengths.get(lengths.len() / 2).is_some_and(|usual| *usual < OFTEN * late.gpu);
    let own = powers.sums(&gpu.iter().map(|used| &used.counter).collect::<Vec<_>>(), window);
    if is_dense && own.len() > 1 { own } else { rates.into_iter().map(|(at, rate)| (at, rate / 1e6)).collect() }
}
