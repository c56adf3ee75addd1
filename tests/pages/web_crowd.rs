//! Thousands of clients that do nothing, read nothing or guess passwords, all from the scraper's own address: probes are
//! answered, memory stays small, and a new password passes at once.

#![expect(clippy::unwrap_used, reason = "a test panics, its helpers too")]

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::cgroup::{Cgroup, ids};
use crate::common::crowd::{Connect, Crowd, Stream, allowance, probe};
use crate::common::patience::Patience;
use crate::common::powercap::Powercap;
use crate::common::{alone, manifests};
use crate::web_config::certificates::Authority;
use crate::web_config::client::{Answer, Client, Connection, basic};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

/// libxcrypt's, of the passwords s3cret (cost 10) and other (cost 11).
const S3CRET: &str = "$2y$10$abcdefghijklmnopqrstuu3KWNuWLhBnmgYfnzONPueahDuedC/lu";
const OTHER: &str = "$2a$11$abcdefghijklmnopqrstuu/MuAeqovAjO5.o12ibA2PqzRzMqv9iu";

const PODS: usize = 800;
const MIB: usize = 1 << 20;

impl Stream for Connection {
    fn socket(&self) -> &TcpStream {
        &self.0.sock
    }
}

impl std::io::Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl std::io::Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Pods with a container each.
struct Pods {
    cgroup: Cgroup,
    containers: Vec<PathBuf>,
}

impl Pods {
    fn new(count: usize) -> Self {
        let cgroup = Cgroup::new("kubepods/burstable");
        let container = |(uid, container): (String, String)| cgroup.child(&format!("pod{uid}/{container}"));
        let containers = (0..count).map(|_| container(ids())).collect();
        Self { cgroup, containers }
    }

    /// One process runs in each container for a moment, so that each has its rows on the page.
    fn work(&self) {
        let visit = "for dir; do echo $$ > $dir/cgroup.procs; done; echo $$ > $home/cgroup.procs";
        let mut visitor = Command::new("sh");
        visitor.args(["-c", visit, "visitor"]).args(&self.containers).env("home", self.cgroup.child("home"));
        assert!(visitor.status().unwrap().success());
    }
}

/// Both ends of all connections are files, one here and one in the agent.
fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    assert!(maximum.is_none_or(|most| most >= 8192), "these tests need 8192 open files (ulimit -Hn)");
}

/// The time after which a kubelet gives up a probe, by the manifests.
fn probe_timeout() -> Duration {
    let text = fs::read_to_string(manifests::deploy().join("daemonset/daemonset.yaml")).unwrap();
    let mut seconds: Vec<u64> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("timeoutSeconds: "))
        .map(|seconds| seconds.parse().unwrap())
        .collect();
    assert_eq!(seconds.len(), 2, "of liveness and readiness");
    seconds.dedup();
    Duration::from_secs(seconds[0])
}

/// The most memory that the agent has ever used.
fn peak_bytes(agent: &Agent) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// What stands between the clients and the agent.
struct Door {
    /// Of the web configuration, before the users.
    tls: &'static str,
    authority: Option<Authority>,
}

