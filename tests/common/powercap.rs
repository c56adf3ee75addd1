//! A fake sysfs with two sockets, each with half of this machine's CPUs and the RAPL zones package and dram, whose
//! counters the test moves while the agent reads them.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::tree::Tree;

/// The largest value of every counter; what Intel servers show.
pub const RANGE: u64 = 262_143_328_850;

const DEVICES: &str = "sys/devices/virtual/powercap/intel-rapl";

pub struct Powercap {
    pub tree: Tree,
    /// package-0, its dram, package-1, its dram.
    pub zones: [Zone; 4],
}

pub struct Zone {
    file: PathBuf,
    raw: Cell<u64>,
    /// All that was ever added.
    pub used: Cell<u64>,
    pub socket: &'static str,
    pub name: &'static str,
    /// The label `path`.
    pub path: String,
}

impl Powercap {
    pub fn two_sockets() -> Self {
        let mut tree = Tree::new();
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        tree.write("sys/devices/system/cpu/online", &online);
        tree.write("sys/devices/system/cpu/possible", &online);
        for cpu in energy_host::meter::cpu::parse_list(&online).unwrap() {
            tree.write(
                &format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"),
                format!("{}\n", cpu % 2),
            );
        }
        let zones = [("0", "package"), ("0", "dram"), ("1", "package"), ("1", "dram")].map(|(socket, name)| {
            let package = format!("intel-rapl:{socket}");
            let (folder, full_name, dir) = match name {
                "package" => (package.clone(), format!("package-{socket}"), format!("{DEVICES}/{package}")),
                _ => (format!("{package}:0"), name.to_owned(), format!("{DEVICES}/{package}/{package}:0")),
            };
            tree.apply(&format!("f {dir}/name = {full_name}"));
            tree.apply(&format!("f {dir}/max_energy_range_uj = {RANGE}"));
            tree.apply(&format!("f {dir}/energy_uj = 1000000"));
            let target = dir.strip_prefix("sys/").unwrap();
            tree.apply(&format!("l sys/class/powercap/{folder} -> ../../{target}"));
            Zone {
                file: tree.root().join(&dir).join("energy_uj"),
                raw: Cell::new(1_000_000),
                used: Cell::new(0),
                socket,
                name,
                path: format!("/sys/class/powercap/{folder}"),
            }
        });
        Self { tree, zones }
    }

    pub fn sysfs_flag(&self) -> String {
        format!("--path.sysfs={}", self.tree.sysfs().display())
    }
}

impl Zone {
    /// Lets the zone use some energy.
    pub fn add(&self, energy_uj: u64) {
        self.count(energy_uj);
        self.set(self.raw.get());
    }

    /// Lets the zone use some energy, which its file does not show yet; beyond the range it starts again at zero.
    pub fn count(&self, energy_uj: u64) {
        self.used.set(self.used.get() + energy_uj);
        let raw = self.raw.get() + energy_uj;
        self.raw.set(if raw > RANGE { raw - RANGE } else { raw });
    }

    /// Puts the counter to a value, from wherever it was.
    pub fn set(&self, raw: u64) {
        self.raw.set(raw);
        self.show(&format!("{raw}\n"));
    }

    /// Makes the file show any text. In one step, as the kernel does: the agent never sees half of it.
    pub fn show(&self, text: &str) {
        let next = self.file.with_file_name("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, &self.file).unwrap();
    }

    /// Makes reading it an I/O error until the next [`Self::add`].
    pub fn fail(&self) {
        let next = self.file.with_file_name("next");
        // The first page of a process is never mapped, so that reading there gives EIO.
        std::os::unix::fs::symlink("/proc/self/mem", &next).unwrap();
        fs::rename(next, &self.file).unwrap();
    }

    /// Takes the file away until the next [`Self::add`].
    pub fn remove(&self) {
        fs::remove_file(&self.file).unwrap();
    }

    /// What the agent shows for it.
    pub fn labels(&self) -> [(&str, &str); 4] {
        [("zone", self.name), ("socket", self.socket), ("source", "rapl"), ("path", &self.path)]
    }
}

/// Lets the energy counters of a tree run: 60 W and 5 W a socket.
pub struct RunningCounters {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RunningCounters {
    pub fn of(powercap: Powercap) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            // With its folder, which would end here otherwise.
            let powercap = powercap;
            while !end.load(Ordering::Relaxed) {
                for zone in &powercap.zones {
                    zone.add(if zone.name == "package" { 3_000_000 } else { 250_000 });
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for RunningCounters {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
