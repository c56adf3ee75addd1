//! Pods as the kubelet would make them, on the running kernel: real cgroups with real work in them, gone again however
//! the benchmark ends.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::root;

/// Waits until its input ends, which it does when the benchmark ends in whatever way; then puts the switch of the
/// kernel's BPF statistics back, kills everything in the folders and removes them.
const WARDEN: &str = r#"
cat > /dev/null
[ -z "$2" ] || echo "$2" > /proc/sys/kernel/bpf_stats_enabled
for attempt in $(seq 100); do
    find "$1" "$3" -name cgroup.procs -exec cat {} + 2> /dev/null | xargs -r kill -9 2> /dev/null
    find "$1" "$3" -depth -type d -exec rmdir {} + 2> /dev/null
    [ -d "$1" ] || [ -d "$3" ] || exit 0
    sleep 0.1
done
echo "$1 cannot be removed" >&2
"#;

/// A folder of our own in the cgroup tree, with a subtree for pods and one for the agent.
pub struct World {
    pub agent: PathBuf,
    pods: PathBuf,
    dir: PathBuf,
    /// Where the `cpu` controller is in cgroup v1: the folder there for what has the same paths; not made yet.
    v1: Option<PathBuf>,
    /// Where the example `load` is.
    programs: PathBuf,
    warden: Child,
}

impl World {
    /// # Errors
    /// When there is no cgroup v2, or it cannot be written.
    pub fn new() -> Result<Self> {
        Self::of(release())
    }

    /// With the programs of this folder of `target/`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of(programs: PathBuf) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let root = [Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/unified")]
            .into_iter()
            .find(|root| root.join("cgroup.controllers").exists())
            .context("no cgroup v2 at /sys/fs/cgroup or /sys/fs/cgroup/unified")?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("energy-agent-bench-{}-{number}", process::id());
        let dir = root.join(&name);
        make(&dir)?;
        let v1 = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"]
            .into_iter()
            .find(|root| Path::new(root).join("cpu.cfs_quota_us").exists())
            .map(|root| Path::new(root).join(&name));
        let statistics = fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").unwrap_or_default();
        let warden = Command::new("sh")
            .args(["-c", WARDEN, "warden"])
            .arg(&dir)
            .arg(statistics.trim())
            .arg(v1.as_ref().unwrap_or(&dir))
            .stdin(Stdio::piped())
            .process_group(0) // Ctrl-C at the terminal is not for it.
            .spawn()
            .context("starting sh")?;
        let world = Self { agent: dir.join("agent"), pods: dir.join("kubepods.slice"), dir, v1, programs, warden };
        make(&world.agent)?;
        make(&world.pods)?;
        Ok(world)
    }

    /// A view of the cgroups in which there is only what this world has, made at `place`: the folder for `--path.cgroupfs`.
    ///
    /// # Errors
    /// When the links cannot be made.
    pub fn view(&self, place: &Path) -> Result<PathBuf> {
        let Some(v1) = &self.v1 else { return Ok(self.dir.clone()) };
        fs::create_dir_all(place)?;
        fs::create_dir_all(v1)?;
        symlink(&self.dir, place.join("unified"))?;
        symlink(v1, place.join("cpu"))?;
        Ok(place.to_owned())
    }

    /// A new pod with its sandbox and `containers` containers, by systemd's names.
    ///
    /// # Errors
    /// When a cgroup cannot be made.
    pub fn pod(&self, containers: usize) -> Result<Pod> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let pod = (u64::from(process::id()) << 32) | u64::from(number);
        let uid = hex(pod, 0, 2);
        let uid = [&uid[..8], &uid[8..12], &uid[12..16], &uid[16..20], &uid[20..]].join("-");
        let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
        let dir = self.pods.join("kubepods-burstable.slice").join(slice);
        let containers = (1..).take(containers + 1).map(|index| {
            let id = hex(pod, index, 4);
            Container { dir: dir.join(format!("cri-containerd-{id}.scope")), id }
        });
        let mut containers: Vec<_> = containers.collect();
        for container in &containers {
            make(&container.dir)?;
        }
        let sandbox = containers.remove(0);
        Ok(Pod { uid, dir, containers, sandbox, programs: self.programs.clone(), loads: Vec::new() })
    }

    /// Gives a pod a CPU quota that can be set, and four times the usual weight, so that what else runs matters less. Where
    /// the `cpu` controller is in cgroup v1, the pod's processes are moved to cgroups of the same paths there. Returns the
    /// folder of the quota.
    ///
    /// # Errors
    /// When no hierarchy has the controller.
    pub fn with_quota(&self, pod: &Pod) -> Result<PathBuf> {
        let path = pod.dir.strip_prefix(&self.dir).context("a pod of another world")?;
        let Some(top) = &self.v1 else {
            let parents = pod.dir.ancestors().skip(1).take_while(|parent| parent.starts_with("/sys/fs/cgroup"));
            for parent in parents.collect::<Vec<_>>().into_iter().rev() {
                let file = parent.join("cgroup.subtree_control");
                fs::write(&file, "+cpu")
                    .with_context(|| format!("enabling the cpu controller in {}", file.display()))?;
            }
            fs::write(self.dir.join("cpu.weight"), "400")?;
            return Ok(pod.dir.clone());
        };
        let quota = top.join(path);
        for container in &pod.containers {
            let dir = quota.join(container.dir.file_name().unwrap_or_default());
            make(&dir)?;
            for pid in fs::read_to_string(container.dir.join("cgroup.procs"))?.lines() {
                fs::write(dir.join("cgroup.procs"), pid).context("moving a process in cgroup v1")?;
            }
        }
        fs::write(top.join("cpu.shares"), "4096")?;
        Ok(quota)
    }

    /// Stops all pods, or lets them go on, so that two counters can be read while both stand still.
    ///
    /// # Errors
    /// When the kernel does not do so within ten seconds.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        let file = self.pods.join("cgroup.freeze");
        fs::write(&file, if frozen { "1" } else { "0" }).with_context(|| file.display().to_string())?;
        let wanted = if frozen { "frozen 1" } else { "frozen 0" };
        let events = self.pods.join("cgroup.events");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !fs::read_to_string(&events)?.lines().any(|line| line == wanted) {
            ensure!(Instant::now() < deadline, "{} does not say {wanted:?}", events.display());
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.warden.stdin.take());
        let _ = self.warden.wait();
        for dir in [Some(&self.dir), self.v1.as_ref()].into_iter().flatten().filter(|dir| dir.exists()) {
            eprintln!("{} is left over", dir.display());
        }
    }
}

