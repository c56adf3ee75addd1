//! What GPUs cost a tick: CPU time of the tick thread and of the threads that read the GPUs, with eight of them beside none.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::agent::{Agent, ticks};
use super::footprint::Crowd;
use super::world::{Pod, World};
use super::{Finding, Scale};
use crate::{cargo, checked, root};

const GPUS: usize = 8;
const PROCESSES: usize = 50;
/// For all of them to run.
const GATHERING: Duration = Duration::from_secs(60);

/// # Errors
/// When the fake NVML library does not build, or a world cannot be made, or the agent does not run.
pub fn gpus(scale: Scale) -> Result<Vec<Finding>> {
    checked(cargo().args(["build", "--release", "--locked", "--package", "fake-nvml"]))?;
    let folder = root().join("target/bench");
    let library = folder.join("libfake_nvml.so");
    fs::create_dir_all(folder.join("fake-nvml"))?;
    fs::copy(root().join("target/release/libfake_nvml.so"), &library).context("copying libfake_nvml.so")?;

    let world = World::new()?;
    let crowd = Crowd { pods: GPUS * PROCESSES / 4, containers: 1, processes: 4, sleep_ms: 60_000 };
    let pods = crowd.gather(&world)?;
    // Each pod's first process starts the others, which takes a while with all of them at once.
    let deadline = Instant::now() + GATHERING;
    let pids = loop {
        let pids = pods.iter().map(pids).collect::<Result<Vec<_>>>()?.concat();
        if pids.len() >= GPUS * PROCESSES {
            break pids;
        }
        ensure!(Instant::now() < deadline, "{} of {} processes run", pids.len(), GPUS * PROCESSES);
        std::thread::sleep(Duration::from_millis(100));
    };
    let state = json!({ "count_calls": false, "gpus": (0..GPUS).map(|gpu| device(gpu, &pids)).collect::<Vec<_>>() });
    fs::write(folder.join("fake-nvml/state.json"), state.to_string())?;

    let spent = folder.join("fake-nvml").join(fake_nvml::spent::FILE);
    let flag = format!("--nvml.library={}", library.display());
    let (mut with, mut without, mut reading) = (f64::MAX, f64::MAX, f64::MAX);
    for _ in 0..scale.of(3, 1) {
        without = without.min(tick_us(&world, scale, &["--gpu=off"], &spent)?.0);
        let (tick_us, gpus_us) = tick_us(&world, scale, &[&flag], &spent)?;
        (with, reading) = (with.min(tick_us), reading.min(gpus_us));
    }
    let cost_us = (with - without).max(0.0) + reading;
    Ok(vec![Finding {
        what: format!("CPU time of a tick over {GPUS} GPUs of {PROCESSES} processes"),
        measured: format!("{:.3} ms", cost_us / 1000.0),
        goal: "under 1 ms".to_owned(),
        reached: cost_us < 1000.0,
        how: format!(
            "CPU time per tick, lowest of some runs each: the tick thread's with GPUs ({with:.0} us) less that without \
            ({without:.0} us), and that of the threads that read the GPUs, without the time inside the fake NVML library \
            ({reading:.0} us); {} processes in {} pods",
            crowd.total(),
            crowd.pods
        ),
    }])
}

/// A GPU on which its part of the processes share what there is.
fn device(gpu: usize, pids: &[u32]) -> Value {
    let process = |pid: &u32| json!({ "pid": pid, "memory_bytes": 1 << 30, "load": 0.02 });
    let own = &pids[gpu * PROCESSES..(gpu + 1) * PROCESSES];
    json!({ "uuid": format!("GPU-{gpu}"), "plant": {}, "processes": own.iter().map(process).collect::<Vec<_>>() })
}

fn pids(pod: &Pod) -> Result<Vec<u32>> {
    let mut pids = Vec::new();
    for container in &pod.containers {
        let text = fs::read_to_string(container.dir.join("cgroup.procs"))?;
        let all = text.lines().map(str::parse).collect::<Result<Vec<u32>, _>>()?;
        pids.extend(all.into_iter().take(4));
    }
    Ok(pids)
}

/// Microseconds of CPU time per tick: the tick thread's, and that of all threads that read GPUs, outside the library.
fn tick_us(world: &World, scale: Scale, flags: &[&str], spent: &Path) -> Result<(f64, f64)> {
    fs::write(spent, [0; 8])?;
    let agent = Agent::start(world, scale.interval(), &[&["--pods.source=none"], flags].concat())?;
    let gpus = flags != ["--gpu=off"];
    // The first ticks look every process up.
    let read = || -> Result<[u64; 3]> {
        let of_gpus = if gpus { reading_ns(&agent, spent)? } else { 0 };
        Ok([agent.thread_cpu_ns(|name| name == "tick")?, of_gpus, ticks(&agent.fresh_page()?)?])
    };
    read()?;
    let first = read()?;
    std::thread::sleep(scale.seconds(20, 2));
    let last = read()?;
    let page = agent.fresh_page()?;
    let shown = page.all("kepler_node_gpu_watts").count();
    ensure!(!gpus || shown == GPUS, "{shown} GPUs are read");
    let count = f64::from(u32::try_from(last[2] - first[2])?.max(1));
    let per_tick = |at: usize| Duration::from_nanos(last[at] - first[at]).as_secs_f64() * 1e6 / count;
    Ok((per_tick(0), per_tick(1)))
}

/// CPU time of the threads that read GPUs, outside the library, nanoseconds.
fn reading_ns(agent: &Agent, spent: &Path) -> Result<u64> {
    let threads_ns = agent.thread_cpu_ns(|name| name.starts_with("gpu") || name == "nvml")?;
    let spent: [u8; 8] = fs::read(spent)?.as_slice().try_into().context("spent_ns has eight bytes")?;
    threads_ns.checked_sub(u64::from_ne_bytes(spent)).context("the library counted more than its callers' CPU time")
}
