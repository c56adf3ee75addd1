//! The eBPF usage meter on the running kernel; the oracle is the kernel's own cpu.stat.

#![expect(clippy::unwrap_used, clippy::cast_precision_loss, reason = "tests panic, and compare in percent")]

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use crate::common::agent::wait_for;
use crate::common::cgroup::{Cgroup, Load, cpu_ns};
use crate::common::repeat::{self, Cause};
use crate::common::tree::sysfs_without_type;
use crate::common::{alone, one_of_three, say, skip};
use energy_host::config::CyclesEvent;
use energy_host::meter::cpu::Topology;
use energy_host::meter::ebpf::{Ebpf, EbpfOptions};
use energy_model::meter_state::{Program, WeightUnit};
use energy_model::sample::{CgroupEvent, CgroupId};

/// The meter, and what it has reported so far by cgroup.
struct Meter {
    ebpf: Ebpf,
    topology: Topology,
    runtime_ns: HashMap<CgroupId, u64>,
    cycles: HashMap<CgroupId, u64>,
    switches: HashMap<CgroupId, u64>,
    dropped_ns: u64,
    events: Vec<CgroupEvent>,
}

impl Meter {
    fn load(cycles: CyclesEvent, map_entries: u32) -> Self {
        Self::load_from(Path::new("/sys"), cycles, map_entries)
    }

    /// With the kernel's BTF below `sysfs`.
    fn load_from(sysfs: &Path, cycles: CyclesEvent, map_entries: u32) -> Self {
        let topology = Topology::read(Path::new("/sys"), Path::new("/proc"));
        let options = EbpfOptions { sysfs, cycles, intel_model: None, process_entries: 0, map_entries };
        let ebpf =
            Ebpf::load(options, &topology, Path::new("/proc")).expect("these tests need root and a kernel with BTF");
        let mut meter = Self {
            ebpf,
            topology,
            runtime_ns: HashMap::new(),
            cycles: HashMap::new(),
            switches: HashMap::new(),
            dropped_ns: 0,
            events: Vec::new(),
        };
        meter.read();
        meter
    }

    /// Reads; says whether every package delivered cycles.
    fn read(&mut self) -> bool {
        let reading = self.ebpf.read(&self.topology, &[]).unwrap();
        repeat::note(Cause::HiddenSwitch, "meter", self.ebpf.drops().switches);
        for work in reading.work {
            *self.runtime_ns.entry(work.cgroup).or_default() += work.runtime_ns;
            *self.cycles.entry(work.cgroup).or_default() += work.cycles;
            *self.switches.entry(work.cgroup).or_default() += work.switches;
        }
        self.dropped_ns += reading.dropped_ns.iter().sum::<u64>();
        self.events.extend(reading.events);
        reading.cycles.iter().all(|complete| *complete)
    }

    fn total_ns(&self, dir: &Path) -> u64 {
        self.runtime_ns.get(&id(dir)).copied().unwrap_or_default()
    }
}

/// Waits until what runs in the cgroup has used this much more.
fn wait_for_work(dir: &Path, more: Duration) {
    let before = cpu_ns(dir);
    wait_for("work in the cgroup", || (cpu_ns(dir) - before >= u64::try_from(more.as_nanos()).unwrap()).then_some(()));
}

fn id(dir: &Path) -> CgroupId {
    fs::metadata(dir).unwrap().ino()
}

/// One reading, with cpu.stat of each folder before and after it: on a busy machine the reading thread may be kept
/// waiting between the two.
fn bracketed(meter: &mut Meter, dirs: &[&Path]) -> Vec<(u64, u64, u64)> {
    let before: Vec<u64> = dirs.iter().map(|dir| cpu_ns(dir)).collect();
    meter.read();
    dirs.iter().zip(before).map(|(dir, before)| (before, meter.total_ns(dir), cpu_ns(dir))).collect()
}

/// Whether `measure`, which says how far off the truth something is, comes below `tolerance` in one of three tries. It is tried
/// again only where the kernel hid a switch: one at the edge of a window, with a long stretch before it, spoils that window.
fn assert_below(tolerance: f64, mut measure: impl FnMut() -> f64) {
    let mut off = Vec::new();
    for _ in 0..3 {
        let before = repeat::counted(Cause::HiddenSwitch);
        off.push(measure());
        if off.last().is_some_and(|off| *off < tolerance) {
            return;
        }
        let hidden = repeat::counted(Cause::HiddenSwitch).abs_diff(before);
        if hidden == 0 {
            break;
        }
        say("REPEATED", &format!("off by {off:?}, and the kernel hid {hidden} scheduler switches from the meter"));
    }
    panic!("off by {off:?} of the truth");
}

