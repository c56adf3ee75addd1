//! How long the CPUs of each domain were busy, from the kernel's own accounting in `/proc/stat`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use energy_model::cpu::DomainLoad;
use energy_model::units::{nanos, ratio};

use super::{MAX_CPUS, Topology};

/// One unit of `/proc/stat`. USER_HZ is 100 on every architecture this program is built for, whatever the kernel's HZ.
const TICK_NS: u64 = 10_000_000;

/// How busy the CPUs were during one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuLoad {
    /// Parallel to [`Topology::domains`]; `dropped_ns` and `cycles` are not known here and stay 0 and false.
    pub domains: Vec<DomainLoad>,
    /// Busy share of the online CPUs' time, 0 to 1.
    pub usage_ratio: f64,
    /// Time each CPU was idle, I/O wait included, by CPU number; 0 for CPUs that are offline or have just come.
    pub idle_ns: Vec<u64>,
    /// The part of the busy time that served interrupts, hard and soft; parallel to `domains`.
    pub interrupt_ns: Vec<u64>,
}

/// What is read of one CPU, since boot; ticks. Iowait is idle time, steal belongs to other guests: neither is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    iowait: u64,
    /// Hard and soft interrupts.
    interrupts: u64,
    steal: u64,
}

/// Reads `/proc/stat`; keeps the file open and the previous reading.
#[derive(Debug)]
pub struct CpuStat {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Previous reading by CPU number; `None` for CPUs that were offline.
    last: Vec<Option<Ticks>>,
    now: Vec<Option<Ticks>>,
    /// Idle time beyond the interval by domain: a tick counted a little early. Taken off the next interval, so that
    /// rounding to ticks does not add busy time to idle CPUs; nanoseconds.
    ahead: Vec<u64>,
    started: bool,
}

impl CpuStat {
    /// # Errors
    /// When `/proc/stat` cannot be opened.
    pub fn open(procfs: &Path) -> anyhow::Result<Self> {
        let path = procfs.join("stat");
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        Ok(Self {
            file,
            path,
            buffer: Vec::new(),
            last: Vec::new(),
            now: Vec::new(),
            ahead: Vec::new(),
            started: false,
        })
    }

    /// Load since the previous call, `elapsed` ago; `None` the first time.
    ///
    /// A CPU that comes online is counted from its second reading on, as its first has nothing to compare with.
    ///
    /// # Errors
    /// When the file cannot be read; the next call then compares with the last good reading.
    pub fn read(&mut self, elapsed: Duration, topology: &Topology) -> anyhow::Result<Option<CpuLoad>> {
        self.fill().with_context(|| format!("reading {}", self.path.display()))?;
        self.now.clear();
        for (cpu, fields) in lines(&self.buffer) {
            if self.now.len() <= cpu {
                self.now.resize(cpu + 1, None);
            }
            self.now[cpu] = Some(fields);
        }
        let load = self.difference(nanos(elapsed), topology);
        std::mem::swap(&mut self.last, &mut self.now);
        Ok(if std::mem::replace(&mut self.started, true) { Some(load) } else { None })
    }

    fn difference(&mut self, elapsed_ns: u64, topology: &Topology) -> CpuLoad {
        let mut totals = vec![(0u64, 0u64); topology.domains.len()];
        let mut cpus = vec![0u32; topology.domains.len()];
        let mut idle_ns = vec![0u64; self.now.len()];
        let mut interrupt_ns = vec![0u64; topology.domains.len()];
        for (cpu, now) in self.now.iter().enumerate() {
            let domain = u32::try_from(cpu).ok().and_then(|cpu| topology.domain_of(cpu));
            let (Some(now), Some(domain)) = (now, domain.and_then(|domain| usize::try_from(domain).ok())) else {
                continue;
            };
            let Some(total) = totals.get_mut(domain) else { continue };
            cpus[domain] += 1;
            if let Some(last) = self.last.get(cpu).copied().flatten() {
                // Some kernels let idle and iowait step back; such a field then counts as having stood still.
                let idle = now.idle.saturating_sub(last.idle).saturating_add(now.iowait.saturating_sub(last.iowait));
                idle_ns[cpu] = idle.saturating_mul(TICK_NS);
                let interrupts = now.interrupts.saturating_sub(last.interrupts).saturating_mul(TICK_NS);
                interrupt_ns[domain] = interrupt_ns[domain].saturating_add(interrupts);
                let ticks = idle.saturating_add(now.steal.saturating_sub(last.steal));
                total.0 = total.0.saturating_add(elapsed_ns);
                total.1 = total.1.saturating_add(ticks.saturating_mul(TICK_NS));
            }
        }
        self.ahead.resize(totals.len(), 0);
        let mut domains = Vec::with_capacity(totals.len());
        for ((&(capacity, not_busy), &cpus), ahead) in totals.iter().zip(&cpus).zip(&mut self.ahead) {
            let not_busy = not_busy.saturating_add(*ahead);
            *ahead = not_busy.saturating_sub(capacity).min(u64::from(cpus) * TICK_NS);
            domains.push(DomainLoad { cpus, busy_ns: capacity.saturating_sub(not_busy), dropped_ns: 0, cycles: false });
        }
        let capacity = totals.iter().map(|total| total.0).fold(0, u64::saturating_add);
        let busy = domains.iter().map(|load| load.busy_ns).fold(0, u64::saturating_add);
        CpuLoad { domains, usage_ratio: ratio(busy, capacity), idle_ns, interrupt_ns }
    }

    /// Reads up to the interrupt line, which follows the CPUs and is the longest of all.
    fn fill(&mut self) -> std::io::Result<()> {
        let mut length = 0;
        loop {
            if self.buffer.len() < length + 4096 {
                self.buffer.resize((length + 4096).next_multiple_of(16384), 0);
            }
            let offset = u64::try_from(length).unwrap_or(u64::MAX);
            let count = self.file.read_at(&mut self.buffer[length..], offset)?;
            length += count;
            if count == 0 || self.buffer[..length].windows(6).rev().take(count + 6).any(|text| text == b"\nintr ") {
                self.buffer.truncate(length);
                return Ok(());
            }
        }
    }
}

/// Numbers of the CPUs that `/proc/stat` lists: those that are online; ascending.
pub(super) fn cpus(text: &[u8]) -> Vec<u32> {
    let mut cpus: Vec<u32> = lines(text).filter_map(|(cpu, _)| u32::try_from(cpu).ok()).collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// The `cpuN` lines; lines that are not of that form are skipped, missing fields (old kernels) are 0.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, Ticks)> {
    text.split(|&byte| byte == b'\n').filter_map(|line| {
        let line = std::str::from_utf8(line.strip_prefix(b"cpu")?).ok()?;
        let (cpu, fields) = line.split_once(' ')?;
        let cpu = usize::try_from(cpu.parse::<u32>().ok().filter(|&cpu| cpu < MAX_CPUS)?).ok()?;
        // user nice system idle iowait irq softirq steal guest guest_nice; guest time is part of user time.
        let mut fields = fields.split_ascii_whitespace().map(|field| field.parse::<u64>().unwrap_or(0));
        let idle = fields.nth(3)?;
        let mut next = || fields.next().unwrap_or(0);
        let (iowait, hard, soft, steal) = (next(), next(), next(), next());
        Some((cpu, Ticks { idle, iowait, interrupts: hard.saturating_add(soft), steal }))
    })
}
