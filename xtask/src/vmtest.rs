//! `cargo xtask vmtest`: the agent on other kernels than this machine's, in virtual machines with a pure cgroup v2 tree.
//! What it counts for a busy container is compared with the kernel's own `cpu.stat`, and a pod that it holds to a budget by
//! `cpu.max` with what the pod used.

mod cycles;
mod guest;
mod held;
mod initramfs;
mod kernel;

use std::fs;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use self::guest::{Emulator, Report};
use self::kernel::Kernel;
use crate::build::{self, Arch, Linking};
use crate::{root, tools};

/// Where the busybox of another processor is from.
const BUSYBOX_SUITE: &str = "trixie";

#[derive(clap::Args)]
pub struct Options {
    /// Processor that is emulated. Only arm64 has a cycle counter there: two loads are compared with the kernel's perf too.
    #[arg(long, value_enum, default_value_t = Arch::Amd64)]
    arch: Arch,
    /// Kernels to test, by the beginning of their version; `newest` is the highest version that Debian has.
    #[arg(long, value_delimiter = ',', default_value = "5.10,6.1,6.12,newest", value_name = "VERSION,...")]
    kernels: Vec<String>,
    /// Longest time for one machine, in seconds.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    limit: u64,
    /// Look for newer kernels than those kept in target/vm.
    #[arg(long)]
    refresh: bool,
}

/// Boots every kernel, as many at once as there are CPUs.
///
/// # Errors
/// When something is not available or cannot be built, or the agent fails on a kernel; the table is printed first.
pub fn run(options: &Options) -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the virtual machines are x86_64, and this machine has to be one to build for them"
    );
    let arch = options.arch;
    let mut programs = vec![("agent", build::release(arch, Linking::Static)?), ("busybox", busybox(arch)?)];
    if arch == Arch::Arm64 {
        programs.push(("cgroup-cycles", build::release_of("cgroup-cycles", arch, Linking::Static)?));
    }
    let initramfs = folder().join(format!("initramfs-{}", arch.name()));
    fs::create_dir_all(folder()).context("target/vm")?;
    fs::write(&initramfs, initramfs::of(&programs, &root().join("tests/vm"))?)?;
    let emulator = Emulator::find(arch)?;
    let kernels = kernel::fetch(arch, &options.kernels, options.refresh);
    let rows = side_by_side(kernels, |(wanted, kernel)| {
        let row = kernel.and_then(|kernel| Row::of(&kernel, &emulator, &initramfs, options.limit));
        if let Err(error) = &row {
            println!("{wanted}: {error:#}");
        }
        (wanted, row)
    });
    println!("\n{}", table(&rows));
    let failed: Vec<_> =
        rows.iter().filter(|(_, row)| !row.as_ref().is_ok_and(Row::passed)).map(|(name, _)| name.as_str()).collect();
    ensure!(failed.is_empty(), "failed: {}; what the machines said is in {}", failed.join(", "), folder().display());
    Ok(())
}

/// Runs `work` on all of them, as many at once as there are CPUs: each machine uses one.
fn side_by_side<T: Send, R: Send>(all: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let at_once = thread::available_parallelism().map_or(1, NonZero::get);
    let (mut waiting, mut done) = (all.into_iter(), Vec::new());
    loop {
        let some: Vec<T> = waiting.by_ref().take(at_once).collect();
        if some.is_empty() {
            return done;
        }
        thread::scope(|scope| {
            let machines: Vec<_> = some.into_iter().map(|one| scope.spawn(|| work(one))).collect();
            done.extend(
                machines.into_iter().map(|machine| machine.join().unwrap_or_else(|panic| resume_unwind(panic))),
            );
        });
    }
}

fn folder() -> PathBuf {
    root().join("target/vm")
}

fn busybox(arch: Arch) -> Result<PathBuf> {
    let unpacked = match arch {
        Arch::HOST => tools::unpacked("busybox-static")?,
        _ => tools::unpacked_for(arch, "busybox-static", BUSYBOX_SUITE)?,
    };
    let places = ["bin/busybox", "usr/bin/busybox"].map(|place| unpacked.join(place));
    places.into_iter().find(|place| place.is_file()).context("the package busybox-static holds no busybox")
}

/// What one kernel showed.
struct Row {
    kernel: String,
    report: Report,
    took: Duration,
}

impl Row {
    fn of(kernel: &Kernel, emulator: &Emulator, initramfs: &Path, limit: u64) -> Result<Self> {
        println!("booting {}", kernel.version);
        let log = folder().join(format!("{}.log", kernel.version));
        let start = Instant::now();
        let text = emulator.boot(&kernel.image, initramfs, &log, limit)?;
        let report = Report::read(&text).with_context(|| format!("{} (log: {})", kernel.version, log.display()))?;
        let row = Self { kernel: kernel.version.clone(), report, took: start.elapsed() };
        for load in &row.report.cycles {
            println!("{load}");
        }
        println!("{} after {:.0} s: {}", kernel.version, row.took.as_secs_f64(), row.verdict());
        Ok(row)
    }

    fn passed(&self) -> bool {
        self.report.problems().is_empty()
    }

    fn verdict(&self) -> String {
        if self.passed() { "ok".to_owned() } else { self.report.problems().join("; ") }
    }
}

fn table(rows: &[(String, Result<Row>)]) -> String {
    let mut text = format!(
        "{:<28} {:<24} {:>8} {:>10} {:>11} {:>12} {:>9} {:>6}  RESULT",
        "KERNEL", "PROGRAM", "AGENT s", "cpu.stat s", "DIFFERENCE", "cpu.max CPUs", "USED CPUs", "TOOK"
    );
    for (wanted, row) in rows {
        text.push('\n');
        match row {
            Ok(row) => {
                let Report { program, agent_s, kernel_s, held, .. } = &row.report;
                let (difference, took) = (row.report.difference() * 100.0, row.took.as_secs_f64());
                let seconds = format!("{agent_s:>8.3} {kernel_s:>10.3} {difference:>+9.2} %");
                let cpus = format!("{:>12.3} {:>9.3}", held.quota(), held.used());
                text.push_str(&format!(
                    "{:<28} {program:<24} {seconds} {cpus} {took:>4.0} s  {}",
                    row.kernel,
                    row.verdict()
                ));
            }
            Err(error) => text.push_str(&format!(
                "{wanted:<28} {:<24} {:>8} {:>10} {:>11} {:>12} {:>9} {:>6}  {error:#}",
                "-", "-", "-", "-", "-", "-", "-"
            )),
        }
    }
    text
}