fn survives(door: &Door) {
    let _alone = alone();
    raise_open_files();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("web.yaml");
    let users = |ada: &str, bob: &str| {
        let text = format!("{}basic_auth_users: {{ada: {ada}, bob: {bob}, kubelet: {S3CRET}}}\n", door.tls);
        fs::write(&file, text).unwrap();
    };
    users(S3CRET, S3CRET);
    if let Some(authority) = &door.authority {
        authority.server(1).write(folder.path());
        fs::write(folder.path().join("ca.crt"), authority.pem()).unwrap();
    }
    let (pods, machine) = (Pods::new(PODS), Powercap::two_sockets());
    let config = format!("--web.config.file={}", file.display());
    let mut agent = Agent::spawn(
        &[PROGRAM],
        &["--ebpf=off", "--meter.trust-guest", "--interval=500ms", &config, &machine.sysfs_flag()],
    );

    let connect = connect(door, &agent.address);
    let get = |user: &str, password: &str| {
        let mut stream = connect().unwrap();
        stream.socket().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        ask(&mut *stream, user, password)
    };
    for user in ["ada", "bob", "kubelet"] {
        assert_eq!(get(user, "s3cret").status, 200);
    }
    wait_for("the pods on the page", || {
        let page = get("ada", "s3cret").body;
        pods.work();
        machine.zones.iter().for_each(|zone| zone.add(1_000_000));
        (page.matches("\nkepler_pod_cpu_joules_total{").count() >= 2 * PODS).then_some(())
    });
    let bytes = get("ada", "s3cret").body.len();
    let quiet = peak_bytes(&agent);
    let mut scraper = connect().unwrap();
    scraper.socket().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(ask(&mut *scraper, "ada", "s3cret").status, 200);

    let limit = allowance(&connect, "/healthz", &basic("kubelet", "s3cret"), probe_timeout()).unwrap();
    let mut crowd = Crowd::new();
    let address = agent.address.clone();
    let silent = move |first: &'static [u8]| {
        let address = address.clone();
        move || {
            let mut stream = TcpStream::connect(&address)?;
            stream.write_all(first)?;
            Ok(stream)
        }
    };
    let half = if door.authority.is_some() { &[22, 3, 1, 2, 0, 1][..] } else { b"GET /metrics HTTP/1.1\r\nHost: " };
    crowd.idle(1400, silent(b"")).idle(300, silent(half));
    let (kept, probing) = (Arc::clone(&connect), Arc::clone(&connect));
    crowd.idle(300, move || {
        let mut stream = kept()?;
        write!(stream, "GET /nothing HTTP/1.1\r\nHost: x\r\n{}\r\n", basic("bob", "s3cret"))?;
        Ok(Boxed(stream))
    });
    crowd.slow(200, &connect, &basic("kubelet", "s3cret"));
    crowd.guessers(200, &connect, |password| basic("ada", password));

    // A kubelet beside them.
    let (ended, probed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (end, count) = (Arc::clone(&ended), Arc::clone(&probed));
    let kubelet = thread::spawn(move || {
        let mut outcomes = Vec::new();
        while !end.load(Ordering::Relaxed) {
            for path in ["/healthz", "/readyz"] {
                outcomes.push(probe(&probing, path, &basic("kubelet", "s3cret"), limit));
                count.store(outcomes.len(), Ordering::Relaxed);
            }
            thread::sleep(Duration::from_millis(100));
        }
        outcomes
    });
    let crowded = Instant::now();
    while crowded.elapsed() < Duration::from_secs(10) {
        assert_eq!(ask(&mut *scraper, "ada", "s3cret").status, 200);
        thread::sleep(Duration::from_millis(500));
    }
    // The guessers have had some answers by now. The first requests with new passwords pass.
    let rotated = agent.logged("web configuration loaded again").len();
    users(OTHER, OTHER);
    wait_for("the rotation", || (agent.logged("web configuration loaded again").len() > rotated).then_some(()));
    let (first, second) = (ask(&mut *scraper, "ada", "other").status, get("bob", "other").status);
    let is_seen = || probed.load(Ordering::Relaxed) >= 10 && crowd.seen.guessed.load(Ordering::Relaxed) >= 200;
    let mut patience = Patience::new();
    while crowded.elapsed() < Duration::from_secs(20) || !is_seen() {
        patience.check("ten probes, and a guess of every guesser");
        assert_eq!(ask(&mut *scraper, "ada", "other").status, 200);
        thread::sleep(Duration::from_millis(500));
    }
    ended.store(true, Ordering::Relaxed);
    let outcomes = kubelet.join().unwrap();
    let page = get("ada", "other").body;
    let peak = peak_bytes(&agent);
    let is_answered = |(took, line): &(Duration, String)| *took <= limit && line == "HTTP/1.1 200 OK";
    let failed: Vec<_> = outcomes.iter().filter(|outcome| !outcome.as_ref().is_ok_and(is_answered)).collect();
    let slowest = outcomes.iter().flatten().map(|(took, _)| *took).max();
    println!(
        "{} probes, slowest {slowest:?} of {limit:?}; page {bytes} bytes; VmHWM {} MiB before and {} MiB after; {:?}; {:?}",
        outcomes.len(),
        quiet / MIB,
        peak / MIB,
        crowd.seen,
        page.lines().filter(|line| line.starts_with("energy_agent_web_connections")).collect::<Vec<_>>(),
    );
    assert_eq!(failed.len(), 0, "of {} probes: {failed:?}", outcomes.len());
    assert_eq!((first, second), (200, 200), "the new passwords, on a connection that was there and on a new one");
    assert!(peak < 128 * MIB, "{} MiB", peak / MIB);
    assert_eq!(crowd.seen.other.load(Ordering::Relaxed), 0, "guesses that were not refused");
    assert!(agent.logged("connections are closed early").len() <= 1, "one line for all of them");
    agent.assert_well();
}

struct Boxed(Box<dyn Stream>);

impl std::io::Read for Boxed {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl std::io::Write for Boxed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Stream for Boxed {
    fn socket(&self) -> &TcpStream {
        self.0.socket()
    }
}

/// One scrape.
fn ask(stream: &mut dyn Stream, user: &str, password: &str) -> Answer {
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n{}\r\n", basic(user, password)).unwrap();
    Answer::read(&mut &mut *stream).unwrap()
}

fn connect(door: &Door, address: &str) -> Connect {
    let address = address.to_owned();
    match &door.authority {
        None => Arc::new(move || {
            let stream = TcpStream::connect(&address)?;
            Ok(Box::new(stream))
        }),
        Some(authority) => {
            let client = Client::trusting(authority, Some(&authority.client()));
            Arc::new(move || Ok(Box::new(client.connect(&address)?)))
        }
    }
}

#[test]
fn clients_that_do_nothing_or_guess_take_nothing_from_probes_and_scraper() {
    survives(&Door { tls: "", authority: None });
}

#[test]
fn the_same_under_tls_with_certificates_of_clients() {
    let tls = "tls_server_config: {cert_file: tls.crt, key_file: tls.key, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt}\n";
    survives(&Door { tls, authority: Some(Authority::new("one")) });
}
