//! What the agent reports to the service manager, read from a socket of the test in its place; and the unit.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{self, Command};
use std::time::Duration;

use tempfile::TempDir;

use crate::common::agent::{Agent, PROGRAM};
use crate::common::plant::Machine;
use crate::common::tree::Tree;

/// In place of systemd.
struct Manager(UnixDatagram);

impl Manager {
    fn new(socket: UnixDatagram) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(socket)
    }

    /// The next message; panics if none comes in a minute.
    fn next(&self) -> String {
        let mut buffer = [0; 512];
        let length = self.0.recv(&mut buffer).expect("a message of the agent");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    /// The next message that is no sign of life.
    fn next_state(&self) -> String {
        loop {
            let message = self.next();
            if message != "WATCHDOG=1" {
                return message;
            }
        }
    }
}

fn agent(socket: &str, watchdog: &[&str], flags: &[&str]) -> Agent {
    let socket = format!("NOTIFY_SOCKET={socket}");
    let command = [&["setsid", "env", &socket][..], watchdog, &[PROGRAM]].concat();
    Agent::spawn(&command, &[&["--interval=200ms"][..], flags].concat())
}

/// Ready, a reload and the end, in this order.
fn hear_a_life(manager: &Manager, agent: &mut Agent) {
    assert_eq!(manager.next_state(), "READY=1");
    assert!(agent.scrape().ticks() > 0, "ready means that there is something to read");
    let before_us = energy_host::clock::monotonic_ns() / 1000;
    agent.send("HUP");
    let reloading = manager.next_state();
    let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{reloading:?}"));
    let since: u64 = since.parse().unwrap();
    assert!((before_us..=energy_host::clock::monotonic_ns() / 1000).contains(&since), "{since}");
    assert_eq!(manager.next_state(), "READY=1");
    agent.end("TERM");
    assert_eq!(manager.next_state(), "STOPPING=1");
}

#[test]
fn the_manager_is_told_of_a_life_by_a_socket_with_a_path() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("notify");
    let manager = Manager::new(UnixDatagram::bind(&path).unwrap());
    let mut agent = agent(path.to_str().unwrap(), &[], &[]);
    hear_a_life(&manager, &mut agent);
}

#[test]
fn the_manager_is_told_of_a_life_by_an_abstract_socket() {
    let name = format!("energy-agent-test-{}", process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = Manager::new(UnixDatagram::bind_addr(&address).unwrap());
    let mut agent = agent(&format!("@{name}"), &[], &[]);
    hear_a_life(&manager, &mut agent);
}

#[test]
fn signs_of_life_come_as_long_as_ticks_do() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("notify");
    let manager = Manager::new(UnixDatagram::bind(&path).unwrap());
    let machine = Machine::of(Tree::new(), 1, 200_000_000, 200_000_000);
    let _plant = machine.draw(|| 100.0);
    let [sysfs, trust] = machine.flags();
    let mut agent = agent(path.to_str().unwrap(), &["WATCHDOG_USEC=3000000"], &[&sysfs, &trust]);
    assert_eq!(manager.next(), "READY=1");
    for _ in 0..3 {
        assert_eq!(manager.next(), "WATCHDOG=1");
    }
    // A tick that hangs: the list of CPUs is read by it.
    let online = machine.tree.root().join("sys/devices/system/cpu/online");
    let fifo = online.with_file_name("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    std::fs::rename(&fifo, &online).unwrap();
    // The pings of five seconds more may come, one a second.
    manager.0.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    let mut buffer = [0; 512];
    let more = (0..100).take_while(|_| manager.0.recv(&mut buffer).is_ok()).count();
    assert!(more < 30, "{more} signs of life of an agent whose ticks hang");
    assert!(ureq::get(format!("http://{}/", agent.address)).call().is_ok(), "the web server lives");
    agent.end("TERM");
}

#[test]
fn a_watchdog_of_another_process_is_none_of_the_agents() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("notify");
    let manager = Manager::new(UnixDatagram::bind(&path).unwrap());
    let mut agent = agent(path.to_str().unwrap(), &["WATCHDOG_USEC=1000", "WATCHDOG_PID=1"], &[]);
    assert_eq!(manager.next(), "READY=1");
    agent.after_ticks(3);
    agent.end("TERM");
    assert_eq!(manager.next(), "STOPPING=1");
}

#[test]
fn systemd_accepts_the_unit() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/debian/energy-agent.service");
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("energy-agent.service");
    // The program is where this test has it.
    let text = std::fs::read_to_string(unit).unwrap().replace("/usr/bin/energy-agent", PROGRAM);
    for line in ["Type=notify", "WatchdogSec=60", "Restart=always", "ExecReload=/bin/kill -HUP $MAINPID"] {
        assert!(text.lines().any(|found| found == line), "{line}");
    }
    std::fs::write(&copy, text).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output();
    let output = output.unwrap_or_else(|error| panic!("systemd-analyze: {error}; `cargo xtask test` installs it"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let about_ours: Vec<&str> = said.lines().filter(|line| line.contains("energy-agent")).collect();
    assert!(output.status.success() && about_ours.is_empty(), "{said}");
}
