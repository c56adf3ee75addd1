//! A look at a file that others write: what it holds once it reads the same twice, as an editor may be in the middle of
//! writing it.

use std::time::Duration;

use crate::reader::{FileReader, NoAnswer};

/// Time between two readings of a file that has changed.
const SETTLE: Duration = Duration::from_millis(50);
/// Readings of one look. A file that differs in each of them is left for the next look.
const READINGS: usize = 6;

/// What a look found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look<T> {
    /// As it was seen last.
    Same,
    Found(T),
    /// It was different at each reading.
    Changing,
    /// The file system does not answer.
    Lost(NoAnswer),
}

/// Calls `read` until it gives the same twice or what was `seen` last, on a thread of `reader`'s: a file system that hangs
/// must stop nobody else.
pub async fn look<T>(
    reader: &FileReader,
    seen: impl Fn(&T) -> bool,
    read: impl Fn() -> T + Clone + Send + 'static,
) -> Look<T>
where
    T: PartialEq + Send + 'static,
{
    let mut last = None;
    for _ in 0..READINGS {
        if last.is_some() {
            tokio::time::sleep(SETTLE).await;
        }
        let found = match reader.read(read.clone()).await {
            Ok(found) => found,
            Err(lost) => return Look::Lost(lost),
        };
        if seen(&found) {
            return Look::Same;
        }
        if last.as_ref() == Some(&found) {
            return Look::Found(found);
        }
        last = Some(found);
    }
    Look::Changing
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The outcome, and how often was read.
    fn look_at(seen: Option<usize>, content: fn(usize) -> usize) -> (Look<usize>, usize) {
        let readings = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&readings);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let reader = FileReader::default();
        let look = look(&reader, |found| seen == Some(*found), move || content(counted.fetch_add(1, Ordering::SeqCst)));
        (runtime.block_on(look), readings.load(Ordering::SeqCst))
    }

    #[test]
    fn a_file_counts_when_it_stays_the_same_and_one_that_never_does_ends_the_look() {
        assert_eq!(look_at(Some(7), |_| 7), (Look::Same, 1));
        assert_eq!(look_at(Some(7), |_| 8), (Look::Found(8), 2));
        assert_eq!(look_at(None, |reading| reading.min(2)), (Look::Found(2), 4));
        assert_eq!(look_at(Some(7), |reading| if reading == 0 { 8 } else { 7 }), (Look::Same, 2));
        assert_eq!(look_at(Some(7), |reading| reading + 8), (Look::Changing, 6));
    }
}
