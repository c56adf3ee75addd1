//! Busy loops of a real pod under a budget for CPU power, kept by its CPU quota. Power is the estimate's: watts per CPU that
//! is busy, so that the kernel's count of CPU time is the truth.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use energy_report::chart::{Chart, svg};
use fake_nvml::units::{count, whole};

use super::curves::{curve, panel};
use super::figures;
use super::node::Node;
use crate::bench::page::Page;
use crate::bench::world::cpu_ns;
use crate::bench::{Finding, Scale};

/// 50 W for a CPU that is busy, so that budgets are whole watts.
const COEFFICIENTS: &str =
    r#"{"source": "made up for a benchmark", "average": {"min_watts": 10, "max_watts": 60}, "rows": []}"#;
/// Busy threads, each a CPU when nothing is lowered.
const THREADS: &str = "2";
/// The budget is this part of what the loops use when nothing is lowered: half of the CPUs on a quiet machine.
const BUDGET: f64 = 0.5;
const SAMPLE: Duration = Duration::from_millis(50);
const SAMPLE_S: f64 = 0.05;
/// Means of this many are compared: half a second, five periods of the quota.
const MEAN: usize = 10;
/// What sampling from outside is off by.
const TOLERANCE: f64 = 1.03;
const LEAD_S: f64 = 3.0;

/// What was seen every [`SAMPLE`].
struct Course {
    /// CPUs that were busy.
    cpus: Vec<f64>,
    /// CPUs that the quota allows, at most those of the load.
    quotas: Vec<f64>,
    /// Whether the load wanted to run.
    loaded: Vec<bool>,
    watts_per_cpu: f64,
    /// CPUs that may be busy.
    budget_cpus: f64,
    /// Of the step; the rest are bursts.
    step: usize,
}

/// # Errors
/// When the machine has no CPU quotas, or the agent does not run.
pub fn cpu(scale: Scale, plots: Option<&Path>) -> Result<Vec<Finding>> {
    super::build()?;
    let course = run(scale)?;
    if let Some(folder) = plots {
        figures::keep(folder, "cpu-quota.svg", &svg(&course.chart()))?;
    }
    Ok(course.findings())
}

fn run(scale: Scale) -> Result<Course> {
    let mut node = Node::new("cpu")?;
    let pid = node.pod_of("busy", &["spin", "0", THREADS])?;
    let dir = node.world.with_quota(&node.pods[0])?;
    let policy = |watts: f64| {
        format!(
            "- name: bench\n  mode: Enforce\n  selector: {{namespaces: [bench]}}\n  budget: {{watts: {watts:.3}, components: [cpu]}}\n"
        )
    };
    let pod = Process(pid);
    pod.signal("STOP")?;
    node.policies(&policy(10_000.0))?;
    let coefficients = format!("--meter.estimate-coefficients={}", node.file("coefficients.json", COEFFICIENTS)?);
    node.start(&["--meter.cpu=estimate", &coefficients, "--gpu=off"])?;
    node.wait_for_budgets(1)?;
    pod.signal("CONT")?;
    let (watts_per_cpu, used_cpus) = unlimited(&node, scale)?;
    let budget_cpus = used_cpus * BUDGET;
    pod.signal("STOP")?;
    node.policies(&policy(watts_per_cpu * budget_cpus))?;
    thread::sleep(Duration::from_secs(3));
    let page = node.agent.as_ref().context("no agent was started")?.fresh_page()?;
    ensure!(
        page.value("energy_agent_policy_problems", "", "", 0)? == 0,
        "the budget of {budget_cpus:.2} CPUs was refused"
    );

    let mut course =
        Course { cpus: Vec::new(), quotas: Vec::new(), loaded: Vec::new(), watts_per_cpu, budget_cpus, step: 0 };
    let (step_s, bursts, burst_s) = (scale.of(60.0, 8.0), scale.of(6, 1), scale.of(10.0, 4.0));
    let at = Places { pod: node.pods[0].dir.clone(), quota: dir };
    course.watch(&at, LEAD_S, false)?;
    pod.signal("CONT")?;
    course.watch(&at, step_s, true)?;
    course.step = course.cpus.len();
    for _ in 0..bursts {
        pod.signal("STOP")?;
        course.watch(&at, burst_s, false)?;
        pod.signal("CONT")?;
        course.watch(&at, burst_s, true)?;
    }
    ensure!(
        course.score().settle_s.is_some(),
        "the busy loops were never above their budget: this machine is too busy"
    );
    Ok(course)
}

struct Process(u32);

