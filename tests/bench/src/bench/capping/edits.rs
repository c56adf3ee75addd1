//! From a change of a policy to its effect on a device that is over the budget all the time.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fake_nvml::clock::monotonic_us;
use fake_nvml::units::{count, float};

use super::node::Node;
use super::truth::{What, Write};
use crate::bench::{Finding, Scale, quantile};

const POLICY: &str =
    "- name: bench\n  mode: Enforce\n  selector: {namespaces: [bench]}\n  budget: {watts: 400, components: [gpu]}\n";

/// # Errors
/// When the agent does not run, or an edit has no effect within ten seconds.
pub fn edits(scale: Scale) -> Result<Vec<Finding>> {
    super::build()?;
    let mut node = Node::new("edits")?;
    let pid = node.pod("train")?;
    node.gpu("GPU-0", 2.0, pid);
    node.load("GPU-0", vec![(0, 1.0)]);
    node.policies(&POLICY.replace("Enforce", "Off"))?;
    node.start(&["--meter.cpu=none", "--ebpf=off"])?;
    thread::sleep(Duration::from_secs(2));
    let (mut put, mut taken) = (Vec::new(), Vec::new());
    for round in 0..scale.of(20_u64, 2) {
        // The agent ticks every second and looks at files twice in one: every phase of both has its turn.
        thread::sleep(Duration::from_millis(round * 370 % 1000));
        let before = node.writes()?.len();
        let edited_us = monotonic_us();
        node.policies(POLICY)?;
        put.push(effect_s(&node, before, edited_us, |_| true)?);
        let before = node.writes()?.len();
        let edited_us = monotonic_us();
        node.no_policies()?;
        taken.push(effect_s(&node, before, edited_us, |write| write.what == What::Lock(None))?);
    }
    let finding = |what: &str, seconds: &[f64], goal| Finding {
        what: what.to_owned(),
        measured: format!("{:.2} s", quantile(seconds, 100)),
        goal: "under 2 s".to_owned(),
        reached: quantile(seconds, 100) < goal,
        how: format!(
            "slowest of {}; median {:.2} s, fastest {:.2} s; a file of policies is replaced at different phases of the tick of 1 s, \
            until the driver has the write",
            count(seconds.len()),
            quantile(seconds, 50),
            quantile(seconds, 1)
        ),
    };
    Ok(vec![
        finding("capping: policy edit to first effect", &put, 2.0),
        finding("capping: deletion of a policy to free clocks", &taken, 2.0),
    ])
}

/// Seconds from the edit to the first such write after it.
fn effect_s(node: &Node, before: usize, edited_us: u64, wanted: fn(&Write) -> bool) -> Result<f64> {
    let began = Instant::now();
    loop {
        if let Some(write) = node.writes()?.into_iter().skip(before).find(wanted) {
            return Ok(float(write.at_us.saturating_sub(edited_us)) / 1e6);
        }
        ensure!(began.elapsed() < Duration::from_secs(10), "the edit had no effect within 10 s");
        thread::sleep(Duration::from_millis(10));
    }
}