/// Reads for some seconds once a second, as the agent does, and compares what the meter charged with cpu.stat.
fn assert_agrees(meter: &mut Meter, dirs: &[&Path], seconds: u64, tolerance: f64) {
    assert_below(tolerance, || {
        let start = bracketed(meter, dirs);
        for _ in 1..seconds {
            thread::sleep(Duration::from_secs(1));
            meter.read();
        }
        thread::sleep(Duration::from_secs(1));
        let end = bracketed(meter, dirs);
        let mut worst = 0.0_f64;
        for ((dir, start), end) in dirs.iter().zip(start).zip(end) {
            let charged = (end.1 - start.1) as f64;
            let (least, most) = ((end.0 - start.2) as f64, (end.2 - start.0) as f64);
            println!("{}: charged {charged} ns, cpu.stat {least} to {most} ns", dir.display());
            assert!(least > 100e6, "the load did not run");
            worst = worst.max((least - charged).max(charged - most) / least);
        }
        worst
    });
}

#[test]
fn a_task_that_never_sleeps_is_charged_every_second() {
    let _alone = alone();
    let cgroup = Cgroup::new("spin");
    let _load = Load::start(&cgroup.dir, &["spin", "0"]);
    wait_for_work(&cgroup.dir, Duration::from_millis(300));
    // Loaded after the task began, which may not switch for a long time.
    let mut meter = Meter::load(CyclesEvent::None, 4096);
    let mut seen = Vec::new();
    for _ in 0..5 {
        let charged = meter.total_ns(&cgroup.dir);
        thread::sleep(Duration::from_secs(1));
        meter.read();
        seen.push(meter.total_ns(&cgroup.dir) - charged);
    }
    // A kernel that keeps BPF programs off some tasks (this can be one) hides a switch now and then; what is running is
    // then known one switch later.
    let seconds = seen.iter().filter(|grown_ns| **grown_ns > 100_000_000).count();
    assert!(seconds >= 4, "{seen:?}");
    assert_agrees(&mut meter, &[&cgroup.dir], 5, 0.01);
}

#[test]
fn tasks_that_sleep_every_two_milliseconds_are_charged_what_they_ran() {
    let _alone = alone();
    let cgroup = Cgroup::new("sleepers");
    let _loads = [0, 1].map(|_| Load::start(&cgroup.dir, &["sleepers", "0", "2000", "2000"]));
    let mut meter = Meter::load(CyclesEvent::None, 4096);
    assert_agrees(&mut meter, &[&cgroup.dir], 5, 0.01);
}

#[test]
fn threads_of_one_process_add_up() {
    let _alone = alone();
    let cgroup = Cgroup::new("threads");
    let _load = Load::start(&cgroup.dir, &["spin", "0", "5"]);
    let mut meter = Meter::load(CyclesEvent::None, 4096);
    assert_agrees(&mut meter, &[&cgroup.dir], 5, 0.01);
}

#[test]
fn cgroups_that_take_turns_every_few_microseconds_are_charged_what_they_did() {
    let _alone = alone();
    let cgroups = ["one", "two", "three"].map(Cgroup::new);
    let dirs = [0, 1, 2].map(|at| cgroups[at].dir.as_path());
    // A byte goes to and fro between the first and the second, another between the second and the third, all on one CPU.
    let _pairs = [[0, 1], [1, 2]]
        .map(|pair| Load::start(dirs[pair[0]], &["pingpong", "1000000000", dirs[pair[1]].to_str().unwrap()]));
    wait_for("both pairs", || {
        (tasks(dirs[0]).len() == 1 && tasks(dirs[1]).len() == 2 && tasks(dirs[2]).len() == 1).then_some(())
    });
    for pid in dirs.iter().flat_map(|dir| tasks(dir)) {
        assert!(Command::new("taskset").args(["-cp", "0", &pid]).stdout(Stdio::null()).status().unwrap().success());
    }
    let mut meter = Meter::load(CyclesEvent::CpuClock, 4096);
    assert_agrees(&mut meter, &dirs, 5, 0.01);
    for dir in dirs {
        let (runtime, clock) = (meter.total_ns(dir), meter.cycles[&id(dir)]);
        assert!(clock.abs_diff(runtime) < runtime / 20, "run time {runtime} ns, clock {clock} ns");
    }
    let mut meter = Meter::load(CyclesEvent::None, 4096);
    assert_agrees(&mut meter, &dirs, 5, 0.01);
    assert_below(0.01, || {
        let mut bracketed = || {
            dirs.map(|dir| {
                let before = switches(dir);
                meter.read();
                (before, meter.switches[&id(dir)], switches(dir))
            })
        };
        let start = bracketed();
        thread::sleep(Duration::from_secs(1));
        let end = bracketed();
        let mut worst = 0.0_f64;
        for (start, end) in start.into_iter().zip(end) {
            let (counted, least, most) = ((end.1 - start.1) as f64, (end.0 - start.2) as f64, (end.2 - start.0) as f64);
            println!("counted {counted} switches, the kernel {least} to {most}");
            assert!(least > 10_000.0, "the load did not run");
            worst = worst.max((least - counted).max(counted - most) / least);
        }
        worst
    });
}