impl Process {
    fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("kill").args(["-s", name, &self.0.to_string()]).status()?;
        ensure!(status.success(), "kill -s {name} {}", self.0);
        Ok(())
    }
}

struct Places {
    pod: PathBuf,
    quota: PathBuf,
}

/// Watts of a CPU that is busy, and how many are, from what the agent says of the pod over some seconds.
fn unlimited(node: &Node, scale: Scale) -> Result<(f64, f64)> {
    let agent = node.agent.as_ref().context("no agent was started")?;
    let uid = &node.pods[0].uid;
    let read = |page: &Page| -> Result<(u64, u64)> {
        let joules = page.value("kepler_pod_cpu_joules_total", "pod_id", uid, 6)?;
        Ok((joules, page.value("energy_agent_pod_cpu_seconds_total", "pod_id", uid, 9)?))
    };
    let before = read(&agent.fresh_page()?)?;
    let (began, used_ns) = (Instant::now(), cpu_ns(&node.pods[0].dir)?);
    thread::sleep(scale.seconds(5, 2));
    let used_ns = cpu_ns(&node.pods[0].dir)? - used_ns;
    let cpus = Duration::from_nanos(used_ns).as_secs_f64() / began.elapsed().as_secs_f64();
    let after = read(&agent.fresh_page()?)?;
    let joules = Duration::from_micros(after.0 - before.0).as_secs_f64();
    let seconds = Duration::from_nanos(after.1 - before.1).as_secs_f64();
    ensure!(joules > 0.0 && cpus > 0.2, "the busy pod used {joules} J and {cpus:.2} CPUs");
    Ok((joules / seconds, cpus))
}

impl Course {
    fn watch(&mut self, at: &Places, seconds: f64, loaded: bool) -> Result<()> {
        let most: f64 = THREADS.parse()?;
        let (mut moment, mut used) = (Instant::now(), cpu_ns(&at.pod)?);
        let end = moment + Duration::from_secs_f64(seconds);
        while moment < end {
            thread::sleep(SAMPLE.saturating_sub(moment.elapsed()));
            let (now, now_used) = (Instant::now(), cpu_ns(&at.pod)?);
            let elapsed = now.duration_since(moment).as_secs_f64();
            let cpus = Duration::from_nanos(now_used.saturating_sub(used)).as_secs_f64() / elapsed;
            let quota = quota(&at.quota)?.unwrap_or(most).min(most);
            // A sample that came late stands for as many as it missed.
            for _ in 0..whole(elapsed / SAMPLE_S).max(1) {
                self.cpus.push(cpus);
                self.quotas.push(quota);
                self.loaded.push(loaded);
            }
            (moment, used) = (now, now_used);
        }
        Ok(())
    }
}

impl Course {
    fn findings(&self) -> Vec<Finding> {
        let Score { settle_s, over, over_part, writes, work } = self.score();
        let settled = settle_s.map_or("never".to_owned(), |settle_s| format!("in {settle_s:.2} s"));
        let how = format!(
            "{THREADS} busy loops with a budget of {:.2} CPUs ({:.2} W by the estimate), {:.0} s, then bursts; usage_usec of \
            the pod's cpu.stat every 50 ms, means of half a second, over is more than {:.0} % above",
            self.budget_cpus,
            self.watts_per_cpu * self.budget_cpus,
            seconds(self.step),
            TOLERANCE * 100.0 - 100.0
        );
        vec![
            Finding {
                what: "capping: busy loops over a CPU budget".to_owned(),
                measured: format!("settled {settled}"),
                goal: "within 3 ticks of 1 s".to_owned(),
                reached: settle_s.is_some_and(|settle_s| settle_s <= 3.0),
                how,
            },
            Finding {
                what: "capping: time over the budget, busy loops".to_owned(),
                measured: format!("{:.2} %", over * 100.0),
                goal: "under 2 %".to_owned(),
                reached: over < 0.02,
                how: format!(
                    "from 3 s after the first excess on, under a step and bursts; energy over the budget {:.2} % of it; {writes} \
                    writes in the busiest minute; CPU time {:.1} % of what the budget allows",
                    over_part * 100.0,
                    work * 100.0
                ),
            },
        ]
    }

    fn chart(&self) -> Chart {
        let watts = self.cpus.iter().map(|cpus| cpus * self.watts_per_cpu);
        let budget = self.watts_per_cpu * self.budget_cpus;
        Chart {
            title: format!("{THREADS} busy loops under a CPU quota, a step and bursts"),
            panels: vec![
                panel(
                    "power, W",
                    190,
                    budget * 2.4,
                    vec![curve("", SAMPLE_S, watts, 4)],
                    Some((budget, format!("budget {budget:.2} W"))),
                ),
                panel(
                    "CPUs allowed by the quota",
                    130,
                    2.0,
                    vec![curve("", SAMPLE_S, self.quotas.iter().copied(), 4)],
                    None,
                ),
            ],
        }
    }

