//! A pod whose CPU quota can be set: its cgroups, by the same paths, in the hierarchy that has the `cpu` controller.

use std::fs;
use std::path::{Path, PathBuf};

use super::cgroup::{Load, Pod, v2_root};
use super::skip;

/// The greatest weight there is.
const FIRST: u64 = 10_000;

/// The cgroups of a pod in the hierarchy of the `cpu` controller; removed on drop where that is not the pod's own.
pub struct QuotaPod {
    pub pod: Pod,
    /// Folder of the pod's own cgroup.
    pub dir: PathBuf,
    pub v1: bool,
    /// Folder at the top of what was made in v1.
    made: Option<PathBuf>,
}

impl QuotaPod {
    /// As [`Self::of`], with a new pod.
    pub fn new() -> Option<Self> {
        Self::of(Pod::new())
    }

    /// Of a pod that has only its cgroups in v2. `None`, said loudly, where no hierarchy of this machine has the controller.
    pub fn of(pod: Pod) -> Option<Self> {
        let v2 = v2_root();
        let path = Path::new(&pod.cgroup.path[1..]);
        if fs::read_to_string(v2.join("cgroup.controllers")).unwrap().split_whitespace().any(|name| name == "cpu") {
            for folder in path.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
                fs::write(v2.join(folder).join("cgroup.subtree_control"), "+cpu").unwrap();
            }
            return Some(Self { dir: pod.cgroup.dir.clone(), pod, v1: false, made: None });
        }
        let Some(root) = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"]
            .into_iter()
            .map(Path::new)
            .find(|root| root.join("cpu.cfs_quota_us").exists())
        else {
            skip::skip(&skip::CPU_CONTROLLER);
            return None;
        };
        let dir = root.join(path);
        fs::create_dir_all(dir.join(pod.container.file_name().unwrap())).unwrap();
        let made = Some(root.join(path.iter().next().unwrap()));
        Some(Self { pod, dir, v1: true, made })
    }

    /// Folder of the container's cgroup.
    pub fn container(&self) -> PathBuf {
        self.dir.join(self.pod.container.file_name().unwrap())
    }

    /// Starts `load` in the container; it goes before everything else on the machine, up to its quota.
    pub fn load(&self, arguments: &[&str]) -> Load {
        self.load_with(arguments, FIRST)
    }

    /// Starts `load` in the container; the pod has this weight, of which others have 100.
    pub fn load_with(&self, arguments: &[&str], weight: u64) -> Load {
        let load = self.pod.load(arguments);
        if let Some(top) = &self.made {
            fs::write(self.container().join("cgroup.procs"), load.0.id().to_string()).unwrap();
            fs::write(top.join("cpu.shares"), (weight * 1024 / 100).min(262_144).to_string()).unwrap();
        } else {
            let top = v2_root().join(self.pod.cgroup.path[1..].split('/').next().unwrap());
            fs::write(top.join("cpu.weight"), weight.to_string()).unwrap();
        }
        load
    }

    /// Sets quota (-1: none) and period as the kubelet does.
    pub fn set(&self, quota_us: i64, period_us: u32) {
        if self.v1 {
            fs::write(self.dir.join("cpu.cfs_period_us"), period_us.to_string()).unwrap();
            fs::write(self.dir.join("cpu.cfs_quota_us"), quota_us.to_string()).unwrap();
        } else {
            let quota = if quota_us < 0 { "max".to_owned() } else { quota_us.to_string() };
            fs::write(self.dir.join("cpu.max"), format!("{quota} {period_us}")).unwrap();
        }
    }

    /// Thousandths of a CPU that its processes may use together.
    pub fn millicpus(&self) -> Option<u64> {
        let text = self.quota();
        let mut words = text.split_whitespace();
        let quota_us: u64 = words.next().unwrap().parse().ok()?;
        Some(quota_us * 1000 / words.next().unwrap().parse::<u64>().unwrap())
    }

    /// How often its processes had to wait for the next period.
    pub fn throttled(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join("cpu.stat")).unwrap();
        text.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap().parse().unwrap()
    }

    /// Text of the files that hold the quota.
    pub fn quota(&self) -> String {
        let files: &[&str] = if self.v1 { &["cpu.cfs_quota_us", "cpu.cfs_period_us"] } else { &["cpu.max"] };
        files.iter().map(|file| fs::read_to_string(self.dir.join(file)).unwrap()).collect()
    }
}

impl Drop for QuotaPod {
    fn drop(&mut self) {
        if let Some(top) = &self.made {
            super::cgroup::remove_all(top);
        }
    }
}
