//! The built program, running: started on a free port, scraped over HTTP, its log kept, killed when it goes out of scope.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use tempfile::TempDir;

use super::page::Page;
use super::patience::Patience;
use super::repeat;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_energy-agent");

pub struct Agent {
    child: Child,
    /// Where it listens, from its log.
    pub address: String,
    log: Arc<Mutex<Vec<String>>>,
    /// Its `--state.directory`, unless the flags named another.
    pub state: TempDir,
    /// Its `--run.directory`, in the same way: each agent has a node of its own.
    pub run: TempDir,
}

impl Agent {
    /// Starts it, and waits until it is ready.
    pub fn start(flags: &[&str]) -> Self {
        let agent = Self::spawn(&[PROGRAM], flags);
        agent.wait_until_ready();
        agent
    }

    /// Starts it by `command` (`setpriv ... PROGRAM`), and waits until it listens.
    pub fn spawn(command: &[&str], flags: &[&str]) -> Self {
        let (state, run) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        // The agent may run as another user.
        for folder in [&state, &run] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        }
        let mut start = Command::new(command[0]);
        start.args(&command[1..]).arg("--web.listen-address=127.0.0.1:0").args(flags);
        if !flags.iter().any(|flag| flag.starts_with("--state.directory")) {
            start.arg(format!("--state.directory={}", state.path().display()));
        }
        let mut child = start
            .env("ENERGY_AGENT_RUN_DIRECTORY", run.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", command[0]));
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, kept) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&log));
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| kept.lock().unwrap().push(line)));
        let mut agent = Self { child, address: String::new(), log, state, run };
        agent.address = wait_for("the agent's address in its log", || {
            let log = agent.log();
            let listens = log.iter().find_map(|line| line.split_once(" listening address="));
            if listens.is_none()
                && let Some(status) = agent.child.try_wait().unwrap()
            {
                panic!("the agent ended with {status}: {log:#?}");
            }
            Some(listens?.1.split_once(' ')?.0.to_owned())
        });
        agent
    }

    pub fn wait_until_ready(&self) {
        let ready = format!("http://{}/readyz", self.address);
        wait_for("the agent to be ready", || ureq::get(&ready).call().ok());
    }

    pub fn scrape(&self) -> Page {
        let text = self.fetch("text/plain");
        repeat::note_page(&self.address, &text);
        Page::parse(text)
    }

    /// Keeps what a failed measurement may be due to. Asserts nothing: the thread panics already.
    fn note_hidden(&self) {
        let url = format!("http://{}/metrics", self.address);
        let asked = ureq::get(&url).config().timeout_global(Some(Duration::from_secs(5))).build().call();
        if let Ok(text) = asked.and_then(|mut answer| answer.body_mut().read_to_string()) {
            repeat::note_page(&self.address, &text);
        }
    }

    /// The metrics page in the format that `accept` asks for.
    pub fn fetch(&self, accept: &str) -> String {
        let url = format!("http://{}/metrics", self.address);
        let mut answer = ureq::get(&url).header("Accept", accept).call().unwrap();
        answer.body_mut().with_config().limit(256 << 20).read_to_string().unwrap()
    }

    /// What `/policies` says to programs.
    pub fn policies(&self) -> serde_json::Value {
        let mut answer = ureq::get(format!("http://{}/policies", self.address)).call().unwrap();
        serde_json::from_str(&answer.body_mut().with_config().limit(256 << 20).read_to_string().unwrap()).unwrap()
    }

    /// The first page that is at least `ticks` ticks newer than one read now. What happened before the call is in it
    /// from 2 ticks on: a tick may have taken its readings already without being published.
    pub fn after_ticks(&self, ticks: u64) -> Page {
        let wanted = self.scrape().ticks() + ticks;
        wait_for("the next ticks", || Some(self.scrape()).filter(|page| page.ticks() >= wanted))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// The lines of its log that contain `text`.
    pub fn logged(&self, text: &str) -> Vec<String> {
        self.log().into_iter().filter(|line| line.contains(text)).collect()
    }

    /// Waits until `count` lines of its log contain `text`; panics if there are more. A line comes after the state on disk or
    /// page that it tells of.
    #[track_caller]
    pub fn assert_logged(&self, text: &str, count: usize) -> Vec<String> {
        self.assert_all_logged(&[text], count)
    }

    /// The same for lines that contain all of `texts`.
    #[track_caller]
    pub fn assert_all_logged(&self, texts: &[&str], count: usize) -> Vec<String> {
        let lines = wait_for_lines(count, || {
            self.log().into_iter().filter(|line| texts.iter().all(|text| line.contains(text))).collect()
        });
        assert_eq!(lines.len(), count, "lines with {texts:?}: {lines:#?} in {:#?}", self.log());
        lines
    }

    /// Sends the signal, which should not end it.
    pub fn send(&self, signal: &str) {
        let sent = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -s {signal}");
    }

    /// Sends the signal and waits for the end; the exit status and how long it took.
    pub fn end(&mut self, signal: &str) -> (ExitStatus, Duration) {
        let start = Instant::now();
        self.send(signal);
        (self.wait(), start.elapsed())
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for the end, which something else has brought about.
    pub fn wait(&mut self) -> ExitStatus {
        wait_until("the agent to end", Duration::from_millis(5), || self.child.try_wait().unwrap())
    }

    /// Panics unless it runs and has not panicked.
    pub fn assert_well(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "the agent has ended");
        assert_eq!(self.logged("panicked"), Vec::<String>::new());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if thread::panicking() {
            self.note_hidden();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("log of the agent: {:#?}", self.log());
        }
    }
}

/// Runs the program with arguments after which it ends by itself; its exit code and standard error.
pub fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let state = TempDir::new().unwrap();
    let errors = state.path().join("stderr");
    let mut child = Command::new(PROGRAM)
        .args(arguments)
        .arg(format!("--state.directory={}", state.path().display()))
        .env("ENERGY_AGENT_RUN_DIRECTORY", state.path().join("run"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&errors).unwrap())
        .spawn()
        .unwrap();
    let mut patience = Patience::new();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if patience.is_over() {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        thread::sleep(Duration::from_millis(10));
    };
    let text = fs::read_to_string(&errors).unwrap();
    (status.unwrap_or_else(|| panic!("{arguments:?} did not end: {text}")).code(), text)
}

/// A copy of the program that every user may run; the checkout may lie in a folder of one user. Made by another process: a
/// file that a thread here had open for writing, a child of another thread may still have so, and nobody can run it.
pub fn program_for_all(folder: &Path) -> PathBuf {
    let program = folder.join("energy-agent");
    assert!(Command::new("cp").arg(PROGRAM).arg(&program).status().unwrap().success());
    program
}

/// Looks every 20 ms until there is something; panics when its [`Patience`] is over.
pub fn wait_for<T>(what: &str, check: impl FnMut() -> Option<T>) -> T {
    wait_until(what, Duration::from_millis(20), check)
}

/// The lines, as soon as there are `count`; those there are when its [`Patience`] is over.
pub fn wait_for_lines(count: usize, mut lines: impl FnMut() -> Vec<String>) -> Vec<String> {
    let mut patience = Patience::new();
    loop {
        let found = lines();
        if found.len() >= count || patience.is_over() {
            return found;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn wait_until<T>(what: &str, pause: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let mut patience = Patience::new();
    loop {
        if let Some(found) = check() {
            return found;
        }
        patience.check(what);
        thread::sleep(pause);
    }
}
