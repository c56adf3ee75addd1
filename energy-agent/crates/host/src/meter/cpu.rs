//! The CPUs of this node: which exist and are online, which socket and die each belongs to, and how busy they were.

mod info;
mod stat;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use energy_model::cpu::Domain;

pub(crate) use self::info::is_guest;
pub use self::info::{CpuModel, cpu_info};
pub use self::stat::{CpuLoad, CpuStat};

/// More CPUs than any Linux kernel can be built for (`NR_CPUS` ends at 8192); larger numbers in a file are nonsense.
const MAX_CPUS: u32 = 1 << 16;

/// The CPUs as sysfs shows them. Domains are only ever appended, so an index stays valid across hotplug.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub domains: Vec<Domain>,
    sysfs: PathBuf,
    procfs: PathBuf,
    online: Vec<u32>,
    /// Domain index by CPU number.
    domain_of: Vec<Option<u32>>,
    /// Whether each socket's CPUs are distinguished by die; fixed when a socket is first seen.
    sockets: Vec<(Option<u32>, bool)>,
    mirrored_dies: bool,
    /// The text that `online` was read from, so that an unchanged list costs one read and one comparison.
    online_text: String,
    complaint: Option<String>,
}

impl Topology {
    /// Reads the CPUs and their domains; where sysfs has none, the CPUs are those of `/proc/stat`, in one domain.
    #[must_use]
    pub fn read(sysfs: &Path, procfs: &Path) -> Self {
        let mut topology = Self {
            sysfs: sysfs.to_owned(),
            procfs: procfs.to_owned(),
            mirrored_dies: CpuModel::read(procfs).mirrors_dies(),
            ..Self::default()
        };
        topology.refresh();
        if topology.domains.is_empty() {
            topology.domains.push(Domain { socket: None, die: None });
        }
        topology
    }

    /// Follows hotplug: reads the online list again, and the topology of CPUs that were not online before.
    pub fn refresh(&mut self) {
        let path = self.sysfs.join("devices/system/cpu/online");
        let online = match fs::read_to_string(&path) {
            Ok(text) if !self.online_text.is_empty() && text == self.online_text => return,
            Ok(text) => {
                let parsed = parse_list(&text).with_context(|| format!("reading {}", path.display()));
                self.online_text = text;
                parsed
            }
            Err(_) => fs::read(self.procfs.join("stat"))
                .map(|text| stat::cpus(&text))
                .with_context(|| format!("reading {}", self.procfs.join("stat").display())),
        };
        match online {
            Ok(online) => {
                let new: Vec<u32> =
                    online.iter().copied().filter(|cpu| self.online.binary_search(cpu).is_err()).collect();
                self.online = online;
                self.place(&new);
                self.complaint = None;
            }
            Err(error) => {
                let complaint = format!("{error:#}");
                if self.complaint.as_ref() != Some(&complaint) {
                    tracing::warn!(error = complaint, "list of online CPUs not usable, using the previous one");
                    self.complaint = Some(complaint);
                }
            }
        }
    }

    /// Index into `domains`; `None` for a CPU that was never online.
    #[must_use]
    pub(crate) fn domain_of(&self, cpu: u32) -> Option<u32> {
        self.domain_of.get(usize::try_from(cpu).ok()?).copied().flatten()
    }

    /// Numbers of the CPUs that are online, ascending.
    #[must_use]
    pub fn online(&self) -> &[u32] {
        &self.online
    }

    /// Whether all dies of a socket show the same energy counter (AMD and Hygon).
    #[must_use]
    pub fn mirrored_dies(&self) -> bool {
        self.mirrored_dies
    }

    fn place(&mut self, cpus: &[u32]) {
        let ids: Vec<(u32, Domain)> = cpus.iter().map(|&cpu| (cpu, ids(&self.sysfs, cpu))).collect();
        for &(cpu, Domain { socket, die }) in &ids {
            let by_die = match self.sockets.iter().find(|(known, _)| *known == socket) {
                Some(&(_, by_die)) => by_die,
                None => {
                    let several = ids.iter().any(|(_, other)| other.socket == socket && other.die != die);
                    let by_die = several && !self.mirrored_dies;
                    self.sockets.push((socket, by_die));
                    by_die
                }
            };
            let domain = Domain { socket, die: die.filter(|_| by_die) };
            let index = self.domains.iter().position(|known| *known == domain).unwrap_or_else(|| {
                self.domains.push(domain);
                self.domains.len() - 1
            });
            let Ok(slot) = usize::try_from(cpu) else { continue };
            if self.domain_of.len() <= slot {
                self.domain_of.resize(slot + 1, None);
            }
            self.domain_of[slot] = u32::try_from(index).ok();
        }
    }
}

/// How many elements a map has that the kernel indexes by CPU: one more than the largest number that a CPU can ever have.
///
/// # Errors
/// When `devices/system/cpu/possible` is unreadable or no list of CPUs; names file and value.
pub(crate) fn slots(sysfs: &Path) -> anyhow::Result<u32> {
    let path = sysfs.join("devices/system/cpu/possible");
    let largest = read_list(&path)?.last().copied();
    Ok(largest.with_context(|| format!("{} lists no CPU", path.display()))? + 1)
}

/// Socket and die of a CPU as its topology files say; `None` for what is missing or -1 (unknown to the firmware).
pub(super) fn ids(sysfs: &Path, cpu: u32) -> Domain {
    let folder = sysfs.join(format!("devices/system/cpu/cpu{cpu}/topology"));
    let id = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
    Domain { socket: id("physical_package_id"), die: id("die_id") }
}

/// Reads a file in cpulist format.
///
/// # Errors
/// When the file is unreadable or holds something else; names file and value.
pub(super) fn read_list(path: &Path) -> anyhow::Result<Vec<u32>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse_list(&text).with_context(|| format!("reading {}", path.display()))
}

/// Parses the kernel's cpulist format, such as `0-11,16-27`; sorted, without repetition. An empty text is an empty list.
///
/// # Errors
/// When a part is no number and no ascending range of possible CPU numbers; names the part.
pub fn parse_list(text: &str) -> anyhow::Result<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            (Ok(first), Ok(last)) if first <= last && last < MAX_CPUS => cpus.extend(first..=last),
            _ => bail!("{part:?} is not a CPU number or range"),
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

#[cfg(test)]
mod tests;
