//! The log's way to standard error: lines wait in a queue, and a thread of its own writes them. So a reader that does not
//! read (a full pipe, a journal that hangs) stops nothing else; what has no room is counted and said when it reads again.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;

/// Most bytes that wait; some hundred lines, as many as a pipe takes.
const BYTES_MAX: usize = 64 * 1024;
/// Between two tries where standard error is full and does not block.
const FULL: Duration = Duration::from_millis(50);

/// Lines that were lost since the start.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Lines of the log that were lost since the start, as nobody read standard error.
#[must_use]
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Takes lines and never blocks; each write is one line. Copies share the queue.
#[derive(Clone, Debug)]
pub struct Log(Arc<LogQueue>);

#[derive(Debug, Default)]
struct LogQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// A line is on its way to standard error.
    writing: bool,
    /// Lines lost since that was said last.
    lost: u64,
}

impl Log {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// When there is no standard error, or no thread can be started.
    pub fn to_stderr() -> io::Result<Self> {
        // Not by `io::stderr`, whose lock a line that hangs would keep from everybody else.
        let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let log = Self(Arc::default());
        let queue = Arc::clone(&log.0);
        thread::Builder::new().name("log".to_owned()).spawn(move || queue.write_all_to(out))?;
        Ok(log)
    }

    /// Waits until all lines are written, no longer than `patience`.
    pub fn flush(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut state = self.0.state();
        while state.writing || !state.lines.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.0.state();
        if state.bytes + line.len() > BYTES_MAX {
            state.lost += 1;
            LOST.fetch_add(1, Ordering::Relaxed);
        } else {
            state.bytes += line.len();
            state.lines.push_back(line.to_owned());
            self.0.changed.notify_all();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogQueue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all_to(&self, mut out: File) {
        let mut state = self.state();
        loop {
            let Some(line) = state.lines.pop_front() else {
                let lost = std::mem::take(&mut state.lost);
                if lost == 0 {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                } else {
                    drop(state);
                    warn!(lines = lost, "log lines were lost, because standard error was not read");
                    state = self.state();
                }
                continue;
            };
            state.bytes -= line.len();
            state.writing = true;
            drop(state);
            let written = write(&mut out, &line);
            state = self.state();
            state.writing = false;
            if written.is_err() {
                // Nobody is there to read that it was lost.
                LOST.fetch_add(1, Ordering::Relaxed);
            }
            self.changed.notify_all();
        }
    }
}

fn write(out: &mut File, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match out.write(line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => line = &line[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(FULL),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
