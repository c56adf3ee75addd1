//! The largest node: a thousand pods of five containers each, of which twenty a second are replaced. What must not grow,
//! and what it costs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::agent::Agent;
use super::footprint::{Crowd, mib};
use super::page::{Page, conserved};
use super::scrape::{self, milliseconds};
use super::world::{Pod, World};
use super::{Finding, Scale, median, quantile, uneven};

/// Pods replaced in a second.
const CHURN: u32 = 20;
/// Windows of which a reading may fail before the whole measurement does.
const LOST_MAX: u32 = 3;
const SCRAPE_GOAL_MS: f64 = 50.0;
const TICK: &str = "energy_agent_tick_duration_seconds";

/// # Errors
/// When a world cannot be made or the agent does not run.
pub fn scale(scale: Scale) -> Result<Vec<Finding>> {
    let mut findings = churning(scale, "none", scale.seconds(600, 12))?;
    findings.extend(churning(scale, "usage", scale.seconds(600, 8))?);
    Ok(findings)
}

/// What was seen while pods came and went.
#[derive(Default)]
struct Seen {
    /// Resident memory, KiB: all of it, and what is not file-backed.
    memory: Vec<(u32, u32)>,
    /// Share of one CPU, percent, between two readings of memory.
    cpu: Vec<f64>,
    /// Milliseconds that a gzipped scrape took, the first of its tick.
    scrapes: Vec<f64>,
    /// CPU milliseconds of each.
    scrape_cpu: Vec<f64>,
    /// Bytes, plain and gzipped.
    plain: usize,
    gzipped: usize,
    series: usize,
    pages: u32,
    /// Windows of which a reading failed.
    lost: u32,
    violations: Vec<String>,
    /// Milliseconds; interpolated from the agent's own histogram.
    tick_median: f64,
    tick_p99: f64,
    log_lines: usize,
    replaced: u32,
    /// Pods that were really replaced in a second.
    pace: f64,
}

