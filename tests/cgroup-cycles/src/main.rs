//! `cgroup-cycles CGROUP END`: counts the cycles of a cgroup's tasks, by the kernel's perf for cgroups, until the file END is
//! there. Prints `counting` when it begins, then the sum over all CPUs.

use std::env;
use std::fs::File;
use std::io::{Write as _, stdout};
use std::path::Path;
use std::thread::{available_parallelism, sleep};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use perf_event::events::Hardware;
use perf_event::{Builder, Counter, ReadFormat};

fn main() -> Result<()> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [cgroup, end] = arguments.as_slice() else { anyhow::bail!("usage: cgroup-cycles CGROUP END") };
    let cgroup = File::open(cgroup).with_context(|| cgroup.display().to_string())?;
    let mut counters = Vec::new();
    for cpu in 0..available_parallelism()?.get() {
        counters.push(counter(&cgroup, cpu).with_context(|| format!("cycles of CPU {cpu}"))?);
    }
    println!("counting");
    stdout().flush()?;
    while !Path::new(end).exists() {
        sleep(Duration::from_millis(50));
    }
    let mut sum = 0;
    for counter in &mut counters {
        let data = counter.read_full()?;
        let (enabled, running) = (data.time_enabled().context("no time")?, data.time_running().context("no time")?);
        ensure!(enabled == running, "the counter was shared with others, its figure is a part");
        sum += data.count();
    }
    println!("{sum}");
    Ok(())
}

fn counter(cgroup: &File, cpu: usize) -> Result<Counter> {
    let mut builder = Builder::new(Hardware::CPU_CYCLES);
    builder.observe_cgroup(cgroup).one_cpu(cpu).include_kernel().include_hv();
    builder.read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
    let mut counter = builder.build()?;
    counter.enable()?;
    Ok(counter)
}
