//! What a run is doing, on standard error: one line that changes on a terminal, and elsewhere a line for each change.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use energy_cluster::job::{Phase, RunEnd, RunSight, Submitted};
use energy_model::printable::{cut, printable};
use ratatui::crossterm::terminal;

/// Where the width of the terminal is not known.
const WIDTH: usize = 80;

pub(super) struct Progress {
    /// The object.
    name: String,
    is_terminal: bool,
    /// What was written last, without the time.
    last: String,
}

impl Progress {
    pub(super) fn new(submitted: &Submitted) -> Self {
        let Submitted { kind, namespace, name, .. } = submitted;
        Self {
            name: format!("{kind} {namespace}/{name}"),
            is_terminal: io::stderr().is_terminal(),
            last: String::new(),
        }
    }

    /// The run at a moment.
    pub(super) fn show(&mut self, sight: &RunSight<'_>) {
        if matches!(sight.phase, Phase::Ended(_)) {
            return;
        }
        let mut text = state(sight.phase, &sight.course.pods().iter().map(|pod| pod.node.as_str()).collect::<Vec<_>>());
        if let Some(outage) = sight.outage {
            text = format!("{text} when last heard of; {}", cut(&outage.to_string()));
        }
        self.write(&text, Some(sight.elapsed));
    }

    /// How it ended.
    pub(super) fn ended(&mut self, end: &RunEnd) {
        let text = match end {
            RunEnd::Complete => "completed".to_owned(),
            RunEnd::Failed { reason, message } => format!("failed: {}", joined(reason, message)),
            RunEnd::Deleted => "was deleted by somebody else".to_owned(),
            RunEnd::NotStarted(obstacle) => {
                let why = joined(&obstacle.reason, &obstacle.message);
                format!("did not start within --start-timeout: {why}")
            }
            RunEnd::TimedOut => "did not end within --timeout".to_owned(),
        };
        self.clear();
        eprintln!("{}: {}", self.name, printable(&text));
        self.last.clear();
    }

    /// What is waited for after its end.
    pub(super) fn wait(&mut self, what: &str, elapsed: Duration) {
        self.write(what, Some(elapsed));
    }

    /// Leaves the line for others.
    pub(super) fn end(&mut self) {
        self.clear();
    }

    fn write(&mut self, text: &str, elapsed: Option<Duration>) {
        let text = printable(text).into_owned();
        if self.is_terminal {
            let time = elapsed.map(|elapsed| format!(" ({} s)", elapsed.as_secs())).unwrap_or_default();
            let width = terminal::size().map_or(WIDTH, |(columns, _)| usize::from(columns)).saturating_sub(1);
            let room = width.saturating_sub(self.name.chars().count() + 2 + time.chars().count());
            let shown: String = text.chars().take(room).collect();
            eprint!("\r\x1b[K{}: {shown}{time}", self.name);
            let _ = io::stderr().flush();
        } else if text != self.last {
            eprintln!("{}: {text}", self.name);
        }
        self.last = text;
    }

    fn clear(&self) {
        if self.is_terminal && !self.last.is_empty() {
            eprint!("\r\x1b[K");
        }
    }
}

fn state(phase: &Phase, nodes: &[&str]) -> String {
    match phase {
        Phase::Waiting(obstacle) => format!("waits: {}", joined(&obstacle.reason, &obstacle.message)),
        Phase::Running(1) => match nodes {
            [node] if !node.is_empty() => format!("runs on {node}"),
            _ => "1 pod runs".to_owned(),
        },
        Phase::Running(pods) => format!("{pods} pods run"),
        Phase::Ended(end) => end.reason().to_owned(),
    }
}

fn joined(reason: &str, message: &str) -> String {
    if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") }
}
