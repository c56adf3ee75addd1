//! What a Prometheus server waits for a page and how large that is, beside crowds of pods.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::agent::Agent;
use super::footprint::Crowd;
use super::world::World;
use super::{Finding, Scale, median, quantile, uneven};

/// # Errors
/// When a world cannot be made or the agent does not run.
pub fn scrape(scale: Scale) -> Result<Vec<Finding>> {
    let few = Crowd { pods: scale.of(200, 20), containers: 2, processes: 5, sleep_ms: 5000 };
    let many = Crowd { pods: scale.of(1000, 40), containers: 2, processes: 2, sleep_ms: 5000 };
    // Ten ticks a second, for enough pages that nobody has asked for before.
    let interval = Duration::from_millis(100);
    let mut findings = scrapes(&few, interval, scale.of(500, 16), 15.0, true, &[])?;
    findings.extend(scrapes(&many, interval, scale.of(200, 16), 50.0, false, &[])?);
    Ok(findings)
}

/// Milliseconds of scrapes in one coding.
#[derive(Default)]
struct Waits {
    /// The first scrape after a tick, which the page is encoded for.
    first: Vec<f64>,
    again: Vec<f64>,
}

/// Of an agent with these flags that ticks once in each `interval`.
///
/// # Errors
/// When a world cannot be made or the agent does not run.
pub fn scrapes(
    crowd: &Crowd,
    interval: Duration,
    rounds: u32,
    goal_ms: f64,
    judge_size: bool,
    flags: &[&str],
) -> Result<Vec<Finding>> {
    let world = World::new()?;
    let _pods = crowd.gather(&world)?;
    let agent = Agent::start(&world, interval, flags)?;
    let before = agent.fresh_page()?;
    let mut scraper = agent.scraper()?;
    let (mut plain, mut gzipped) = (Waits::default(), Waits::default());
    let mut cpu_ms = Vec::new();
    for round in 0..rounds {
        // Longer than a tick, and anywhere between two.
        thread::sleep(interval + interval * (10 + uneven(round) % 80) / 100);
        let gzip = round % 2 == 1;
        let waits = if gzip { &mut gzipped } else { &mut plain };
        let mut wait_ms = || -> Result<f64> {
            let answer = scraper.get(gzip)?;
            Ok(answer.took.as_secs_f64() * 1000.0)
        };
        let before_ns = agent.serving_cpu_ns()?;
        waits.first.push(wait_ms()?);
        if gzip {
            cpu_ms.push(milliseconds(agent.serving_cpu_ns()? - before_ns));
        }
        waits.again.push(wait_ms()?);
    }
    // One after the other of the same tick or the next, so that sizes and counts are of the same page.
    let (page, zipped) = (scraper.page()?, scraper.get(true)?.body.len());
    let (series, pods) = (page.count(), page.pods());
    // Pods of other programs on this machine are on the page as well.
    let others = format!("{} to {} pods on the page, {} to {series} series", before.pods(), pods, before.count());
    let all = |waits: &Waits| [&waits.first[..], &waits.again].concat();
    let everything = [all(&plain), all(&gzipped)].concat();
    let quantiles = |values: &[f64]| format!("{:.1}/{:.1}", median(values), quantile(values, 99));
    let worst = quantile(&plain.first, 99).max(quantile(&gzipped.first, 99));
    let levels = if flags.is_empty() { "" } else { ", all levels" };
    let mut findings = vec![Finding {
        what: format!("scrape p99, {} pods{levels}", crowd.pods),
        measured: format!("{worst:.1} ms"),
        goal: format!("under {goal_ms} ms"),
        reached: worst < goal_ms,
        how: format!(
            "one open connection, at irregular times; the first scrape after a tick, plain or gzipped, whichever is slower; p50/p99 in ms: first \
            plain {}, first gzipped {} ({rounds} ticks of {interval:?} in all), repeated plain {}, repeated gzipped {}, all {}; {} processes; {others}",
            quantiles(&plain.first),
            quantiles(&gzipped.first),
            quantiles(&plain.again),
            quantiles(&gzipped.again),
            quantiles(&everything),
            crowd.total()
        ),
    }];
    findings.push(cpu(&format!("{} pods{levels}", crowd.pods), &cpu_ms, goal_ms));
    if judge_size {
        for (coding, bytes) in [("gzipped, as Prometheus asks for it", zipped), ("plain", page.bytes())] {
            findings.push(Finding {
                what: format!("size of a scrape, {} pods, {coding}", crowd.pods),
                measured: format!("{}.{} kB", bytes / 1000, bytes % 1000 / 100),
                goal: "under 150 kB".to_owned(),
                reached: bytes < 150_000,
                how: format!("{series} series of {pods} pods at the default levels"),
            });
        }
    }
    Ok(findings)
}

/// CPU time of gzipped scrapes, each the first of its tick.
pub fn cpu(crowd: &str, values_ms: &[f64], goal_ms: f64) -> Finding {
    let middle = median(values_ms);
    Finding {
        what: format!("CPU time of a scrape, {crowd}"),
        measured: format!("{middle:.1} ms"),
        goal: format!("under {goal_ms} ms"),
        reached: middle < goal_ms,
        how: format!(
            "the agent's main thread and the one that encodes, from before the request to after the answer; median of {} gzipped \
            scrapes, each the first of its tick; p99 {:.1} ms",
            values_ms.len(),
            quantile(values_ms, 99)
        ),
    }
}

pub fn milliseconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64() * 1000.0
}
