//! A container that runc runs in the cgroup of a pod, as a node's runtime does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::cgroup::{load_program, remove_all};
use crate::common::kubernetes::node::Pod;

/// Killed and removed on drop.
pub struct Container {
    id: String,
    /// In the host's numbers.
    pub pid: u32,
    /// The pod's folder at the top of every hierarchy of cgroups.
    top: String,
    folder: TempDir,
}

impl Container {
    /// Runs `load` with these arguments as a container of the pod.
    pub fn run(pod: &Pod, name: &str, arguments: &[&str]) -> Self {
        let (id, folder) = (pod.id(name), TempDir::new().unwrap());
        let (path, bundle) = (&pod.cgroup.cgroup.path, folder.path().join("bundle"));
        let cgroup = format!("{path}/{}", pod.cgroup.another(&id).file_name().unwrap().to_str().unwrap());
        fs::create_dir(&bundle).unwrap();
        fill(&bundle.join("rootfs"));
        fs::write(bundle.join("config.json"), config(&cgroup, arguments).to_string()).unwrap();
        let top = path[1..].split('/').next().unwrap().to_owned();
        let mut container = Self { id, pid: 0, top, folder };
        let pid_file = container.folder.path().join("pid");
        let mut run = container.runc("run");
        run.arg("--detach").arg("--bundle").arg(bundle).arg("--pid-file").arg(&pid_file).arg(&container.id);
        let errors = fs::File::create(container.folder.path().join("errors")).unwrap();
        let status = run.stderr(errors).status();
        let status = status.unwrap_or_else(|error| panic!("runc: {error}; `cargo xtask test` provides it"));
        let errors = fs::read_to_string(container.folder.path().join("errors")).unwrap();
        assert!(status.success(), "runc run: {status}: {errors}");
        container.pid = fs::read_to_string(pid_file).unwrap().parse().unwrap();
        container
    }

    fn runc(&self, command: &str) -> Command {
        let mut runc = Command::new("runc");
        // `load` writes nothing that anybody waits for, and a pipe would be held open by it.
        runc.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        runc.arg("--root").arg(self.folder.path().join("state")).arg(command);
        runc
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.runc("delete").args(["--force", &self.id]).status();
        // What runc made above the container stays otherwise.
        for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            remove_all(&hierarchy.path().join(&self.top));
        }
    }
}

/// Makes a root folder with `load` and the libraries that it needs.
fn fill(root: &Path) {
    let program = load_program();
    let libraries = Command::new("ldd").arg(&program).output().unwrap();
    let libraries = String::from_utf8(libraries.stdout).unwrap();
    let libraries: BTreeSet<&str> = libraries.split_whitespace().filter(|word| word.starts_with('/')).collect();
    for library in libraries {
        let to = root.join(&library[1..]);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(library, to).unwrap();
    }
    fs::create_dir_all(root.join("proc")).unwrap();
    fs::copy(program, root.join("load")).unwrap();
}

/// The OCI runtime's configuration of an unprivileged container with namespaces of its own.
fn config(cgroup: &str, arguments: &[&str]) -> Value {
    let words = [&["/load"], arguments].concat();
    let namespaces = ["pid", "mount", "ipc", "uts", "network"].map(|kind| json!({"type": kind}));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 65534, "gid": 65534}, "cwd": "/", "noNewPrivileges": true,
            "args": words, "env": ["PATH=/"],
        },
        "root": {"path": "rootfs", "readonly": true},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {"cgroupsPath": cgroup, "namespaces": namespaces},
    })
}
