//! The usage meter without BPF: CPU time of every cgroup from the kernel's own `cpu.stat` files. These count a cgroup
//! with all below it; here each gets its own part, so that nothing is counted twice.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::bail;
use energy_model::sample::{CgroupEvent, CgroupId, Work};
use tracing::{info, warn};

use crate::workload::tree::{Folder, walk};

/// Most time the root may be behind its children before the difference is forgotten; microseconds. The root's figure is
/// made of timer ticks, theirs of exact run times.
const MAX_ROOT_DEBT_US: i64 = 100_000;

/// What is remembered of one cgroup between two readings.
#[derive(Clone, Copy, Debug, Default)]
struct CgroupReading {
    /// CPU time of the cgroup and all below it since its creation; microseconds. `None` until it could be read.
    usage_us: Option<u64>,
    /// Time that is still to be charged, because the parent's file did not show it yet; microseconds.
    pending_us: u64,
}

/// Reads `cpu.stat` in all cgroups below a cgroup v2 root.
///
/// Source: <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files>; no controller has to be enabled.
/// The root's file exists since Linux 5.8; without it, work in the root itself (kernel threads) is not seen.
#[derive(Debug)]
pub struct CgroupFiles {
    root: PathBuf,
    readings: HashMap<CgroupId, CgroupReading>,
    /// Time of the root that its children do not explain; below zero while the root's file is behind theirs.
    root_rest_us: i64,
    walk_failed: bool,
}

impl CgroupFiles {
    /// Takes the first reading, which later ones are compared with. `root` is a cgroup v2 root.
    ///
    /// # Errors
    /// When the root cannot be walked, or no cgroup shows its CPU time.
    pub fn open(root: &Path) -> anyhow::Result<Self> {
        let readings: HashMap<CgroupId, CgroupReading> = walk(root)?
            .iter()
            .map(|folder| (folder.id, CgroupReading { usage_us: usage_us(root, folder), pending_us: 0 }))
            .collect();
        if readings.values().all(|reading| reading.usage_us.is_none()) {
            bail!("no readable cpu.stat with usage_usec at or below {}", root.display());
        }
        Ok(Self { root: root.to_owned(), readings, root_rest_us: 0, walk_failed: false })
    }

    /// What every cgroup itself used since the last reading, and which cgroups came and went.
    ///
    /// A cgroup that came and went in between is seen in its parent's time. Where a parent shows less than its children,
    /// the rest is charged later: the total of a reading is what the cgroups below the root used, plus the root's rest.
    /// If the cgroups cannot be listed, nothing is returned and the next reading covers the time.
    pub fn read(&mut self) -> (Vec<Work>, Vec<CgroupEvent>) {
        let folders = match walk(&self.root) {
            Ok(folders) => folders,
            Err(error) => {
                if !self.walk_failed {
                    warn!(error = format!("{error:#}"), "cgroups cannot be listed");
                }
                self.walk_failed = true;
                return (Vec::new(), Vec::new());
            }
        };
        if self.walk_failed {
            info!("cgroups can be listed again");
            self.walk_failed = false;
        }
        // Children before parents, so that a parent's figure covers theirs.
        let mut usage: Vec<Option<u64>> = folders.iter().rev().map(|folder| usage_us(&self.root, folder)).collect();
        usage.reverse();

        let mut events = Vec::new();
        let mut next = HashMap::with_capacity(folders.len());
        // Time each cgroup was granted by its parent, less what it granted to its children.
        let mut own_us = vec![0_u64; folders.len()];
        let mut top_level_us = 0;
        let mut root_us = None;
        for (at, (folder, usage_us)) in folders.iter().zip(usage).enumerate() {
            let last = self.readings.remove(&folder.id).unwrap_or_else(|| {
                events.push(CgroupEvent::Created { id: folder.id, path: folder.cgroup_path() });
                CgroupReading { usage_us: Some(0), pending_us: 0 }
            });
            let used_us = usage_us.zip(last.usage_us).map(|(now, last)| now.saturating_sub(last));
            let wanted_us = used_us.unwrap_or(0) + last.pending_us;
            let mut pending_us = 0;
            match folder.parent {
                None => root_us = used_us,
                Some(0) => {
                    own_us[at] = wanted_us;
                    top_level_us += wanted_us;
                }
                Some(parent) => {
                    own_us[at] = wanted_us.min(own_us[parent]);
                    own_us[parent] -= own_us[at];
                    pending_us = wanted_us - own_us[at];
                }
            }
            next.insert(folder.id, CgroupReading { usage_us: usage_us.or(last.usage_us), pending_us });
        }
        own_us[0] = root_us.map_or(0, |root_us| self.root_rest(root_us, top_level_us));
        events.extend(self.readings.keys().map(|&id| CgroupEvent::Removed { id }));
        self.readings = next;
        (work(&folders, &own_us), events)
    }

    /// The part of `root_us` that cannot be the children's. A lead of theirs is set off against later readings.
    fn root_rest(&mut self, root_us: u64, top_level_us: u64) -> u64 {
        let rest = i64::try_from(root_us).unwrap_or(i64::MAX).saturating_sub_unsigned(top_level_us);
        let rest = self.root_rest_us.saturating_add(rest);
        self.root_rest_us = rest.clamp(-MAX_ROOT_DEBT_US, 0);
        u64::try_from(rest).unwrap_or(0)
    }
}

fn work(folders: &[Folder], own_us: &[u64]) -> Vec<Work> {
    folders
        .iter()
        .zip(own_us)
        .filter(|&(_, &own_us)| own_us > 0)
        .map(|(folder, own_us)| Work {
            cgroup: folder.id,
            domain: None,
            runtime_ns: own_us.saturating_mul(1000),
            cycles: 0,
            switches: 0,
        })
        .collect()
}