    fn score(&self) -> Score {
        let means: Vec<f64> =
            self.cpus.windows(MEAN).map(|part| part.iter().sum::<f64>() / f64::from(count(MEAN))).collect();
        let over = |mean: &f64| *mean > self.budget_cpus * TOLERANCE;
        let excess: Vec<usize> = (0..means.len()).filter(|at| over(&means[*at])).collect();
        let writes =
            self.quotas.windows(2).map(|pair| usize::from((pair[0] - pair[1]).abs() > 1e-9)).collect::<Vec<_>>();
        let minute = whole(60.0 / SAMPLE_S);
        let minute = usize::try_from(minute).unwrap_or(usize::MAX).min(writes.len().max(1));
        let writes = writes.windows(minute).map(|part| part.iter().sum()).max().unwrap_or_default();
        let Some(&first) = excess.first() else { return Score { writes, ..Score::default() } };
        let quiet = |at: usize, next: usize| next - at > usize::try_from(whole(10.0 / SAMPLE_S)).unwrap_or_default();
        let next = excess.iter().skip(1).copied().chain([usize::MAX]);
        let settled = excess.iter().copied().zip(next).find(|(at, next)| quiet(*at, *next)).map(|(at, _)| at + 1);
        let later = first + usize::try_from(whole(3.0 / SAMPLE_S)).unwrap_or_default();
        let counted = means.len().saturating_sub(later).max(1);
        let over_cpus: f64 = excess.iter().map(|at| means[*at] - self.budget_cpus).sum();
        let loaded = self.loaded.iter().filter(|loaded| **loaded).count();
        Score {
            settle_s: settled.map(|at| seconds(at - first)),
            over: f64::from(count(excess.iter().filter(|at| **at >= later).count())) / f64::from(count(counted)),
            over_part: over_cpus / (self.budget_cpus * f64::from(count(means.len() - first))),
            writes,
            work: self.cpus.iter().sum::<f64>() / (self.budget_cpus * f64::from(count(loaded.max(1)))),
        }
    }
}

#[derive(Debug, Default, PartialEq)]
struct Score {
    settle_s: Option<f64>,
    over: f64,
    over_part: f64,
    writes: usize,
    work: f64,
}

fn seconds(samples: usize) -> f64 {
    f64::from(count(samples)) * SAMPLE_S
}

/// CPUs that the quota of a cgroup allows; `None`: no quota.
fn quota(dir: &Path) -> Result<Option<f64>> {
    let text = if dir.join("cpu.max").exists() {
        fs::read_to_string(dir.join("cpu.max"))?
    } else {
        let read = |file| fs::read_to_string(dir.join(file)).with_context(|| format!("{file} of {}", dir.display()));
        format!("{} {}", read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?)
    };
    let mut fields = text.split_whitespace();
    let (quota, period) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    let period_us: f64 = period.parse().with_context(|| format!("period in {text:?}"))?;
    Ok(quota.parse::<f64>().ok().filter(|quota_us| *quota_us > 0.0).map(|quota_us| quota_us / period_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excess_of_busy_loops_is_settled_and_counted() {
        let course = |parts: &[(usize, f64, f64)]| Course {
            cpus: parts.iter().flat_map(|&(count, cpus, _)| std::iter::repeat_n(cpus, count)).collect(),
            quotas: parts.iter().flat_map(|&(count, _, quota)| std::iter::repeat_n(quota, count)).collect(),
            loaded: parts.iter().flat_map(|&(count, cpus, _)| std::iter::repeat_n(cpus > 0.0, count)).collect(),
            watts_per_cpu: 2.0,
            budget_cpus: 1.0,
            step: 0,
        };
        // Idle for 1 s, 2 CPUs for 2 s, 0.9 CPUs for 20 s.
        let score = course(&[(20, 0.0, 2.0), (40, 2.0, 2.0), (400, 0.9, 0.95)]).score();
        // Means of 10: above 1.03 from the sixth busy sample on; with k of 10 at 2 and the rest at 0.9, down to k = 2.
        assert!((score.settle_s.unwrap() - f64::from(35 + 8) * 0.05).abs() < 1e-9, "{score:?}");
        assert!(score.over < 1e-9 && score.writes == 1, "{score:?}");
        assert!((score.work - (80.0 + 360.0) / 440.0).abs() < 1e-9, "{score:?}");
    }
}
