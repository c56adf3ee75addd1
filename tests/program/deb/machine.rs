//! A machine to install packages on: this one's files under an overlay, and systemd as its first process. Needs root.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::common::agent::wait_for;
use crate::common::cgroup::Cgroup;
use crate::common::network;

/// Becomes systemd in new namespaces: every kernel file system anew, the root an overlay that is forgotten with them.
const BOOT: &str = r#"
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
# As in any container: what belongs to the hardware is this machine's, and udev stays off.
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
cp --archive /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty dev
mkdir dev/shm dev/pts
ln -s /proc/self/fd dev/fd
# What a machine sets up for itself at its start is this one's, and done: settings of the kernel, modules, old files.
for target in usr/lib/systemd/system/local-fs usr/lib/systemd/system/sysinit etc/systemd/system/sysinit; do
    mkdir -p "$target.target.wants"
    mount -t tmpfs tmpfs "$target.target.wants"
done
ln -sf /dev/null etc/systemd/system/timers.target
# What an agent of this machine has lowered is its own to give back.
rm -rf var/lib/energy-agent
# Forbids packages to start services where this machine is an image of a container.
rm -f usr/sbin/policy-rc.d
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mkdir -p .before
pivot_root . .before
exec chroot . sh -c 'umount --lazy /.before; rmdir /.before; exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=basic.target'
"#;

/// Ended when it goes out of scope.
pub struct Machine {
    boot: Child,
    /// Of systemd, in this machine's numbers.
    pid: u32,
    folder: TempDir,
    /// Removed after the machine has ended.
    _cgroup: Cgroup,
}

impl Machine {
    /// Boots one, and waits until it takes orders.
    pub fn boot() -> Self {
        let (folder, cgroup) = (TempDir::new().unwrap(), Cgroup::new("machine"));
        let top = folder.path().join("top");
        fs::create_dir(&top).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        // The cgroup is the machine's root: a cgroup namespace begins where its first process is.
        let enter = format!("echo 0 >{}/cgroup.procs; exec setpriv --pdeathsig KILL \"$@\"", cgroup.dir.display());
        let mut boot = Command::new("sh");
        boot.args([
            "-c",
            &enter,
            "sh",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--cgroup",
            "--uts",
            "--ipc",
        ]);
        boot.args(["--net", "sh", "-c", BOOT, "sh"]).arg(&top);
        let boot = boot.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let mut machine = Self { boot, pid: 0, folder, _cgroup: cgroup };
        machine.pid = wait_for("systemd", || {
            machine.assert_runs();
            let outer = machine.boot.id();
            let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).ok()?;
            let pid = children.trim().parse().ok()?;
            (fs::read_to_string(format!("/proc/{pid}/comm")).ok()? == "systemd\n").then_some(pid)
        });
        wait_for("the machine to be up", || {
            machine.assert_runs();
            let state = machine.run(&["systemctl", "is-active", "basic.target"]);
            state.status.success().then_some(())
        });
        machine
    }

    fn assert_runs(&mut self) {
        let ended = self.boot.try_wait().unwrap();
        assert_eq!(ended, None, "{}", self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Runs a command on the machine.
    pub fn run(&self, command: &[&str]) -> Output {
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &self.pid.to_string(), "--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net"]);
        enter.args(["--root", "--wd=/"]).args(command).env("DEBIAN_FRONTEND", "noninteractive");
        enter.stdin(Stdio::null()).output().unwrap()
    }

    /// What a command prints, which has to succeed.
    #[track_caller]
    pub fn ask(&self, command: &[&str]) -> String {
        let output = self.run(command);
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "{command:?}: {said:?}");
        said[0].trim_end().to_owned()
    }

    /// A file of the machine.
    pub fn path(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join("root").join(path)
    }

    pub fn get(&self, url: &str) -> Option<String> {
        network::get(self.pid, url)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if thread::panicking() {
            let journal = self.run(&["journalctl", "--no-pager", "--unit=energy-agent", "--lines=60"]);
            eprintln!("{}\n{}", self.log(), String::from_utf8_lossy(&journal.stdout));
        }
        let _ = self.boot.kill();
        let _ = self.boot.wait();
    }
}
