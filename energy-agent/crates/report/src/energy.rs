//! What a counter counted within a window, from samples of it. Never by a rate: the first and the last sample of a short job
//! are most of it, and a rate loses both.
//!
//! 1. Energy is the sum of rises. The running and the ended workload are one counter.
//! 2. Another life of the agent, or a fall, is a restart: the counter began again at 0.
//! 3. If the agent was seen without the counter before its first sample, the counter began with the workload, and all of it
//!    counts. Else what it had before the first sample is not known, and does not count.
//! 4. Several scrapers of one agent see one counter: no rise counts twice.
//! 5. What nobody saw is said, never filled up.

pub(crate) mod peak;

use crate::samples::{Counter, Reading};

/// How long before a window samples are looked for, in seconds.
pub const LOOK_BACK_S: f64 = 300.0;

/// Unix times; what happens after `from` up to `to` counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub from: f64,
    pub to: f64,
}

/// A rise between two sights of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    pub from: f64,
    pub to: f64,
    pub count: u64,
}

/// Where a count begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Began {
    /// With the workload or the agent, between these two times.
    Within(f64, f64),
    /// At the last sample before the window.
    AtSample,
    /// At the first sample; what was before it is lost.
    Lost,
}

/// What a counter counted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counted {
    /// Sum of all steps, in millionths of the counter's unit.
    pub total: u64,
    pub steps: Vec<Step>,
    pub began: Began,
    /// Last sight of the counter.
    pub last: f64,
    /// When it was first seen to have ended.
    pub ended: Option<f64>,
    /// Another page of the agent came after the last sight, without the counter.
    pub vanished: Option<f64>,
    pub restarts: u32,
    /// Seconds that nobody saw.
    pub unseen: f64,
    pub longest_unseen: f64,
    /// Longest time between two sights while it ran.
    pub interval: f64,
}

/// A reading and the number of its reader.
#[derive(Clone, Copy)]
struct Seen {
    reading: Reading,
    reader: usize,
}

/// `None`: no sight of the counter in the window.
pub(crate) fn count(counter: &Counter, window: Window) -> Option<Counted> {
    let mut seen: Vec<Seen> = Vec::new();
    for (reader, readings) in counter.readers.values().enumerate() {
        let until = readings.iter().filter(|reading| reading.at <= window.to);
        seen.extend(until.map(|reading| Seen { reading: *reading, reader }));
    }
    seen.sort_by(|a, b| {
        a.reading
            .at
            .total_cmp(&b.reading.at)
            .then(a.reading.life_ms.cmp(&b.reading.life_ms))
            .then(a.reading.count.cmp(&b.reading.count))
    });
    let mut walk = Walk::new(&seen);
    let mut first = None;
    for (index, Seen { reading, .. }) in seen.iter().enumerate() {
        let reading = *reading;
        if reading.at <= window.from {
            walk.pass(index);
        } else if let Some(step) = walk.next(index) {
            first.get_or_insert(Began::AtSample);
            walk.take(step);
        } else {
            let began = *first.insert(beginning(counter, reading, window));
            if let Began::Within(from, _) = began {
                walk.take(Step { from, to: reading.at, count: reading.count });
            } else {
                walk.lose(reading.at - window.from);
            }
            walk.pass(index);
        }
    }
    let began = first?;
    let last = seen.last()?.reading.at;
    let pages = counter.pages.values().flatten().map(|(at, _)| *at);
    let vanished = pages.filter(|at| *at > last + 1e-3 && *at <= window.to).min_by(f64::total_cmp);
    let ended = counter.ended(window.to);
    let runs = |step: &&Step| ended.is_none_or(|ended| step.from < ended);
    Some(Counted {
        total: walk.steps.iter().map(|step| step.count).sum(),
        interval: walk.steps.iter().filter(runs).map(|step| step.to - step.from).fold(0.0, f64::max),
        began,
        last,
        ended,
        vanished,
        restarts: walk.restarts,
        unseen: walk.unseen,
        longest_unseen: walk.longest_unseen,
        steps: walk.steps,
    })
}

/// Where the count of a counter begins that has no sample before this one.
fn beginning(counter: &Counter, first: Reading, window: Window) -> Began {
    // Since the agent began within the window, the counter did.
    if let Some(life) = first.life_ms.map(seconds).filter(|life| *life >= window.from && *life <= first.at) {
        return Began::Within(life, first.at);
    }
    let without = counter
        .pages
        .values()
        .flatten()
        .filter(|(at, life)| *life == first.life_ms && *at < first.at && *at >= window.from - LOOK_BACK_S);
    match without.map(|(at, _)| *at).max_by(f64::total_cmp) {
        Some(page) => Began::Within(page, first.at),
        None => Began::Lost,
    }
}

fn seconds(life_ms: u64) -> f64 {
    crate::number::float(life_ms) / 1000.0
}

/// The way along the readings of all readers in the order of time.
struct Walk<'a> {
    seen: &'a [Seen],
    /// What the counter stands at, and since when it has been in this life.
    now: Option<(Reading, f64)>,
    /// The last reading of each reader.
    last: std::collections::BTreeMap<usize, Reading>,
    steps: Vec<Step>,
    restarts: u32,
    unseen: f64,
    longest_unseen: f64,
}

impl<'a> Walk<'a> {
    const fn new(seen: &'a [Seen]) -> Self {
        let last = std::collections::BTreeMap::new();
        Self { seen, now: None, last, steps: Vec::new(), restarts: 0, unseen: 0.0, longest_unseen: 0.0 }
    }

