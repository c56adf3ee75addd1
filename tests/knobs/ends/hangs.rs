//! Files that hang: a FIFO that nobody writes to stands for a driver that does not answer. It hangs in the open.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::capped::Capped;
use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::busy_node::text;
use crate::common::page::Page;
use crate::common::powercap::Powercap;

/// A FIFO in place of a file.
struct Hanging {
    file: PathBuf,
    /// Another name of the FIFO, by which those that wait are let go.
    fifo: PathBuf,
    content: String,
}

impl Hanging {
    fn of(file: &Path) -> Self {
        let content = text(file);
        let [fifo, next] = ["fifo", "next-fifo"].map(|name| file.with_file_name(name));
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        fs::hard_link(&fifo, &next).unwrap();
        fs::rename(&next, file).unwrap();
        Self { file: file.to_owned(), fifo, content }
    }

    /// The file is back, and those that hang fail.
    fn end(self, content: &str) {
        let next = self.file.with_file_name("next-plain");
        fs::write(&next, format!("{content}\n")).unwrap();
        fs::rename(&next, &self.file).unwrap();
        // Readers and writers wait for the other end: this is both.
        drop(OpenOptions::new().read(true).write(true).open(&self.fifo).unwrap().write_all(b"\n"));
        fs::remove_file(&self.fifo).unwrap();
    }
}

fn joules(page: &Page, labels: &[(&str, &str)]) -> u64 {
    page.microjoules("kepler_node_cpu_joules_total", labels)
}

#[test]
fn a_limit_that_hangs_keeps_no_other_from_being_restored_and_is_named() {
    let capped = Capped::new();
    let mut agent = capped.agent();
    let [free, stuck] = capped.clocks();
    let hanging = Hanging::of(&stuck);
    wait_for("a line about it", || agent.logged("the file does not answer").pop());
    // Metering goes on.
    let page = agent.after_ticks(3);
    let ticks = page.ticks();
    assert!(agent.after_ticks(3).ticks() >= ticks + 3);
    let (status, _) = agent.end("TERM");
    assert_eq!(status.code(), Some(1), "{:#?}", agent.log());
    assert_eq!(text(&free), "1766400");
    let journal = capped.world.journal();
    assert_eq!(journal.lines().count(), 1, "{journal}");
    assert!(journal.contains("\"original_raw\":\"2956800\""), "{journal}");
    let named = agent.log();
    assert!(named.iter().any(|line| line.contains("policy4") && line.contains("restore")), "{named:#?}");

    let content = hanging.content.clone();
    hanging.end(&content);
    capped.world.restore(&[&capped.machine.flags()[0]]);
    capped.assert_restored("energy-agent restore");
}

#[test]
fn a_zone_that_hangs_costs_the_others_nothing_and_loses_nothing() {
    let powercap = Powercap::two_sockets();
    let sysfs = powercap.sysfs_flag();
    let flags = ["--interval=200ms", "--meter.trust-guest", "--meter.cpu=rapl", &sysfs];
    let mut agent = Agent::start(&flags);
    let [stuck, _, other, _] = &powercap.zones;
    stuck.add(3_000_000);
    assert_eq!(joules(&agent.after_ticks(2), &stuck.labels()), 3_000_000);
    let folder = powercap.tree.root().join("sys/devices/virtual/powercap/intel-rapl/intel-rapl:0");
    let hanging = Hanging::of(&folder.join("energy_uj"));
    wait_for("a line about it", || agent.logged("the file does not answer").pop());
    for round in 1..=3 {
        other.add(2_000_000);
        let page = agent.after_ticks(2);
        assert_eq!(joules(&page, &other.labels()), round * 2_000_000);
        // Its total stays, its power is not shown.
        assert_eq!(joules(&page, &stuck.labels()), 3_000_000);
        assert!(!page.has("kepler_node_cpu_watts", &stuck.labels()), "old watts");
        assert!(page.has("kepler_node_cpu_watts", &other.labels()));
    }
    hanging.end("9000000");
    // What it counted meanwhile: from 4,000,000 to 9,000,000.
    wait_for("the zone to be back", || {
        Some(()).filter(|()| joules(&agent.scrape(), &stuck.labels()) == 3_000_000 + 5_000_000)
    });
    agent.scrape().assert_conserved();
    assert_eq!(agent.end("TERM").0.code(), Some(0));
}

