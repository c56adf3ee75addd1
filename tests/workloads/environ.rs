//! Faults of others that must not come back: the environment of a process, where secrets are, is never read.

#![expect(clippy::unwrap_used, reason = "a test panics, its helpers too")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::Pod;
use tempfile::TempDir;

/// Links into `/proc`. Only the `environ` of one process is a pipe without a writer.
fn procfs(root: &Path, pid: u32) {
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        if entry.file_name() != pid.to_string().as_str() {
            symlink(entry.path(), root.join(entry.file_name())).unwrap();
        }
    }
    let (own, real) = (root.join(pid.to_string()), Path::new("/proc").join(pid.to_string()));
    fs::create_dir(&own).unwrap();
    for name in ["stat", "status", "comm", "cmdline", "cgroup"] {
        symlink(real.join(name), own.join(name)).unwrap();
    }
    // A link to that link would be read instead of it.
    symlink(fs::read_link(real.join("exe")).unwrap(), own.join("exe")).unwrap();
    assert!(Command::new("mkfifo").arg(own.join("environ")).status().unwrap().success());
}

/// A pipe can be opened for writing at once only while somebody has it open for reading, or waits to.
fn is_read(pipe: &Path) -> bool {
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(pipe).is_ok()
}

#[test]
fn the_environment_of_a_process_is_never_opened() {
    let pod = Pod::new();
    let load = pod.load(&["sleepers", "0", "2000", "8000"]);
    let (pid, root) = (load.0.id(), TempDir::new().unwrap());
    wait_for("the load to begin", || {
        (fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "load\n").then_some(())
    });
    procfs(root.path(), pid);
    let environ = root.path().join(pid.to_string()).join("environ");
    let agent = Agent::start(&[
        "--interval=100ms",
        "--export.levels=node,pod,container,process",
        &format!("--path.procfs={}", root.path().display()),
    ]);
    let text = pid.to_string();
    wait_for("the process by its name and binary", || {
        assert!(!is_read(&environ), "somebody reads the environment");
        let page = agent.scrape();
        let row = page.select("kepler_process_cpu_joules_total", &[("pid", &text), ("comm", "load")]);
        row.first().is_some_and(|row| row.label("exe").ends_with("/load")).then_some(())
    });
    // A reader would wait for a writer for ever, and the ticks with it.
    let before = agent.scrape().ticks();
    assert!(agent.after_ticks(10).ticks() >= before + 10 && !is_read(&environ));

    // What this test would see if it were read.
    let reader = std::thread::spawn({
        let environ = environ.clone();
        move || fs::read(environ)
    });
    wait_for("a reader to be noticed", || is_read(&environ).then_some(()));
    reader.join().unwrap().unwrap();
}