    /// Takes note of a reading without counting it.
    fn pass(&mut self, index: usize) {
        let Seen { reading, reader } = self.seen[index];
        if self.is_of_former_life(reading) {
            return;
        }
        let began = match self.now {
            Some((now, began)) if !self.is_restart(index, now, began) => {
                let highest = Reading { count: now.count.max(reading.count), ..reading };
                self.now = Some((highest, began));
                self.last.insert(reader, reading);
                return;
            }
            _ => reading.at,
        };
        self.now = Some((reading, began));
        self.last.insert(reader, reading);
    }

    /// The step to this reading; `None`: it is the first of all.
    fn next(&mut self, index: usize) -> Option<Step> {
        let (now, began) = self.now?;
        let reading = self.seen[index].reading;
        if self.is_of_former_life(reading) {
            return Some(Step { from: reading.at, to: reading.at, count: 0 });
        }
        let step = if self.is_restart(index, now, began) {
            self.restarts += 1;
            // In a known life it has counted since the agent began; else since when is not known.
            let life = reading.life_ms.filter(|life| now.life_ms != Some(*life)).map(seconds);
            let from = life.filter(|life| *life >= now.at && *life <= reading.at);
            let is_known = reading.life_ms.is_some() && reading.life_ms == now.life_ms;
            if !is_known {
                self.lose(from.unwrap_or(reading.at) - now.at);
            }
            Step { from: from.unwrap_or(now.at), to: reading.at, count: reading.count }
        } else {
            Step { from: now.at, to: reading.at, count: reading.count.saturating_sub(now.count) }
        };
        self.pass(index);
        Some(step)
    }

    fn take(&mut self, step: Step) {
        // Two readers that saw the same tick.
        match self.steps.last_mut() {
            Some(last) if step.to - step.from < 1e-6 && step.to - last.to < 1e-6 => last.count += step.count,
            _ if step.to - step.from < 1e-6 && step.count == 0 => {}
            _ => self.steps.push(step),
        }
    }

    fn lose(&mut self, seconds: f64) {
        self.unseen += seconds;
        self.longest_unseen = self.longest_unseen.max(seconds);
    }

    /// A scrape of the former agent whose time lies after one of the present agent.
    fn is_of_former_life(&self, reading: Reading) -> bool {
        let now = self.now.and_then(|(now, _)| now.life_ms);
        now.zip(reading.life_ms).is_some_and(|(now, life)| life < now)
    }

    /// The counter began again between the reading before this one and this one.
    fn is_restart(&self, index: usize, now: Reading, began: f64) -> bool {
        let Seen { reading, reader } = self.seen[index];
        if let (Some(before), Some(life)) = (now.life_ms, reading.life_ms)
            && before != life
        {
            return true;
        }
        match self.last.get(&reader) {
            // Its fall may be the one that another reader saw before.
            Some(before) => reading.count < before.count && before.at >= began,
            // A reader that joins late may be a moment behind the others; one that takes over from them is not.
            None => {
                let others_go_on = self.seen[index + 1..].iter().any(|seen| self.last.contains_key(&seen.reader));
                reading.count < now.count && reading.life_ms.is_none() && !others_go_on
            }
        }
    }
}

/// Several counters of a kind that are added up, such as the packages of all pods of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum<'a> {
    pub counted: Vec<&'a Counted>,
}

impl Sum<'_> {
    /// Counts per second over time: the value of each point holds since the point before it. One counter is shown by its own
    /// steps, several in slices of the longest interval.
    pub(crate) fn rates(&self) -> Vec<(f64, f64)> {
        let steps = || self.counted.iter().flat_map(|counted| &counted.steps).filter(|step| step.to > step.from);
        if self.counted.len() == 1 {
            let mut points = Vec::new();
            for step in steps() {
                if points.last().is_none_or(|(at, _)| step.from - at > 1e-3) {
                    points.push((step.from, 0.0));
                }
                points.push((step.to, crate::number::float(step.count) / (step.to - step.from)));
            }
            return points;
        }
        let begin = steps().map(|step| step.from).fold(f64::INFINITY, f64::min);
        let end = steps().map(|step| step.to).fold(f64::NEG_INFINITY, f64::max);
        let mut lengths: Vec<f64> = steps().map(|step| step.to - step.from).collect();
        lengths.sort_by(f64::total_cmp);
        let Some(usual) = lengths.get(lengths.len() / 2) else { return Vec::new() };
        let slices = nearest_slices((end - begin) / usual);
        let width = (end - begin) / crate::number::count(slices);
        let mut sums = vec![0.0; slices];
        for step in steps() {
            let rate = crate::number::float(step.count) / (step.to - step.from);
            for (index, sum) in sums.iter_mut().enumerate() {
                let slice = begin + width * crate::number::count(index);
                let shared = step.to.min(slice + width) - step.from.max(slice);
                if shared > 0.0 {
                    *sum += rate * shared;
                }
            }
        }
        let mut points = vec![(begin, 0.0)];
        points.extend(
            sums.iter().enumerate().map(|(index, sum)| (begin + width * crate::number::count(index + 1), sum / width)),
        );
        points
    }
}

/// Between 1 and 2,000.
fn nearest_slices(wanted: f64) -> usize {
    usize::try_from(crate::number::nearest(wanted).clamp(1, 2000)).unwrap_or(1)
}

#[cfg(test)]
mod tests;