#[test]
fn a_zone_that_hangs_from_the_start_on_keeps_the_agent_from_nothing() {
    let powercap = Powercap::two_sockets();
    let folder = powercap.tree.root().join("sys/devices/virtual/powercap/intel-rapl/intel-rapl:0");
    let hanging = Hanging::of(&folder.join("energy_uj"));
    let sysfs = powercap.sysfs_flag();
    let mut agent = Agent::start(&["--interval=200ms", "--meter.trust-guest", "--meter.cpu=rapl", &sysfs]);
    powercap.zones[2].add(2_000_000);
    let page = agent.after_ticks(2);
    assert_eq!(joules(&page, &powercap.zones[2].labels()), 2_000_000);
    assert!(!page.has("kepler_node_cpu_joules_total", &powercap.zones[0].labels()));
    assert_eq!(agent.end("TERM").0.code(), Some(0));
    hanging.end("1");
}

/// The list of CPUs is read by the tick itself: in its place stands anything that stops it.
#[test]
fn a_tick_that_hangs_shows_nothing_old_as_new_and_ends_with_everything_restored() {
    let capped = Capped::new();
    let mut agent = capped.agent();
    assert!(agent.after_ticks(2).has("kepler_node_cpu_watts", &[("zone", "package")]));
    let hanging = Hanging::of(&capped.machine.tree.root().join("sys/devices/system/cpu/online"));
    let page = wait_for("a page that says so", || {
        Some(agent.scrape()).filter(|page| page.has("energy_agent_meter_up", &[("meter", "tick")]))
    });
    assert_eq!(page.one("energy_agent_meter_up", &[("meter", "tick"), ("reason", "hanging")]).value, "0");
    assert_eq!(page.energy_names(), Vec::<&str>::new());
    assert!(page.number("energy_agent_last_tick_timestamp_seconds") > 0.0);
    let status = |path: &str| ureq::get(format!("http://{}{path}", agent.address)).call();
    assert!(matches!(status("/policies"), Err(ureq::Error::StatusCode(503))));
    wait_for("/healthz to say so", || match status("/healthz") {
        Err(ureq::Error::StatusCode(503)) => Some(()),
        _ => None,
    });
    capped.assert_limited("the hang");
    // It becomes `energy-agent restore`, which says how it went by its exit code.
    let (status, _) = agent.end("TERM");
    assert_eq!(status.code(), Some(0), "{:#?}", agent.log());
    capped.assert_restored("SIGTERM");
    agent.assert_logged("the tick thread hangs", 1);
    hanging.end("0-1");
}

#[test]
fn an_agent_whose_meters_hang_at_the_start_can_be_ended() {
    let powercap = Powercap::two_sockets();
    let online = powercap.tree.root().join("sys/devices/system/cpu/online");
    let hanging = Hanging::of(&online);
    let state = tempfile::TempDir::new().unwrap();
    let log = state.path().join("log");
    let mut child = Command::new(PROGRAM)
        .args(["--web.listen-address=127.0.0.1:0", "--log.level=debug", &powercap.sysfs_flag()])
        .arg(format!("--state.directory={}", state.path().display()))
        .env("ENERGY_AGENT_RUN_DIRECTORY", state.path().join("run"))
        .stderr(fs::File::create(&log).unwrap())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // It listens for signals once a handler is set: bit 15 of those caught.
    wait_for("its handlers", || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
        Some(()).filter(|()| u64::from_str_radix(&caught, 16).unwrap() & (1 << 14) != 0)
    });
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let status = wait_for("the end", || child.try_wait().unwrap());
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("SIGTERM, the agent ends"), "{status}: {log}");
    hanging.end("0-1");
}