fn churning(scale: Scale, policy: &str, time: Duration) -> Result<Vec<Finding>> {
    let crowd = Crowd { pods: scale.of(1000, 50), containers: 4, processes: 1, sleep_ms: 5000 };
    let world = World::new()?;
    let mut pods = crowd.gather(&world)?;
    let mut flags = vec![format!("--attribution.idle-policy={policy}")];
    if scale.quick {
        flags.push("--export.terminated-max=100".to_owned());
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let agent = Agent::start(&world, scale.interval(), &flags)?;
    let stop = AtomicBool::new(false);
    let seen = thread::scope(|scope| -> Result<_> {
        let churn = scope.spawn(|| churn(&world, &crowd, &mut pods, &stop));
        let watched = watch(scale, &agent, crowd.pods, time);
        stop.store(true, Ordering::Relaxed);
        let (replaced, pace) = churn.join().map_err(|_| anyhow!("the churn panicked"))??;
        Ok(Seen { replaced, pace, ..watched? })
    })?;
    Ok(seen.findings(&crowd, policy, time))
}

/// Replaces the oldest pod [`CHURN`] times a second; the number of pods replaced, and how many a second that was.
fn churn(world: &World, crowd: &Crowd, pods: &mut VecDeque<Pod>, stop: &AtomicBool) -> Result<(u32, f64)> {
    let began = Instant::now();
    let mut replaced = 0;
    while !stop.load(Ordering::Relaxed) {
        pods.push_back(crowd.pod(world)?);
        pods.pop_front().context("no pod")?.end()?;
        replaced += 1;
        thread::sleep((Duration::from_secs(1) * replaced / CHURN).saturating_sub(began.elapsed()));
    }
    Ok((replaced, f64::from(replaced) / began.elapsed().as_secs_f64()))
}

/// Watches for `time`, once as many ended series are kept as ever will be.
fn watch(scale: Scale, agent: &Agent, pods: usize, time: Duration) -> Result<Seen> {
    let full = Instant::now() + scale.seconds(75, 4);
    while Instant::now() < full {
        thread::sleep(scale.seconds(5, 1));
        agent.scraper()?.get(true)?;
    }
    let mut seen = Seen::default();
    let before = agent.scraper()?.page()?.buckets(TICK)?;
    seen.memory.push(agent.memory_kib()?);
    let began = Instant::now();
    while began.elapsed() < time {
        // One lost reading is no reason to lose ten minutes; an agent that has ended is.
        if let Err(error) = seen.window(scale, agent, pods) {
            seen.lost += 1;
            ensure!(seen.lost <= LOST_MAX, error.context(format!("{} windows were lost", seen.lost)));
            thread::sleep(scale.interval());
        }
    }
    let ticks = since(&before, &agent.scraper()?.page()?)?;
    (seen.tick_median, seen.tick_p99) = (bucket_quantile(&ticks, 0.5) * 1000.0, bucket_quantile(&ticks, 0.99) * 1000.0);
    seen.log_lines = agent.log()?.len();
    Ok(seen)
}

/// Observations by upper bound that came after the earlier ones were read.
fn since(before: &[(f64, u64)], page: &Page) -> Result<Vec<(f64, u64)>> {
    let after = page.buckets(TICK)?;
    Ok(after.iter().zip(before).map(|((bound, after), (_, before))| (*bound, after - before)).collect())
}

/// The value that the part `rank` of all observations does not exceed, within its bucket by a straight line; as
/// PromQL's `histogram_quantile`.
fn bucket_quantile(buckets: &[(f64, u64)], rank: f64) -> f64 {
    let float = |count: u64| Duration::from_nanos(count).as_secs_f64() * 1e9;
    let wanted = float(buckets.last().map_or(0, |(_, count)| *count)) * rank;
    let (mut low, mut below) = (0.0, 0.0);
    for &(bound, count) in buckets {
        let count = float(count);
        if count >= wanted {
            let part = if count > below { (wanted - below) / (count - below) } else { 1.0 };
            return if bound.is_finite() { low + (bound - low) * part } else { low };
        }
        (low, below) = (bound, count);
    }
    f64::NAN
}

impl Seen {
    /// Three scrapes, each the first of its tick; a page and the agent's memory.
    fn window(&mut self, scale: Scale, agent: &Agent, pods: usize) -> Result<()> {
        let (began, cpu_ns) = (Instant::now(), agent.cpu_ns()?);
        // The agent ends a connection after ten minutes.
        let mut scraper = agent.scraper()?;
        for part in 0..3 {
            // At any place between two ticks.
            thread::sleep(scale.seconds(5, 1) + scale.interval() * (uneven(self.pages * 3 + part) % 100) / 100);
            let before_ns = agent.serving_cpu_ns()?;
            let answer = scraper.get(true)?;
            self.scrapes.push(answer.took.as_secs_f64() * 1000.0);
            self.scrape_cpu.push(milliseconds(agent.serving_cpu_ns()? - before_ns));
            self.gzipped = answer.body.len();
        }
        let used = Duration::from_nanos(agent.cpu_ns()? - cpu_ns);
        self.cpu.push(used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0);
        let page = scraper.page()?;
        (self.plain, self.series, self.pages) = (page.bytes(), page.count(), self.pages + 1);
        // A page that cannot be checked counts as one that does not add up.
        self.violations.extend(conserved(&page).unwrap_or_else(|error| Some(format!("{error:#}"))));
        if page.pods() < pods / 20 * 19 {
            self.violations.push(format!("{} pods on the page, of {pods}", page.pods()));
        }
        self.memory.push(agent.memory_kib()?);
        Ok(())
    }

    fn findings(self, crowd: &Crowd, policy: &str, time: Duration) -> Vec<Finding> {
        let memory: Vec<u32> = self.memory.iter().map(|(resident, _)| *resident).collect();
        // A page under construction and what the allocator keeps of the last one come and go: thirds are compared.
        let third = memory.len().div_ceil(3);
        let middle = |part: &[u32]| median(&part.iter().copied().map(f64::from).collect::<Vec<_>>());
        let (first, last) = (middle(&memory[..third]), middle(&memory[memory.len() - third..]));
        let (least, most) =
            (memory.iter().copied().min().unwrap_or_default(), memory.iter().copied().max().unwrap_or_default());
        let growth = last / first * 100.0 - 100.0;
        // The middles of the thirds are two thirds of the time apart.
        let grown = (last - first) * 1024.0 / (self.pace * time.as_secs_f64() * 2.0 / 3.0);
        let cpu = median(&self.cpu);
        let scrape = quantile(&self.scrapes, 99);
        let megabytes = |bytes: usize| format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10);
        let what = |what: &str| format!("scale, idle policy {policy}: {what}");
        let rows = [
            (
                what("memory"),
                mib(most),
                "under 50 MiB",
                most < 50 * 1024,
                format!(
                    "VmRSS, the most of {} readings in {} s; {} of the last is not file-backed",
                    memory.len(),
                    time.as_secs(),
                    mib(self.memory[self.memory.len() - 1].1)
                ),
            ),
            (
                what("growth of memory"),
                format!("{growth:+.1} %"),
                "flat (under 2 %)",
                growth < 2.0,
                format!(
                    "medians of the first and the last third of the readings, {first:.0} and {last:.0} KiB, or {grown:+.0} bytes \
                     a pod replaced between them; least {}, most {}, from the moment when the maximum of ended series was kept; \
                     {} windows lost; in MiB every minute: {}",
                    mib(least),
                    mib(most),
                    self.lost,
                    memory
                        .iter()
                        .step_by(4)
                        .map(|kib| format!("{}.{}", kib / 1024, kib % 1024 * 10 / 1024))
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            ),
            (
                what("CPU of the agent"),
                format!("{cpu:.2} % of a core"),
                "under 3 %",
                cpu < 3.0 && self.pace > 0.95 * f64::from(CHURN),
                format!(
                    "{}, and a sandbox each; {} pods replaced, {:.1} a second; cpu.stat of its own cgroup, median of {} \
                    windows of 15 s (largest {:.2} %) with a gzipped scrape every 5 s",
                    crowd.text(),
                    self.replaced,
                    self.pace,
                    self.cpu.len(),
                    quantile(&self.cpu, 100)
                ),
            ),
            (
                what("tick p99"),
                format!("{:.1} ms", self.tick_p99),
                "under 30 ms",
                self.tick_p99 < 30.0,
                format!(
                    "p50 {:.1} ms, interpolated within the buckets of {TICK}; 30 ms a second are the 3 % of a core",
                    self.tick_median
                ),
            ),
            (
                what("scrape p99"),
                format!("{scrape:.1} ms"),
                "under 50 ms",
                scrape < SCRAPE_GOAL_MS,
                format!(
                    "p50 {:.1} ms of {} gzipped scrapes, each the first of its tick; {} series, {} plain, {} gzipped",
                    median(&self.scrapes),
                    self.scrapes.len(),
                    self.series,
                    megabytes(self.plain),
                    megabytes(self.gzipped)
                ),
            ),
            (
                what("lines logged"),
                self.log_lines.to_string(),
                "at most 20",
                self.log_lines <= 20,
                "since the start of the agent".to_owned(),
            ),
            (
                what("pages on which energy is lost"),
                self.violations.len().to_string(),
                "0",
                self.violations.is_empty(),
                format!(
                    "of {} pages, each with all pods; active == pods + system + retired + unattributed, active + idle == measured, and idle == \
                    pods + unassigned + retired under a policy{}",
                    self.pages,
                    self.violations.first().map_or(String::new(), |first| format!("; first: {first}"))
                ),
            ),
        ];
        let finding =
            |(what, measured, goal, reached, how)| Finding { what, measured, goal: String::from(goal), reached, how };
        let mut findings = Vec::from(rows.map(finding));
        findings.push(scrape::cpu(&format!("scale, idle policy {policy}"), &self.scrape_cpu, SCRAPE_GOAL_MS));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        // 10 below 1, 80 between 1 and 2, 10 beyond 4.
        let buckets = [(1.0, 10), (2.0, 90), (4.0, 90), (f64::INFINITY, 100)];
        assert!((bucket_quantile(&buckets, 0.05) - 0.5).abs() < 1e-9);
        assert!((bucket_quantile(&buckets, 0.5) - 1.5).abs() < 1e-9);
        assert!((bucket_quantile(&buckets, 0.99) - 4.0).abs() < 1e-9);
    }
}
