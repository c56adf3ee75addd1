//! Real cgroups of the running kernel, with work in them, removed again when they go out of scope.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, process, thread};

use super::cargo::cargo;
use super::patience::Patience;

/// Where cgroup v2 is mounted on this machine.
pub fn v2_root() -> PathBuf {
    [Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/unified")]
        .into_iter()
        .find(|root| root.join("cgroup.controllers").exists())
        .expect("these tests need cgroup v2, mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified")
        .to_owned()
}

/// A folder of our own in the cgroup tree. Processes in it are killed, and it and everything below is removed, on drop.
pub struct Cgroup {
    pub dir: PathBuf,
    /// Path below the root, as the agent sees it.
    pub path: String,
}

impl Cgroup {
    /// `/energy-agent-test-PID-NNN/NAME`, with all parents.
    pub fn new(name: &str) -> Self {
        Self::make(&format!("/{}/{name}", unique()))
    }

    /// `/energy-agent-test-PID-NNN.slice`, as systemd has a slice of the node.
    pub fn slice() -> Self {
        Self::make(&format!("/{}.slice", unique()))
    }

    fn make(path: &str) -> Self {
        let dir = v2_root().join(&path[1..]);
        fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{}: {error}; these tests need root", dir.display()));
        Self { dir, path: path.to_owned() }
    }

    pub fn child(&self, name: &str) -> PathBuf {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// CPU time of the cgroup and all below it, as the kernel counts it.
    pub fn cpu_ns(&self) -> u64 {
        cpu_ns(&self.dir)
    }

    fn top(&self) -> PathBuf {
        v2_root().join(self.path[1..].split('/').next().unwrap())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove_all(&self.top());
    }
}

fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("energy-agent-test-{}-{:03}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Kills what is in the tree and removes it.
pub fn remove_all(top: &Path) {
    let mut patience = Patience::new();
    while top.exists() && !patience.is_over() {
        remove(top);
        thread::sleep(Duration::from_millis(20));
    }
}

/// Kills what is in the tree and removes it from the leaves up, as far as the kernel lets.
fn remove(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
        let _ = Command::new("kill").args(["-9", pid]).stderr(Stdio::null()).status();
    }
    let _ = fs::remove_dir(dir);
}

/// Who lays out the cgroups of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The kubelet itself; leaves the runtime open.
    Cgroupfs,
    /// systemd, with containerd as the runtime.
    Systemd,
}

/// A pod with one container or more, laid out as the kubelet does.
pub struct Pod {
    /// The pod's own cgroup.
    pub cgroup: Cgroup,
    /// Folder of the first container's cgroup.
    pub container: PathBuf,
    pub uid: String,
    pub container_id: String,
    driver: Driver,
}

impl Pod {
    /// With the cgroupfs driver.
    pub fn new() -> Self {
        let (uid, container_id) = ids();
        Self::named(Driver::Cgroupfs, &uid, &container_id)
    }

    /// With the systemd driver.
    pub fn systemd() -> Self {
        let (uid, container_id) = ids();
        Self::named(Driver::Systemd, &uid, &container_id)
    }

    /// With this uid, or hash of a static pod, and the id of its first container.
    pub fn named(driver: Driver, uid: &str, container_id: &str) -> Self {
        let cgroup = Cgroup::new(&match driver {
            Driver::Cgroupfs => format!("kubepods/burstable/pod{uid}"),
            Driver::Systemd => {
                let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
                format!("kubepods.slice/kubepods-burstable.slice/{slice}")
            }
        });
        let container = cgroup.child(&folder_name(driver, container_id));
        Self { container, cgroup, uid: uid.to_owned(), container_id: container_id.to_owned(), driver }
    }

    /// The folder of another container, made if it is not there.
    pub fn another(&self, container_id: &str) -> PathBuf {
        self.cgroup.child(&folder_name(self.driver, container_id))
    }

    /// Starts `load` in the container.
    pub fn load(&self, arguments: &[&str]) -> Load {
        Load::start(&self.container, arguments)
    }

    /// Removes containers and pod, whose processes have to have ended.
    pub fn remove(&self) {
        let entries = fs::read_dir(&self.cgroup.dir).unwrap().flatten();
        let containers = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        containers.for_each(|container| remove_ended(&container.path()));
        remove_ended(&self.cgroup.dir);
    }
}

fn folder_name(driver: Driver, container_id: &str) -> String {
    match driver {
        Driver::Cgroupfs => container_id.to_owned(),
        Driver::Systemd => format!("cri-containerd-{container_id}.scope"),
    }
}

/// Removes a cgroup whose processes have ended.
pub fn remove_ended(dir: &Path) {
    // A process leaves its cgroup a moment after it was waited for.
    let mut patience = Patience::new();
    while let Err(error) = fs::remove_dir(dir) {
        patience.check(&format!("{} to be removed: {error}", dir.display()));
        thread::sleep(Duration::from_millis(1));
    }
}

/// A pod uid and a container id that nobody else has.
pub fn ids() -> (String, String) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (process, count) = (process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    (format!("{process:08x}-0000-4000-8000-{count:012x}"), format!("{process:032x}{count:032x}"))
}

/// `usage_usec` of a cgroup's cpu.stat, in nanoseconds.
pub fn cpu_ns(dir: &Path) -> u64 {
    let text = fs::read_to_string(dir.join("cpu.stat")).unwrap();
    let line = text.lines().find(|line| line.starts_with("usage_usec ")).unwrap();
    line["usage_usec ".len()..].parse::<u64>().unwrap() * 1000
}

/// A running `load`, killed on drop.
pub struct Load(pub Child);

impl Load {
    /// Starts `load KIND ARGUMENTS` in the cgroup the way a container runtime does: the process is moved there while it
    /// waits, and then becomes what it is to be.
    pub fn start(dir: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", "read go; exec \"$0\" \"$@\""])
            .arg(load_program())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        Self(child)
    }

    pub fn wait(mut self) {
        assert!(self.0.wait().unwrap().success());
    }

    /// Waits for its end. The CPU time of the process as the kernel tells its parent, from its fork on and in whatever cgroup.
    pub fn wait_cpu_ns(self) -> u64 {
        let (pid, mut status) = (i32::try_from(self.0.id()).unwrap(), 0);
        // It is no child of ours any more once it is waited for: nothing may kill what has its number then.
        std::mem::forget(self);
        // SAFETY: all fields are numbers.
        let mut used: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both places live through the call.
        assert_eq!(unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut used) }, pid);
        assert_eq!(status, 0);
        let us: i64 = [used.ru_utime, used.ru_stime].iter().map(|time| time.tv_sec * 1_000_000 + time.tv_usec).sum();
        u64::try_from(us).unwrap() * 1000
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The example `load`, which a whole `cargo test` builds beside the tests; a single test may have to build it first.
pub fn load_program() -> PathBuf {
    let tests = env::current_exe().unwrap();
    let program = tests.parent().unwrap().parent().unwrap().join("examples/load");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/load.rs");
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    if changed(&program) < changed(&source) {
        // With the whole workspace's features, as everything else was built with.
        let build = cargo().args(["build", "--quiet", "--locked", "--workspace", "--example", "load"]).status();
        assert!(build.is_ok_and(|status| status.success()) && program.exists(), "cargo build --example load");
    }
    program
}