/// `None` if the cgroup is gone or its file has no such line.
fn usage_us(root: &Path, folder: &Folder) -> Option<u64> {
    // The lines wanted are the first three.
    let mut text = [0; 256];
    let len = File::open(root.join(&folder.path).join("cpu.stat")).ok()?.read(&mut text).ok()?;
    let text = str::from_utf8(&text[..len]).ok()?;
    if folder.parent.is_none() {
        // Before Linux 6.15 the root's usage_usec holds stolen time.
        return field(text, "user_usec")?.checked_add(field(text, "system_usec")?);
    }
    field(text, "usage_usec")
}

fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A hierarchy of plain files.
    struct Files(tempfile::TempDir);

    impl Files {
        /// Writes the usage in microseconds; for the root all of it as user time.
        fn set(&self, path: &str, usage_us: u64) {
            let folder = self.0.path().join(path);
            fs::create_dir_all(&folder).unwrap();
            let stat = format!("usage_usec {usage_us}\nuser_usec {usage_us}\nsystem_usec 0\n");
            fs::write(folder.join("cpu.stat"), stat).unwrap();
        }

        fn remove(&self, path: &str) {
            fs::remove_dir_all(self.0.path().join(path)).unwrap();
        }
    }

    fn files(usage: &[(&str, u64)]) -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        usage.iter().for_each(|(path, usage_us)| files.set(path, *usage_us));
        files
    }

    /// Microseconds by path, ordered by path.
    fn read(files: &Files, meter: &mut CgroupFiles) -> Vec<(String, u64)> {
        let folders = walk(files.0.path()).unwrap();
        let path = |id| folders.iter().find(|folder| folder.id == id).unwrap().cgroup_path();
        let (work, _) = meter.read();
        let mut used: Vec<_> = work.iter().map(|work| (path(work.cgroup), work.runtime_ns / 1000)).collect();
        used.sort();
        used
    }

    fn used(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected.iter().map(|&(path, usage_us)| (path.to_owned(), usage_us)).collect()
    }

    #[test]
    fn each_cgroup_gets_its_own_part() {
        let files = files(&[("", 1000), ("a", 600), ("a/b", 500), ("a/c", 50)]);
        let mut meter = CgroupFiles::open(files.0.path()).unwrap();
        assert_eq!(read(&files, &mut meter), []);
        for (path, usage_us) in [("", 1200), ("a", 700), ("a/b", 560), ("a/c", 55)] {
            files.set(path, usage_us);
        }
        assert_eq!(read(&files, &mut meter), used(&[("/", 100), ("/a", 35), ("/a/b", 60), ("/a/c", 5)]));
    }

    #[test]
    fn a_new_cgroup_counts_from_its_creation_and_a_removed_one_leaves_its_rest_to_the_parent() {
        let files = files(&[("", 0), ("a", 100), ("a/old", 100)]);
        let mut meter = CgroupFiles::open(files.0.path()).unwrap();
        // The new folder first: unlike the kernel, a file system gives a freed number to the next folder.
        files.set("a/new", 30);
        files.remove("a/old");
        files.set("a", 150);
        assert_eq!(read(&files, &mut meter), used(&[("/a", 20), ("/a/new", 30)]));
    }

    #[test]
    fn a_child_ahead_of_its_parent_is_charged_when_the_parent_shows_it() {
        let files = files(&[("", 0), ("a", 0), ("a/b", 0)]);
        let mut meter = CgroupFiles::open(files.0.path()).unwrap();
        files.set("a", 100);
        files.set("a/b", 130);
        assert_eq!(read(&files, &mut meter), used(&[("/a/b", 100)]));
        files.set("a", 140);
        assert_eq!(read(&files, &mut meter), used(&[("/a", 10), ("/a/b", 30)]));
    }

    #[test]
    fn a_root_behind_its_children_is_charged_only_what_is_its_own() {
        let files = files(&[("", 0), ("a", 0)]);
        let mut meter = CgroupFiles::open(files.0.path()).unwrap();
        files.set("", 10_000);
        files.set("a", 13_000);
        assert_eq!(read(&files, &mut meter), used(&[("/a", 13_000)]));
        files.set("", 15_000);
        assert_eq!(read(&files, &mut meter), used(&[("/", 2_000)]));
    }

    #[test]
    fn a_counter_that_falls_charges_nothing() {
        let files = files(&[("", 0), ("a", 500)]);
        let mut meter = CgroupFiles::open(files.0.path()).unwrap();
        files.set("a", 20);
        assert_eq!(read(&files, &mut meter), []);
        files.set("a", 50);
        assert_eq!(read(&files, &mut meter), used(&[("/a", 30)]));
    }

    #[test]
    fn nonsense_in_a_file_costs_that_cgroup_only() {
        // Linux 5.4 has no file in the root (FC-062).
        let files = files(&[("a", 0), ("b", 0)]);
        let mut meter = CgroupFiles::open(files.0.path()).unwrap();
        files.set("a", 70);
        fs::write(files.0.path().join("b/cpu.stat"), b"usage_usec -1\xff\nusage_usec 99999999999999999999999").unwrap();
        assert_eq!(read(&files, &mut meter), used(&[("/a", 70)]));
    }

    #[test]
    fn a_hierarchy_without_cpu_time_is_refused() {
        let empty = tempfile::tempdir().unwrap();
        let error = CgroupFiles::open(empty.path()).unwrap_err().to_string();
        assert!(error.starts_with("no readable cpu.stat with usage_usec at or below /"), "{error}");
    }
}
