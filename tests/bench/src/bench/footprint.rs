//! What the agent itself needs: CPU time and memory beside crowds of mostly sleeping processes.

use std::collections::VecDeque;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::agent::Agent;
use super::world::{Pod, World};
use super::{Finding, Scale, median, percent};

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Pods of containers of processes, each of which works for 100 us and sleeps for `sleep_ms`.
pub struct Crowd {
    pub pods: usize,
    pub containers: usize,
    pub processes: usize,
    pub sleep_ms: usize,
}

impl Crowd {
    pub fn total(&self) -> usize {
        self.pods * self.containers * self.processes
    }

    /// # Errors
    /// When a cgroup or process cannot be made.
    pub fn gather(&self, world: &World) -> Result<VecDeque<Pod>> {
        (0..self.pods).map(|_| self.pod(world)).collect()
    }

    /// # Errors
    /// When a cgroup or process cannot be made.
    pub fn pod(&self, world: &World) -> Result<Pod> {
        let mut pod = world.pod(self.containers)?;
        for container in 0..self.containers {
            let (processes, sleep_us) = (self.processes.to_string(), (self.sleep_ms * 1000).to_string());
            pod.run(container, &["napping", "0", &processes, "100", &sleep_us])?;
        }
        Ok(pod)
    }

    pub fn text(&self) -> String {
        let Self { pods, containers, processes, sleep_ms } = self;
        format!(
            "{pods} pods of {containers} containers of {processes} processes, each awake for 100 us every {sleep_ms} ms"
        )
    }
}

/// # Errors
/// When a world cannot be made or the agent does not run.
pub fn footprint(scale: Scale) -> Result<Vec<Finding>> {
    let small = Crowd { pods: 5, containers: 2, processes: 5, sleep_ms: 200 };
    let middle = Crowd { pods: scale.of(200, 20), containers: 2, processes: 5, sleep_ms: 5000 };
    let large = Crowd { pods: scale.of(500, 50), containers: 2, processes: 5, sleep_ms: 5000 };
    let mut findings = vec![start(scale, &small)?];
    for (crowd, cpu_goal, memory_goal) in [(small, Some(0.1), 15), (middle, None, 25), (large, Some(1.0), 50)] {
        let windows = if cpu_goal.is_some() { 3 } else { 1 };
        let (cpu, memory) = quiet(scale, &crowd, windows, &[])?;
        if let Some(goal) = cpu_goal {
            findings.push(cpu.finding(format!("{} processes in {} pods", crowd.total(), crowd.pods), goal));
        }
        findings.push(memory_finding(&crowd, memory, memory_goal));
    }
    Ok(findings)
}

/// The most that was resident until the first ticks were over: what reading the kernel's types and loading takes.
fn start(scale: Scale, crowd: &Crowd) -> Result<Finding> {
    // Half of what it was while the kernel's types were parsed twice, 44.5 MiB.
    const GOAL_MIB: u32 = 22;
    let world = World::new()?;
    let _pods = crowd.gather(&world)?;
    let agent = Agent::start(&world, scale.interval(), &[])?;
    agent.fresh_page()?;
    let (peak, (resident, _)) = (agent.peak_kib()?, agent.memory_kib()?);
    Ok(Finding {
        what: format!("peak of memory at start, {} processes", crowd.total()),
        measured: mib(peak),
        goal: format!("under {GOAL_MIB} MiB"),
        reached: peak < GOAL_MIB * 1024,
        how: format!("VmHWM after the first ticks; VmRSS is {} then", mib(resident)),
    })
}

/// Shares of one CPU, percent.
pub struct Cpu {
    windows: Vec<f64>,
    /// Of the eBPF programs, on behalf of everybody who switches.
    programs: Option<f64>,
    how: String,
}

impl Cpu {
    pub fn finding(&self, crowd: String, goal: f64) -> Finding {
        let share = median(&self.windows);
        let windows: Vec<String> = self.windows.iter().map(|share| format!("{share:.3}")).collect();
        let programs = self.programs.map_or("not known".to_owned(), |share| format!("{share:.3} %"));
        Finding {
            what: format!("CPU of the agent, {crowd}"),
            measured: format!("{share:.3} % of a core"),
            goal: format!("under {goal} %"),
            reached: share < goal,
            how: format!(
                "{}; cpu.stat of the agent's own cgroup, median of {} %, a gzipped scrape every 15 s; eBPF programs \
                besides, charged to the tasks that switch: {programs} (measured in a separate run, because counting costs time)",
                self.how,
                windows.join(", ")
            ),
        }
    }
}

/// CPU share and memory (resident, and of that no file) of an agent with these flags beside a crowd.
///
/// # Errors
/// When a world cannot be made or the agent does not run.
pub fn quiet(scale: Scale, crowd: &Crowd, windows: u32, flags: &[&str]) -> Result<(Cpu, (u32, u32))> {
    let world = World::new()?;
    let _pods = crowd.gather(&world)?;
    let agent = Agent::start(&world, scale.interval(), flags)?;
    let began = Instant::now();
    thread::sleep(scale.seconds(10, 1));
    let windows = (0..scale.of(windows, 1)).map(|_| cpu_window(scale, &agent)).collect::<Result<_>>()?;
    thread::sleep(scale.seconds(60, 0).saturating_sub(began.elapsed()));
    let memory = agent.memory_kib()?;
    Ok((Cpu { windows, programs: programs(scale, &agent)?, how: crowd.text() }, memory))
}

pub fn memory_finding(crowd: &Crowd, (resident, anonymous): (u32, u32), goal_mib: u32) -> Finding {
    Finding {
        what: format!("memory, {} processes", crowd.total()),
        measured: mib(resident),
        goal: format!("under {goal_mib} MiB"),
        reached: resident < goal_mib * 1024,
        how: format!("VmRSS after a minute and several scrapes, of which {} is not file-backed", mib(anonymous)),
    }
}

pub fn mib(kib: u32) -> String {
    format!("{:.1} MiB", f64::from(kib) / 1024.0)
}

/// Share of one CPU that the agent used over half a minute with two scrapes, percent.
fn cpu_window(scale: Scale, agent: &Agent) -> Result<f64> {
    let (began, before) = (Instant::now(), agent.cpu_ns()?);
    let mut scraper = agent.scraper()?;
    for _ in 0..2 {
        thread::sleep(scale.seconds(15, 1));
        scraper.get(true)?;
    }
    let used = agent.cpu_ns()? - before;
    Ok(Duration::from_nanos(used).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}

/// Share of one CPU that the eBPF programs used, percent; `None` where the kernel's statistics cannot be switched on.
fn programs(scale: Scale, agent: &Agent) -> Result<Option<f64>> {
    let Ok(old) = fs::read_to_string(STATISTICS) else { return Ok(None) };
    if fs::write(STATISTICS, "1").is_err() {
        return Ok(None);
    }
    let time = scale.seconds(10, 1);
    let name = "energy_agent_ebpf_run_seconds_total";
    let measured = (|| {
        let run_ns = || agent.fresh_page()?.value(name, "", "", 9);
        let (began, before) = (Instant::now(), run_ns()?);
        thread::sleep(time);
        let used = run_ns()?.saturating_sub(before);
        let elapsed = u64::try_from(began.elapsed().as_nanos())?;
        Ok((used > 0).then(|| percent(used, elapsed)))
    })();
    fs::write(STATISTICS, old.trim()).with_context(|| STATISTICS.to_owned())?;
    measured
}
