//! What `--export.levels=..,process` costs: a switch between processes, and the agent and its page beside 5,000 of them.

use std::thread;

use anyhow::Result;

use super::agent::Agent;
use super::footprint::{Crowd, memory_finding, quiet};
use super::pingpong::switch_ns;
use super::scrape::scrapes;
use super::world::World;
use super::{Finding, Scale, median, quantile};

const ALL: &str = "--export.levels=node,pod,container,process";

/// # Errors
/// When a world cannot be made or the agent does not run.
pub fn processes(scale: Scale) -> Result<Vec<Finding>> {
    let mut findings = switches(scale)?;
    let crowd = Crowd { pods: scale.of(500, 40), containers: 2, processes: 5, sleep_ms: 5000 };
    let (cpu, memory) = quiet(scale, &crowd, 3, &[ALL])?;
    let named = |finding: Finding| Finding { what: format!("{}, all levels", finding.what), ..finding };
    findings.push(named(cpu.finding(format!("{} processes in {} pods", crowd.total(), crowd.pods), 1.0)));
    findings.push(named(memory_finding(&crowd, memory, 50)));
    // A tick takes several milliseconds with so many processes: as often as it comes by default, so that it is in the way
    // of a scrape as often as it is on a node.
    findings.extend(scrapes(&crowd, scale.interval(), scale.of(200, 16), 50.0, false, &[ALL])?);
    Ok(findings)
}

/// A ping-pong is the worst case: each switch is one to another process.
fn switches(scale: Scale) -> Result<Vec<Finding>> {
    let world = World::new()?;
    let pod = world.pod(2)?;
    let (one, other) = (pod.containers[0].dir.as_path(), pod.containers[1].dir.as_path());
    let cpu = (thread::available_parallelism()?.get() - 1).to_string();
    let rounds = scale.of(150_000, 20_000).to_string();
    // Per place of the second process: percent by which a switch is slower than with the default levels.
    let mut places = [("one cgroup", one, Vec::new()), ("two cgroups", other, Vec::new())];
    for round in 0..scale.of(15, 2) {
        for (_, place, results) in &mut places {
            let mut pair = [0.0; 2];
            for step in 0..2 {
                let state = (step + round) % 2;
                let flags: &[&str] = if state == 0 { &["--ebpf=on"] } else { &["--ebpf=on", ALL] };
                let agent = Agent::start(&world, scale.interval(), flags)?;
                pair[state] = switch_ns(&cpu, &rounds, one, place)?;
                drop(agent);
            }
            results.push((pair[1] / pair[0] - 1.0) * 100.0);
        }
    }
    let findings = places.map(|(place, _, results)| {
        let slower = median(&results);
        Finding {
            what: format!("pipe ping-pong on one CPU, {place}, process level"),
            measured: format!("{slower:.1} % slower"),
            goal: "under 5 %".to_owned(),
            reached: slower < 5.0,
            how: format!(
                "than with the default levels; median of {} pairs of {rounds} round trips (quartiles {:.1} and {:.1} %)",
                results.len(),
                quantile(&results, 25),
                quantile(&results, 75)
            ),
        }
    });
    Ok(findings.into())
}
