//! The eBPF usage meter on the running kernel; the oracle is the kernel's own cpu.stat.

#![expect(clippy::unwrap_used, clippy::cast_precision_loss, reason = "tests panic, and compare in percent")]

mod common;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use common::cgroup::{Cgroup, Load, cpu_ns};
use energy_agent::config::CyclesEvent;
use energy_agent::meter::cpu::Topology;
use energy_agent::meter::ebpf::{Ebpf, Options};
use energy_agent::meter::{CgroupEvent, CgroupId};

/// The meter, and what it has reported so far by cgroup.
struct Meter {
    ebpf: Ebpf,
    topology: Topology,
    runtime_ns: HashMap<CgroupId, u64>,
    cycles: HashMap<CgroupId, u64>,
    dropped_ns: u64,
    events: Vec<CgroupEvent>,
}

impl Meter {
    fn load(cycles: CyclesEvent, map_entries: u32) -> Self {
        let topology = Topology::read(Path::new("/sys"), Path::new("/proc"));
        let options = Options { sysfs: Path::new("/sys"), cycles, intel_model: None, map_entries };
        let ebpf =
            Ebpf::load(options, &topology, Path::new("/proc")).expect("these tests need root and a kernel with BTF");
        let mut meter = Self {
            ebpf,
            topology,
            runtime_ns: HashMap::new(),
            cycles: HashMap::new(),
            dropped_ns: 0,
            events: Vec::new(),
        };
        meter.read();
        meter
    }

    fn read(&mut self) {
        let reading = self.ebpf.read(monotonic_ns(), &self.topology).unwrap();
        for work in reading.work {
            *self.runtime_ns.entry(work.cgroup).or_default() += work.runtime_ns;
            *self.cycles.entry(work.cgroup).or_default() += work.cycles;
        }
        self.dropped_ns += reading.dropped_ns.iter().sum::<u64>();
        self.events.extend(reading.events);
    }

    fn total_ns(&self, dir: &Path) -> u64 {
        self.runtime_ns.get(&id(dir)).copied().unwrap_or_default()
    }
}

fn id(dir: &Path) -> CgroupId {
    fs::metadata(dir).unwrap().ino()
}

fn monotonic_ns() -> u64 {
    energy_agent::meter::monotonic_ns()
}

/// Reads for some seconds once a second, as the agent does, and compares what the meter charged with cpu.stat.
fn assert_agrees(meter: &mut Meter, dirs: &[&Path], seconds: u64, tolerance: f64) {
    meter.read();
    let before: Vec<(u64, u64)> = dirs.iter().map(|dir| (meter.total_ns(dir), cpu_ns(dir))).collect();
    for _ in 0..seconds {
        thread::sleep(Duration::from_secs(1));
        meter.read();
    }
    let after: Vec<(u64, u64)> = dirs.iter().map(|dir| (meter.total_ns(dir), cpu_ns(dir))).collect();
    for ((dir, before), after) in dirs.iter().zip(before).zip(after) {
        let (charged, truth) = (after.0 - before.0, after.1 - before.1);
        let error = (charged as f64 - truth as f64).abs() / truth as f64;
        println!("{}: charged {charged} ns, cpu.stat {truth} ns, off by {:.3} %", dir.display(), error * 100.0);
        assert!(truth > 100_000_000, "the load did not run");
        assert!(error < tolerance, "off by {:.2} %", error * 100.0);
    }
}

#[test]
fn a_task_that_never_sleeps_is_charged_every_second() {
    let cgroup = Cgroup::new("spin");
    let _load = Load::start(&cgroup.dir, &["spin", "0"]);
    let mut meter = Meter::load(CyclesEvent::None, 4096);
    assert_agrees(&mut meter, &[&cgroup.dir], 4, 0.01);
}
