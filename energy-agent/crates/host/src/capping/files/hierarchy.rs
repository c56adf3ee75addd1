//! The cgroup hierarchy that a controller is in: v2, or on hosts that still keep it there one of v1.

use std::fs;
use std::path::{Path, PathBuf};

use crate::workload::tree;

/// Root folder of a hierarchy. A pod's cgroup has the same path in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    V2(PathBuf),
    V1(PathBuf),
}

impl Hierarchy {
    /// Finds `controller` below `cgroupfs`: in v2, else among the folders beside it (`cpu,cpuacct` has two) one that holds
    /// `file` as well. `None` where it is nowhere, or the kernel was built without what `file` stands for.
    #[must_use]
    pub fn of(controller: &str, file: &str, cgroupfs: &Path) -> Option<Self> {
        let v2 = tree::v2_root(cgroupfs).ok();
        if let Some(root) = &v2 {
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            if controllers.split_whitespace().any(|name| name == controller) {
                return Some(Self::V2(root.clone()));
            }
        }
        // `cgroupfs` may name the folder `unified` itself.
        let beside = v2.as_deref().and_then(Path::parent).filter(|_| cgroupfs.ends_with("unified")).unwrap_or(cgroupfs);
        let mut folders: Vec<PathBuf> = fs::read_dir(beside)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.split(',').any(|it| it == controller)))
            .map(|entry| entry.path())
            .filter(|folder| folder.join(file).exists())
            .collect();
        folders.sort();
        folders.into_iter().next().map(Self::V1)
    }

    #[must_use]
    pub const fn root(&self) -> &PathBuf {
        match self {
            Self::V2(root) | Self::V1(root) => root,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroups(controllers: &str, folders: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in folders {
            fs::create_dir_all(root.path().join(folder)).unwrap();
            fs::write(root.path().join(folder).join("cpu.cfs_period_us"), "100000\n").unwrap();
        }
        let v2 = if folders.is_empty() { root.path().to_owned() } else { root.path().join("unified") };
        fs::create_dir_all(&v2).unwrap();
        fs::write(v2.join("cgroup.controllers"), format!("{controllers}\n")).unwrap();
        root
    }

    fn cpu(cgroupfs: &Path) -> Option<Hierarchy> {
        Hierarchy::of("cpu", "cpu.cfs_period_us", cgroupfs)
    }

    #[test]
    fn v2_has_it_where_it_names_it() {
        let root = cgroups("cpuset cpu io", &[]);
        assert_eq!(cpu(root.path()), Some(Hierarchy::V2(root.path().to_owned())));
        let root = cgroups("cpuset io", &[]);
        assert_eq!(cpu(root.path()), None);
    }

    #[test]
    fn a_hybrid_host_has_it_in_v1_under_one_name_or_two() {
        for name in ["cpu", "cpu,cpuacct", "cpuacct,cpu"] {
            let root = cgroups("", &["cpuset", name]);
            let v1 = Some(Hierarchy::V1(root.path().join(name)));
            assert_eq!(cpu(root.path()), v1);
            assert_eq!(cpu(&root.path().join("unified")), v1);
        }
    }
}
