//! The scenarios on GPUs, all at the same time: a node for each exponent with a GPU and a pod for each course of loads, and
//! nodes with eight GPUs in one pod.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use fake_nvml::clock::monotonic_us;
use fake_nvml::plant::Plant;
use fake_nvml::state::Clocks;
use fake_nvml::units::{count, float};

use super::load::{self, Steps};
use super::node::Node;
use super::score::{Score, score};
use super::truth::{SLICE_US, Slice, Write, replay};

pub const EXPONENTS: [f64; 5] = [1.2, 1.5, 2.0, 2.5, 3.0];
/// Of the nodes with eight GPUs.
pub const MIDDLE: f64 = 2.0;
/// For each GPU; watts.
pub const BUDGET_W: f64 = 400.0;
/// Idle before the first load; seconds.
const LEAD_S: f64 = 5.0;
/// By how much driver and replay may differ in energy: a busy machine stamps a write some milliseconds late.
const AGREEMENT: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Step,
    Bursts,
    Noise,
}

/// One budget and the loads of its GPUs.
struct Scenario {
    name: String,
    kind: Kind,
    loads: Vec<Steps>,
}

pub struct Outcome {
    pub name: String,
    pub kind: Kind,
    pub exponent: f64,
    pub budget_w: f64,
    pub gpus: Vec<Vec<Slice>>,
    pub score: Score,
}

struct Running {
    node: Node,
    exponent: f64,
    scenarios: Vec<Scenario>,
    /// By scenario and GPU: what the driver had counted before (microjoules, and when).
    before: Vec<Vec<(f64, u64)>>,
}

/// Lets them run for this many seconds.
///
/// # Errors
/// When a node cannot be made, an agent does not run, or replay and driver differ.
pub fn run(seconds: u32) -> Result<Vec<Outcome>> {
    let mut nodes = Vec::new();
    for (number, exponent) in (0_u32..).zip(EXPONENTS) {
        nodes.push(begin(&format!("e{exponent:.1}"), exponent, one_gpu(number, f64::from(seconds)))?);
    }
    for scenario in eight_gpus(f64::from(seconds)) {
        nodes.push(begin(&scenario.name.replace(' ', "-"), MIDDLE, vec![scenario])?);
    }
    for Running { node, scenarios, before, .. } in &mut nodes {
        node.wait_for_budgets(scenarios.len())?;
        for (number, scenario) in scenarios.iter().enumerate() {
            before.push((0..scenario.loads.len()).map(|gpu| node.energy(&uuid(number, gpu))).collect::<Result<_>>()?);
        }
    }
    let from_us = monotonic_us();
    for Running { node, scenarios, .. } in &mut nodes {
        for (number, scenario) in scenarios.iter().enumerate() {
            for (gpu, steps) in scenario.loads.iter().enumerate() {
                node.load(&uuid(number, gpu), steps.iter().map(|(at_us, load)| (from_us + at_us, *load)).collect());
            }
        }
        node.play();
    }
    thread::sleep(Duration::from_secs(u64::from(seconds)));
    let mut outcomes = Vec::new();
    for running in &nodes {
        outcomes.extend(running.finish(from_us)?);
    }
    Ok(outcomes)
}

/// A GPU and a pod for each; every load begins at a phase of the tick of its own.
fn one_gpu(number: u32, end_s: f64) -> Vec<Scenario> {
    let from = |place: u32| LEAD_S + f64::from((number * 37 + place * 23) % 100) / 100.0;
    let scenario = |name: &str, kind, steps| Scenario { name: name.to_owned(), kind, loads: vec![steps] };
    let bursts = |place, on, off| load::bursts(from(place), end_s, (on, off), 0.0);
    vec![
        scenario("step", Kind::Step, load::step(from(0))),
        scenario("bursts 5 of 10 s", Kind::Bursts, bursts(1, 5.0, 5.0)),
        scenario("bursts 20 of 40 s", Kind::Bursts, bursts(2, 20.0, 20.0)),
        scenario("bursts 10 of 60 s", Kind::Bursts, bursts(3, 10.0, 50.0)),
        scenario("noise 20-100 %, 3 s", Kind::Noise, load::noise(u64::from(number), from(4), end_s, 3.0, 0.2)),
        scenario("noise 90-100 %, 0.5 s", Kind::Noise, load::noise(u64::from(number), from(5), end_s, 0.5, 0.9)),
    ]
}

