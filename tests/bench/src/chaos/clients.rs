//! Two thousand clients that send nothing, two hundred that do not read, and two hundred that guess passwords, all from the
//! scraper's own address: every probe is answered in its time, memory stays bounded, and a new password passes at its first
//! request.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fastrand::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::crowd::{Connect, Crowd, allowance, probe};
use super::Place;
use super::agent::Agent;
use super::machine::{Draw, Machine, replace};
use super::patience::{PATIENCE, until};
use super::tally::Tally;
use crate::bench::world::{Pod, World};
use crate::root;

#[path = "../../../common/crowd.rs"]
mod crowd;

/// The paths of the kubelet's probes.
pub const PROBES: [&str; 2] = ["/healthz", "/readyz"];
pub const PODS: usize = 800;
/// Who knows a password.
const SCRAPER: &str = "ada";
const KUBELET: &str = "kubelet";
const MEMORY_KIB: u64 = 128 * 1024;
const BETWEEN_ROTATIONS: Duration = Duration::from_secs(10);
/// Passwords and their hashes (libxcrypt's, of cost 10 and 11).
const PASSWORDS: [(&str, &str); 2] = [
    ("s3cret", "$2y$10$abcdefghijklmnopqrstuu3KWNuWLhBnmgYfnzONPueahDuedC/lu"),
    ("other", "$2a$11$abcdefghijklmnopqrstuu/MuAeqovAjO5.o12ibA2PqzRzMqv9iu"),
];

/// # Errors
/// When a probe is late, the agent takes too much memory, a guess passes or a new password does not.
pub fn round(place: &Place, rng: &mut Rng) -> Result<Tally> {
    let mut siege = Siege::begin(place, rng)?;
    let mut tally = Tally::default();
    let began = Instant::now();
    let (mut rotated, mut current) = (Instant::now(), 0);
    while began.elapsed() < place.time {
        for path in PROBES {
            siege.probe(path)?;
            tally.add("probes", 1);
        }
        ask(&siege.connect, SCRAPER, PASSWORDS[current].0)?;
        tally.add("scrapes", 1);
        if rotated.elapsed() > BETWEEN_ROTATIONS.min(place.time / 3) {
            let read = siege.agent.log()?.matches("web configuration loaded again").count();
            current = 1 - current;
            rotate(&siege.web, current)?;
            until("the rotation", || {
                let now = siege.agent.log()?.matches("web configuration loaded again").count();
                Ok((now > read).then_some(()))
            })?;
            ask(&siege.connect, SCRAPER, PASSWORDS[current].0).context("the first request after a rotation")?;
            tally.add("scrapes", 1);
            tally.add("rotations", 1);
            rotated = Instant::now();
        }
        thread::sleep(Duration::from_millis(rng.u64(..300)));
        siege.agent.is_well()?;
    }
    siege.end(&mut tally)?;
    Ok(tally)
}

/// An agent with a page of many pods, and the crowd around it. The scraper and the kubelet have shown who they are before.
pub struct Siege {
    agent: Agent,
    crowd: Crowd,
    connect: Connect,
    web: PathBuf,
    pub address: String,
    /// The time of the kubelet, or more on a slow machine.
    limit: Duration,
    _draw: Draw,
    _pods: Vec<Pod>,
    _world: World,
}

