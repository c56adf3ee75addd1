//! CPU packages as plain files whose counters a thread moves, and the clocks of their cores.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::crash::CPUFREQ;
use crate::common::tree::Tree;

const DEVICES: &str = "sys/devices/virtual/powercap/intel-rapl";

/// A sysfs with packages and, if the tree had them, clocks.
pub struct Machine {
    pub tree: Tree,
    packages: u32,
    /// Packages whose counters are away or stand still.
    lost: Arc<Mutex<Vec<u32>>>,
}

/// Moves the counters until it is dropped.
pub struct Plant {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    /// Adds packages with these limits (long and greatest, in microwatts) to a tree; the CPUs are divided among them.
    pub fn of(mut tree: Tree, packages: u32, limit_uw: u64, max_uw: u64) -> Self {
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        tree.write("sys/devices/system/cpu/online", &online);
        tree.write("sys/devices/system/cpu/possible", &online);
        for cpu in energy_host::meter::cpu::parse_list(&online).unwrap() {
            let package = format!("{}\n", cpu % packages);
            tree.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), package);
        }
        for package in 0..packages {
            let dir = format!("{DEVICES}/intel-rapl:{package}");
            for line in [
                format!("name = package-{package}"),
                "enabled = 1".to_owned(),
                "max_energy_range_uj = 262143328850".to_owned(),
                "energy_uj = 1000000".to_owned(),
                "constraint_0_name = long_term".to_owned(),
                format!("constraint_0_power_limit_uw = {limit_uw}"),
                format!("constraint_0_max_power_uw = {max_uw}"),
            ] {
                tree.apply(&format!("f {dir}/{line}"));
            }
            let target = dir.strip_prefix("sys/").unwrap();
            tree.apply(&format!("l sys/class/powercap/intel-rapl:{package} -> ../../{target}"));
        }
        Self { tree, packages, lost: Arc::default() }
    }

    /// For a tree that has its packages already.
    pub fn made(tree: Tree) -> Self {
        tree.write("sys/devices/system/cpu/online", fs::read_to_string("/sys/devices/system/cpu/online").unwrap());
        tree.link(
            "sys/class/powercap/intel-rapl:0",
            Path::new("../../devices/virtual/powercap/intel-rapl/intel-rapl:0"),
        );
        Self { tree, packages: 1, lost: Arc::default() }
    }

    pub fn flags(&self) -> [String; 2] {
        [format!("--path.sysfs={}", self.tree.sysfs().display()), "--meter.trust-guest".to_owned()]
    }

    pub fn limit_file(&self, package: u32) -> PathBuf {
        self.folder(package).join("constraint_0_power_limit_uw")
    }

    pub fn clock_file(&self, policy: u32) -> PathBuf {
        self.tree.root().join(format!("{CPUFREQ}/policy{policy}/scaling_max_freq"))
    }

    fn folder(&self, package: u32) -> PathBuf {
        self.tree.root().join(format!("{DEVICES}/intel-rapl:{package}"))
    }

    /// Lets each package draw what `watts` says at every moment.
    pub fn draw(&self, watts: impl Fn() -> f64 + Send + 'static) -> Plant {
        let counter = |package| (package, self.folder(package).join("energy_uj"));
        let counters: Vec<(u32, PathBuf)> = (0..self.packages).map(counter).collect();
        let lost = Arc::clone(&self.lost);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut raw_uj, mut before) = (1_000_000.0, Instant::now());
            while !stopped.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(10));
                let now = Instant::now();
                raw_uj += watts() * now.duration_since(before).as_secs_f64() * 1e6;
                before = now;
                let lost = lost.lock().unwrap();
                for (_, file) in counters.iter().filter(|(package, _)| !lost.contains(package)) {
                    let next = file.with_file_name("next");
                    fs::write(&next, format!("{raw_uj:.0}\n")).unwrap();
                    fs::rename(next, file).unwrap();
                }
            }
        });
        Plant { stop, thread: Some(thread) }
    }

    /// Takes the counter of a package away; [`Self::found`] brings it back, at once where a plant moves it. Whoever has it
    /// open has nothing either: a file that was only renamed would go on answering, with a counter that stands still.
    pub fn lose(&self, package: u32) {
        let file = self.folder(package).join("energy_uj");
        self.lost.lock().unwrap().push(package);
        fs::remove_file(file).unwrap();
    }

    /// Lets the counter of a package stand still; [`Self::found`] lets it go on.
    pub fn halt(&self, package: u32) {
        self.lost.lock().unwrap().push(package);
    }

    pub fn found(&self, package: u32) {
        self.lost.lock().unwrap().retain(|lost| *lost != package);
    }
}

impl Drop for Plant {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
