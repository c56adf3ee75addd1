//! What the agent costs everybody else: the time of a task switch with and without it, in pairs, since machines drift.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result};

use super::agent::Agent;
use super::world::World;
use super::{Finding, Scale, median, quantile};
use crate::{output, root};

/// # Errors
/// When taskset is missing, the world cannot be made or the agent does not run.
pub fn pingpong(scale: Scale) -> Result<Vec<Finding>> {
    let world = World::new()?;
    let pod = world.pod(2)?;
    let (one, other) = (pod.containers[0].dir.as_path(), pod.containers[1].dir.as_path());
    let cpu = (thread::available_parallelism()?.get() - 1).to_string();
    let rounds = scale.of(150_000, 20_000).to_string();
    // Per place of the second process: nanoseconds a switch without agent, with it, with it but without eBPF.
    let mut taken = [(one, Vec::new()), (other, Vec::new())];
    for round in 0..scale.of(15, 2) {
        for (place, results) in &mut taken {
            let mut pair = [0.0; 3];
            for step in 0..3 {
                // Every state follows every other one equally often.
                let state = (step + round) % 3;
                let agent = match state {
                    0 => None,
                    1 => Some(Agent::start(&world, scale.interval(), &["--ebpf=on"])?),
                    _ => Some(Agent::start(&world, scale.interval(), &["--ebpf=off"])?),
                };
                pair[state] = switch_ns(&cpu, &rounds, one, place)?;
                drop(agent);
            }
            results.push(pair);
        }
    }
    let findings = ["one cgroup", "two cgroups"].iter().zip(&taken).map(|(place, (_, results))| {
        let over = |state: usize| -> Vec<f64> {
            results.iter().map(|pair| (pair[state] / pair[0] - 1.0) * 100.0).collect()
        };
        let nanoseconds = |state: usize| median(&results.iter().map(|pair| pair[state]).collect::<Vec<_>>());
        let (with, without_ebpf) = (over(1), over(2));
        let slower = median(&with);
        Finding {
            what: format!("pipe ping-pong on one CPU, {place}"),
            measured: format!("{slower:.1} % slower"),
            goal: "under 5 %".to_owned(),
            reached: slower < 5.0,
            how: format!(
                "median of {} pairs of {rounds} round trips with and without agent (quartiles {:.1} and {:.1} %); medians \
                {:.0} ns a switch without, {:.0} ns with; the same with --ebpf=off, which is noise: {:.1} % ({:.1} and {:.1} %)",
                results.len(),
                quantile(&with, 25),
                quantile(&with, 75),
                nanoseconds(0),
                nanoseconds(1),
                median(&without_ebpf),
                quantile(&without_ebpf, 25),
                quantile(&without_ebpf, 75),
            ),
        }
    });
    Ok(findings.collect())
}

/// Nanoseconds a switch between a process in `one` and a process in `other`.
///
/// # Errors
/// When taskset or the load fails.
pub fn switch_ns(cpu: &str, rounds: &str, one: &Path, other: &Path) -> Result<f64> {
    let program = root().join("target/release/examples/load");
    let mut command = Command::new("taskset");
    command.args(["-c", cpu]).arg(program).arg("--cgroup").arg(one).args(["pingpong", rounds]).arg(other);
    let text = output(command.stdin(Stdio::null()))?;
    text.parse().with_context(|| format!("load pingpong printed {text:?}"))
}