impl Siege {
    /// # Errors
    /// When the world cannot be made, or the agent does not show it.
    pub fn begin(place: &Place, rng: &mut Rng) -> Result<Self> {
        let open_files = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: open_files.maximum, ..open_files })
            .context("raising open files")?;
        let machine = Machine::new(place.folder.join("sys"), rng)?;
        let draw = machine.draw(100);
        let world = World::of(place.programs.clone())?;
        let pods: Vec<Pod> = (0..PODS).map(|_| world.pod(1)).collect::<Result<_>>()?;
        let web = place.folder.join("web.yaml");
        rotate(&web, 0)?;
        let flags = [
            format!("--path.sysfs={}", machine.sysfs.display()),
            format!("--state.directory={}", place.folder.join("state").display()),
            format!("--web.config.file={}", web.display()),
            "--meter.cpu=rapl".to_owned(),
            "--meter.trust-guest".to_owned(),
            "--pods.source=none".to_owned(),
            "--gpu=off".to_owned(),
            "--interval=500ms".to_owned(),
        ];
        let mut agent = Agent::spawn(&place.programs, &place.folder, &world.agent, &flags)?;
        let address = agent.address()?;
        until("the pods on the page", || {
            agent.runs()?;
            visit(&pods, &world)?;
            let page = page(&address, SCRAPER, PASSWORDS[0].0)?;
            Ok((page.matches("\nkepler_pod_cpu_joules_total{").count() >= PODS).then_some(()))
        })?;
        let to = address.clone();
        let connect: Connect = Arc::new(move || Ok(Box::new(TcpStream::connect(&to)?)));
        ask(&connect, KUBELET, PASSWORDS[0].0)?;
        let limit = allowance(&connect, PROBES[0], &header(KUBELET, PASSWORDS[0].0), probe_timeout()?)?;
        let crowd = gather(&address, &connect);
        Ok(Self { agent, crowd, connect, web, address, limit, _draw: draw, _pods: pods, _world: world })
    }

    /// What the kubelet waited for the answer.
    ///
    /// # Errors
    /// When it is not answered well in time.
    pub fn probe(&self, path: &str) -> Result<Duration> {
        let answer = probe(&self.connect, path, &header(KUBELET, PASSWORDS[0].0), self.limit);
        match answer {
            Ok((took, line)) if line == "HTTP/1.1 200 OK" => Ok(took),
            _ => bail!("{path} was answered by {answer:?}, allowed are {:?}", self.limit),
        }
    }

    /// The crowd goes, and the agent ends. Returns the most memory that the agent took, in KiB.
    ///
    /// # Errors
    /// When a guess has passed, or the agent took too much memory or does not end well.
    pub fn end(self, tally: &mut Tally) -> Result<u64> {
        let peak_kib = self.agent.peak_kib()?;
        ensure!(peak_kib < MEMORY_KIB, "the agent took {peak_kib} KiB, {MEMORY_KIB} KiB are allowed");
        let seen = &self.crowd.seen;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ensure!(count(&seen.other) == 0, "{} guesses passed or were answered by nonsense", count(&seen.other));
        tally.add("hostile connections", count(&seen.connected));
        tally.add("guesses", count(&seen.guessed));
        tally.add("of them refused", count(&seen.refused));
        drop(self.crowd);
        self.agent.end_well()?;
        Ok(peak_kib)
    }
}

/// The header line of a scraper that knows its password, which is the first.
pub fn scraper_header() -> String {
    header(SCRAPER, PASSWORDS[0].0)
}

fn gather(address: &str, connect: &Connect) -> Crowd {
    let mut crowd = Crowd::new();
    let silent = |first: &'static [u8]| {
        let address = address.to_owned();
        move || {
            let mut stream = TcpStream::connect(&address)?;
            stream.write_all(first)?;
            Ok(stream)
        }
    };
    crowd.idle(1700, silent(b"")).idle(300, silent(b"GET /metrics HTTP/1.1\r\nHost: "));
    crowd.slow(200, connect, &header(KUBELET, PASSWORDS[0].0));
    crowd.guessers(200, connect, |password| header(SCRAPER, password));
    crowd
}

/// The kubelet's password stays, the scraper's changes.
fn rotate(file: &Path, to: usize) -> Result<()> {
    let text = format!("basic_auth_users: {{{SCRAPER}: {}, {KUBELET}: {}}}\n", PASSWORDS[to].1, PASSWORDS[0].1);
    replace(file, text.as_bytes())
}

/// One scrape, whole.
fn ask(connect: &Connect, user: &str, password: &str) -> Result<()> {
    let (_, line) = probe(connect, "/metrics", &header(user, password), PATIENCE).context("scraping")?;
    ensure!(line == "HTTP/1.1 200 OK", "the right password was answered by {line}");
    Ok(())
}

fn page(address: &str, user: &str, password: &str) -> Result<String> {
    let header = header(user, password);
    let value = header.trim_end().split_once(": ").map_or("", |(_, value)| value);
    let mut answer = ureq::get(format!("http://{address}/metrics")).header("Authorization", value).call()?;
    Ok(answer.body_mut().with_config().limit(256 << 20).read_to_string()?)
}

fn header(user: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{password}")))
}

/// The time after which a kubelet gives up a probe, by the manifest.
fn probe_timeout() -> Result<Duration> {
    let file = root().join("deploy/daemonset/daemonset.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let seconds = text.lines().find_map(|line| line.trim().strip_prefix("timeoutSeconds: "));
    Ok(Duration::from_secs(seconds.context("a probe without timeoutSeconds")?.parse()?))
}

/// One process runs in each pod for a moment, so that each has its rows on the page.
fn visit(pods: &[Pod], world: &World) -> Result<()> {
    let visit = "for dir; do echo $$ > $dir/cgroup.procs; done; echo $$ > $home/cgroup.procs";
    let mut visitor = Command::new("sh");
    visitor.args(["-c", visit, "visitor"]).args(pods.iter().map(|pod| &pod.containers[0].dir));
    crate::checked(visitor.env("home", &world.agent))
}
