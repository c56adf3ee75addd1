//! A sensor's file, read on a thread of its own: a driver that asks the board's controller by ACPI or IPMI can take seconds
//! for an answer, or never get one, and the tick must not wait for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::number;
use crate::meter::deadline::{Deadline, PATIENCE};

/// One file and the thread that reads it. At most one reading is asked for at a time; the thread ends with this.
#[derive(Debug)]
pub struct SlowFile {
    pub path: PathBuf,
    patience: Duration,
    requests: Sender<()>,
    answers: Receiver<SlowAnswer>,
    watch: Deadline,
}

#[derive(Debug)]
struct SlowAnswer {
    value: io::Result<u64>,
    took: Duration,
}

impl SlowFile {
    /// `patience`: an answer that takes longer is not waited for.
    pub fn new(path: &Path, patience: Duration) -> Self {
        let (requests, incoming) = channel::<()>();
        let (send, answers) = channel();
        let file = path.to_owned();
        let read = move || {
            while incoming.recv().is_ok() {
                let began = Instant::now();
                let value = number(&file);
                if send.send(SlowAnswer { value, took: began.elapsed() }).is_err() {
                    break;
                }
            }
        };
        // Without a thread each request fails, which is said.
        drop(thread::Builder::new().name("hwmon".to_owned()).stack_size(128 * 1024).spawn(read));
        Self { path: path.to_owned(), patience, requests, answers, watch: Deadline::default() }
    }

    /// Asks for a reading, unless one is out. Returns what came too late for the time before.
    pub fn ask(&mut self, now: Instant) -> Option<io::Result<u64>> {
        let late = self.answers.try_recv().ok().map(|answer| self.answered(answer));
        // One reading a time: where a late one is there and the next will be in time, that one has to wait.
        if !self.watch.is_waiting() && (late.is_none() || !self.watch.is_prompt()) {
            if self.requests.send(()).is_err() {
                return Some(Err(io::Error::other("no thread to read it with")));
            }
            self.watch.ask(now);
        }
        late
    }

    /// The reading that was asked for, awaited until then if it has always come at once.
    pub fn take(&mut self, until: Instant) -> Option<io::Result<u64>> {
        if !self.watch.is_awaited() {
            return None;
        }
        let answer = self.answers.recv_timeout(until.saturating_duration_since(Instant::now()));
        self.watch.give_up();
        answer.ok().map(|answer| self.answered(answer))
    }

    /// Whether no answer comes since this moment.
    pub(crate) fn begins_to_hang(&mut self, now: Instant) -> bool {
        self.watch.begins_to_hang(now)
    }

    pub const fn hangs(&self) -> bool {
        self.watch.is_hanging()
    }

    fn answered(&mut self, answer: SlowAnswer) -> io::Result<u64> {
        let SlowAnswer { value, took } = answer;
        self.watch.answered(if took < self.patience { Duration::ZERO } else { took.max(PATIENCE) });
        value
    }
}
