//! Work on a file that may never come back: a driver can hang in a read, a write or an open, and nothing can call the
//! thread back. A thread of its own does the work and the caller waits for a stated time. A file that does not answer by
//! then is left alone until it does; its thread is left with it, and another one goes on with the other files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

/// A caller waits this long for a file. While others hang it waits for a part of that, so that a driver which hangs with
/// all of its files costs a tick no more than two seconds, once.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_MIN: Duration = Duration::from_millis(5);
/// So many times an errand waits for its turn behind those of other callers.
const TURNS: usize = 3;
/// Most files that may hang at a time. With more, no file is read any more until one comes back.
const HANGING_MAX: usize = 256;
/// The work is a few small reads.
const STACK_BYTES: usize = 256 * 1024;

/// The errands of this process.
static OFFICE: Office = Office::new(PATIENCE);

struct Office {
    state: Mutex<OfficeState>,
    come: Condvar,
    /// How long a caller waits for a file while no other hangs.
    patience: Duration,
}

struct OfficeState {
    waiting: VecDeque<Job>,
    next_id: u64,
    /// Errands that were begun and are not back.
    running: BTreeSet<u64>,
    /// Whether there is a thread that takes jobs, at work or not.
    has_worker: bool,
    /// Errands that nobody waits for any more, by what they are about.
    hanging: BTreeMap<Arc<Path>, (u64, Instant)>,
}

struct Job {
    id: u64,
    path: Arc<Path>,
    work: Box<dyn FnOnce() + Send>,
}

/// The answer to an errand, which is on its way.
pub struct Errand<T> {
    office: &'static Office,
    path: Arc<Path>,
    /// `None`: the errand was not begun, for this reason.
    sent: Result<(u64, Receiver<T>), io::Error>,
}

/// Has `work` done, which is about `path`; of one path one errand at a time. [`Errand::answer`] waits for it, so that
/// several are under way together.
pub fn send<T: Send + 'static>(path: &Path, work: impl FnOnce() -> T + Send + 'static) -> Errand<T> {
    OFFICE.send(path, work)
}

/// Has `work` done, which is about `path`, and waits for it.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] when it does not come back in time, or an earlier one about this path has not yet.
pub fn run<T: Send + 'static>(path: &Path, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    send(path, work).answer()
}

impl<T> Errand<T> {
    /// # Errors
    /// As [`run`].
    pub fn answer(self) -> io::Result<T> {
        let Self { office, path, sent } = self;
        let (id, answers) = sent?;
        for _ in 0..TURNS {
            let patience = office.patience();
            match answers.recv_timeout(patience) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the work on this file was not done"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if office.give_up(id, &path) {
                // It may have come at the last moment.
                return answers.try_recv().map_err(|_| silent(patience));
            }
            // It has not begun, as another caller's hangs; that one has given up by now.
        }
        office.state().waiting.retain(|job| job.id != id);
        Err(io::Error::new(io::ErrorKind::TimedOut, "other files hang, so this file was not read"))
    }
}

fn silent(time: Duration) -> io::Error {
    let text = format!(
        "no answer for {} ms; the driver hangs, and the agent does not use it until it answers",
        time.as_millis()
    );
    io::Error::new(io::ErrorKind::TimedOut, text)
}

impl OfficeState {
    const fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            next_id: 0,
            running: BTreeSet::new(),
            has_worker: false,
            hanging: BTreeMap::new(),
        }
    }
}

impl Office {
    const fn new(patience: Duration) -> Self {
        Self { state: Mutex::new(OfficeState::new()), come: Condvar::new(), patience }
    }

