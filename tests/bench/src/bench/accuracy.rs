//! Whether work is charged to the container that did it: CPU time against the kernel's own count, and energy shares
//! beside a fork storm. The pods are frozen at both ends, so that both counters are read while they stand still.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::agent::Agent;
use super::world::{Pod, World, cpu_ns};
use super::{Finding, Scale, median, percent};

/// # Errors
/// When the world cannot be made or the agent does not run.
pub fn accuracy(scale: Scale) -> Result<Vec<Finding>> {
    let cpus = thread::available_parallelism()?.get();
    let quiet = worst_errors(scale, &[&["spin", "0"]])?;
    let mut kinds: Vec<&[&str]> = vec![&["spin", "0"]; cpus];
    kinds.extend([["sleepers", "0", "1000", "1000"], ["sleepers", "0", "2000", "2000"]].iter().map(|kind| &kind[..]));
    kinds.extend([["sleepers", "0", "1000", "1000"], ["sleepers", "0", "2000", "2000"]].iter().map(|kind| &kind[..]));
    let loaded = worst_errors(scale, &kinds)?;
    let how = |load: &str, errors: &[f64]| {
        format!(
            "{load}; kepler_container_cpu_seconds_total against usage_usec, pods frozen at both ends of {} s; \
            worst container of {} windows, median window {:.3} %",
            scale.seconds(10, 2).as_secs(),
            errors.len(),
            median(errors)
        )
    };
    Ok([
        ("CPU time against cpu.stat, quiet", how("one task that never sleeps", &quiet), quiet),
        (
            "CPU time against cpu.stat, loaded",
            how(&format!("{cpus} spinners and 4 sleepers of 1 and 2 ms, each in a pod of its own"), &loaded),
            loaded,
        ),
    ]
    .map(|(what, how, errors)| {
        let worst = errors.iter().copied().fold(0.0, f64::max);
        Finding {
            what: what.to_owned(),
            measured: format!("{worst:.3} %"),
            goal: "within 0.5 %".to_owned(),
            reached: worst <= 0.5,
            how,
        }
    })
    .into())
}

/// The largest error among containers, percent, per window.
fn worst_errors(scale: Scale, kinds: &[&[&str]]) -> Result<Vec<f64>> {
    let world = World::new()?;
    let mut pods = Vec::new();
    for kind in kinds {
        let mut pod = world.pod(1)?;
        pod.run(0, kind)?;
        pods.push(pod);
    }
    let agent = Agent::start(&world, scale.interval(), &[])?;
    let windows = (0..scale.of(3, 1)).map(|_| {
        let (before, after) = window(&world, &agent, &pods, scale.seconds(10, 2))?;
        let errors = before.iter().zip(&after).map(|(before, after)| {
            let (charged, truth) = (after.charged_ns - before.charged_ns, after.truth_ns - before.truth_ns);
            percent(charged.abs_diff(truth), truth)
        });
        Ok(errors.fold(0.0, f64::max))
    });
    windows.collect()
}

/// One pod's first container while everything stands still.
struct Reading {
    charged_ns: u64,
    truth_ns: u64,
    microjoules: u64,
}

/// Readings of all pods before and after they ran for `time`.
fn window(world: &World, agent: &Agent, pods: &[Pod], time: Duration) -> Result<(Vec<Reading>, Vec<Reading>)> {
    let read = || -> Result<Vec<Reading>> {
        world.freeze(true)?;
        let page = agent.fresh_page()?;
        let readings = pods.iter().map(|pod| {
            let container = &pod.containers[0];
            let seconds = "kepler_container_cpu_seconds_total";
            Ok(Reading {
                charged_ns: page.value(seconds, "container_id", &container.id, 9)?,
                truth_ns: cpu_ns(&container.dir)?,
                microjoules: page.value("kepler_pod_cpu_joules_total", "pod_id", &pod.uid, 6)?,
            })
        });
        readings.collect()
    };
    let before = read()?;
    world.freeze(false)?;
    thread::sleep(time);
    let after = read()?;
    world.freeze(false)?;
    ensure!(after.iter().all(|reading| reading.charged_ns > 0), "a container has no series");
    Ok((before, after))
}

/// # Errors
/// When the world cannot be made or the agent does not run.
pub fn storm(scale: Scale) -> Result<Vec<Finding>> {
    let jobs = thread::available_parallelism()?.get().to_string();
    let mut findings = Vec::new();
    for work_ms in scale.of(vec![5, 20, 50], vec![5]) {
        let world = World::new()?;
        let (mut storm, mut steady) = (world.pod(1)?, world.pod(1)?);
        storm.run(0, &["storm", "0", &(work_ms * 1000).to_string(), &jobs])?;
        steady.run(0, &["spin", "0"])?;
        let agent = Agent::start(&world, scale.interval(), &[])?;
        let pods = [storm, steady];
        let mut shares = Vec::new();
        for _ in 0..scale.of(3, 1) {
            let (before, after) = window(&world, &agent, &pods, scale.seconds(10, 2))?;
            let grown = |value: fn(&Reading) -> u64| {
                let grown = before.iter().zip(&after).map(|(before, after)| value(after) - value(before));
                let grown: Vec<u64> = grown.collect();
                percent(grown[0], grown[0] + grown[1])
            };
            shares.push((grown(|reading| reading.truth_ns), grown(|reading| reading.microjoules)));
        }
        let worst = shares.iter().max_by(|a, b| (a.0 - a.1).abs().total_cmp(&(b.0 - b.1).abs()));
        let (truth, energy) = worst.copied().context("no window")?;
        let off = (truth - energy).abs();
        findings.push(Finding {
            what: format!("fork storm of {work_ms} ms processes beside a steady pod"),
            measured: format!("{off:.2} points"),
            goal: "within 1 point".to_owned(),
            reached: off <= 1.0,
            how: format!(
                "the storm's share of both pods by cpu.stat {truth:.2} %, of their joules {energy:.2} %; {jobs} processes \
                at a time, worst of {} windows of {} s",
                shares.len(),
                scale.seconds(10, 2).as_secs()
            ),
        });
    }
    Ok(findings)
}