/// Ids of the processes in a cgroup.
fn tasks(dir: &Path) -> Vec<String> {
    fs::read_to_string(dir.join("cgroup.procs")).unwrap().lines().map(str::to_owned).collect()
}

/// Times a process of the cgroup was switched out, as the kernel counts them.
fn switches(dir: &Path) -> u64 {
    let of = |pid: String| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let counts = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
        counts.map(|(_, count)| count.trim().parse::<u64>().unwrap()).sum::<u64>()
    };
    tasks(dir).into_iter().map(of).sum()
}

#[test]
fn a_fork_storm_and_a_steady_loop_each_get_their_true_share() {
    let _alone = alone();
    let storm = Cgroup::new("storm");
    let steady = Cgroup::new("steady");
    let _storm = Load::start(&storm.dir, &["storm", "0", "2000", "2"]);
    let _steady = Load::start(&steady.dir, &["spin", "0"]);
    let mut meter = Meter::load(CyclesEvent::None, 4096);
    assert_agrees(&mut meter, &[&storm.dir, &steady.dir], 6, 0.015);
}

#[test]
fn a_task_that_moves_itself_is_charged_to_the_new_cgroup_from_then_on() {
    one_of_three(|| {
        let _alone = alone();
        let cgroup = Cgroup::new("moved");
        let mut meter = Meter::load(CyclesEvent::None, 4096);
        // A shell that joins the cgroup and goes on without a pause, many times. Without the event a fifth would be lost;
        // a switch that the kernel hides may cost one of the forty.
        let program = crate::common::cgroup::load_program();
        let line = format!("echo $$ > {}/cgroup.procs; exec {} burn 20000", cgroup.dir.display(), program.display());
        for _ in 0..40 {
            assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
        }
        meter.read();
        let (charged, truth) = (meter.total_ns(&cgroup.dir), cpu_ns(&cgroup.dir));
        println!("charged {charged} ns, cpu.stat {truth} ns");
        assert!(truth > 200_000_000 && charged.abs_diff(truth) < truth / 20);
    });
}

#[test]
fn a_running_task_that_is_moved_is_charged_to_the_new_cgroup_within_a_tick() {
    assert_follows("spin");
}

#[test]
fn a_running_thread_whose_process_is_moved_is_charged_to_the_new_cgroup_within_a_tick() {
    assert_follows("thread");
}

fn assert_follows(kind: &str) {
    let _alone = alone();
    let (old, new) = (Cgroup::new("old"), Cgroup::new("new"));
    let load = Load::start(&old.dir, &[kind, "0"]);
    let mut meter = Meter::load(CyclesEvent::None, 4096);
    wait_for_work(&old.dir, Duration::from_millis(500));
    meter.read();
    fs::write(new.dir.join("cgroup.procs"), load.0.id().to_string()).unwrap();
    meter.read();
    wait_for_work(&new.dir, Duration::from_millis(200));
    assert_agrees(&mut meter, &[&new.dir], 3, 0.02);
}

