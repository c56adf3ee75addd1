//! A ConfigMap as the kubelet mounts it: a file that is a link into `..data`, which is a link to the folder of a version.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub struct Mount(TempDir);

impl Mount {
    /// Mounted, with this content of `policies.yaml`.
    pub fn new(version: &str, text: &str) -> Self {
        let mount = Self(TempDir::new().unwrap());
        mount.swap(version, text);
        mount
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self) -> PathBuf {
        self.folder().join("policies.yaml")
    }

    /// Another version, whose folder has this name: every version's file has the same time, and the old folder goes.
    pub fn swap(&self, version: &str, text: &str) {
        let at = |name: &str| self.folder().join(name);
        let old = fs::read_link(at("..data")).ok();
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("policies.yaml"), text).unwrap();
        let file = fs::File::open(at(version).join("policies.yaml")).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        let _ = symlink("..data/policies.yaml", self.file());
        if let Some(old) = old {
            fs::remove_dir_all(at(old.to_str().unwrap())).unwrap();
        }
    }
}