    fn send<T: Send + 'static>(&'static self, path: &Path, work: impl FnOnce() -> T + Send + 'static) -> Errand<T> {
        let path: Arc<Path> = Arc::from(path);
        let sent = self.take(&path, work);
        Errand { office: self, path, sent }
    }

    fn state(&self) -> MutexGuard<'_, OfficeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take<T: Send + 'static>(
        &'static self,
        path: &Arc<Path>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<(u64, Receiver<T>)> {
        let (send, answers) = channel();
        let mut state = self.state();
        if let Some((_, since)) = state.hanging.get(path) {
            return Err(silent(since.elapsed()));
        }
        let id = state.next_id;
        state.next_id += 1;
        let work = Box::new(move || {
            // A panic has been noticed by its hook; the thread goes on with the other files. Nobody may wait any more.
            let _ = catch_unwind(AssertUnwindSafe(work)).map(|answer| send.send(answer));
        });
        state.waiting.push_back(Job { id, path: Arc::clone(path), work });
        self.ensure_worker(&mut state)?;
        drop(state);
        self.come.notify_one();
        Ok((id, answers))
    }

    fn ensure_worker(&'static self, state: &mut OfficeState) -> io::Result<()> {
        if !state.has_worker {
            if state.hanging.len() >= HANGING_MAX {
                state.waiting.clear();
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{HANGING_MAX} other files hang already")));
            }
            thread::Builder::new().name("files".to_owned()).stack_size(STACK_BYTES).spawn(|| self.work())?;
            state.has_worker = true;
        }
        Ok(())
    }

    fn patience(&self) -> Duration {
        let hanging = u32::try_from(self.state().hanging.len()).unwrap_or(u32::MAX);
        (self.patience / hanging.saturating_add(1)).max(PATIENCE_MIN)
    }

    /// Nobody waits any more: the path hangs, and another thread takes over. `false`: the work has not begun.
    fn give_up(&'static self, id: u64, path: &Arc<Path>) -> bool {
        let mut state = self.state();
        if state.waiting.iter().any(|job| job.id == id) {
            // Where no thread takes over, all that wait are let go.
            let _ = self.ensure_worker(&mut state);
            return false;
        }
        if !state.running.contains(&id) {
            // Back at the last moment.
            return true;
        }
        state.hanging.insert(Arc::clone(path), (id, Instant::now()));
        state.has_worker = false;
        if !state.waiting.is_empty() {
            let _ = self.ensure_worker(&mut state);
        }
        drop(state);
        warn!(path = %path.display(), "the file does not answer, the agent does not use it until it does");
        true
    }

    /// The life of a thread: it ends when another one has taken over.
    fn work(&'static self) {
        let mut state = self.state();
        loop {
            let Some(Job { id, path, work }) = state.waiting.pop_front() else {
                state = self.come.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.running.insert(id);
            drop(state);
            work();
            state = self.state();
            state.running.remove(&id);
            if let Some((_, since)) = state.hanging.get(&path).filter(|(hanging, _)| *hanging == id).copied() {
                state.hanging.remove(&path);
                let replaced = std::mem::replace(&mut state.has_worker, true);
                drop(state);
                info!(path = %path.display(), seconds = since.elapsed().as_secs(), "the file answers again");
                if replaced {
                    return;
                }
                state = self.state();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc::Sender;

    use super::*;

    /// An errand that comes back when its sender is dropped.
    fn hang(office: &'static Office, path: &Path) -> (Sender<()>, io::Result<()>) {
        let (release, held) = channel::<()>();
        let outcome = office.send(path, move || {
            let _ = held.recv();
        });
        let outcome = outcome.answer();
        (release, outcome)
    }

    fn wait_for_answer(office: &'static Office, path: &Path) -> u32 {
        for _ in 0..3000 {
            if let Ok(answer) = office.send(path, || 7).answer() {
                return answer;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{} does not answer again", path.display());
    }

    #[test]
    fn a_file_that_hangs_is_left_alone_until_it_answers_and_the_others_go_on() {
        static OWN: Office = Office::new(PATIENCE);
        let [slow, slower, well] = ["a", "b", "c"].map(|name| PathBuf::from("/errand-test").join(name));
        assert_eq!(wait_for_answer(&OWN, &well), 7);
        let (release, outcome) = hang(&OWN, &slow);
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(OWN.send(&slow, || 0).answer().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(wait_for_answer(&OWN, &well), 7);
        let (release_slower, outcome) = hang(&OWN, &slower);
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(wait_for_answer(&OWN, &well), 7);
        drop((release, release_slower));
        assert_eq!((wait_for_answer(&OWN, &slow), wait_for_answer(&OWN, &slower)), (7, 7));
    }

    #[test]
    fn of_errands_that_were_sent_together_the_one_that_hangs_keeps_none_behind_it() {
        // A busy machine is not taken for a file that hangs.
        static OWN: Office = Office::new(Duration::from_secs(5));
        let paths: Vec<PathBuf> = (0..4).map(|number| PathBuf::from(format!("/errand-test/{number}"))).collect();
        let (release, held) = channel::<()>();
        let mut held = Some(held);
        let errands: Vec<Errand<usize>> = paths
            .iter()
            .enumerate()
            .map(|(number, path)| {
                let held = held.take_if(|_| number == 1);
                OWN.send(path, move || {
                    let _ = held.map(|held| held.recv());
                    number
                })
            })
            .collect();
        let answers: Vec<Option<usize>> = errands.into_iter().map(|errand| errand.answer().ok()).collect();
        drop(release);
        assert_eq!(answers, [Some(0), None, Some(2), Some(3)]);
    }
}
