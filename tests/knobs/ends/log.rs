//! A log that nobody reads: standard error is a pipe that is full.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::capped::Capped;
use crate::common::agent::{PROGRAM, wait_for};

/// An agent whose standard error is full before its first line.
struct Mute {
    child: Child,
    errors: File,
    address: String,
    _folder: TempDir,
}

impl Mute {
    fn start(flags: &[String]) -> Self {
        let folder = TempDir::new().unwrap();
        let pipe = folder.path().join("stderr");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let open = |options: &mut OpenOptions| options.custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
        let errors = open(OpenOptions::new().read(true));
        let mut filler = open(OpenOptions::new().write(true));
        let full = loop {
            if let Err(error) = filler.write(b"full\n") {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let child = Command::new(PROGRAM)
            .args(flags)
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // This one blocks.
            .stderr(OpenOptions::new().write(true).open(&pipe).unwrap())
            .spawn()
            .unwrap();
        let address = wait_for("its port", || listens(child.id()));
        let agent = Self { child, errors, address, _folder: folder };
        wait_for("it to be ready", || agent.get("/readyz"));
        agent
    }

    fn get(&self, path: &str) -> Option<String> {
        ureq::get(format!("http://{}{path}", self.address)).call().ok()?.body_mut().read_to_string().ok()
    }

    fn lost(&self) -> Option<u64> {
        let page = self.get("/metrics")?;
        let line = page.lines().find_map(|line| line.strip_prefix("energy_agent_log_lines_lost_total "))?;
        line.parse().ok()
    }

    fn send(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// A SIGHUP that the agent gets to see before the next comes is a line, until there is no room for more.
    fn lose_lines(&self) {
        let agent = Pid::from_child(&self.child);
        wait_for("lines to be lost", || {
            for _ in 0..200 {
                kill_process(agent, Signal::HUP).unwrap();
                // A pace at which few of them come together; as many as it takes are sent.
                thread::sleep(Duration::from_millis(2));
            }
            self.lost().filter(|lost| *lost > 0)
        });
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a process listens: the only socket in state 0A (LISTEN) that is one of its files.
fn listens(pid: u32) -> Option<String> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let links: Vec<String> =
        files.filter_map(|file| Some(std::fs::read_link(file.ok()?.path()).ok()?.display().to_string())).collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_ours = fields[3] == "0A" && links.contains(&format!("socket:[{}]", fields[9]));
        let port = u16::from_str_radix(fields[1].split_once(':')?.1, 16).ok()?;
        is_ours.then(|| format!("127.0.0.1:{port}"))
    })
}

#[test]
fn a_log_that_nobody_reads_stops_neither_probes_nor_policies_nor_the_end() {
    let capped = Capped::new();
    let mut agent = Mute::start(&capped.flags());
    capped.wait_until_limited();
    agent.lose_lines();
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert!(agent.get(path).is_some(), "{path}");
    }
    capped.world.no_policies();
    capped.wait_until_restored();
    capped.limit_again();
    capped.wait_until_limited();
    agent.send("-TERM");
    let status = wait_for("the end", || agent.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    capped.assert_restored("SIGTERM");
}

#[test]
fn what_was_lost_is_said_when_somebody_reads_again() {
    let folder = TempDir::new().unwrap();
    let flags = ["--interval=200ms".to_owned(), format!("--state.directory={}", folder.path().display())];
    let agent = Mute::start(&flags);
    agent.lose_lines();
    let mut read = Vec::new();
    let said = wait_for("the line", || {
        // That there is nothing more for now is an error of this pipe.
        let _ = (&agent.errors).read_to_end(&mut read);
        let text = String::from_utf8_lossy(&read);
        text.lines().find(|line| line.contains("log lines were lost")).map(ToOwned::to_owned)
    });
    assert!(said.contains(" WARN ") && said.contains("lines="), "{said}");
}

/// The listener of a port that is taken is refused with one line, also where that line is the last.
#[test]
fn the_last_line_is_written_before_the_end() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let output = Command::new(PROGRAM).arg(format!("--web.listen-address={address}")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("error: listening on") && text.ends_with('\n'), "{text:?}");
}