fn eight_gpus(end_s: f64) -> [Scenario; 2] {
    let staggered = |gpu: u32| load::bursts(LEAD_S + 7.0 * f64::from(gpu), end_s, (25.0, 25.0), 0.05);
    [
        Scenario { name: "8 GPUs step".to_owned(), kind: Kind::Step, loads: vec![load::step(LEAD_S + 0.4); 8] },
        Scenario { name: "8 GPUs staggered".to_owned(), kind: Kind::Bursts, loads: (0..8).map(staggered).collect() },
    ]
}

/// A running agent with a budget for each scenario, nothing loaded yet.
fn begin(name: &str, exponent: f64, scenarios: Vec<Scenario>) -> Result<Running> {
    let mut node = Node::new(name)?;
    for (number, scenario) in scenarios.iter().enumerate() {
        let pid = node.pod(&format!("pod-{number}"))?;
        for gpu in 0..scenario.loads.len() {
            node.gpu(&uuid(number, gpu), exponent, pid);
        }
    }
    let watts = scenarios.first().map_or(0.0, Scenario::budget_w);
    node.policies(&format!(
        "- name: bench\n  mode: Enforce\n  selector: {{namespaces: [bench]}}\n  budget: {{watts: {watts}, components: [gpu]}}\n"
    ))?;
    // Which pod uses which GPU needs neither CPU energy nor eBPF.
    node.start(&["--meter.cpu=none", "--ebpf=off"])?;
    Ok(Running { node, exponent, scenarios, before: Vec::new() })
}

fn uuid(scenario: usize, gpu: usize) -> String {
    format!("GPU-{scenario}-{gpu}")
}

impl Scenario {
    fn budget_w(&self) -> f64 {
        BUDGET_W * f64::from(count(self.loads.len()))
    }
}

impl Running {
    fn finish(&self, from_us: u64) -> Result<Vec<Outcome>> {
        let writes = self.node.writes()?;
        let mut outcomes = Vec::new();
        for ((number, scenario), before) in self.scenarios.iter().enumerate().zip(&self.before) {
            let mut gpus = Vec::new();
            let own = |write: &&Write| write.uuid.starts_with(&format!("GPU-{number}-"));
            for (gpu, before) in before.iter().enumerate() {
                gpus.push(self.truth(&uuid(number, gpu), &writes, *before, from_us)?);
            }
            let own: Vec<Write> = writes.iter().filter(own).cloned().collect();
            let budget_w = scenario.budget_w();
            let plant = Plant { exponent: self.exponent, ..Plant::default() };
            let score = score(&plant, Clocks::default().max_mhz, &gpus, budget_w, &own);
            let (name, kind, exponent) = (scenario.name.clone(), scenario.kind, self.exponent);
            outcomes.push(Outcome { name, kind, exponent, budget_w, gpus, score });
        }
        Ok(outcomes)
    }

    /// What the GPU drew, checked against the energy that the driver counted meanwhile.
    fn truth(&self, uuid: &str, writes: &[Write], before: (f64, u64), from_us: u64) -> Result<Vec<Slice>> {
        let (energy_uj, to_us) = self.node.energy(uuid)?;
        let gpu = self.node.state.gpus.iter().find(|gpu| gpu.uuid == uuid);
        let slices = gpu.map(|gpu| replay(gpu, writes, (from_us, to_us))).transpose()?.unwrap_or_default();
        let replayed_j = slices.iter().map(|slice| slice.power_w).sum::<f64>() * float(SLICE_US) / 1e6;
        let idle_j = Plant::default().idle_w * float(from_us - before.1) / 1e6;
        let counted_j = (energy_uj - before.0) / 1e6 - idle_j;
        ensure!(
            (replayed_j / counted_j - 1.0).abs() < AGREEMENT,
            "{uuid}: the driver counted {counted_j:.0} J, the replay of its writes comes to {replayed_j:.0} J"
        );
        Ok(slices)
    }
}
