//! Whether no energy gets lost while pods come and go: pods that live a moment, and the sum of all parts.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::agent::{Agent, ticks};
use super::page::conserved;
use super::world::{World, cpu_ns};
use super::{Finding, Scale, percent};

/// # Errors
/// When the world cannot be made or the agent does not run.
pub fn short_pods(scale: Scale) -> Result<Vec<Finding>> {
    let world = World::new()?;
    let agent = Agent::start(&world, scale.interval(), &[])?;
    let mut findings = Vec::new();
    for life_ms in scale.of(vec![300, 500, 2500], vec![300, 500]) {
        let mut ended = Vec::new();
        for _ in 0..scale.of(6, 2) {
            let mut pod = world.pod(1)?;
            pod.run(0, &["burn", &(life_ms * 1000).to_string()])?;
            pod.wait()?;
            ended.push((pod.uid.clone(), cpu_ns(&pod.dir)?));
            pod.end()?;
            // So that the pods end at different times within a tick.
            thread::sleep(Duration::from_millis(70));
        }
        let pages = [agent.fresh_page()?, agent.scraper()?.page()?];
        let mut shares: Vec<f64> = Vec::new();
        for (uid, truth_ns) in &ended {
            for page in &pages {
                let series = "energy_agent_pod_cpu_seconds_total";
                let running = page.all(series).any(|s| s.label("pod_id") == uid && s.label("state") != "terminated");
                let joules = page.value("kepler_pod_cpu_joules_total", "pod_id", uid, 6)?;
                let charged_ns = if running || joules == 0 { 0 } else { page.value(series, "pod_id", uid, 9)? };
                shares.push(percent(charged_ns, *truth_ns));
            }
        }
        let least = shares.iter().copied().fold(f64::MAX, f64::min);
        let most = shares.iter().copied().fold(0.0, f64::max);
        findings.push(Finding {
            what: format!("energy of pods that live {life_ms} ms"),
            measured: format!("{least:.1} %"),
            goal: "over 95 %".to_owned(),
            reached: least > 95.0 && most < 105.0,
            how: format!(
                "CPU seconds of the terminated series with joules, against cpu.stat before the cgroup was removed; least \
                of {} pods read by two scrapers, most {most:.1} %",
                ended.len()
            ),
        });
    }
    Ok(findings)
}

/// # Errors
/// When the world cannot be made, the agent does not run or a page cannot be read.
pub fn conservation(scale: Scale) -> Result<Vec<Finding>> {
    let world = World::new()?;
    let interval = Duration::from_millis(100);
    let flags = ["--export.terminated-retention=2s", "--export.terminated-max=50"];
    let agent = Agent::start(&world, interval, &flags)?;
    let mut steady = world.pod(2)?;
    steady.run(0, &["sleepers", "0", "2000", "1000"])?;
    steady.run(1, &["storm", "0", "3000"])?;
    // Before there is energy there is nothing to conserve.
    agent.fresh_page()?;
    let mut scraper = agent.scraper()?;
    let (mut pages, mut held, mut distinct, mut last) = (0_u32, 0_u32, 0_u32, 0);
    let mut first_break = None;
    let mut retired = 0;
    let mut pods = std::collections::VecDeque::new();
    let mut made = 0;
    let end = Instant::now() + scale.seconds(40, 4);
    while Instant::now() < end {
        let mut pod = world.pod(1)?;
        pod.run(0, &["sleepers", "0", "3000", "3000"])?;
        pods.push_back(pod);
        made += 1;
        if pods.len() > 6
            && let Some(oldest) = pods.pop_front()
        {
            oldest.end()?;
        }
        let page = scraper.page()?;
        pages += 1;
        match conserved(&page)? {
            None => held += 1,
            Some(off) => _ = first_break.get_or_insert(off),
        }
        let tick = ticks(&page)?;
        distinct += u32::from(tick != last);
        last = tick;
        retired = page.value("energy_agent_retired_cpu_joules_total", "", "", 6)?;
        thread::sleep(Duration::from_millis(40));
    }
    ensure!(scale.quick || retired > 0, "nothing was retired");
    let off = first_break.map(|off| format!("; first off: {off}")).unwrap_or_default();
    Ok(vec![Finding {
        what: "conservation of energy on the scraped text".to_owned(),
        measured: format!("{held} of {pages} scrapes"),
        goal: "every one, exactly".to_owned(),
        reached: held == pages,
        how: format!(
            "active == pods + system + retired + unattributed and active + idle == measured in whole microjoules; \
            {made} pods came and {} went, ended series kept 2 s, ticks of 100 ms, {distinct} different ticks seen{off}",
            made - pods.len()
        ),
    }])
}