#[test]
fn nested_cgroups_are_charged_apart() {
    let _alone = alone();
    let cgroup = Cgroup::new("outer");
    let inner = cgroup.child("inner");
    let innermost = cgroup.child("inner/innermost");
    let _inner = Load::start(&inner, &["spin", "0"]);
    let _innermost = Load::start(&innermost, &["sleepers", "0", "3000", "2000"]);
    let mut meter = Meter::load(CyclesEvent::None, 4096);
    assert_below(0.0125, || {
        let start = bracketed(&mut meter, &[&inner, &innermost]);
        for _ in 0..4 {
            thread::sleep(Duration::from_secs(1));
            meter.read();
        }
        let end = bracketed(&mut meter, &[&inner, &innermost]);
        // cpu.stat of the inner cgroup contains the innermost one's: its own time is least where that is most.
        let (least, most) = (|at: usize| end[at].0 - start[at].2, |at: usize| end[at].2 - start[at].0);
        let bounds = [(least(0) - most(1), most(0) - least(1)), (least(1), most(1))];
        let mut worst = 0.0_f64;
        for (at, (least, most)) in bounds.into_iter().enumerate() {
            let charged = (end[at].1 - start[at].1) as f64;
            println!("charged {charged} ns, cpu.stat {least} to {most} ns");
            assert!(least > 100_000_000, "the load did not run");
            worst = worst.max((least as f64 - charged).max(charged - most as f64) / least as f64);
        }
        worst
    });
    assert_eq!(meter.total_ns(&cgroup.dir), 0, "nothing ran in the outer cgroup itself");
}

#[test]
fn a_cgroup_that_lived_a_moment_has_a_path_and_all_its_time() {
    one_of_three(|| {
        let _alone = alone();
        let parent = Cgroup::new("pods");
        let mut meter = Meter::load(CyclesEvent::None, 4096);
        let dir = parent.child("short");
        let short = id(&dir);
        Load::start(&dir, &["burn", "300000"]).wait();
        let truth = cpu_ns(&dir);
        fs::remove_dir(&dir).unwrap();
        wait_for("the end of the cgroup", || {
            meter.read();
            meter.events.contains(&CgroupEvent::Removed { id: short }).then_some(())
        });
        let made = CgroupEvent::Created { id: short, path: format!("{}/short", parent.path) };
        let position = |wanted: &CgroupEvent| meter.events.iter().position(|event| event == wanted);
        let (made, removed) = (position(&made), position(&CgroupEvent::Removed { id: short }));
        assert!(made.is_some() && made < removed, "{:?}", meter.events);
        let charged = meter.runtime_ns[&short];
        assert!(charged.abs_diff(truth) < truth / 50, "charged {charged} ns, cpu.stat {truth} ns");
    });
}

