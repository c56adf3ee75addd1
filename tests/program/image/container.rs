//! The image as a container of its own, by runc, with the network of a pod.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use super::runtime;
use crate::common::agent::{PROGRAM, wait_for};
use crate::common::page::Page;
use crate::common::{network, repeat, shipped};

/// Removed when it goes out of scope.
pub struct Container {
    id: String,
    /// Of the agent, in the host's numbers.
    pid: u32,
    runc: Child,
    folder: TempDir,
}

impl Container {
    /// Starts the container of a DaemonSet's pods, and waits until the agent in it is ready.
    pub fn start(daemon_set: &Value) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("energy-agent-image-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = TempDir::new().unwrap();
        let bundle = folder.path().join("bundle");
        command(Command::new("umoci").arg("unpack").arg("--image").arg(image().join("layout:test")).arg(&bundle));
        let config = bundle.join("config.json");
        let unpacked: Value = serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        let wanted = runtime::config(&unpacked, daemon_set, &id, &state);
        fs::write(&config, wanted.to_string()).unwrap();

        let log = File::create(folder.path().join("log")).unwrap();
        let pid_file = folder.path().join("pid");
        let mut run = Command::new("runc");
        run.arg("--root").arg(folder.path().join("runc")).args(["run", "--pid-file"]).arg(&pid_file);
        run.arg("--bundle").arg(&bundle).arg(&id).stdin(Stdio::null());
        let runc = run.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let mut container = Self { id, pid: 0, runc, folder };
        container.pid = wait_for("the container", || {
            container.assert_runs();
            fs::read_to_string(&pid_file).ok()?.parse().ok()
        });
        wait_for("the agent to be ready", || {
            container.assert_runs();
            container.get("/readyz")
        });
        container
    }

    fn assert_runs(&mut self) {
        let ended = self.runc.try_wait().unwrap();
        assert_eq!(ended, None, "{}", fs::read_to_string(self.folder.path().join("log")).unwrap());
    }

    pub fn scrape(&self) -> Page {
        let text = self.get("/metrics").unwrap();
        repeat::note_page(&self.id, &text);
        Page::parse(text)
    }

    /// Asks the agent from inside the pod's network; `None` when it does not answer or refuses.
    fn get(&self, path: &str) -> Option<String> {
        network::get(self.pid, &format!("http://127.0.0.1:9102{path}"))
    }

    /// A file of the agent's folder in /proc.
    pub fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    pub fn proc(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Mount points in the container that can be written; without those that the runtime makes in every container, below
    /// /proc, /dev and /sys.
    pub fn writable(&self) -> BTreeSet<String> {
        let mounts = self.proc("mountinfo");
        let fields = |line: &str| {
            let mut fields = line.split(' ').skip(4).map(str::to_owned);
            (fields.next().unwrap(), fields.next().unwrap())
        };
        let own = |path: &str| {
            ["/proc", "/dev", "/sys"].iter().any(|top| path == *top || path.starts_with(&format!("{top}/")))
        };
        let rw = |(path, options): (String, String)| {
            (options.split(',').any(|option| option == "rw") && !own(&path)).then_some(path)
        };
        mounts.lines().map(fields).filter_map(rw).collect()
    }

    /// What a command in the container prints, as by `kubectl exec`.
    pub fn exec(&self, arguments: &[&str]) -> String {
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.folder.path().join("runc")).args(["exec", &self.id]).args(arguments);
        let output = runc.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Ends it as a kubelet does.
    pub fn end(&mut self) {
        self.runc(&["kill", &self.id, "TERM"]);
        let status = wait_for("the container to end", || self.runc.try_wait().unwrap());
        assert!(status.success(), "{status}: {}", fs::read_to_string(self.folder.path().join("log")).unwrap());
    }

    fn runc(&self, arguments: &[&str]) {
        let mut runc = Command::new("runc");
        let _ = runc.arg("--root").arg(self.folder.path().join("runc")).args(arguments).stderr(Stdio::null()).status();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.folder.path().join("log")).unwrap_or_default());
        }
        self.runc(&["delete", "--force", &self.id]);
        let _ = self.runc.wait();
    }
}

/// The image with the program under test, in a layout that umoci reads.
fn image() -> &'static Path {
    static IMAGE: OnceLock<TempDir> = OnceLock::new();
    let image = IMAGE.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        let archive = folder.path().join("image.tar");
        shipped::make("image", Some(PROGRAM), &archive);
        let (from, to) =
            (format!("oci-archive:{}", archive.display()), format!("oci:{}/layout:test", folder.path().display()));
        command(Command::new("skopeo").args(["copy", "--quiet", &from, &to]));
        folder
    });
    image.path()
}

fn command(command: &mut Command) {
    let program = command.get_program().display().to_string();
    let output = command.output().unwrap_or_else(|error| panic!("{program}: {error}; `cargo xtask test` installs it"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}
