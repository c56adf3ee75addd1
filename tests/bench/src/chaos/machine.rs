//! Hardware as a tree of files: two clocks of CPUs and one package with a counter and a limit, with values that somebody
//! has chosen before the agent came.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fastrand::Rng;

/// The largest value of the counter; what Intel servers show.
pub const RANGE_UJ: u64 = 262_143_328_850;
/// Where the counter is at first.
pub const FIRST_UJ: u64 = 1_000_000;
const PACKAGE: &str = "devices/virtual/powercap/intel-rapl/intel-rapl:0";

pub struct Machine {
    pub sysfs: PathBuf,
}

/// Moves the counter until it is dropped.
pub struct Draw {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    /// # Errors
    /// When the tree cannot be made.
    pub fn new(sysfs: PathBuf, rng: &mut Rng) -> Result<Self> {
        let machine = Self { sysfs };
        let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
        machine.write("devices/system/cpu/online", &online)?;
        machine.write("devices/system/cpu/possible", &online)?;
        for cpu in 0..thread::available_parallelism()?.get() {
            machine.write(&format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id"), "0\n")?;
        }
        for policy in [0, 4] {
            let folder = format!("devices/system/cpu/cpufreq/policy{policy}");
            let chosen = rng.u32(15..=29) * 100_000;
            for (file, khz) in [
                ("cpuinfo_min_freq", 300_000),
                ("cpuinfo_max_freq", 2_956_800),
                ("scaling_min_freq", 300_000),
                ("scaling_max_freq", chosen),
            ] {
                machine.write(&format!("{folder}/{file}"), &format!("{khz}\n"))?;
            }
        }
        let limit_uw = rng.u64(120..=200) * 1_000_000;
        for (file, value) in [
            ("name", "package-0".to_owned()),
            ("enabled", "1".to_owned()),
            ("energy_uj", FIRST_UJ.to_string()),
            ("max_energy_range_uj", RANGE_UJ.to_string()),
            ("constraint_0_name", "long_term".to_owned()),
            ("constraint_0_power_limit_uw", limit_uw.to_string()),
            ("constraint_0_max_power_uw", limit_uw.to_string()),
        ] {
            machine.write(&format!("{PACKAGE}/{file}"), &format!("{value}\n"))?;
        }
        fs::create_dir_all(machine.sysfs.join("class/powercap"))?;
        symlink(format!("../../{PACKAGE}"), machine.sysfs.join("class/powercap/intel-rapl:0"))?;
        // The types of the running kernel, for eBPF.
        symlink("/sys/kernel", machine.sysfs.join("kernel"))?;
        Ok(machine)
    }

    /// The files that the agent may write.
    pub fn knobs(&self) -> [PathBuf; 3] {
        let clock = |policy| self.sysfs.join(format!("devices/system/cpu/cpufreq/policy{policy}/scaling_max_freq"));
        [clock(0), clock(4), self.package("constraint_0_power_limit_uw")]
    }

    /// A file of the package.
    pub fn package(&self, file: &str) -> PathBuf {
        self.sysfs.join(PACKAGE).join(file)
    }

    /// Shows a value of the counter.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn count(&self, raw_uj: u64) -> Result<()> {
        replace(&self.package("energy_uj"), format!("{raw_uj}\n").as_bytes())
    }

    /// Lets the package draw so much.
    pub fn draw(&self, watts: u64) -> Draw {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, file) = (Arc::clone(&stop), self.package("energy_uj"));
        let thread = thread::spawn(move || {
            let began = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
                let elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                let raw_uj = FIRST_UJ + elapsed_us.saturating_mul(watts);
                // The folder goes when the round is over.
                let _ = replace(&file, format!("{raw_uj}\n").as_bytes());
            }
        });
        Draw { stop, thread: Some(thread) }
    }

    fn write(&self, path: &str, text: &str) -> Result<()> {
        let file = self.sysfs.join(path);
        fs::create_dir_all(file.parent().unwrap_or(&self.sysfs))?;
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
    }
}

impl Drop for Draw {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Replaces a file in one step: nobody sees half of it.
///
/// # Errors
/// When it cannot be written.
pub fn replace(file: &Path, content: &[u8]) -> Result<()> {
    let next = file.with_extension("next");
    fs::write(&next, content).with_context(|| format!("writing {}", next.display()))?;
    fs::rename(&next, file).with_context(|| format!("replacing {}", file.display()))
}