#[test]
fn cgroups_of_the_v1_hierarchies_cause_no_events() {
    let _alone = alone();
    let Some(v1) = ["cpu", "pids", "freezer"]
        .map(|name| Path::new("/sys/fs/cgroup").join(name))
        .into_iter()
        .find(|dir| dir.is_dir())
    else {
        return skip::skip(&skip::HIERARCHY_V1);
    };
    let mut meter = Meter::load(CyclesEvent::None, 4096);
    let dir = v1.join(format!("energy-agent-test-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    fs::remove_dir(&dir).unwrap();
    meter.read();
    let ours = format!("energy-agent-test-{}", std::process::id());
    let seen =
        meter.events.iter().any(|event| matches!(event, CgroupEvent::Created { path, .. } if path.contains(&ours)));
    assert!(!seen, "{:?}", meter.events);
}

#[test]
fn a_full_map_counts_what_it_could_not_charge() {
    one_of_three(|| {
        let _alone = alone();
        let parent = Cgroup::new("many");
        let dirs: Vec<_> = (0..12).map(|at| parent.child(&format!("c{at}"))).collect();
        let mut meter = Meter::load(CyclesEvent::None, 4);
        let loads: Vec<_> = dirs.iter().map(|dir| Load::start(dir, &["sleepers", "2", "2000", "2000"])).collect();
        let before = meter.dropped_ns;
        for load in loads {
            load.wait();
        }
        meter.read();
        let charged: u64 = dirs.iter().map(|dir| meter.total_ns(dir)).sum();
        let truth: u64 = dirs.iter().map(|dir| cpu_ns(dir)).sum();
        let dropped = meter.dropped_ns - before;
        let drops = meter.ebpf.drops().map;
        assert!(drops > 0 && dropped > truth / 4, "dropped {dropped} ns in {drops} updates of {truth} ns");
        // Others on this machine are dropped as well, so the sum may only be too large.
        assert!(charged + dropped > truth - truth / 50, "charged {charged} and dropped {dropped} of {truth} ns");
    });
}

#[test]
fn a_software_clock_counts_cycles_as_long_as_the_run_time() {
    let _alone = alone();
    let cgroup = Cgroup::new("clock");
    let _spin = Load::start(&cgroup.dir, &["spin", "0"]);
    let sleepers = cgroup.child("sleepers");
    let _sleepers = Load::start(&sleepers, &["sleepers", "0", "2000", "2000"]);
    let mut meter = Meter::load(CyclesEvent::CpuClock, 4096);
    assert_eq!(meter.ebpf.weight(), WeightUnit::CpuClock);
    let cycles = |meter: &Meter, dir: &Path| meter.cycles.get(&id(dir)).copied().unwrap_or_default();
    let dirs = [cgroup.dir.as_path(), &sleepers];
    let mut complete = Vec::new();
    assert_below(0.02, || {
        let start = dirs.map(|dir| (meter.total_ns(dir), cycles(&meter, dir)));
        for _ in 0..5 {
            thread::sleep(Duration::from_secs(1));
            complete.push(meter.read());
        }
        let mut worst = 0.0_f64;
        for (dir, start) in dirs.iter().zip(start) {
            let (runtime, clock) = (meter.total_ns(dir) - start.0, cycles(&meter, dir) - start.1);
            println!("{}: run time {runtime} ns, clock {clock} ns", dir.display());
            assert!(runtime > 100_000_000, "the load did not run");
            worst = worst.max(clock.abs_diff(runtime) as f64 / runtime as f64);
        }
        worst
    });
    assert!(complete[1..].iter().all(|complete| *complete), "every CPU delivers after the first second: {complete:?}");
}

#[test]
fn without_a_field_in_btf_the_raw_program_charges_the_task_that_leaves() {
    let _alone = alone();
    let root = sysfs_without_type("dfl_cgrp");

    let cgroup = Cgroup::new("raw");
    let _load = Load::start(&cgroup.dir, &["sleepers", "0", "4000", "1000"]);
    let mut meter = Meter::load_from(root.path(), CyclesEvent::CpuClock, 4096);
    assert_eq!((meter.ebpf.program(), meter.ebpf.weight()), (Program::RawTracepoint, WeightUnit::Runtime));
    assert_agrees(&mut meter, &[&cgroup.dir], 5, 0.02);
    assert!(meter.cycles.values().all(|cycles| *cycles == 0), "cycles of whoever ran before: {:?}", meter.cycles);
}

#[test]
fn a_cpu_that_a_real_time_task_never_leaves_does_not_hold_up_the_start() {
    let _alone = alone();
    let cgroup = Cgroup::new("realtime");
    let mut spin = Load::start(&cgroup.dir, &["spin", "600"]);
    let pid = i32::try_from(spin.0.id()).unwrap();
    let last = Topology::read(Path::new("/sys"), Path::new("/proc")).online().last().copied().unwrap();
    // SAFETY: plain structs on the stack, for a process of our own.
    let failed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(last).unwrap(), &mut set);
        libc::sched_setaffinity(pid, size_of::<libc::cpu_set_t>(), &raw const set)
            | libc::sched_setscheduler(pid, libc::SCHED_FIFO, &libc::sched_param { sched_priority: 1 })
    };
    if failed != 0 || last == 0 {
        return skip::skip(&skip::REAL_TIME);
    }
    // The kernel lets others in for the last twentieth of each second.
    wait_for_work(&cgroup.dir, Duration::from_millis(1_200));
    let topology = Topology::read(Path::new("/sys"), Path::new("/proc"));
    let options = EbpfOptions {
        sysfs: Path::new("/sys"),
        cycles: CyclesEvent::None,
        intel_model: None,
        process_entries: 0,
        map_entries: 4096,
    };
    let _ebpf = Ebpf::load(options, &topology, Path::new("/proc")).unwrap();
    assert_eq!(spin.0.try_wait().unwrap(), None, "the task still runs");
}

#[test]
fn a_kernel_without_btf_is_refused_with_the_missing_file() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("kernel/btf")).unwrap();
    let topology = Topology::read(Path::new("/sys"), Path::new("/proc"));
    let options = EbpfOptions {
        sysfs: root.path(),
        cycles: CyclesEvent::Auto,
        intel_model: None,
        process_entries: 0,
        map_entries: 64,
    };
    let error = Ebpf::load(options, &topology, Path::new("/proc")).err().unwrap();
    let text = format!("{error:#}");
    assert!(text.contains("kernel/btf/vmlinux") && text.contains("CONFIG_DEBUG_INFO_BTF"), "{text}");
}