pub struct Container {
    /// As the label `container_id` shows it.
    pub id: String,
    pub dir: PathBuf,
}

/// A pod's cgroups and the work in them, which ends with it.
pub struct Pod {
    pub uid: String,
    pub dir: PathBuf,
    pub containers: Vec<Container>,
    sandbox: Container,
    programs: PathBuf,
    loads: Vec<Child>,
}

impl Pod {
    /// Starts `load KIND ARGUMENTS` in one of the containers.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run(&mut self, container: usize, arguments: &[&str]) -> Result<()> {
        let child =
            load(&self.programs, &self.containers[container].dir, arguments).spawn().context("starting load")?;
        self.loads.push(child);
        Ok(())
    }

    /// Waits for the work to end by itself.
    ///
    /// # Errors
    /// When it ended badly.
    pub fn wait(&mut self) -> Result<()> {
        for mut child in self.loads.drain(..) {
            let status = child.wait()?;
            ensure!(status.success(), "load ended with {status}");
        }
        Ok(())
    }

    fn kill(&mut self) {
        for child in &mut self.loads {
            let _ = child.kill();
        }
        for mut child in self.loads.drain(..) {
            let _ = child.wait();
        }
    }

    /// Ends the work and removes the cgroups, children first, as the kubelet does.
    ///
    /// # Errors
    /// When a cgroup cannot be removed.
    pub fn end(mut self) -> Result<()> {
        self.kill();
        let folders = self.containers.iter().chain([&self.sandbox]).map(|container| &container.dir).chain([&self.dir]);
        for folder in folders {
            // A process leaves its cgroup a moment after it was waited for.
            let deadline = Instant::now() + Duration::from_secs(10);
            while let Err(error) = fs::remove_dir(folder) {
                ensure!(Instant::now() < deadline, "removing {}: {error}", folder.display());
                // A child that was started at the moment in which its parent was killed does not end by itself.
                for pid in fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default().lines() {
                    let _ = Command::new("kill").args(["-9", pid]).stderr(Stdio::null()).status();
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn release() -> PathBuf {
    root().join("target/release")
}

/// The example `load` of energy-agent, started in a cgroup.
fn load(programs: &Path, cgroup: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(programs.join("examples/load"));
    command.arg("--cgroup").arg(cgroup).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// CPU time of a cgroup and all below it as the kernel counts it (`usage_usec` of cpu.stat), nanoseconds.
///
/// # Errors
/// When the file cannot be read.
pub fn cpu_ns(dir: &Path) -> Result<u64> {
    let file = dir.join("cpu.stat");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
    let usage: u64 = usage.and_then(|text| text.parse().ok()).with_context(|| format!("{text:?} in cpu.stat"))?;
    Ok(usage * 1000)
}

fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("making {} (needs root)", dir.display()))
}

/// Words of 16 hexadecimal digits for a pod's uid (index 0) or a container's id. Without a pattern, as those of a cluster
/// are: a page packs as badly as a real one.
fn hex(pod: u64, index: u64, words: u64) -> String {
    let word = |word| {
        // SplitMix64, <https://prng.di.unimi.it/splitmix64.c>.
        let mut mixed = pod.wrapping_mul(1 << 8).wrapping_add(index * 4 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        format!("{:016x}", mixed ^ (mixed >> 31))
    };
    (0..words).map(word).collect()
}
