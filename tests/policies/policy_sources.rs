//! Policies in files and ConfigMaps, as the agent follows them: against an API server, with the faults that it and the
//! network have.
#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod cluster;
mod files;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::agent::{wait_for, wait_for_lines};
use clap::Parser as _;
use energy_agent::config::Cli;
use energy_agent::policies::start;
use energy_model::capping::policy::{Amount, PolicyName};
use energy_model::capping::source::{ActivePolicies, Sourced};
use energy_model::capping::status::SourceState;
use tokio::sync::{oneshot, watch};

/// A document of policies `NAME=WATTS`; a word in place of a number is refused.
fn yaml(policies: &str) -> String {
    let policy = |word: &str| {
        let (name, watts) = word.split_once('=').unwrap();
        format!("- {{name: {name}, selector: {{selectAll: true}}, budget: {{watts: {watts}, components: [cpu]}}}}\n")
    };
    match policies {
        "" => "version: 1\npolicies: []\n".to_owned(),
        _ => format!("version: 1\npolicies:\n{}", policies.split(' ').map(policy).collect::<String>()),
    }
}

/// Replaces a file in one step, as editors and programs do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// The sources, followed on a thread of their own, with everything they publish and log.
struct Follower {
    in_force: watch::Receiver<Arc<ActivePolicies>>,
    /// The first value, before anything was published.
    first: Arc<ActivePolicies>,
    published: Arc<Mutex<Vec<Arc<ActivePolicies>>>>,
    log: Log,
    /// Ends the thread when dropped.
    _end: oneshot::Sender<()>,
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Follower {
    /// Follows what the flags name.
    fn start(flags: &[&str]) -> Self {
        let config = Cli::try_parse_from([&["energy-agent"], flags].concat()).unwrap().run;
        let log = Log::default();
        let published = Arc::new(Mutex::new(Vec::new()));
        let (end, ended) = oneshot::channel::<()>();
        let (send, receive) = std::sync::mpsc::channel();
        let (writer, kept) = (log.clone(), Arc::clone(&published));
        thread::spawn(move || {
            let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
            tracing::subscriber::with_default(subscriber, || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let mut in_force = start(&config, &Arc::default());
                    let first = Arc::clone(&in_force.borrow_and_update());
                    send.send((in_force.clone(), first)).unwrap();
                    let keep = async {
                        while in_force.changed().await.is_ok() {
                            let now = Arc::clone(&in_force.borrow_and_update());
                            kept.lock().unwrap().push(now);
                        }
                    };
                    tokio::select! {
                        () = keep => {}
                        _ = ended => {}
                    }
                });
                runtime.shutdown_background();
            });
        });
        let (in_force, first) = receive.recv().unwrap();
        Self { in_force, first, published, log, _end: end }
    }

    /// What was published last: [`Self::publications`] counts it.
    fn now(&self) -> Arc<ActivePolicies> {
        Arc::clone(self.published.lock().unwrap().last().unwrap_or(&self.first))
    }

    /// `NAME=WATTS` of what is in force.
    fn policies(&self) -> Vec<String> {
        policies(&self.now())
    }

    /// Waits until this is in force.
    fn wait_for(&self, wanted: &[&str]) {
        wait_for(&format!("{wanted:?} to be in force"), || (self.policies() == wanted).then_some(()));
    }

    /// Waits for a state of the source of this number.
    fn wait_for_state(&self, source: usize, reason: &str) -> SourceState {
        wait_for(&format!("source {source} to be {reason}"), || {
            self.now().sources.get(source).filter(|state| state.reason.as_str() == reason).cloned()
        })
    }

    fn publications(&self) -> usize {
        self.published.lock().unwrap().len()
    }

    /// Waits until `count` lines of the log contain `text`; panics if there are more.
    #[track_caller]
    fn assert_logged(&self, text: &str, count: usize) {
        let lines = wait_for_lines(count, || self.logged(text));
        assert_eq!(lines.len(), count, "lines with {text:?}: {lines:#?} in {:#?}", self.logged(""));
    }

    fn logged(&self, text: &str) -> Vec<String> {
        let log = String::from_utf8(self.log.0.lock().unwrap().clone()).unwrap();
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Whether an earlier version of the policy is kept; `None` where nothing is refused.
    fn refused(&self, policy: Option<&str>) -> Option<bool> {
        let policy = policy.map(|name| PolicyName { namespace: "".into(), name: name.into(), ..PolicyName::default() });
        self.now().problems.iter().find(|problem| problem.policy == policy).map(|problem| problem.kept)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("in force: {:#?}\nlog:\n{}", self.now(), self.logged("").join("\n"));
        }
    }
}

fn policies(in_force: &ActivePolicies) -> Vec<String> {
    let text = |(name, sourced): (&PolicyName, &Sourced)| match sourced.policy.budget.amount {
        Amount::Watts(watts) => format!("{name}={watts}"),
        Amount::PercentOfPeak { percent, .. } => format!("{name}={percent}%"),
    };
    in_force.policies.iter().map(text).collect()
}

/// Publications that so much time allows: two a second.
fn at_most(time: Duration) -> usize {
    1 + usize::try_from(time.as_millis() / 500).unwrap()
}

#[test]
fn without_a_source_nothing_is_in_force_and_that_is_known() {
    let follower = Follower::start(&[]);
    assert_eq!(*follower.now(), ActivePolicies { complete: true, ..ActivePolicies::default() });
    thread::sleep(Duration::from_millis(300));
    assert!(follower.in_force.has_changed().is_ok(), "the channel stays open");
}
