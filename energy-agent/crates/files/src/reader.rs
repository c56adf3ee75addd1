//! Readings of files on threads of their own. One that does not return in time is given up and begun anew, so that a file
//! system that hangs once does not stop configuration; how many may hang at a time is bounded.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::config_file::{FileError, HANGS};

/// Threads of a source that may be reading at a time. More would be of no use: each is begun later than the one before, the
/// last after three quarters of a minute.
const THREADS: usize = 4;

/// Why a reading gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It was begun and has not returned.
    GivenUp,
    /// None could be begun: earlier ones have not returned.
    Waiting,
}

/// The threads of one source. A clone shares them.
#[derive(Clone, Debug)]
pub struct FileReader {
    turns: Arc<Semaphore>,
    limit: Duration,
}

impl Default for FileReader {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(THREADS)), limit: HANGS }
    }
}

impl FileReader {
    /// What `read` gives. What it gives after it was given up, is dropped.
    ///
    /// # Errors
    /// When it does not return in time, or panics.
    pub async fn read<T: Send + 'static>(&self, read: impl FnOnce() -> T + Send + 'static) -> Result<T, NoAnswer> {
        let free = self.turns.available_permits();
        if let Some(lost) = THREADS.checked_sub(free).filter(|lost| *lost > 0) {
            // Until one of them returns, or twice as long as the last time.
            let pause = self.limit.saturating_mul(1 << (lost - 1).min(8));
            let more = u32::try_from(free + 1).unwrap_or(1);
            drop(timeout(pause, self.turns.acquire_many(more)).await);
        }
        // Others may be reading at this moment, and return soon.
        let turn = timeout(self.limit, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(NoAnswer::Waiting) };
        let reading = spawn_blocking(move || {
            let found = read();
            // However long that took.
            drop(turn);
            found
        });
        match timeout(self.limit, reading).await {
            Ok(Ok(found)) => Ok(found),
            _ => Err(NoAnswer::GivenUp),
        }
    }
}

/// The same at the start, where nothing else waits.
///
/// # Errors
/// When `read` does not return in time.
pub fn at_start<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T, FileError> {
    let (tell, told) = mpsc::channel();
    let reading = thread::Builder::new().name("config".to_owned()).spawn(move || {
        // Nobody listens any more when it comes too late.
        let _ = tell.send(read());
    });
    reading.map_err(FileError::from)?;
    told.recv_timeout(HANGS).map_err(|_| FileError::Hangs)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_reading_that_hangs_is_begun_anew_on_a_few_more_threads_and_then_waits() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let reader = FileReader { limit: Duration::from_millis(50), ..FileReader::default() };
        // For what does return, however long that takes on this machine.
        let patient = FileReader { limit: Duration::from_secs(60), ..reader.clone() };
        let begun = Arc::new(AtomicUsize::new(0));
        // Held: every reading hangs.
        let lock = Arc::new(Mutex::new(()));
        let read = |reader: &FileReader| {
            let reader = reader.clone();
            let (begun, lock) = (Arc::clone(&begun), Arc::clone(&lock));
            async move {
                let hanging = move || {
                    let number = begun.fetch_add(1, Ordering::SeqCst);
                    drop(lock.lock());
                    number
                };
                reader.read(hanging).await
            }
        };
        // More than there are threads, at once, and none hangs.
        let one = |number: usize| {
            let patient = patient.clone();
            runtime.spawn(async move { patient.read(move || number).await })
        };
        let at_once: Vec<_> = (0..9).map(one).collect();
        let found: Vec<_> = at_once.into_iter().map(|one| runtime.block_on(one).unwrap()).collect();
        assert_eq!(found, (0..9).map(Ok).collect::<Vec<_>>());
        let held = lock.lock().unwrap();
        let outcomes: Vec<_> = (0..6).map(|_| runtime.block_on(read(&reader))).collect();
        assert_eq!(outcomes, [[Err(NoAnswer::GivenUp); 4].as_slice(), &[Err(NoAnswer::Waiting); 2]].concat());
        while begun.load(Ordering::SeqCst) < 4 {
            std::thread::yield_now();
        }
        drop(held);
        // The next one that is begun, not what the lost ones have found.
        assert_eq!(runtime.block_on(read(&patient)), Ok(4));
        // A reading that panics takes no thread away.
        for _ in 0..5 {
            assert_eq!(runtime.block_on(reader.read(|| panic!("of the test"))), Err::<(), _>(NoAnswer::GivenUp));
        }
        assert_eq!(runtime.block_on(patient.read(|| 7)), Ok(7));
    }
}
